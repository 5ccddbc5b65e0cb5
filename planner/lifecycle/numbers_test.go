package lifecycle

import (
	"fmt"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/shoenig/test/must"
)

// nodesByNumber are the nodes of the record's members, and that of its store.
func (w *world) nodesByNumber() (nodes []string, store string) {
	for i, m := range w.record.Members {
		must.Eq(w.t, i, m.Index)
		nodes = append(nodes, m.Node)
	}
	must.Len(w.t, 1, w.record.Worlds)
	return nodes, nodes[w.record.Worlds[0].HostMember]
}

// again lets the pause after a failure pass, and runs the next attempt.
func (w *world) again() {
	w.t.Helper()
	must.Eq(w.t, Waiting, w.gang.Saved.Phase)
	w.now = w.now.Add(time.Hour)
	w.gang = Restore(w.gang.ID, w.set, *w.saved, w.stored) // the planner may have started again meanwhile
	w.release()
}

// A member's number goes by the plan's place, which is the node's, whatever
// number Nomad gives the allocation there: on the same nodes the next attempt's
// members have the same numbers.
func TestNumbersAreKeptOnTheSameNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.submit(func(j map[string]any) { j["Meta"] = map[string]string{"muster_queue": "q", "muster_retries": "1"} })
	w.release()
	before, _ := w.nodesByNumber()
	must.Eq(t, []string{"n0", "n1"}, before)
	w.exit(1, contract.OutcomeFailed, 42, false)
	w.settle()
	w.on = []string{"n1", "n0"} // its allocations change places
	w.again()
	must.Eq(t, 2, w.record.Attempt)
	must.Eq(t, "a2-1", w.record.Members[0].Alloc)
	after, store := w.nodesByNumber()
	must.Eq(t, before, after)
	must.Eq(t, "n0", store, must.Sprint("the store's host did not die"))
}

// The store is held by the first member, unless the last attempt's died on its
// node: then by the next one, though the gang is placed there again.
func TestStoreIsNotWhereItDied(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		end   func(w *world)
		nodes []string // of the next attempt; nil: the same
		store string
	}{
		{"the host is lost", func(w *world) { w.end("a1-0", "lost", "stop") }, nil, "n1"},
		{"the host's supervisor died", func(w *world) { w.exit(0, contract.OutcomeLost, -1, false) }, nil, "n1"},
		{"nobody saw how the host ended", func(w *world) { w.end("a1-0", "failed", "run") }, nil, "n1"},
		{"the host's rank died by a signal", func(w *world) {
			w.exit(0, contract.OutcomeFailed, 139, false)
			w.reports[len(w.reports)-1].Exit.Signal = 11
		}, nil, "n1"},
		{"all but the host's node, which is a member's again", func(w *world) { w.end("a1-0", "lost", "stop") }, []string{"n0", "n2"}, "n2"},
		{"the host comes second", func(w *world) { w.end("a1-0", "lost", "stop") }, []string{"n2", "n0"}, "n2"},
		{"the gang is where the host was no more", func(w *world) { w.end("a1-0", "lost", "stop") }, []string{"n1", "n2"}, "n1"},
		{"another member is lost", func(w *world) { w.end("a1-1", "lost", "stop") }, nil, "n0"},
		{"the script's own code", func(w *world) { w.exit(0, contract.OutcomeFailed, 42, false) }, nil, "n0"},
		{"the host followed another member", func(w *world) {
			w.exit(1, contract.OutcomeLost, -1, false)
			w.exit(0, contract.OutcomePeer, contract.CodeAsked, false)
		}, nil, "n0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.submit(func(j map[string]any) { j["Meta"] = map[string]string{"muster_queue": "q", "muster_retries": "3"} })
			w.release()
			_, store := w.nodesByNumber()
			must.Eq(t, "n0", store)
			c.end(w)
			for range 3 { // what a verdict waits for a moment for
				w.settle()
				w.now = w.now.Add(exitAfter)
			}
			w.settle()
			if c.nodes != nil {
				w.members, w.on = c.nodes, c.nodes
			}
			w.again()
			must.NoError(t, decode(w.record))
			nodes, store := w.nodesByNumber()
			must.Eq(t, w.members, nodes)
			must.Eq(t, c.store, store)
			world := w.record.Worlds[0]
			must.Eq(t, fmt.Sprintf("10.0.0.%d", world.HostMember), world.Host, must.Sprint("the address is that of another member"))

			// It is the last attempt that counts: where that one's store stayed, the
			// first member holds it again.
			w.exit(1-world.HostMember, contract.OutcomeFailed, 42, false)
			w.settle()
			w.again()
			_, store = w.nodesByNumber()
			must.Eq(t, w.members[0], store)
		})
	}
}
