package agent_test

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadsim"
	"github.com/shoenig/test/must"
)

// On a network and servers that lose answers, refuse connections, do things
// twice and answer late and out of order, gangs end as they should: each
// attempt's ranks start once, all of them or none, and nothing stays.
func TestBadNetwork(t *testing.T) {
	t.Parallel()
	// first is true for the first call of each kind of write.
	first := func() func(r *http.Request) bool {
		var mu sync.Mutex
		seen := map[string]bool{}
		return func(r *http.Request) bool {
			mu.Lock()
			defer mu.Unlock()
			kind := r.Method + " " + strings.SplitN(strings.TrimPrefix(r.URL.Path, "/v1/"), "/", 2)[0] + " " + r.URL.Path[strings.LastIndexByte(r.URL.Path, '/'):]
			old := seen[kind]
			seen[kind] = true
			return !old
		}
	}
	for name, faults := range map[string]func() func(r *http.Request) nomadsim.Fault{
		"the first answer of each kind is lost": func() func(r *http.Request) nomadsim.Fault {
			is := first()
			return func(r *http.Request) nomadsim.Fault { return nomadsim.Fault{Drop: r.Method != http.MethodGet && is(r)} }
		},
		"the first call of each kind is refused": func() func(r *http.Request) nomadsim.Fault {
			is := first()
			return func(r *http.Request) nomadsim.Fault { return nomadsim.Fault{Refuse: is(r)} }
		},
		"the first call of each kind fails": func() func(r *http.Request) nomadsim.Fault {
			is := first()
			return func(r *http.Request) nomadsim.Fault {
				if r.Method != http.MethodGet && is(r) {
					return nomadsim.Fault{Fail: http.StatusInternalServerError, Text: "rpc error: No cluster leader"}
				}
				return nomadsim.Fault{}
			}
		},
		"every write is done twice": func() func(r *http.Request) nomadsim.Fault {
			return func(r *http.Request) nomadsim.Fault {
				if r.Method == http.MethodGet {
					return nomadsim.Fault{}
				}
				return nomadsim.Fault{Repeat: 1}
			}
		},
		"answers come late and out of order": func() func(r *http.Request) nomadsim.Fault {
			return func(r *http.Request) nomadsim.Fault {
				if r.URL.Path == "/v1/event/stream" {
					return nomadsim.Fault{}
				}
				late := time.After(time.Duration(rand.IntN(40)) * time.Millisecond)
				hold := closedAfter(late)
				return nomadsim.Fault{Delay: time.Duration(rand.IntN(20)) * time.Millisecond, Hold: hold}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, 3, 1).direct()
			fault := faults()
			spec := job{id: "g", count: 3, cards: 1, args: []string{"run=15ms", "exit=7", "attempts=1"}, meta: map[string]string{contract.MetaRetries: "1"}}
			b.put("/v1/jobs", map[string]any{"Job": spec.json()})
			b.sim.Hooks().OnRequest(func(r *http.Request, _ int) nomadsim.Fault {
				return fault(r)
			})
			b.start()
			g := b.stage("g", contract.StageComplete)
			b.sim.Hooks().OnRequest(nil)
			for attempt := 1; attempt <= g.Attempt; attempt++ {
				n := b.members.launches("default/g", attempt)
				must.True(t, n == 0 || n == 3, must.Sprintf("%d of 3 ranks of attempt %d were started", n, attempt))
			}
			must.Eq(t, 3, b.members.launches("default/g", g.Attempt))
			must.Eq(t, 0, b.live("g"))
			must.Len(t, 0, b.members.problems)
			must.True(t, b.members.channel.Empty())
		})
	}
}

func closedAfter(late <-chan time.Time) <-chan struct{} {
	c := make(chan struct{})
	go func() { <-late; close(c) }()
	return c
}
