package agent_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// elasticJob is a gang whose ranks can meet anew while they run.
func elasticJob(id string, count, least int, args ...string) job {
	return job{id: id, count: count, cards: 1, meta: map[string]string{contract.MetaMin: fmt.Sprint(least)}, more: func(j map[string]any) {
		all := []any{}
		for _, a := range args {
			all = append(all, a)
		}
		group := j["TaskGroups"].([]any)[0].(map[string]any)
		group["Tasks"].([]any)[0].(map[string]any)["Config"] = map[string]any{"script": "train.py", "args": all, "nproc_per_node": 1, "elastic": true}
	}}
}

// trains waits until a gang trains on with so many members in its first
// attempt, and gives their allocations.
func (b *bench) trains(id string, members int) []string {
	b.t.Helper()
	b.until(id, fmt.Sprintf("training with %d members", members), func(g view.Gang) bool { return g.Placed == members && g.Stage == contract.StageTraining })
	var ids []string
	b.eventually("its allocations", func() bool {
		ids = nil
		for _, a := range b.allocs(id) {
			if a.ClientStatus == "running" {
				ids = append(ids, a.ID)
			}
		}
		return len(ids) == members
	})
	g, _ := b.agent.Gang("default", id)
	must.Eq(b.t, 1, g.Attempt)
	slices.Sort(ids)
	return ids
}

// subset tells whether all of a list are in another.
func subset(of, list []string) bool {
	return !slices.ContainsFunc(of, func(id string) bool { return !slices.Contains(list, id) })
}

func growBench(t *testing.T) *bench {
	b := newBench(t, 4, 1).direct()
	for i := range b.cfg.Core.Queues {
		b.cfg.Core.Queues[i].Preempt.MinRuntime = 0
	}
	return b
}

// An elastic gang takes in members while it runs, in the same attempt: those
// that ran go on in their allocations, and all newcomers start once.
func TestElasticGangGrows(t *testing.T) {
	t.Parallel()
	b := growBench(t).start()
	b.submit(job{id: "other", count: 2, cards: 1})
	b.training("other", 1)
	b.submit(elasticJob("e", 4, 2))
	was := b.trains("e", 2)
	b.members.completeAll("other")
	is := b.trains("e", 4)
	must.True(t, subset(was, is))
	b.eventually("all have started", func() bool { return b.members.launches("default/e", 1) == 4 })
	b.stop()
	b.start()
	must.Eq(t, is, b.trains("e", 4))
	must.Eq(t, 4, b.members.launches("default/e", 1))
	b.members.completeAll("e")
	must.Eq(t, 1, b.stage("e", contract.StageComplete).Attempt)
	b.eventually("nothing is left", func() bool { return b.live("e") == 0 })
}

// A lost member is placed again and joins the others.
func TestElasticGangIsRefilled(t *testing.T) {
	t.Parallel()
	b := growBench(t).start()
	b.submit(elasticJob("e", 4, 2))
	was := b.trains("e", 4)
	host := b.host("e")
	lost := was[0]
	if lost == host {
		lost = was[1]
	}
	b.members.lose("e", lost)
	b.eventually("five have started", func() bool { return b.members.launches("default/e", 1) == 5 })
	is := b.trains("e", 4)
	must.False(t, slices.Contains(is, lost))
	for _, id := range was {
		must.True(t, id == lost || slices.Contains(is, id))
	}
}

// Newcomers that refuse or end are taken back, all of them, and those that run
// go on undisturbed; also where an index below theirs is free.
func TestNewcomersAreTakenBack(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"refused", "ends"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			b := growBench(t).start()
			b.submit(elasticJob("e", 4, 2, "joins="+how))
			was := b.trains("e", 4)
			host := b.host("e")
			lost := was[0]
			if lost == host {
				lost = was[1]
			}
			b.members.lose("e", lost)
			b.until("e", "told", func(g view.Gang) bool {
				return g.Placed == 3 && strings.Contains(g.Detail.Verdict.Sentence, "it may grow from") && b.count("e") == 3
			})
			is := b.trains("e", 3)
			must.True(t, subset(is, was))
			must.Eq(t, 4, b.members.launches("default/e", 1))
			b.submit(job{id: "fits", count: 1, cards: 1, args: []string{"run=20ms"}}) // nothing is kept
			b.stage("fits", contract.StageComplete)
			must.Eq(t, is, b.trains("e", 3))
		})
	}
}

// The planner is killed before its kth call while a gang grows: a new one takes
// the newcomers in, or back and in again, and who ran runs on.
func TestCrashWhileGrowing(t *testing.T) {
	t.Parallel()
	for k := 1; k <= 12; k++ {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			t.Parallel()
			c := &crasher{dead: make(chan struct{})}
			b := growBench(t)
			b.before, b.members.channel.Fail = c.before, c.before
			b.start()
			b.submit(job{id: "other", count: 2, cards: 1})
			b.training("other", 1)
			b.submit(elasticJob("e", 4, 2))
			was := b.trains("e", 2)
			c.arm(k)
			b.members.completeAll("other")
			select {
			case <-c.dead:
			case <-time.After(5 * time.Second):
			}
			b.stop()
			b.before = nil
			b.members.channel.Allow()
			b.start()
			is := b.trains("e", 4)
			must.True(t, subset(was, is))
			b.eventually("all have started", func() bool { return b.members.launches("default/e", 1) == 4 })
		})
	}
}

// growing has a gang of four run with three members, and one more placed that
// does as is said once it may join. The first functions are called before it is.
func growing(b *bench, joins string, first ...func()) (was []string) {
	b.start()
	b.submit(job{id: "other", count: 1, cards: 1})
	b.training("other", 1)
	b.submit(elasticJob("e", 4, 3, "joins="+joins))
	was = b.trains("e", 3)
	for _, f := range first {
		f()
	}
	b.members.completeAll("other")
	return was
}

