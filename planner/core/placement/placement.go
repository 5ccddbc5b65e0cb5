// Package placement places a gang whole or not at all.
//
// A gang's groups are placed on one card model, the first accepted one on
// which all of it fits. Places are chosen, in this order:
//
//  1. the required level: all members within one domain of it ("node": on one
//     node; "nvlink": each member's cards within one NVLink domain);
//  2. the fewest domains at each level, from the outside in, nodes last;
//  3. of several domains that do equally well, the one that is left with the
//     least room for more such members; of several nodes, the one with the
//     best score: not suspect, then affinities, then the fewest free cards;
//  4. the lowest place in the topology's order.
//
// Groups of unlike members are placed one after the other, the one with the
// most cards a member first, within the innermost domain that takes them all.
// Members are numbered group by group, along the topology.
package placement

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/cluster"
	"github.com/nomad-muster/muster/planner/core/feasible"
)

// Placer places gangs on one cluster. It keeps what it derived from the
// cluster as long as the cluster's Shape does not change.
type Placer struct {
	c        *cluster.Cluster
	shape    uint64
	classes  int
	requests map[string]*Request
	key      []byte
}

// New returns a Placer for a cluster.
func New(c *cluster.Cluster) *Placer { return &Placer{c: c, requests: map[string]*Request{}} }

// Request is a gang's demand, shared by all gangs that ask for the same.
type Request struct {
	Gang    *core.Gang // one of those that ask for it
	Options []*Option  // by model, most wanted first
	Members int
	// level is the required or preferred topology level's number; -1: none,
	// len(Levels): one node.
	level    int
	required bool
	distinct bool // no two members of any group on one node
}

// Option is a request on one model.
type Option struct {
	Model core.Model // "": no cards asked
	// Cards of each model that the whole gang takes, by model number.
	Cards []ModelCards
	views []*view // of each group
	order []int   // groups in the order of placing
}

// ModelCards is a number of cards of one model.
type ModelCards struct {
	Model int32
	Cards int
}

// Result is a gang's place.
type Result struct {
	Option  *Option
	Members []Member // by member number
	// Domains is the number of domains used at each level; Nodes of nodes.
	Domains []int
	Nodes   int
}

// Member is one member's place.
type Member struct {
	Group int
	Use   cluster.Use
	Asks  [][]int32 // places among the node's cards, for each device ask
}

// Request finds or makes the request of a gang.
func (p *Placer) Request(g *core.Gang) *Request {
	if p.shape != p.c.Shape || p.classes != p.c.ClassCount() {
		p.shape, p.classes = p.c.Shape, p.c.ClassCount()
		clear(p.requests)
	}
	p.key = appendDemand(p.key[:0], g)
	if r, ok := p.requests[string(p.key)]; ok {
		return r
	}
	r := p.compile(g)
	p.requests[string(p.key)] = r
	return r
}

func (p *Placer) compile(g *core.Gang) *Request {
	r := &Request{Gang: g, level: -1, required: g.Required, distinct: true}
	for i := range g.Groups {
		r.Members += g.Groups[i].Count
		if !slices.ContainsFunc(g.Groups[i].Constraints, func(k core.Constraint) bool { return k.Operand == "distinct_hosts" && k.Right != "false" }) {
			r.distinct = false
		}
	}
	r.distinct = r.distinct && len(g.Groups) > 1
	switch {
	case g.Level == core.LevelNode:
		r.level = len(p.c.Levels)
	case g.Level != "" && g.Level != core.LevelLink:
		r.level = p.c.Level(g.Level)
	case len(p.c.Levels) > 0:
		r.level = len(p.c.Levels) - 1
		r.required = false
	}
	// matches are the models that can serve each ask.
	matches := make([][][]int32, len(g.Groups))
	var all []int32
	primary := true
	for i := range g.Groups {
		matches[i] = make([][]int32, len(g.Groups[i].Devices))
		for j := range g.Groups[i].Devices {
			m := p.models(&g.Groups[i].Devices[j])
			matches[i][j] = m
			if len(m) > 0 && primary {
				all, primary = m, false
			}
		}
	}
	models := all
	if len(g.Models) > 0 {
		models = nil
		for _, name := range g.Models {
			if m := p.c.Model(name); m >= 0 && slices.Contains(all, m) {
				models = append(models, m)
			}
		}
	}
	if primary {
		models = []int32{-1}
	}
	for _, m := range models {
		r.Options = append(r.Options, p.option(r, g, m, matches))
	}
	return r
}

