package simulate

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/core"
)

func options(t *testing.T, nodes int) Options {
	tr, err := ReadTrace("testdata/philly_head.csv")
	must.NoError(t, err)
	must.Len(t, 600, tr.Jobs)
	cfg := core.Defaults()
	cfg.Queues = []core.Queue{core.DefaultQueue("q")}
	for i := range tr.Jobs {
		tr.Jobs[i].Queue = "q"
		tr.Jobs[i].Run = min(tr.Jobs[i].Run, 7*24*time.Hour)
	}
	return Options{Name: "test", Config: &cfg, Nodes: Nodes(Shape{Count: nodes, Cards: 8}), Jobs: tr.Jobs, Save: 5 * time.Minute, Restart: 5 * time.Minute, Check: true}
}

// Every job of a trace runs to its end, nothing that must never be happens on
// the way, no bound is beaten, and the same options give the same result.
func TestTrace(t *testing.T) {
	t.Parallel()
	first, err := Run(context.Background(), options(t, 8))
	must.NoError(t, err)
	f := first.Figures()
	must.Eq(t, 600, f.Done)
	must.GreaterEq(t, f.Bounds.Makespan, f.Makespan)
	must.GreaterEq(t, f.Bounds.MeanJCT, f.MeanJCT)
	must.LessEq(t, 1, f.Utilisation)

	again, err := Run(context.Background(), options(t, 8))
	must.NoError(t, err)
	if diff := cmp.Diff(f, again.Figures(), cmp.FilterPath(func(p cmp.Path) bool { return strings.HasPrefix(p.Last().String(), ".CycleP") }, cmp.Ignore())); diff != "" {
		t.Fatalf("the same options give another result:\n%s", diff)
	}
}

// A larger cluster makes nobody wait longer on the whole, and none waits in
// one that holds everything.
func TestLargerClusterWaitsLess(t *testing.T) {
	t.Parallel()
	wait := -1.0
	for _, nodes := range []int{200, 16, 8} {
		r, err := Run(context.Background(), options(t, nodes))
		must.NoError(t, err)
		got := r.Figures().MeanWait
		if wait < 0 {
			must.Eq(t, 0, got, must.Sprint("on 200 nodes everything fits at once"))
		}
		must.GreaterEq(t, wait, got)
		wait = got
	}
}

// Every gang that loses a node runs again elsewhere and ends, and the same seed
// brings the same faults.
func TestFaults(t *testing.T) {
	t.Parallel()
	o := options(t, 16)
	o.Jobs = o.Jobs[:200]
	o.Faults, o.Checkpoints, o.Seed = Faults{PerThousandNodeDays: 100}, 30*time.Minute, 7
	r, err := Run(context.Background(), o)
	must.NoError(t, err)
	f := r.Figures()
	must.Eq(t, 200, f.Done)
	must.Positive(t, f.Hit)
	must.Eq(t, f.Hit, f.Repaired)
	must.Positive(t, f.LostToFaults)
	must.LessEq(t, f.LostCardHours, f.LostToFaults)
	again, err := Run(context.Background(), o)
	must.NoError(t, err)
	must.Eq(t, f.LostToFaults, again.Figures().LostToFaults)
	o.Seed = 8
	other, err := Run(context.Background(), o)
	must.NoError(t, err)
	must.NotEq(t, f.LostToFaults, other.Figures().LostToFaults)
}

// Of two queues that lend each other what is idle, one takes its guarantee back
// when a gang of it was hit: what that costs the other is booked as the second
// order of the fault, apart from what the fault itself cost.
func TestSecondOrderOfFaults(t *testing.T) {
	t.Parallel()
	cfg := core.Defaults()
	for name, cards := range map[core.QueueName]int{"a": 16, "b": 8} {
		q := core.DefaultQueue(name)
		q.Guaranteed, q.Preempt.MinRuntime = core.Amounts{Any: cards}, 0
		cfg.Queues = append(cfg.Queues, q)
	}
	job := func(id string, queue core.QueueName, members int) Job {
		return Job{ID: id, Queue: queue, Run: 50 * time.Hour, Members: members, Cards: 8}
	}
	sum := Figures{}
	for seed := range uint64(10) {
		// b borrows one of four nodes until one of a's fails.
		r, err := Run(context.Background(), Options{Config: &cfg, Nodes: Nodes(Shape{Count: 4, Cards: 8}), Seed: seed, Jobs: []Job{job("a1", "a", 2), job("b1", "b", 1), job("b2", "b", 1)},
			Save: 5 * time.Minute, Restart: 5 * time.Minute, Checkpoints: time.Hour, Faults: Faults{PerThousandNodeDays: 200}, Check: true})
		must.NoError(t, err)
		f := r.Figures()
		must.Eq(t, 3, f.Done)
		must.Eq(t, f.Hit, f.Repaired)
		must.LessEq(t, f.Hit, f.InARow)
		must.LessEq(t, f.LostCardHours+1e-9, f.LostToFaults+f.LostAside)
		must.Eq(t, f.Aside > 0, f.LostAside > 0)
		must.Eq(t, f.Aside > 0, f.AsideShare > 0)
		// Who has to leave saves first and starts again: ten minutes of eight cards.
		must.InDelta(t, float64(f.Aside)*8/6, f.LostAside, 1e-6)
		sum.Hit, sum.Aside, sum.Chain = sum.Hit+f.Hit, sum.Aside+f.Aside, max(sum.Chain, f.Chain)
	}
	must.Positive(t, sum.Aside)
	// One that had to leave comes back at another's cost once, by age, and that one
	// waits until there is room.
	must.LessEq(t, 2*sum.Hit, sum.Aside)
	must.Eq(t, 2, sum.Chain)
}

func TestTraceNamesFaultyLines(t *testing.T) {
	t.Parallel()
	_, err := ParseTrace(strings.NewReader("vc,submit_s,duration_v100_s,gpus,job_type\na,0,10,1,x\na,-5,10,1,x\na,1,ten,0,x\n"))
	must.Error(t, err)
	must.StrContains(t, err.Error(), "line 3")
	must.StrContains(t, err.Error(), "line 4")
	_, err = ParseTrace(strings.NewReader("what,is,this\n1,2,3\n"))
	must.Error(t, err)
}

func FuzzParseTrace(f *testing.F) {
	f.Add("vc,submit_s,duration_v100_s,gpus,job_type\na,0,10,1,x\n")
	f.Add("job,submit_s,run_s,procs,req_time_s,cqsim_wait_s\n4,0,172800,5,172800,0\n")
	f.Add("; comment\n1 0 10 100 4 -1 -1 4 200 -1 1 1 1 1 1 1 -1 -1\n")
	f.Add("sn,cpu_milli,memory_mib,gpu,model\nn1,96000,262144,8,V100M16\n")
	f.Add("id,queue,user,name,submit_s,run_s,members,cards,limit_s,priority\na,q,u,n,0,10,2,8,0,50\n")
	f.Fuzz(func(t *testing.T, text string) {
		tr, err := ParseTrace(strings.NewReader(text))
		if err != nil {
			return
		}
		for _, j := range tr.Jobs {
			if j.Submit < 0 || j.Run < 0 || j.Members < 1 {
				t.Fatalf("job %+v of %q", j, text)
			}
		}
	})
}
