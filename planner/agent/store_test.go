package agent

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadsim"
	"github.com/nomad-muster/muster/planner/config"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/lifecycle"
	"github.com/nomad-muster/muster/planner/nomad/jobspec"
	"github.com/shoenig/test/must"
)

// running is a released gang of n members, with ids that do not compress.
func running(id contract.GangID, n int) lifecycle.Saved {
	s := lifecycle.Saved{V: 1, Phase: lifecycle.Released, Attempt: 1, Submitted: time.Unix(1700000000, 0).UTC(),
		Pin:    &jobspec.Pin{Attempt: 1, Groups: map[string]jobspec.GroupPin{"rank": {PerNode: 1}}},
		Record: &contract.Record{V: 1, Gang: id, Attempt: 1, Phase: contract.PhaseReleased}}
	pin := s.Pin.Groups["rank"]
	for i := range n {
		h := uint64(i+1) * 0x9e3779b97f4a7c15
		node := fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x", uint32(h), uint16(h>>32), uint16(h>>48)&0xfff, uint16(h>>20)&0xfff, (h*h)>>16)
		s.Places = append(s.Places, lifecycle.Place{Group: "rank", Node: node, Cards: [][]core.CardID{{core.CardID("GPU-" + node)}}})
		pin.Nodes = append(pin.Nodes, node)
		s.Record.Members = append(s.Record.Members, contract.Member{Index: i, Alloc: fmt.Sprintf("%016x%016x", h*3, h*7), Task: "train", Group: "rank", Start: 1, Node: fmt.Sprintf("node-%d", i), Address: fmt.Sprintf("10.0.%d.%d", i/256, i%256), Ranks: 8})
	}
	s.Pin.Groups["rank"] = pin
	return s
}

// What is saved of a gang comes back, whatever its size, and nothing stays
// behind.
func TestSaveAndLoad(t *testing.T) {
	t.Parallel()
	for _, members := range []int{1, 100, 1300} {
		t.Run(fmt.Sprint(members), func(t *testing.T) {
			t.Parallel()
			sim := nomadsim.New(t, nomadsim.Options{})
			cfg := config.Default()
			cfg.Nomad.Address, cfg.Consul.Disabled = sim.URL(), true
			a, err := New(Options{Config: config.Fixed(cfg)})
			must.NoError(t, err)
			ctx := context.Background()
			id := contract.GangID{Namespace: "default", Job: "gang/with a name.that needs encoding"}
			saved := running(id, members)
			for n := range 3 { // again and again, as a gang goes on
				saved.Retries = n
				var o outcome
				must.NoError(t, a.save(ctx, id, saved, &o))
				must.Nil(t, o.reloaded)
			}

			other, err := New(Options{Config: config.Fixed(cfg)})
			must.NoError(t, err)
			all, err := other.loadAll(ctx)
			must.NoError(t, err)
			must.Len(t, 1, all)
			must.Eq(t, id.Job, all[0].key.Job)
			must.Eq(t, saved, all[0].saved)
			refs, err := a.client.SavedIDs(ctx)
			must.NoError(t, err)
			parts := 0
			for _, r := range refs {
				if isPart(r.Path) {
					parts++
				}
			}
			must.Eq(t, members == 1300, parts > 1, must.Sprintf("%d parts of %d members", parts, members))

			// Somebody else wrote meanwhile: what stands there wins.
			theirs := saved
			theirs.Retries = 7
			other.setStored(id, storedState{all[0].index, all[0].items})
			var o outcome
			must.NoError(t, other.save(ctx, id, theirs, &o))
			err = a.save(ctx, id, saved, &o)
			must.Error(t, err)
			must.NotNil(t, o.reloaded)
			must.Eq(t, 7, o.reloaded.saved.Retries)

			must.NoError(t, a.forgetSaved(ctx, id))
			refs, err = a.client.SavedIDs(ctx)
			must.NoError(t, err)
			must.Len(t, 0, refs)
		})
	}
}

// A save that was cut off leaves parts that nobody names: the next planner
// deletes them.
func TestStrayPartsAreDeleted(t *testing.T) {
	t.Parallel()
	sim := nomadsim.New(t, nomadsim.Options{})
	cfg := config.Default()
	cfg.Nomad.Address, cfg.Consul.Disabled = sim.URL(), true
	a, err := New(Options{Config: config.Fixed(cfg)})
	must.NoError(t, err)
	ctx := context.Background()
	id := contract.GangID{Namespace: "default", Job: "g"}
	saved := running(id, 1300)
	var o outcome
	must.NoError(t, a.save(ctx, id, saved, &o))
	must.NoError(t, a.savePart(ctx, "default", partPath(id.VariablePath(), "cutoff", 0), "half"))
	all, err := a.loadAll(ctx)
	must.NoError(t, err)
	must.Len(t, 1, all)
	refs, err := a.client.SavedIDs(ctx)
	must.NoError(t, err)
	for _, r := range refs {
		must.NotEq(t, partPath(id.VariablePath(), "cutoff", 0), r.Path)
	}
	must.Greater(t, 1, len(refs))
}

func FuzzDecodeSaved(f *testing.F) {
	items, _, err := encodeSaved("g", running(contract.GangID{Namespace: "default", Job: "g"}, 2), "s")
	must.NoError(f, err)
	f.Add(items[itemJob], items[itemState], "")
	f.Add("g", "", "H4sIAAAAAAAA")
	f.Add("", "{}", "")
	f.Fuzz(func(t *testing.T, job, state, packed string) {
		_, saved, err := decodeSaved(map[string]string{itemJob: job, itemState: state, itemPacked: packed}, nil)
		if err == nil && !slices.Contains([]lifecycle.Phase{lifecycle.Waiting, lifecycle.Reserving, lifecycle.Released, lifecycle.Stopping, lifecycle.Over}, saved.Phase) {
			t.Fatalf("phase %q was taken", saved.Phase)
		}
	})
}