// models lists the card models that can serve an ask, by number; nil where
// the ask is not for cards.
func (p *Placer) models(a *core.DeviceAsk) []int32 {
	var out []int32
	for k := range p.c.ClassCount() {
		rep := p.c.Representative(int32(k))
		for d := range rep.Devices {
			m := p.c.Model(rep.Devices[d].Name)
			if m >= 0 && p.c.IsCard(rep.Devices[d].Type) && !slices.Contains(out, m) && feasible.Device(&rep.Devices[d], a) {
				out = append(out, m)
			}
		}
	}
	slices.Sort(out)
	return out
}

func (p *Placer) option(r *Request, g *core.Gang, m int32, matches [][][]int32) *Option {
	o := &Option{}
	if m >= 0 {
		o.Model = p.c.Models[m]
	}
	count := map[int32]int{}
	for i := range g.Groups {
		group := &g.Groups[i]
		of := make([]int32, len(group.Devices))
		for j := range of {
			of[j] = -1
			if can := matches[i][j]; slices.Contains(can, m) {
				of[j] = m
			} else if len(can) > 0 {
				of[j] = can[0]
			}
			if of[j] >= 0 {
				count[of[j]] += group.Count * group.Devices[j].Count
			}
		}
		o.views = append(o.views, newView(p.c, group, of, g))
		o.order = append(o.order, i)
	}
	for k := range int32(len(p.c.Models)) {
		if count[k] > 0 {
			o.Cards = append(o.Cards, ModelCards{k, count[k]})
		}
	}
	slices.SortStableFunc(o.order, func(a, b int) int { return cmp.Compare(o.views[b].cards, o.views[a].cards) })
	return o
}

// Place finds a place for the whole gang on one option and takes it in the
// cluster; the caller rolls back if it was a what-if. Where there is none the
// cluster is left as it was.
func (p *Placer) Place(r *Request, o *Option) (*Result, bool) {
	mark := p.c.Mark()
	members := p.search(r, o)
	if members == nil {
		p.c.Rollback(mark)
		return nil, false
	}
	res := &Result{Option: o, Members: members}
	number(res.Members)
	res.Domains = make([]int, len(p.c.Levels))
	last := int32(-1)
	for i := range res.Members {
		n := res.Members[i].Use.Node
		if n == last {
			continue
		}
		last = n
	}
	nodes := make([]int32, 0, len(members))
	for i := range members {
		nodes = append(nodes, members[i].Use.Node)
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	res.Nodes = len(nodes)
	for l := range res.Domains {
		last := int32(-1)
		for _, n := range nodes {
			if d := p.c.Blocks[p.c.Nodes[n].Block].Domain[l]; d != last {
				res.Domains[l]++
				last = d
			}
		}
	}
	return res, true
}

// number orders members by group, then along the topology.
func number(m []Member) {
	slices.SortStableFunc(m, func(a, b Member) int {
		first := func(u *cluster.Use) int32 {
			if len(u.Cards) == 0 {
				return -1
			}
			return u.Cards[0]
		}
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Use.Node, b.Use.Node), cmp.Compare(first(&a.Use), first(&b.Use)))
	})
}

// scope is a run of blocks.
type scope struct{ first, last int32 }