// waitsToJoin waits until the newcomer of growing is placed.
func (b *bench) waitsToJoin() {
	b.t.Helper()
	b.until("e", "growing", func(g view.Gang) bool {
		return strings.Contains(g.Detail.Verdict.Sentence, "1 more are on their way") && b.live("e") == 4
	})
}

// An update while a gang grows is what its next attempt runs: those that run go
// on as they are, under whatever text, and the newcomer is let go.
func TestUpdateWhileGrowing(t *testing.T) {
	t.Parallel()
	for _, arg := range []string{"joins=never", "lr=2"} {
		t.Run(arg, func(t *testing.T) {
			t.Parallel()
			b := growBench(t)
			was := growing(b, "never")
			b.waitsToJoin()
			b.submit(elasticJob("e", 4, 2, arg))
			b.eventually("the newcomer is gone", func() bool { return b.live("e") == 3 })
			must.Eq(t, was, b.trains("e", 3))
			must.Zero(t, b.jobInfo("e").Mark())
			b.members.completeAll("e")
			must.Eq(t, 1, b.stage("e", contract.StageComplete).Attempt)
			must.Eq(t, 3, b.members.launches("default/e", 1))
			must.SliceLen(t, 4, b.allocs("e"))
		})
	}
}

// A stop while a gang grows leaves nothing of it.
func TestStopWhileGrowing(t *testing.T) {
	t.Parallel()
	for _, how := range []view.StopRequest{{Now: true}, {}} {
		t.Run(fmt.Sprint("now=", how.Now), func(t *testing.T) {
			t.Parallel()
			b := growBench(t)
			growing(b, "never")
			b.waitsToJoin()
			_, err := b.agent.Stop(context.Background(), httpapi.Caller{}, "default", "e", how)
			must.NoError(t, err)
			b.stage("e", contract.StageCancelled)
			b.eventually("nothing is left", func() bool { return b.live("e") == 0 })
			must.Eq(t, 3, b.members.launches("default/e", 1))
		})
	}
}

// A gang that completes while it grows leaves no newcomer behind.
func TestGangCompletesWhileGrowing(t *testing.T) {
	t.Parallel()
	b := growBench(t)
	growing(b, "never")
	b.waitsToJoin()
	b.members.completeAll("e")
	g := b.stage("e", contract.StageComplete)
	must.Eq(t, 1, g.Attempt)
	must.Eq(t, contract.OutcomeComplete, g.Exit.Outcome)
	b.eventually("nothing is left", func() bool { return b.live("e") == 0 })
	must.Eq(t, 3, b.members.launches("default/e", 1))
}

// A drain of a member's node while a gang grows asks the whole gang; one of
// the newcomer's only has that taken back.
func TestDrainWhileGrowing(t *testing.T) {
	t.Parallel()
	for _, newcomers := range []bool{false, true} {
		t.Run(fmt.Sprint("newcomers=", newcomers), func(t *testing.T) {
			t.Parallel()
			b := growBench(t)
			was := growing(b, "never")
			b.waitsToJoin()
			node := ""
			for _, a := range b.allocs("e") {
				if slices.Contains(was, a.ID) != newcomers {
					node = a.NodeID
				}
			}
			b.put("/v1/node/"+node+"/drain", map[string]any{"DrainSpec": map[string]any{"Deadline": time.Minute}})
			if !newcomers {
				g := b.training("e", 2)
				must.Eq(t, contract.OutcomeCheckpointed, g.Detail.Attempts[0].Exit.Outcome)
				return
			}
			b.until("e", "of its old size", func(g view.Gang) bool {
				return strings.Contains(g.Detail.Verdict.Sentence, "it may grow from") && b.count("e") == 3 && b.live("e") == 3
			})
			must.Eq(t, was, b.trains("e", 3))
		})
	}
}

// The planner is killed before its kth call while a newcomer is taken back: a
// new one takes it back, and who ran runs on.
func TestCrashWhileTakingBack(t *testing.T) {
	t.Parallel()
	for k := 1; k <= 16; k++ {
		t.Run(fmt.Sprint(k), func(t *testing.T) {
			t.Parallel()
			c := &crasher{dead: make(chan struct{})}
			b := growBench(t)
			b.before, b.members.channel.Fail = c.before, c.before
			was := growing(b, "refused", func() { c.arm(k) })
			select {
			case <-c.dead:
			case <-time.After(5 * time.Second):
			}
			b.stop()
			b.before = nil
			b.members.channel.Allow()
			b.start()
			b.until("e", "of its old size", func(g view.Gang) bool {
				return strings.Contains(g.Detail.Verdict.Sentence, "it may grow from") && b.count("e") == 3 && b.live("e") == 3
			})
			must.Eq(t, was, b.trains("e", 3))
			must.Eq(t, 3, b.members.launches("default/e", 1))
		})
	}
}

// host is the allocation that holds a gang's store.
func (b *bench) host(id string) string {
	list, _, _ := b.members.channel.Records(contract.GangID{Region: "global", Namespace: "default", Job: id}, -1)
	r := list[len(list)-1]
	return r.Members[r.Worlds[0].HostMember].Alloc
}

// count is how many members a job asks for as it stands in Nomad.
func (b *bench) count(id string) int { return b.jobInfo(id).Members() }

// lose ends a member as one that is lost.
func (m *members) lose(job, alloc string) {
	m.mu.Lock()
	v := m.running[job+"/"+alloc]
	m.mu.Unlock()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.end(v.task, v.gang, contract.OutcomeLost, 1)
}
