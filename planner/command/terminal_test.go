package command_test

import (
	"strings"
	"testing"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// What a user puts into a job's id steers nobody's terminal, and takes no row
// out of its table.
func TestForeignTextIsHarmless(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	const id = "a\nb\x1b[2J\x1b]0;title\a\r\u202ec\u009b31m"
	g := gang("default", id, contract.StageQueued)
	g.Sentence = "waits for \x1b[5;1H" + id
	s.planner.Set(g, view.Event{})
	for _, args := range [][]string{{"queue"}, {"status"}, {"status", id}, {"why", id}, {"status", "no\x1b[2Jbody"}} {
		r := s.run(args...)
		for _, bad := range []string{"\x1b", "\r", "\a", "\u202e", "\u009b"} {
			must.StrNotContains(t, r.stdout+r.stderr, bad, must.Sprint(args))
		}
	}
	lines := strings.Split(strings.TrimSpace(s.run("queue").stdout), "\n")
	must.Len(t, 2, lines, must.Sprint(lines))
	// Programs get what there is.
	must.Eq(t, id, s.run("status", "-t", "{{.Job}}", id).stdout[:len(id)])
}