func (p *Placer) search(r *Request, o *Option) []Member {
	for _, v := range o.views {
		v.refresh()
	}
	everything := scope{0, int32(len(p.c.Blocks))}
	if r.required && r.level < 0 && r.Gang.Level != core.LevelLink {
		return nil // a required level that is not configured: refused before
	}
	single := len(o.views) == 1 && !o.views[0].property()
	switch {
	case r.required && r.level == len(p.c.Levels):
		return p.oneNode(r, o)
	case r.required && r.level >= 0:
		return p.inScopes(r, o, r.level)
	case single:
		return p.fill(r, o, everything)
	}
	// Groups of unlike members: within the innermost domain that takes all.
	for l := len(p.c.Levels) - 1; l >= 0; l-- {
		if m := p.inScopes(r, o, l); m != nil {
			return m
		}
	}
	return p.fill(r, o, everything)
}

// inScopes tries the domains of one level, the one that is filled best first.
func (p *Placer) inScopes(r *Request, o *Option, level int) []Member {
	type candidate struct {
		scope
		inner, left int
	}
	var all []candidate
	for i := range p.c.Levels[level].Domains {
		d := &p.c.Levels[level].Domains[i]
		s := scope{d.First, d.Last}
		if d.Unknown && r.Members > 1 {
			continue
		}
		left, ok := 0, true
		for _, v := range o.views {
			room := v.room(s)
			ok = ok && room >= v.group.Count
			left += room - v.group.Count
		}
		if ok {
			inner := 0
			if len(o.views) == 1 {
				inner = p.domains(o.views[0], level+1, s, o.views[0].group.Count)
			}
			all = append(all, candidate{s, inner, left})
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Or(cmp.Compare(a.inner, b.inner), cmp.Compare(a.left, b.left)) })
	for _, k := range all {
		if m := p.fill(r, o, k.scope); m != nil {
			return m
		}
	}
	return nil
}

// room is how many members the blocks of a scope take.
func (v *view) room(s scope) int {
	sum := 0
	for b := s.first; b < s.last; b++ {
		sum += int(v.total[b])
	}
	return sum
}

// domains is the least number of domains, over all levels from the given one
// inwards, that n members within a scope need.
func (p *Placer) domains(v *view, level int, s scope, n int) int {
	if level >= len(p.c.Levels) {
		return 0
	}
	parts := p.parts(v, level, s)
	sum := 0
	for _, part := range split(parts, n) {
		sum += 1 + p.domains(v, level+1, part.scope, part.n)
	}
	return sum
}

// part is a domain with the members that it takes, or is to take.
type part struct {
	scope
	room, n int
	unknown bool
}

// parts are the domains of a level within a scope that take any member.
func (p *Placer) parts(v *view, level int, s scope) []part {
	if s.first >= s.last {
		return nil
	}
	var out []part
	ds := p.c.Levels[level].Domains
	for d := p.c.Blocks[s.first].Domain[level]; int(d) < len(ds) && ds[d].First < s.last; d++ {
		k := scope{max(ds[d].First, s.first), min(ds[d].Last, s.last)}
		if room := v.room(k); room > 0 {
			out = append(out, part{scope: k, room: room, unknown: ds[d].Unknown})
		}
	}
	return out
}

// split deals n members over the fewest domains: the largest are filled until
// the rest fits into one, and that one is the smallest that takes it. Domains
// that are not known come last.
func split(parts []part, n int) []part {
	sorted := slices.Clone(parts)
	slices.SortStableFunc(sorted, func(a, b part) int {
		if a.unknown != b.unknown {
			if a.unknown {
				return 1
			}
			return -1
		}
		return cmp.Compare(b.room, a.room)
	})
	var out []part
	for i := range sorted {
		if sorted[i].room >= n {
			// The smallest of those that take the rest.
			at := i
			for j := i; j < len(sorted) && sorted[j].room >= n && sorted[j].unknown == sorted[i].unknown; j++ {
				if sorted[j].room < sorted[at].room {
					at = j
				}
			}
			sorted[at].n = n
			return append(out, sorted[at])
		}
		sorted[i].n = sorted[i].room
		n -= sorted[i].room
		out = append(out, sorted[i])
	}
	return nil
}

