package simulate

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/recent"
)

// World is a cluster in virtual time: nodes, gangs, and who holds what. It
// carries plans out as a faithful executor would, at once, and builds the
// snapshot that the decision core sees. It has no clock of its own: Now is
// set by whoever drives it.
type World struct {
	Now    time.Time
	Config *core.Config
	Nodes  []core.Node
	// History is handed to the core as it is; eviction counts, reservations and
	// the mix of recent demand are kept by the world.
	History   core.History
	Paused    bool
	PausedWhy string
	// Others are allocations that belong to no gang.
	Others []core.Claim

	index   map[core.NodeID]int
	gangs   map[core.GangID]*Gang
	order   []*Gang // that are not over, by id
	version uint64
	seq     int64
	day     int64
	evicted []eviction // in the last 24 hours
	recent  recent.Window
}

// Gang is a gang with its place in the world.
type Gang struct {
	core.Gang
	// Hold keeps a placed gang from being released until Release is called.
	Hold   bool
	Over   bool
	Result string // complete, failed, gave-up, withdrawn

	Claims []core.Claim
	After  []core.GangID // that have to leave before it can run
	back   core.QueueName
	asked  time.Time
	waited time.Duration // before its last start
	kind   core.EvictionKind
}

type eviction struct {
	at     time.Time
	victim core.GangID
	by     core.GangID
	queue  core.QueueName
	top    bool
}

// NewWorld returns a world of nodes with nothing on them.
func NewWorld(now time.Time, cfg *core.Config, nodes []core.Node) *World {
	w := &World{Now: now, Config: cfg, Nodes: nodes, index: make(map[core.NodeID]int, len(nodes)), gangs: map[core.GangID]*Gang{}}
	for i := range nodes {
		w.index[nodes[i].ID] = i
		if nodes[i].Version == 0 {
			nodes[i].Version = 1
		}
		w.version = max(w.version, nodes[i].Version)
	}
	return w
}

// Gang finds a gang; nil where it is unknown.
func (w *World) Gang(id core.GangID) *Gang { return w.gangs[id] }

// Active lists the gangs that are not over, by id. The list must not be
// changed.
func (w *World) Active() []*Gang { return w.order }

// Submit adds a gang to its queue.
func (w *World) Submit(g core.Gang) (*Gang, error) {
	if _, twice := w.gangs[g.ID]; twice {
		return nil, fmt.Errorf("submit gang %s: a gang of this name exists", g.ID)
	}
	w.seq++
	g.Sequence = w.seq
	if g.Submitted.IsZero() {
		g.Submitted = w.Now
	}
	if g.Queued.IsZero() {
		g.Queued = w.Now
	}
	if came, ok := recent.Of(&g, w.isCard); ok {
		w.recent.Came(came)
	}
	x := &Gang{Gang: g}
	w.gangs[g.ID] = x
	at, _ := slices.BinarySearchFunc(w.order, g.ID, func(a *Gang, id core.GangID) int { return cmp.Compare(a.ID, id) })
	w.order = slices.Insert(w.order, at, x)
	return x, nil
}

func (w *World) isCard(typ string) bool { return slices.Contains(w.Config.CardTypes, typ) }

// EditNode changes a node and gives it a new version.
func (w *World) EditNode(id core.NodeID, edit func(*core.Node)) error {
	i, ok := w.index[id]
	if !ok {
		return fmt.Errorf("change node %s: it is not known", id)
	}
	n := w.Nodes[i]
	n.Devices = slices.Clone(n.Devices)
	for d := range n.Devices {
		n.Devices[d].Cards = slices.Clone(n.Devices[d].Cards)
	}
	edit(&n)
	w.version++
	n.Version = w.version
	// Earlier snapshots keep the old slice.
	w.Nodes = slices.Clone(w.Nodes)
	w.Nodes[i] = n
	return nil
}

// RemoveNode takes a node out of the cluster. Members on it are lost: their gangs
// are damaged.
func (w *World) RemoveNode(id core.NodeID) error {
	at, ok := w.index[id]
	if !ok {
		return fmt.Errorf("remove node %s: it is not known", id)
	}
	w.Nodes = slices.Delete(slices.Clone(w.Nodes), at, at+1)
	clear(w.index)
	for i := range w.Nodes {
		w.index[w.Nodes[i].ID] = i
	}
	for _, g := range w.order {
		var lost []int
		for i := range g.Claims {
			if g.Claims[i].Node == id {
				lost = append(lost, g.Claims[i].Member)
			}
		}
		w.Lose(g, lost)
	}
	return nil
}

