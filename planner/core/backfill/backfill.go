// Package backfill keeps the timetable of one cycle: when what is held comes
// free, and what of it is promised to whom.
//
// A booking is a set of places from an instant on. Its instant is the earliest
// release (the end of a running gang by its time limit) at which the whole
// gang fits beside the bookings made before it, its shadow time; its places
// are chosen among those that are not free now, as far as its topology leaves
// a choice, so that as much as can be stays usable for others meanwhile.
// Where gangs without a known end are in the way there is no shadow time: the
// booking gathers. It has no instant, and takes the places that will probably
// be whole first.
//
// Of a booking, what is free now and will be needed is taken in the cluster at
// once. A gang that ends before the booking's instant, or that leaves when it
// is told, may use it meanwhile: the booking is lifted for it.
package backfill

import (
	"cmp"
	"slices"
	"time"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/cluster"
	"github.com/nomad-muster/muster/planner/core/placement"
)

// Release is what comes free at an instant.
type Release struct {
	At   time.Time // zero: not known
	Uses []cluster.Use
	Gang int32 // whose it is, the caller's number
}

// Booking is a promise of places to a gang.
type Booking struct {
	Gang    int32
	At      time.Time // zero: gathering
	End     time.Time // when it will have ended; zero: not known
	Members []placement.Member
	now     []cluster.Use // what it has taken already, a use for each node
}

// Table is the timetable.
type Table struct {
	c        *cluster.Cluster
	p        *placement.Placer
	now      time.Time
	releases []Release // with an instant, ordered once sorted
	endless  []Release
	sorted   bool
	Bookings []Booking
	bias     []int32
	later    []uint64 // cards that are free now
	promised []int32  // see Promised
	free     []uint64 // likewise
}

// New starts an empty timetable.
func New(c *cluster.Cluster, p *placement.Placer, now time.Time) *Table {
	return &Table{c: c, p: p, now: now}
}

// Add tells of something that will come free.
func (t *Table) Add(r Release) {
	if r.At.IsZero() {
		t.endless = append(t.endless, r)
		return
	}
	t.releases = append(t.releases, r)
	t.sorted = false
}

// Replace forgets what was told of a gang's end and tells it anew.
func (t *Table) Replace(r Release) {
	other := func(x Release) bool { return x.Gang == r.Gang }
	t.releases, t.endless = slices.DeleteFunc(t.releases, other), slices.DeleteFunc(t.endless, other)
	t.Add(r)
}

// Ask is a gang that wants a booking.
type Ask struct {
	Gang    int32
	Request *placement.Request
	Option  *placement.Option
	Members int           // of the first group; 0: all
	Limit   time.Duration // 0: endless
	Deny    []bool
}

// Shadow finds the earliest instant at which the gang fits, and its places
// then; false where gangs without a known end are in the way.
func (t *Table) Shadow(a *Ask) (Booking, bool) {
	if !t.sorted {
		slices.SortFunc(t.releases, func(x, y Release) int { return cmp.Or(x.At.Compare(y.At), cmp.Compare(x.Gang, y.Gang)) })
		t.sorted = true
	}
	if len(t.releases) == 0 {
		return Booking{}, false
	}
	mark := t.c.Mark()
	defer t.c.Rollback(mark)
	bias := t.freeNow()
	t.later = t.c.Words(t.later)
	// done releases are given back; at that state the gang does not fit.
	done, step := 0, 16
	hi := -1 // it fits with this many
	for hi < 0 {
		to := t.group(min(done+step, len(t.releases)))
		inner := t.c.Mark()
		t.give(done, to)
		if t.fits(a, to) {
			hi = to
			t.c.Rollback(inner)
			break
		}
		if to == len(t.releases) {
			return Booking{}, false
		}
		done, step = to, step*2
	}
	for {
		mid := t.group(max((done+hi)/2, done+1))
		if mid >= hi {
			// All releases of one instant lie between: try the group before.
			mid = t.groupBefore(hi)
			if mid <= done {
				break
			}
		}
		inner := t.c.Mark()
		t.give(done, mid)
		if t.fits(a, mid) {
			hi = mid
			t.c.Rollback(inner)
		} else {
			done = mid
		}
	}
	t.give(done, hi)
	at := t.releases[hi-1].At
	if at.Before(t.now) {
		at = t.now
	}
	t.book(at, a)
	b, ok := t.place(a, at, bias)
	return b, ok
}

