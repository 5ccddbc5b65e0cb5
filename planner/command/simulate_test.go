package command_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/command"
)

func TestSimulate(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		must.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	trace := write("jobs.csv", "id,queue,user,name,submit_s,run_s,members,cards,limit_s,priority\n"+
		"big,research,alice,big,0,3600,4,8,3600,50\n"+
		"small,research,bob,small,10,600,1,8,600,50\n"+
		"low,research,bob,low,20,600,1,8,600,10\n")
	fifo := write("fifo.hcl", "queue \"research\" {\n  order = \"fifo\"\n}\n")
	other := write("other.hcl", "queue \"elsewhere\" {\n}\n")

	r := s.run("simulate", "-nodes=4x8", "-json", trace)
	must.Eq(t, 0, r.code, must.Sprint(r.stderr))
	doc := r.document(t)
	must.Eq(t, any(4.0), doc["nodes"])
	figures := doc["figures"].([]any)
	must.Len(t, 1, figures)
	// Four nodes are taken for an hour by the first, then the others run side by
	// side.
	must.Eq(t, any(4200.0), figures[0].(map[string]any)["makespan_s"])
	must.Eq(t, any(3.0), figures[0].(map[string]any)["done"])
	again := s.run("simulate", "-nodes=4x8", "-json", trace).document(t)["figures"].([]any)[0].(map[string]any)
	for _, measured := range []string{"cycle_p50_ms", "cycle_p99_ms"} {
		again[measured] = figures[0].(map[string]any)[measured]
	}
	must.Eq(t, figures[0].(map[string]any), again, must.Sprint("the same seed, the same result"))

	r = s.run("simulate", "-nodes=2x8", "-nodes=2x8:H200", "-policy=default="+fifo, "-policy=again="+fifo, trace)
	must.Eq(t, 0, r.code, must.Sprint(r.stderr))
	must.StrContains(t, r.stdout, "Mean wait of the largest")
	must.StrContains(t, r.stdout, "again")

	must.StrNotContains(t, r.stderr, "Warning")
	r = s.run("simulate", "-nodes=64x4", write("wide.csv", "job,submit_s,run_s,procs,req_time_s\n1,0,60,5,60\n2,0,60,4,60\n"))
	must.Eq(t, 0, r.code, must.Sprint(r.stderr))
	must.StrContains(t, r.stderr, "1 job asks for more cards on one node than any node has (4), and will never run")
	must.StrContains(t, r.stdout, "1 of 2")

	plots := filepath.Join(dir, "plots")
	r = s.run("simulate", "-nodes=4x8", "-svg="+plots, "-policy=a="+fifo, "-policy=b/c="+fifo, trace)
	must.Eq(t, 0, r.code, must.Sprint(r.stderr))
	for _, name := range []string{"queue", "wanted", "utilisation", "fragmentation", "waits-a", "waits-b-c"} {
		svg, err := os.ReadFile(filepath.Join(plots, name+".svg"))
		must.NoError(t, err)
		must.StrHasPrefix(t, "<svg ", string(svg))
		must.StrNotContains(t, string(svg), "no data", must.Sprint(name))
	}

	snap := filepath.Join(dir, "s.json")
	must.Eq(t, 0, s.run("snapshot", "-o", snap).code)
	for _, test := range []struct {
		args []string
		says string
	}{
		{[]string{trace}, "exactly one of -nodes"}, {[]string{"-nodes=4x8", "-snapshot=" + snap, trace}, "exactly one of -nodes"}, {[]string{"-nodes=4", trace}, "countxcards"},
		{[]string{"-nodes=0x8", trace}, "countxcards"}, {[]string{"-nodes=4x8", "/gone.csv"}, "gone.csv"}, {[]string{"-nodes=4x8", write("empty.csv", "")}, "empty"},
		{[]string{"-inventory=" + trace, trace}, "holds no nodes"}, {[]string{"-nodes=4x8", "-policy=x=" + other, trace}, `queue "research", which the policy x does not define`},
	} {
		r := s.run(append([]string{"simulate"}, test.args...)...)
		must.NotEq(t, 0, r.code, must.Sprint(test.args))
		must.StrContains(t, r.stderr, test.says)
	}
	must.Eq(t, 0, s.run("simulate", "-nodes=4x8", "-policy="+other, "-queue=elsewhere", "-jobs=1", trace).code)
	must.Eq(t, command.ExitRejected, s.run("simulate", "-nodes=4x8", "-policy="+write("bad.hcl", "que {}\n"), trace).code)
}