// AddNode adds a node, or one that was removed again.
func (w *World) AddNode(n core.Node) error {
	if _, ok := w.index[n.ID]; ok {
		return fmt.Errorf("add node %s: it is there", n.ID)
	}
	w.version++
	n.Version = w.version
	w.index[n.ID] = len(w.Nodes)
	w.Nodes = append(slices.Clip(w.Nodes), n)
	return nil
}

// Lose takes members from a gang, which is damaged then.
func (w *World) Lose(g *Gang, members []int) {
	if len(members) == 0 {
		return
	}
	if g.State == core.GangRunning || g.State == core.GangPlacing {
		g.Damaged, g.Lost = true, append(slices.Clone(g.Lost), members...)
	}
	g.Claims = slices.DeleteFunc(slices.Clone(g.Claims), func(k core.Claim) bool { return slices.Contains(members, k.Member) })
	g.Placement = slices.DeleteFunc(slices.Clone(g.Placement), func(p core.Placement) bool { return slices.Contains(members, p.Member) })
}

// Snapshot is what the decision core sees now.
func (w *World) Snapshot() *core.Snapshot {
	w.countDay()
	s := &core.Snapshot{Now: w.Now, Config: w.Config, Nodes: w.Nodes, Paused: w.Paused, PausedWhy: w.PausedWhy, History: w.History}
	s.Gangs = make([]core.Gang, len(w.order))
	claims := len(w.Others)
	for _, g := range w.order {
		claims += len(g.Claims)
	}
	s.Claims = make([]core.Claim, 0, claims)
	s.Claims = append(s.Claims, w.Others...)
	for i, g := range w.order {
		s.Gangs[i] = g.Gang
		s.Claims = append(s.Claims, g.Claims...)
	}
	s.History.Recent = w.recent.Shapes()
	s.History.EvictionsToday, s.History.TopEvictionsToday = map[core.QueueName]int{}, map[core.QueueName]int{}
	for _, e := range w.evicted {
		if e.at.Unix()/86400 == w.Now.Unix()/86400 {
			s.History.EvictionsToday[e.queue]++
			if e.top {
				s.History.TopEvictionsToday[e.queue]++
			}
		}
	}
	return s
}

// countDay starts the day's counts again at midnight UTC, and forgets
// evictions that are a day old.
func (w *World) countDay() {
	if day := w.Now.Unix() / 86400; day != w.day {
		w.day = day
		for _, g := range w.order {
			g.EvictionsToday = 0
		}
	}
	old := w.Now.Add(-24 * time.Hour)
	keep := 0
	for _, e := range w.evicted {
		if e.at.After(old) {
			break
		}
		keep++
		if v := w.gangs[e.victim]; v != nil {
			if at := slices.Index(v.EvictedBy, e.by); at >= 0 {
				v.EvictedBy = slices.Delete(slices.Clone(v.EvictedBy), at, at+1)
			}
		}
	}
	w.evicted = w.evicted[keep:]
}

// Applied is what carrying a plan out did.
type Applied struct {
	Started []*Gang // got their cards; those that wait for others to leave are not among them
	Asked   []*Gang // were asked to leave
	Resized []*Gang
	Ended   []*Gang // gave up
}

