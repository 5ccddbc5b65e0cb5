package backfill_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/backfill"
	"github.com/nomad-muster/muster/planner/core/cluster"
	"github.com/nomad-muster/muster/planner/core/placement"
)

var noon = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

// bench is a cluster of nodes of eight cards with gangs on whole nodes.
type bench struct {
	t     *testing.T
	c     *cluster.Cluster
	p     *placement.Placer
	table *backfill.Table
	next  int32
}

func newBench(t *testing.T, nodes int, busy map[int]time.Duration) *bench {
	cfg := core.Defaults()
	s := &core.Snapshot{Config: &cfg}
	for i := range nodes {
		g := core.DeviceGroup{Type: "gpu", Name: "m"}
		for k := range 8 {
			g.Cards = append(g.Cards, core.Card{ID: core.CardID(fmt.Sprintf("%d-%d", i, k)), Healthy: true})
		}
		s.Nodes = append(s.Nodes, core.Node{ID: core.NodeID(fmt.Sprintf("n%d", i)), Name: fmt.Sprintf("n%d", i), Version: 1, Ready: true, Eligible: true, Capacity: core.Resources{CPU: 8, MemoryMB: 8}, Devices: []core.DeviceGroup{g}})
	}
	for i := range nodes {
		if _, ok := busy[i]; ok {
			k := core.Claim{Node: s.Nodes[i].ID, Gang: core.GangID(fmt.Sprintf("on%d", i)), Alloc: fmt.Sprint(i), Use: core.Resources{CPU: 8}}
			for c := range 8 {
				k.Cards = append(k.Cards, core.CardID(fmt.Sprintf("%d-%d", i, c)))
			}
			s.Claims = append(s.Claims, k)
		}
	}
	b := &bench{t: t, c: &cluster.Cluster{}, next: 100}
	must.SliceEmpty(t, b.c.Update(s))
	b.p = placement.New(b.c)
	b.table = backfill.New(b.c, b.p, noon)
	for _, h := range b.c.Holds() {
		n := int(h.Use.Node)
		r := backfill.Release{Uses: []cluster.Use{h.Use}, Gang: int32(n)}
		if busy[n] > 0 {
			r.At = noon.Add(busy[n])
		}
		b.table.Add(r)
	}
	return b
}

// ask is a gang of members of eight cards.
func (b *bench) ask(members int, limit time.Duration) *backfill.Ask {
	g := &core.Gang{ID: core.GangID(fmt.Sprint(b.next)), Groups: []core.Group{{Name: "rank", Count: members, Use: core.Resources{CPU: 8}, Devices: []core.DeviceAsk{{Type: "gpu", Count: 8}}}}}
	b.next++
	r := b.p.Request(g)
	return &backfill.Ask{Gang: b.next, Request: r, Option: r.Options[0], Limit: limit}
}

func (b *bench) book(a *backfill.Ask) backfill.Booking {
	b.t.Helper()
	k, ok := b.table.Shadow(a)
	must.True(b.t, ok)
	b.table.Commit(k)
	return k
}

func nodes(k backfill.Booking) []int32 {
	var out []int32
	for i := range k.Members {
		out = append(out, k.Members[i].Use.Node)
	}
	return out
}

func (b *bench) free() int { return b.c.FreeOf(0) }

const hour = time.Hour

// The earliest release at which the gang fits; of what is free now no more is
// taken than is needed then.
func TestShadow(t *testing.T) {
	t.Parallel()
	b := newBench(t, 4, map[int]time.Duration{0: 3 * hour, 1: 1 * hour, 2: 2 * hour})
	for members, want := range map[int]time.Duration{1: 1 * hour, 2: 1 * hour, 3: 2 * hour, 4: 3 * hour} {
		k, ok := b.table.Shadow(b.ask(members, hour))
		must.True(t, ok)
		must.Eq(t, noon.Add(want), k.At, must.Sprint(members))
		must.Eq(t, noon.Add(want+hour), k.End)
	}
	_, ok := b.table.Shadow(b.ask(5, hour))
	must.False(t, ok)
	must.Eq(t, 8, b.free()) // asking takes nothing

	// One member: what comes free then serves first, and n3 stays usable.
	must.Eq(t, []int32{1}, nodes(b.book(b.ask(1, hour))))
	must.Eq(t, 8, b.free())
	// Two: n1 is promised, n2 comes free, n3 is needed and taken.
	b = newBench(t, 4, map[int]time.Duration{0: 3 * hour, 1: 1 * hour, 2: 2 * hour})
	must.Eq(t, []int32{1, 3}, nodes(b.book(b.ask(2, hour))))
	must.Eq(t, 0, b.free())
	b.table.Drop(b.next)
	must.Eq(t, 8, b.free())
}

// Bookings stand beside each other: a later one starts when an earlier one has
// ended, or before it begins where it ends in time.
func TestBookingsInTurn(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, map[int]time.Duration{0: 4 * hour, 1: 1 * hour})
	first := b.book(b.ask(2, 2*hour))
	must.Eq(t, noon.Add(4*hour), first.At)
	must.Eq(t, noon.Add(1*hour), b.book(b.ask(1, 3*hour)).At) // from +1h to +4h
	must.Eq(t, noon.Add(6*hour), b.book(b.ask(1, 3*hour)).At) // n1 is promised until then
	must.Eq(t, noon.Add(6*hour), b.book(b.ask(1, 0)).At)      // the other node
	must.Eq(t, noon.Add(9*hour), b.book(b.ask(1, hour)).At)   // the endless one has the one node, the other comes free
	_, ok := b.table.Shadow(b.ask(2, hour))                   // never both again
	must.False(t, ok)
}

