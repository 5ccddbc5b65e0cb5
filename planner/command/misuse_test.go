package command_test

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/command"
)

func TestUsage(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.parts = command.Parts{Agent: noAgent, Dev: noDev}
	for _, test := range []struct {
		args []string
		says string
	}{
		{nil, "Usage: muster"}, {[]string{"bogus"}, "there is no command \"bogus\"; muster -h lists them"}, {[]string{"stauts"}, "did you mean \"status\"?"}, {[]string{"qeue", "status"}, "did you mean \"queue\"?"},
		{[]string{"job"}, "Subcommands"}, {[]string{"job", "bogus"}, "muster job has no command \"bogus\"; there is plan, run, stop, validate"}, {[]string{"job", "runn"}, "did you mean \"run\"?"},
		{[]string{"-address=http://x", "queue", "status"}, "muster queue status -address=http://x"}, {[]string{"-json"}, "and no command"},
		{[]string{"queue", "-stage=never"}, "is none of submitted, "}, {[]string{"dev", "-nodes=-1"}, "from 1 on"}, {[]string{"dev", "-nodes=x"}, "a whole number"}, {[]string{"dev", "-job=gone.hcl"}, "gone.hcl"},
		{[]string{"job", "run"}, "an argument is missing"}, {[]string{"job", "run", "a", "b"}, "at most 1"}, {[]string{"queue", "x"}, "takes no arguments"},
		{[]string{"queue", "-bogus"}, "muster queue -h"}, {[]string{"queue", "-json", "-t", "x"}, "exclude"}, {[]string{"queue", "-t", "{{"}, "read template"},
		{[]string{"queue", "-t", "{{.Nothing}}"}, "fill template"}, {[]string{"job", "run", "-until=never", s.file("the job")}, "none of queued"},
		{[]string{"job", "run", "gone.hcl"}, "gone.hcl"}, {[]string{"job", "run", s.file(" \n")}, "empty"}, {[]string{"job", "run", s.file("{broken")}, "starts like JSON"},
		{[]string{"job", "run", "-var", "x", s.file("the job")}, "not name=value"}, {[]string{"job", "run", "-check-index=-3", s.file("the job")}, "whole number"},
		{[]string{"job", "run", "-namespace=*", s.file("the job")}, "one namespace"}, {[]string{"queue", "-address=ftp://x"}, "-address"},
		{[]string{"job", "run", "-timeout=long", s.file("the job")}, "-timeout: it is a length of time such as 90s"},
	} {
		r := s.run(test.args...)
		must.Eq(t, command.ExitError, r.code, must.Sprint(test.args))
		must.StrContains(t, r.stdout+r.stderr, test.says, must.Sprint(test.args))
	}
	must.SliceEmpty(t, s.planner.Calls())
	must.MapContainsKey(t, s.run("bogus", "-json").document(t), "error")
	for _, args := range [][]string{{"-h"}, {"job", "-h"}, {"job", "run", "-h"}, {"help", "why"}, {"version"}, {"-version"}} {
		must.Eq(t, 0, s.run(args...).code, must.Sprint(args))
	}
	must.Eq(t, "Muster v0.1.0\n", s.run("version").stdout)
	must.Eq(t, any("0.1.0"), s.run("version", "-json").document(t)["version"])
}