// fill places all groups within a scope, and takes what they use; nil, with
// the cluster as it was, where one of them does not fit.
func (p *Placer) fill(r *Request, o *Option, s scope) []Member {
	mark := p.c.Mark()
	var members []Member
	var used map[int32]bool
	if r.distinct {
		used = map[int32]bool{}
	}
	for at, i := range o.order {
		v := o.views[i]
		if at > 0 {
			v.refresh()
		}
		picks := p.deal(v, 0, s, v.group.Count, used)
		if picks == nil {
			p.c.Rollback(mark)
			return nil
		}
		for _, k := range picks {
			if r.distinct {
				used[k.node] = true
			}
			for range k.members {
				m, ok := p.take(v, k.node)
				if !ok {
					p.c.Rollback(mark)
					return nil
				}
				m.Group = i
				members = append(members, m)
			}
		}
	}
	return members
}

// pick is a node with the members that it is to take.
type pick struct {
	node    int32
	members int
}

// deal chooses nodes for n members of a view within a scope.
func (p *Placer) deal(v *view, level int, s scope, n int, used map[int32]bool) []pick {
	if n == 0 {
		return []pick{}
	}
	if v.property() || used != nil {
		return p.nodes(v, s, n, used)
	}
	if v.room(s) < n {
		return nil
	}
	if one := p.one(v, s, n); one >= 0 {
		return []pick{{one, n}}
	}
	if level >= len(p.c.Levels) {
		return p.nodes(v, s, n, nil)
	}
	parts := p.parts(v, level, s)
	// One domain takes all: the one that needs the fewest domains within.
	fits := slices.DeleteFunc(slices.Clone(parts), func(k part) bool { return k.room < n || k.unknown })
	if len(fits) > 0 {
		best, inner := 0, -1
		for i := range fits {
			in := p.domains(v, level+1, fits[i].scope, n)
			if inner < 0 || in < inner || in == inner && fits[i].room < fits[best].room {
				best, inner = i, in
			}
		}
		return p.deal(v, level+1, fits[best].scope, n, nil)
	}
	var out []pick
	for _, part := range split(parts, n) {
		picks := p.deal(v, level+1, part.scope, part.n, nil)
		if picks == nil {
			return nil
		}
		out = append(out, picks...)
	}
	return out
}

// one finds the best single node for n members; -1 where none takes them all.
// Of nodes with the same score, the one in the domain with the least room.
func (p *Placer) one(v *view, s scope, n int) int32 {
	best, room := int32(-1), 0
	for b := s.first; b < s.last; b++ {
		if int(v.total[b]) < n || v.total[b] == 0 {
			continue
		}
		k := v.best[b]
		if int(v.fit[k]) < n {
			k = -1
			block := &p.c.Blocks[b]
			for m := block.First; m < block.First+block.Count; m++ {
				if int(v.fit[m]) >= n && (k < 0 || v.score[m] < v.score[k]) {
					k = m
				}
			}
			if k < 0 {
				continue
			}
		}
		if best >= 0 && v.score[k] > v.score[best] {
			continue
		}
		around := int(v.total[b])
		if l := len(p.c.Levels); l > 0 {
			d := &p.c.Levels[l-1].Domains[p.c.Blocks[b].Domain[l-1]]
			if d.Last-d.First > 1 {
				around = v.room(scope{d.First, d.Last})
			}
		}
		if best < 0 || v.score[k] < v.score[best] || around < room {
			best, room = k, around
		}
	}
	return best
}