// Gather finds places whenever their holders end: those on the nodes that will
// be ready first, by node in seconds.
func (t *Table) Gather(a *Ask, ready []int32) (Booking, bool) {
	mark := t.c.Mark()
	defer t.c.Rollback(mark)
	t.later = nil
	t.give(0, len(t.releases))
	for i := range t.endless {
		t.giveUses(t.endless[i].Uses)
	}
	t.book(time.Time{}, a)
	return t.place(a, time.Time{}, ready)
}

// group is the end of the group of releases of one instant that the first n
// reach into, and groupBefore the start of the group that ends at n.
func (t *Table) group(n int) int {
	for n > 0 && n < len(t.releases) && t.releases[n].At.Equal(t.releases[n-1].At) {
		n++
	}
	return n
}

func (t *Table) groupBefore(n int) int {
	at := t.releases[n-1].At
	for n > 0 && t.releases[n-1].At.Equal(at) {
		n--
	}
	return n
}

func (t *Table) give(from, to int) {
	for i := from; i < to; i++ {
		t.giveUses(t.releases[i].Uses)
	}
}

func (t *Table) giveUses(uses []cluster.Use) {
	for i := range uses {
		t.c.Give(&uses[i])
	}
}

// fits tells whether the gang fits once the first n releases are given back.
func (t *Table) fits(a *Ask, n int) bool {
	mark := t.c.Mark()
	defer t.c.Rollback(mark)
	t.book(t.releases[n-1].At, a)
	_, ok := t.p.Place(a.Request, a.Option, placement.Options{Members: a.Members, Deny: a.Deny})
	return ok
}

// book brings the bookings to an instant at which a gang would start: one that
// ends before a booking begins does not see it, nor does one that starts after
// it has ended.
func (t *Table) book(at time.Time, a *Ask) {
	for i := range t.Bookings {
		b := &t.Bookings[i]
		before := !at.IsZero() && !b.At.IsZero() && a.Limit > 0 && !at.Add(a.Limit).After(b.At)
		after := !at.IsZero() && !b.End.IsZero() && !b.End.After(at)
		if before || after {
			t.giveUses(b.now)
			continue
		}
		for m := range b.Members {
			t.c.Take(&b.Members[m].Use)
		}
	}
}

// freeNow is a bias by the cards that are free on each node in the state that
// the cycle has reached.
func (t *Table) freeNow() []int32 {
	if t.bias == nil {
		t.bias = make([]int32, len(t.c.Nodes))
	}
	for n := range t.c.Nodes {
		free := int32(0)
		for d := range t.c.Nodes[n].Devices {
			if dev := &t.c.Nodes[n].Devices[d]; dev.Model >= 0 {
				free += int32(cluster.Count(t.c.FreeCards(dev)))
			}
		}
		t.bias[n] = free
	}
	return t.bias
}

func (t *Table) place(a *Ask, at time.Time, bias []int32) (Booking, bool) {
	res, ok := t.p.Place(a.Request, a.Option, placement.Options{Members: a.Members, Deny: a.Deny, Bias: bias, Later: t.later})
	if !ok {
		// The bias may lead where distinct properties do not.
		if res, ok = t.p.Place(a.Request, a.Option, placement.Options{Members: a.Members, Deny: a.Deny}); !ok {
			return Booking{}, false
		}
	}
	b := Booking{Gang: a.Gang, At: at, Members: res.Members}
	if !at.IsZero() && a.Limit > 0 {
		b.End = at.Add(a.Limit)
	}
	b.then(t.c)
	return b, true
}

// then notes, for each node of the booking, what will be free on it at its
// instant before it starts.
func (b *Booking) then(c *cluster.Cluster) {
	at := map[int32]int{}
	for i := range b.Members {
		u := &b.Members[i].Use
		k, ok := at[u.Node]
		if !ok {
			k = len(b.now)
			at[u.Node] = k
			f := c.At(u.Node)
			b.now = append(b.now, cluster.Use{Node: u.Node, Res: core.Resources{CPU: f.CPU, Cores: f.Cores, MemoryMB: f.MemoryMB, DiskMB: f.DiskMB}, Dynamic: f.DynamicPorts})
		}
		n := &b.now[k]
		n.Res.CPU += u.Res.CPU
		n.Res.Cores += u.Res.Cores
		n.Res.MemoryMB += u.Res.MemoryMB
		n.Res.DiskMB += u.Res.DiskMB
		n.Dynamic += u.Dynamic
		n.Ports = append(n.Ports, u.Ports...)
	}
}