// Apply carries a plan out: starts take their cards at once, evictions are
// asked for, resizes happen.
func (w *World) Apply(p *core.Plan) (Applied, error) {
	var done Applied
	w.History.Reservations = p.Reservations
	for i := range p.Evictions {
		e := &p.Evictions[i]
		g := w.gangs[e.Gang]
		if g == nil || g.Over || g.State != core.GangRunning && g.State != core.GangPlacing {
			return done, fmt.Errorf("evict gang %s: it does not run", e.Gang)
		}
		g.State, g.back, g.asked, g.kind = core.GangStopping, e.To, w.Now, e.Kind
		for k := range g.Claims {
			g.Claims[k].Stopping = true
		}
		g.Claims = slices.Clone(g.Claims)
		if e.For != "" {
			g.EvictionsToday++
			if by := w.gangs[e.For]; by != nil {
				g.EvictedBy = append(slices.Clone(g.EvictedBy), e.For)
				w.evicted = append(w.evicted, eviction{w.Now, g.ID, e.For, by.Queue, e.Kind == core.EvictAged})
			}
		}
		done.Asked = append(done.Asked, g)
	}
	for i := range p.Resizes {
		r := &p.Resizes[i]
		g := w.gangs[r.Gang]
		if g == nil || g.State != core.GangRunning {
			return done, fmt.Errorf("resize gang %s: it does not run", r.Gang)
		}
		g.Claims = slices.DeleteFunc(slices.Clone(g.Claims), func(k core.Claim) bool { return slices.Contains(r.Remove, k.Member) })
		g.Placement = slices.DeleteFunc(slices.Clone(g.Placement), func(k core.Placement) bool { return slices.Contains(r.Remove, k.Member) })
		g.Claims = append(g.Claims, w.claims(g, r.Add, false)...)
		g.Placement = append(g.Placement, r.Add...)
		if len(r.Add) > 0 {
			g.Damaged, g.Lost = false, nil
		}
		done.Resized = append(done.Resized, g)
	}
	for i := range p.Starts {
		s := &p.Starts[i]
		g := w.gangs[s.Gang]
		if g == nil || g.State != core.GangWaiting && g.State != core.GangRefused {
			return done, fmt.Errorf("start gang %s: it does not wait", s.Gang)
		}
		g.Attempt++
		g.waited = w.Now.Sub(g.Queued)
		// Members that were given up have gone already; gangs that leave have not.
		after := slices.DeleteFunc(slices.Clone(s.After), func(id core.GangID) bool { v := w.gangs[id]; return v == nil || v.State != core.GangStopping })
		g.State, g.Started, g.Queued, g.Placement, g.After, g.Backfilled, g.Waits = core.GangPlacing, w.Now, time.Time{}, s.Members, after, s.OnPromise, s.Waits && len(after) > 0
		g.Damaged, g.Lost = false, nil
		g.Claims = w.claims(g, s.Members, len(after) > 0)
		if len(after) == 0 {
			done.Started = append(done.Started, g)
			if !g.Hold {
				w.Release(g)
			}
		}
	}
	for _, f := range p.Fails {
		g := w.gangs[f.Gang]
		w.end(g, "gave-up")
		done.Ended = append(done.Ended, g)
	}
	for _, id := range p.Splits {
		if err := w.split(w.gangs[id]); err != nil {
			return done, err
		}
	}
	return done, nil
}

// claims are what placed members hold.
func (w *World) claims(g *Gang, members []core.Placement, asked bool) []core.Claim {
	out := make([]core.Claim, len(members))
	for i := range members {
		m := &members[i]
		k := core.Claim{Node: m.Node, Gang: g.ID, Attempt: g.Attempt, Member: m.Member, Alloc: fmt.Sprintf("%s.%d.%d", g.ID, g.Attempt, m.Member), Job: string(g.ID), Asked: asked, Priority: g.Priority}
		for j := range g.Groups {
			group := &g.Groups[j]
			if group.Name != m.Group {
				continue
			}
			k.Use, k.Ports = group.Use, group.StaticPorts
			for a, ids := range m.Cards {
				k.Cards = append(k.Cards, ids...)
				for range ids {
					k.Shares = append(k.Shares, group.Devices[a].Shares)
				}
			}
		}
		if !slices.ContainsFunc(k.Shares, func(n int) bool { return n > 0 }) {
			k.Shares = nil
		}
		out[i] = k
	}
	return out
}

// Release lets a placed gang run.
func (w *World) Release(g *Gang) {
	g.State, g.Released, g.Checkpoint, g.Waits = core.GangRunning, w.Now, time.Time{}, false
	for i := range g.Claims {
		g.Claims[i].Asked = false
	}
	g.Claims = slices.Clone(g.Claims)
}

// Left tells that a gang that was asked to leave has given its cards back. It
// is queued again, ended by itself meanwhile, or, at its time limit, over.
// Gangs that waited only for it are released; they are returned.
func (w *World) Left(g *Gang) []*Gang {
	kind, ran := g.kind, time.Duration(0)
	if !g.Released.IsZero() {
		ran = g.asked.Sub(g.Released)
		g.Ran += ran
	}
	if ran >= w.minRuntime(g.Queue) { // it has had its turn: waiting starts again from zero
		g.waited = 0
	}
	g.Claims, g.Placement, g.Backfilled, g.Waits = nil, nil, false, false
	g.State, g.Queued, g.Released, g.Checkpoint = core.GangWaiting, w.Now.Add(-g.waited), time.Time{}, time.Time{}
	if g.back != "" {
		g.Queue = g.back
	}
	if kind == core.EvictTimeLimit {
		w.end(g, "time-limit")
	}
	return w.free(g.ID)
}