// nodes deals n members over the nodes of a scope: the fewest nodes, best
// scores first, distinct_property kept.
func (p *Placer) nodes(v *view, s scope, n int, used map[int32]bool) []pick {
	var all []int32
	for b := s.first; b < s.last; b++ {
		if v.total[b] == 0 {
			continue
		}
		block := &p.c.Blocks[b]
		for k := block.First; k < block.First+block.Count; k++ {
			if v.fit[k] > 0 && !used[k] {
				all = append(all, k)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b int32) int {
		return cmp.Or(cmp.Compare(min(int(v.fit[b]), n), min(int(v.fit[a]), n)), cmp.Compare(v.score[a], v.score[b]))
	})
	limits := v.properties()
	var out []pick
	for i, k := range all {
		take := min(int(v.fit[k]), n)
		if len(limits) == 0 && int(v.fit[k]) > n {
			// The rest fits on one node: the best of those.
			for _, other := range all[i:] {
				if int(v.fit[other]) >= n && v.score[other] < v.score[k] {
					k = other
				}
			}
		}
		for j := range limits {
			take = min(take, limits[j].left(v.c.Nodes[k].Src))
		}
		if take <= 0 {
			continue
		}
		for j := range limits {
			limits[j].use(v.c.Nodes[k].Src, take)
		}
		out = append(out, pick{k, take})
		if n -= take; n == 0 {
			return out
		}
	}
	return nil
}

// oneNode places all groups on a single node.
func (p *Placer) oneNode(r *Request, o *Option) []Member {
	type candidate struct {
		node  int32
		score int64
	}
	var all []candidate
	for n := range int32(len(p.c.Nodes)) {
		k := candidate{n, 0}
		ok := true
		for _, v := range o.views {
			ok = ok && (v.group.Count == 0 || int(v.fit[n]) >= v.group.Count)
			k.score += v.score[n]
		}
		if ok {
			all = append(all, k)
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(a.score, b.score) })
	for _, k := range all {
		mark := p.c.Mark()
		var members []Member
		ok := !r.distinct
		for _, i := range o.order {
			for range o.views[i].group.Count {
				m, fits := p.take(o.views[i], k.node)
				m.Group = i
				members = append(members, m)
				ok = ok && fits
			}
		}
		if ok {
			return members
		}
		p.c.Rollback(mark)
	}
	return nil
}

// take puts one member on a node.
func (p *Placer) take(v *view, n int32) (Member, bool) {
	node := &p.c.Nodes[n]
	m := Member{Use: cluster.Use{Node: n, Res: v.group.Use, Ports: v.group.StaticPorts, Dynamic: v.group.Ports}}
	f, u := p.c.At(n), &v.group.Use
	if f.CPU < u.CPU || f.Cores < u.Cores || f.MemoryMB < u.MemoryMB || f.DiskMB < u.DiskMB || f.DynamicPorts < v.group.Ports {
		return m, false
	}
	for _, port := range v.group.StaticPorts {
		if p.c.PortTaken(n, port) {
			return m, false
		}
	}
	if len(v.group.Devices) > 0 {
		if len(node.Devices) == 0 {
			return m, false
		}
		if m.Asks = v.assign(node, v.words(node)); m.Asks == nil {
			return m, false
		}
		for _, a := range m.Asks {
			m.Use.Cards = append(m.Use.Cards, a...)
		}
	}
	p.c.Take(&m.Use)
	return m, true
}

// property tells whether the members are bound by distinct_property.
func (v *view) property() bool {
	return slices.ContainsFunc(v.group.Constraints, func(k core.Constraint) bool { return k.Operand == "distinct_property" })
}

// limit is a distinct_property constraint: so many members for each value.
type limit struct {
	target string
	most   int
	used   map[string]int
}

func (v *view) properties() []limit {
	var out []limit
	for _, k := range v.group.Constraints {
		if k.Operand != "distinct_property" {
			continue
		}
		most := 1
		if k.Right != "" {
			n, err := strconv.Atoi(k.Right)
			if err != nil || n < 1 {
				n = 0 // Nomad refuses the job; nothing is placed
			}
			most = n
		}
		out = append(out, limit{k.Left, most, map[string]int{}})
	}
	return out
}

// left is 0 on a node that has no such property: Nomad places nothing there.
func (l *limit) left(n *core.Node) int {
	value, ok := feasible.Value(n, l.target)
	if !ok {
		return 0
	}
	return l.most - l.used[value]
}

func (l *limit) use(n *core.Node, members int) {
	value, _ := feasible.Value(n, l.target)
	l.used[value] += members
}
