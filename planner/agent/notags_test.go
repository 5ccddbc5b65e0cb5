package agent_test

import (
	"testing"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadsim"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// Before Nomad 1.9 versions of a job have no tags, and all but the last few age
// away: what the user wrote is kept in the gang's variable. A server that does
// not say so is found out at the first try.
func TestServerWithoutVersionTags(t *testing.T) {
	t.Parallel()
	for name, old := range map[string]func(*nomadsim.Options){
		"says so":      func(o *nomadsim.Options) { o.Before19 = true },
		"is found out": func(o *nomadsim.Options) { o.NoTags = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 2, 1, old).direct().start()
			// Four attempts make more versions than Nomad keeps.
			b.submit(job{id: "g", count: 2, cards: 1, args: []string{"run=10ms", "exit=3"}, meta: map[string]string{contract.MetaRetries: "3"},
				more: func(j map[string]any) { j["Priority"] = 37 }})
			b.until("g", "in its third attempt", func(g view.Gang) bool { return g.Attempt >= 3 })
			b.stop()
			b.start()
			g := b.stage("g", contract.StageFailed)
			must.Eq(t, 4, g.Attempt)
			must.Eq(t, 37, g.Priority)
			must.Eq(t, 3, g.Exit.Code)
			must.Nil(t, b.jobInfo("g").VersionTag)
			for attempt := 1; attempt <= 4; attempt++ {
				must.Eq(t, 2, b.members.launches("default/g", attempt))
			}

			// One that waits is read from its variable, held as its user wrote it.
			b.submit(job{id: "first", count: 2, cards: 1})
			b.stage("first", contract.StageTraining)
			b.submit(job{id: "waits", count: 2, cards: 1, more: func(j map[string]any) { j["Priority"] = 41 }})
			b.until("waits", "waiting", func(g view.Gang) bool { return g.Stage == contract.StageQueued })
			b.stop()
			b.start()
			g = b.until("waits", "waiting", func(g view.Gang) bool { return g.Stage == contract.StageQueued })
			must.Eq(t, 41, g.Priority)
		})
	}
}