// Without a known end in the way there is no promise; gathering takes the places
// that will probably be ready first.
func TestGather(t *testing.T) {
	t.Parallel()
	b := newBench(t, 4, map[int]time.Duration{0: 0, 1: 0, 2: 1 * hour})
	_, ok := b.table.Shadow(b.ask(3, hour))
	must.False(t, ok)
	ready := []int32{7200, 1800, 3600, 0}
	k, ok := b.table.Gather(b.ask(2, hour), ready)
	must.True(t, ok)
	must.True(t, k.At.IsZero())
	b.table.Commit(k)
	must.Eq(t, []int32{1, 3}, nodes(k)) // n4 is free already, n2 next
	must.Eq(t, 0, b.free())
	_, ok = b.table.Gather(b.ask(3, hour), ready) // beside the two that are gathered
	must.False(t, ok)
}

// Whoever ends before a booking begins may use it meanwhile; what it takes is
// then shared.
func TestLiftAndShare(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, map[int]time.Duration{0: 2 * hour})
	k := b.book(b.ask(2, hour))
	must.Eq(t, 0, b.free())
	must.Eq(t, backfill.Set(1), b.table.Before(noon.Add(2*hour)))
	must.Eq(t, backfill.Set(0), b.table.Before(noon.Add(2*hour+1)))
	must.Eq(t, backfill.Set(1), b.table.All())
	mark := b.c.Mark()
	b.table.Lift(1)
	must.Eq(t, 8, b.free())
	b.c.Rollback(mark)
	must.Eq(t, 0, b.free())
	// A gang takes n1 until then: the booking has nothing left to give back.
	use := k.Members[1].Use
	b.table.Share(1, &use)
	b.table.Lift(1)
	must.Eq(t, 0, b.free())
	must.Eq(t, []int{0}, b.table.Taken(0))
	must.NotNil(t, b.table.Booking(k.Gang))
	must.Nil(t, b.table.Booking(-1))
}

// What two gangs use of a promised place one after the other is never more than
// there is, in shares of a card and in ports as in whole cards.
func TestSharedCardsAndPorts(t *testing.T) {
	t.Parallel()
	cfg := core.Defaults()
	s := &core.Snapshot{Config: &cfg, Nodes: []core.Node{{ID: "n", Name: "n", Version: 1, Ready: true, Eligible: true, Capacity: core.Resources{CPU: 8},
		Devices: []core.DeviceGroup{{Type: "gpu", Name: "m", Cards: []core.Card{{ID: "k", Healthy: true, Shares: 4}}}}}}}
	c := &cluster.Cluster{}
	must.SliceEmpty(t, c.Update(s))
	use := func(shares int32, ports ...int) cluster.Use {
		return cluster.Use{Parts: []cluster.Part{{Card: 0, Shares: shares}}, Ports: ports}
	}
	table := backfill.New(c, placement.New(c), noon)
	table.Keep(1, noon.Add(time.Hour), time.Hour, []placement.Member{{Use: use(2, 7000)}}, nil)
	must.Eq(t, 2, c.PartFree(0, 0))
	// Two more on the same card, of which one is free: lifted, both give back no
	// more than they took.
	busy := use(1)
	mark := c.Mark()
	c.Take(&busy)
	table.Keep(2, noon.Add(time.Hour), time.Hour, []placement.Member{{Use: use(2)}, {Use: use(2)}}, nil)
	must.Eq(t, 0, c.PartFree(0, 0))
	table.Lift(2)
	must.Eq(t, 1, c.PartFree(0, 0))
	c.Rollback(mark)
	table.Bookings = table.Bookings[:1]
	// Three shares: the two that are free and one that is promised, and its port.
	rider := use(3, 7000)
	table.Share(1, &rider)
	must.Eq(t, 0, c.PartFree(0, 0))
	table.Lift(1)
	must.Eq(t, 1, c.PartFree(0, 0))
	must.True(t, c.PortTaken(0, 7000))
}

// A place that the caller chose is kept, as far as it is free now.
func TestKeep(t *testing.T) {
	t.Parallel()
	b := newBench(t, 2, map[int]time.Duration{0: hour})
	k, ok := b.table.Shadow(b.ask(2, hour))
	must.True(t, ok)
	freed := b.c.Holds()[0].Use
	b.table.Keep(7, noon.Add(hour), hour, k.Members, []cluster.Use{freed})
	must.Eq(t, 0, b.free())
	must.Eq(t, noon.Add(2*hour), b.table.Booking(7).End)
	b.table.Drop(7)
	must.Eq(t, 8, b.free())
}

// Replace forgets what was told of a gang's end.
func TestReplace(t *testing.T) {
	t.Parallel()
	b := newBench(t, 1, map[int]time.Duration{0: 5 * hour})
	b.table.Replace(backfill.Release{At: noon.Add(hour), Uses: []cluster.Use{b.c.Holds()[0].Use}, Gang: 0})
	must.Eq(t, noon.Add(hour), b.book(b.ask(1, hour)).At)
}