// Commit makes a booking that Shadow or Gather found, in the state in which it
// was found: it takes what it needs of what is free now.
func (t *Table) Commit(b Booking) {
	need := map[int32]*core.Resources{}
	dynamic := map[int32]int{}
	for i := range b.Members {
		u := &b.Members[i].Use
		r := need[u.Node]
		if r == nil {
			r = &core.Resources{}
			need[u.Node] = r
		}
		r.CPU += u.Res.CPU
		r.Cores += u.Res.Cores
		r.MemoryMB += u.Res.MemoryMB
		r.DiskMB += u.Res.DiskMB
		dynamic[u.Node] += u.Dynamic
	}
	for i := range b.now {
		n := &b.now[i]
		f, r := t.c.At(n.Node), need[n.Node]
		// What comes free until then serves first.
		now := func(need, then, free int64) int64 { return min(max(0, need-(then-free)), max(0, free)) }
		n.Res = core.Resources{CPU: now(r.CPU, n.Res.CPU, f.CPU), Cores: int(now(int64(r.Cores), int64(n.Res.Cores), int64(f.Cores))),
			MemoryMB: now(r.MemoryMB, n.Res.MemoryMB, f.MemoryMB), DiskMB: now(r.DiskMB, n.Res.DiskMB, f.DiskMB)}
		n.Dynamic = int(now(int64(dynamic[n.Node]), int64(n.Dynamic), int64(f.DynamicPorts)))
		n.Ports = slices.DeleteFunc(n.Ports, func(p int) bool { return t.c.PortTaken(n.Node, p) })
		for m := range b.Members {
			u := &b.Members[m].Use
			if u.Node != n.Node {
				continue
			}
			for _, place := range u.Cards {
				if t.c.CardFree(u.Node, place) {
					n.Cards = append(n.Cards, place)
				}
			}
			for _, p := range u.Parts {
				free := t.c.PartFree(u.Node, p.Card)
				for _, other := range n.Parts { // of a member on the same card
					if other.Card == p.Card {
						free -= other.Shares
					}
				}
				if free > 0 {
					n.Parts = append(n.Parts, cluster.Part{Card: p.Card, Shares: min(free, p.Shares)})
				}
			}
		}
		t.c.Take(n)
	}
	t.Bookings = append(t.Bookings, b)
	if !b.End.IsZero() {
		t.Add(Release{At: b.End, Gang: b.Gang}) // another instant at which something comes free
	}
}

// Keep books places that the caller chose, from an instant on at which some
// uses will have been given back.
func (t *Table) Keep(gang int32, at time.Time, limit time.Duration, members []placement.Member, freed []cluster.Use) {
	b := Booking{Gang: gang, At: at, Members: members}
	if limit > 0 {
		b.End = at.Add(limit)
	}
	mark := t.c.Mark()
	t.giveUses(freed)
	b.then(t.c)
	t.c.Rollback(mark)
	t.Commit(b)
}

// Drop takes a booking back.
func (t *Table) Drop(gang int32) {
	for i := range t.Bookings {
		if t.Bookings[i].Gang == gang {
			t.giveUses(t.Bookings[i].now)
			t.Bookings = slices.Delete(t.Bookings, i, i+1)
			return
		}
	}
}

// Set is a set of bookings, by place.
type Set uint64

// Before is the set of bookings whose instant is not before an instant.
func (t *Table) Before(end time.Time) Set {
	var s Set
	for i := range t.Bookings {
		if b := &t.Bookings[i]; !b.At.IsZero() && !end.After(b.At) && i < 64 {
			s |= 1 << i
		}
	}
	return s
}

// All is the set of all bookings.
func (t *Table) All() Set { return Set(1)<<min(len(t.Bookings), 63) - 1 }

