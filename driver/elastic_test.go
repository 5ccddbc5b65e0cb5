package driver

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/rendezvous"
	"github.com/nomad-muster/muster/internal/contract"
)

// elasticScript counts steps with an all-reduce, goes on from its checkpoint,
// and saves and leaves when it is asked.
const elasticScript = `
import os, sys, time
import torch, torch.distributed as dist
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import muster_progress as muster
muster.listen()
dist.init_process_group("gloo")
rank, size, path = dist.get_rank(), dist.get_world_size(), os.path.join(sys.argv[1], "step")
step = int(open(path).read()) if os.path.exists(path) else 0
print("world of %d from step %d, run %s" % (size, step, os.environ["TORCHELASTIC_RUN_ID"]), flush=True)
while True:
    step += 1
    ones = torch.ones(1)
    dist.all_reduce(ones)
    assert ones.item() == size
    muster.step(step)
    leave = torch.tensor([1.0 if muster.asked() else 0.0])
    dist.all_reduce(leave, op=dist.ReduceOp.MAX)
    if leave.item():
        with muster.checkpoint(step):
            if rank == 0:
                open(path + ".new", "w").write(str(step))
                os.replace(path + ".new", path)
            dist.barrier()
        print("saved at %d" % step, flush=True)
        sys.exit(0)
    time.sleep(0.02)
`

// lonelyScript does the same without its peers, so that it starts fast.
const lonelyScript = `
import os, sys, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import muster_progress as muster
muster.listen()
path = os.path.join(sys.argv[1], "step")
step = int(open(path).read()) if os.path.exists(path) else 0
print("world of %s from step %d" % (os.environ["WORLD_SIZE"], step), flush=True)
while not muster.asked():
    step += 1
    muster.step(step)
    time.sleep(0.02)
with muster.checkpoint(step):
    if os.environ["RANK"] == "0":
        open(path + ".new", "w").write(str(step))
        os.replace(path + ".new", path)
print("saved at %d" % step, flush=True)
`

// newElastic makes an elastic gang of two members with two ranks each.
func newElastic(t *testing.T, script string) *trial {
	needTorch(t)
	return newTrial(t, 2, map[string]any{"script": "local/elastic.py", "args": []any{t.TempDir()}, "nproc_per_node": 2, "elastic": true},
		withScript(t, "elastic.py", script), withExample(t, "muster_progress.py"))
}

// releaseElastic places and releases the members, of which at least min must be
// left.
func (tr *trial) releaseElastic(least int) {
	tr.t.Helper()
	tr.start()
	tr.place(1)
	tr.freeze()
	tr.record.Min = least
	tr.planner.Write(tr.record)
}

// round writes the next round, with these of the trial's members.
func (tr *trial) round(settle time.Duration, members ...*trialMember) {
	tr.t.Helper()
	reports := tr.planner.Reports(1)
	tr.record.Round, tr.record.Settle, tr.record.Joining, tr.record.Members = tr.record.Round+1, settle, nil, nil
	tr.record.Worlds[0].Members = nil
	for i, m := range members {
		r := reports[rendezvous.MemberKey(m.cfg.AllocID, m.cfg.Name)]
		tr.record.Members = append(tr.record.Members, contract.Member{Index: i, Alloc: m.cfg.AllocID, Task: m.cfg.Name, Group: m.cfg.TaskGroupName, Node: m.cfg.NodeName,
			Start: r.Start, Address: r.Address, Ranks: r.Ranks, Supervisor: r.Supervisor})
		tr.record.Worlds[0].Members = append(tr.record.Worlds[0].Members, i)
	}
	tr.planner.Write(tr.record)
}