func (w *World) minRuntime(queue core.QueueName) time.Duration {
	for i := range w.Config.Queues {
		if q := &w.Config.Queues[i]; q.Name == queue {
			return q.Preempt.MinRuntime
		}
	}
	return 0
}

// End tells that a gang is over. Gangs that waited only for it are returned.
func (w *World) End(g *Gang, result string) []*Gang {
	w.end(g, result)
	return w.free(g.ID)
}

func (w *World) end(g *Gang, result string) {
	g.Over, g.Result, g.Claims = true, result, nil
	at, ok := slices.BinarySearchFunc(w.order, g.ID, func(a *Gang, id core.GangID) int { return cmp.Compare(a.ID, id) })
	if ok {
		w.order = slices.Delete(w.order, at, at+1)
	}
	delete(w.gangs, g.ID)
}

// free lets gangs run that waited for one to leave.
func (w *World) free(left core.GangID) []*Gang {
	var out []*Gang
	for _, g := range w.order {
		at := slices.Index(g.After, left)
		if at < 0 || g.State != core.GangPlacing {
			continue
		}
		g.After = slices.Delete(slices.Clone(g.After), at, at+1)
		if len(g.After) == 0 {
			g.Waits = false
			for i := range g.Claims {
				g.Claims[i].Asked = false
			}
			g.Claims = slices.Clone(g.Claims)
			if !g.Hold {
				w.Release(g)
			}
			out = append(out, g)
		}
	}
	return out
}

// split replaces a gang by gangs of one member each.
func (w *World) split(g *Gang) error {
	w.end(g, "split")
	n := 0
	for i := range g.Groups {
		for range g.Groups[i].Count {
			one := g.Gang
			one.ID = core.GangID(fmt.Sprintf("%s.%d", g.ID, n))
			one.Groups = []core.Group{g.Groups[i]}
			one.Groups[0].Count = 1
			one.Min = 0
			one.Split = false
			one.Queued = w.Now // it waits anew, or it would give up at once
			if _, err := w.Submit(one); err != nil {
				return err
			}
			n++
		}
	}
	return nil
}

// Check returns what must never be: a card held twice (but for one that is
// taken over from a gang that leaves), a card that does not exist, a gang of
// which only a part is placed.
func (w *World) Check() error {
	type key struct {
		node core.NodeID
		card core.CardID
	}
	exists := map[key]int{}
	for i := range w.Nodes {
		for d := range w.Nodes[i].Devices {
			for k := range w.Nodes[i].Devices[d].Cards {
				c := &w.Nodes[i].Devices[d].Cards[k]
				exists[key{w.Nodes[i].ID, c.ID}] = max(1, c.Shares)
			}
		}
	}
	// What is there now, and what will be once those that leave have left.
	var held [2]map[key]int
	for after := range held {
		held[after] = map[key]int{}
	}
	for _, g := range w.order {
		if g.State == core.GangRunning || g.State == core.GangPlacing {
			least := 0
			for i := range g.Groups {
				least += g.Groups[i].Count
			}
			if g.Min > 0 {
				least = g.Min
			}
			if len(g.Claims) < least && !g.Damaged {
				return fmt.Errorf("gang %s runs with %d of at least %d members", g.ID, len(g.Claims), least)
			}
		}
		for i := range g.Claims {
			c := &g.Claims[i]
			for j, id := range c.Cards {
				k := key{c.Node, id}
				if exists[k] == 0 {
					return fmt.Errorf("gang %s holds card %s, which node %s does not have", g.ID, id, c.Node)
				}
				part := exists[k]
				if len(c.Shares) > 0 && c.Shares[j] > 0 {
					part = c.Shares[j]
				}
				for after := range held {
					if after == 0 && c.Asked || after == 1 && c.Stopping {
						continue
					}
					if held[after][k] += part; held[after][k] > exists[k] {
						return fmt.Errorf("card %s, held by gang %s, is given out twice", id, g.ID)
					}
				}
			}
		}
	}
	return nil
}