// Promised says how a gang that may use what a set of bookings has taken finds
// those places first: a bias by node, and the cards that are free beside them.
// Both are good until the next call.
func (t *Table) Promised(s Set) (bias []int32, free []uint64) {
	if t.promised == nil {
		t.promised = make([]int32, len(t.c.Nodes))
	}
	clear(t.promised)
	for i := range t.Bookings {
		if s>>i&1 == 0 {
			continue
		}
		for k := range t.Bookings[i].now {
			u := &t.Bookings[i].now[k]
			t.promised[u.Node] -= int32(len(u.Cards) + len(u.Parts))
		}
	}
	t.free = t.c.Words(t.free)
	return t.promised, t.free
}

// Lift gives back what a set of bookings has taken. The caller rolls back.
func (t *Table) Lift(s Set) {
	for i := range t.Bookings {
		if s>>i&1 == 1 {
			t.giveUses(t.Bookings[i].now)
		}
	}
}

// LiftFor gives back what a gang's own booking has taken.
func (t *Table) LiftFor(gang int32) {
	if b := t.Booking(gang); b != nil {
		t.giveUses(b.now)
	}
}

// Share takes what a member uses where a set of bookings, which is not lifted,
// may have taken it: what both have counts for the member.
func (t *Table) Share(s Set, u *cluster.Use) {
	for i := range t.Bookings {
		if s>>i&1 == 0 {
			continue
		}
		for k := range t.Bookings[i].now {
			if n := &t.Bookings[i].now[k]; n.Node == u.Node {
				t.yield(n, u)
			}
		}
	}
	t.c.Take(u)
}

// yield gives back what a booking has taken of what a member uses; of a shared
// card, what the member does not find beside it.
func (t *Table) yield(n, u *cluster.Use) {
	both := cluster.Use{Node: n.Node, Res: core.Resources{CPU: min(n.Res.CPU, u.Res.CPU), Cores: min(n.Res.Cores, u.Res.Cores),
		MemoryMB: min(n.Res.MemoryMB, u.Res.MemoryMB), DiskMB: min(n.Res.DiskMB, u.Res.DiskMB)}, Dynamic: min(n.Dynamic, u.Dynamic)}
	n.Res.CPU -= both.Res.CPU
	n.Res.Cores -= both.Res.Cores
	n.Res.MemoryMB -= both.Res.MemoryMB
	n.Res.DiskMB -= both.Res.DiskMB
	n.Dynamic -= both.Dynamic
	var left []int32
	for _, p := range n.Cards {
		if slices.Contains(u.Cards, p) || slices.ContainsFunc(u.Parts, func(x cluster.Part) bool { return x.Card == p }) {
			both.Cards = append(both.Cards, p)
		} else {
			left = append(left, p)
		}
	}
	n.Cards = left
	var parts []cluster.Part
	missing := map[int32]int32{} // of each card, beside what is free
	for _, p := range u.Parts {
		missing[p.Card] += p.Shares
	}
	for card := range missing {
		missing[card] -= t.c.PartFree(n.Node, card)
	}
	for _, p := range n.Parts {
		give := min(p.Shares, max(0, missing[p.Card]))
		if slices.Contains(u.Cards, p.Card) {
			give = p.Shares
		}
		missing[p.Card] -= give
		if give > 0 {
			both.Parts = append(both.Parts, cluster.Part{Card: p.Card, Shares: give})
		}
		if p.Shares -= give; p.Shares > 0 {
			parts = append(parts, p)
		}
	}
	n.Parts = parts
	var ports []int
	for _, p := range n.Ports {
		if slices.Contains(u.Ports, p) {
			both.Ports = append(both.Ports, p)
		} else {
			ports = append(ports, p)
		}
	}
	n.Ports = ports
	t.c.Give(&both)
}

// Booking finds a gang's booking; nil: it has none.
func (t *Table) Booking(gang int32) *Booking {
	for i := range t.Bookings {
		if t.Bookings[i].Gang == gang {
			return &t.Bookings[i]
		}
	}
	return nil
}

// Taken counts the cards that a booking, by its place, keeps free now, by model.
func (t *Table) Taken(booking int) []int {
	out := make([]int, len(t.c.Models))
	for _, u := range t.Bookings[booking].now {
		for _, place := range u.Cards {
			if d, _ := t.c.Nodes[u.Node].Device(place); d != nil && d.Model >= 0 {
				out[d.Model]++
			}
		}
	}
	return out
}