// C22 the way an elastic gang wants it: a member is gone, and the other goes on
// at the least size within seconds, in the same attempt, whatever torchrun
// notices; the planner's word comes later and changes nothing.
func TestElasticGangGoesOnWithoutALostMember(t *testing.T) {
	t.Parallel()
	tr := newElastic(t, elasticScript)
	tr.releaseElastic(1)
	for _, m := range tr.members {
		m.log.await(t, tr.ctx, "world of 4 from step 0, run "+tr.gang.RunID(1, "rank"))
	}
	tr.awaitEvent(tr.members[1], "first progress")
	s, err := tr.task(1).start.ReadShim()
	must.NoError(t, err)
	must.NoError(t, unix.Kill(s.Process.PID, unix.SIGKILL))
	lost := time.Now()
	// Its plugin tells of it; without, it would have vanished with its session.
	tr.awaitEvent(tr.members[0], "member 1 on n2 ended")
	t.Logf("the loss is told after %v", time.Since(lost))
	tr.members[0].log.await(t, tr.ctx, "world of 2 from step 0, run "+tr.gang.RunID(1, "rank"))
	t.Logf("goes on after %v, the start of torch included", time.Since(lost))
	must.Eq(t, contract.OutcomeLost, tr.exit(1).Outcome)

	tr.round(0, tr.members[0]) // nothing changes by it
	tr.record.Ask = &contract.Ask{Kind: "preempt", Grace: time.Minute, By: time.Now().Add(time.Minute)}
	tr.planner.Write(tr.record)
	must.Eq(t, contract.OutcomeCheckpointed, tr.exit(0).Outcome)
	must.StrNotContains(t, tr.eventsOf(tr.members[0]), "round 1")
}

// A member joins while the others run, and another one leaves: every world
// begins at the step where the one before saved.
func TestElasticGangGrowsAndShrinks(t *testing.T) {
	t.Parallel()
	tr := newElastic(t, lonelyScript)
	late := tr.members[1]
	tr.members = tr.members[:1]
	tr.releaseElastic(1)
	host := tr.members[0]
	host.log.await(t, tr.ctx, "world of 2 from step 0")
	tr.awaitEvent(host, "first progress")

	tr.members = append(tr.members, late)
	tr.startMember(late)
	tr.record.Joining = []contract.Member{{Alloc: late.cfg.AllocID, Task: late.cfg.Name, Group: late.cfg.TaskGroupName, Node: late.cfg.NodeName}}
	tr.planner.Write(tr.record)
	key := rendezvous.MemberKey(late.cfg.AllocID, late.cfg.Name)
	tr.planner.Await(tr.ctx, 1, "ready to join", func(all map[string]contract.Report) bool { return all[key].State == contract.StateReady })
	must.StrNotContains(t, late.log.text(), "world")
	tr.round(time.Minute, host, late)
	for _, m := range tr.members {
		m.log.await(t, tr.ctx, "world of 4 from step")
	}
	must.StrNotContains(t, late.log.text(), "from step 0", must.Sprint("what was saved is gone on from"))
	host.log.await(t, tr.ctx, "saved at")
	tr.awaitEvent(late, "first progress")

	tr.round(time.Minute, host)
	x := tr.exit(1)
	must.Eq(t, contract.OutcomeCheckpointed, x.Outcome, must.Sprint(x.Text))
	must.Eq(t, contract.CodeAsked, tr.wait(1).ExitCode)
	for n := 0; n < 2; {
		must.NoError(t, tr.ctx.Err())
		n = strings.Count(host.log.text(), "world of 2") / 2
		time.Sleep(20 * time.Millisecond)
	}
	must.NoError(t, tr.plugin.StopTask(host.cfg.ID, time.Minute, ""))
	must.Eq(t, contract.OutcomeCheckpointed, tr.exit(0).Outcome)
}

// What the gang cannot go on from: fewer members than its least, and a store
// that went with its host.
func TestElasticGangThatCannotGoOn(t *testing.T) {
	for name, c := range map[string]struct {
		least, lost int
		text        string
	}{
		"fewer than min":   {2, 1, "1 are left, and the gang needs 2"},
		"the host is gone": {1, 0, "it held the store"},
	} {
		t.Run(name, func(t *testing.T) {
			long(t, "package member tests the decision")
			t.Parallel()
			tr := newElastic(t, lonelyScript)
			tr.releaseElastic(c.least)
			for _, m := range tr.members {
				m.log.await(t, tr.ctx, "world of 4")
			}
			s, err := tr.task(c.lost).start.ReadShim()
			must.NoError(t, err)
			must.NoError(t, unix.Kill(s.Process.PID, unix.SIGKILL))
			x := tr.exit(1 - c.lost)
			must.Eq(t, contract.OutcomePeer, x.Outcome, must.Sprint(x.Text))
			must.StrContains(t, x.Text, c.text)
			must.StrContains(t, x.Text, fmt.Sprintf("member %d on n%d", c.lost, c.lost+1))
		})
	}
}
