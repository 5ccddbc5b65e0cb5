// Package placement places a gang whole or not at all.
//
// A gang runs on one card model: the first one that it names on which all of
// it fits, or the one with the best place where it names none. A place is
// chosen by these, in this order:
//
//  1. the required level: all members within one domain of it ("node": on one
//     node; "nvlink": each member's cards within one NVLink domain). A node
//     whose domain is not known is in nobody's, and only a gang that it holds
//     alone is within one there;
//  2. the fewest domains of the outermost level, within these the fewest of
//     the next, and so on: what crosses an outer switch shares the scarcest
//     links. Nodes come last; where a gang has to be dealt over several
//     innermost domains they are the fewest in each, where it has several
//     groups, what is further in is the fewest for each. See domains.go;
//  3. of several domains that do equally well, the one that is left with the
//     least room for more such members;
//  4. of several nodes, the lowest score; see score.go: not suspect, NVLink,
//     Nomad's affinities, the least fragmentation over the mix of gangs seen
//     lately, the fewest cards left free (the most, where spread out);
//  5. of equal nodes, the one in the innermost domain with the least room for
//     such members, then the lowest place in the topology's order.
//
// A gang that asks to be spread, one with Nomad's spread blocks, and the
// replicas of a service go the other way: each next member to the node that
// adds the least to what stands or falls together.
//
// Members of unlike groups are placed group after group, the one with the
// most cards a member first, within the innermost domain that takes them all.
// Members are numbered group by group, along the topology.
package placement

import (
	"cmp"
	"slices"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/cluster"
	"github.com/nomad-muster/muster/planner/core/fairshare"
	"github.com/nomad-muster/muster/planner/core/feasible"
)

// Placer places gangs on one cluster. It keeps what it derived from the
// cluster as long as the cluster's Shape does not change.
type Placer struct {
	c        *cluster.Cluster
	shape    uint64
	classes  int
	requests map[string]*Request
	views    map[string]*view
	age      uint64
	key      writer
	mix      mix
	wastes   []waste // of each node
	packing  core.Packing
}

// New returns a Placer for a cluster.
func New(c *cluster.Cluster) *Placer {
	return &Placer{c: c, requests: map[string]*Request{}, views: map[string]*view{}}
}

// Request is a gang's demand, shared by all gangs that ask for the same.
type Request struct {
	Gang    *core.Gang // one of those that ask for it
	Options []*Option  // by model, most wanted first
	Members int
	// Level is the required or preferred topology level's number; -1: none but
	// NVLink domains; len(Levels): one node.
	Level    int
	Required bool
	distinct bool // no two members of any group on one node
	spread   bool
	used     uint64 // age when it was last asked for
}

// Option is a request on one model.
type Option struct {
	Model core.Model // "": no cards asked
	// Cards of each model that the whole gang takes, by model number. A share
	// of a card counts as a card: it keeps others from having it whole.
	Cards []fairshare.Need
	// PerMember is the same for one member of the first group.
	PerMember []fairshare.Need
	main      int32
	views     []*view // of each group
	order     []int   // groups in the order of placing
}

// Options say how to search.
type Options struct {
	// Members of the first group, where it is not the whole gang; 0: all.
	Members int
	// Near are nodes that the gang is on already: members are added to it.
	Near []int32
	// Bias, by node, is looked at before the score; lower is better. Nil: none.
	Bias []int32
	// Later are the cards that are free now, as Cluster.Words has them, where a
	// place is sought for later: others are preferred. Nil: none.
	Later []uint64
	// Deny, by node, takes nodes out. Nil: none.
	Deny []bool
}

// Result is a gang's place.
type Result struct {
	Option  *Option
	Members []Member // by member number
	// Domains is the number of domains used at each level; Nodes of nodes.
	Domains []int
	Nodes   int
	Islands bool // some member's cards lie in more than one NVLink domain
	// Score is the mean of the nodes' scores over the members, as they were
	// before the gang came.
	Score int64
}

// Compare orders two places of one gang, on models that it accepts alike: the
// fewest domains from the outside in, the fewest nodes, the lowest scores.
func (r *Result) Compare(o *Result) int {
	for l := range r.Domains {
		if c := cmp.Compare(r.Domains[l], o.Domains[l]); c != 0 {
			return c
		}
	}
	return cmp.Or(cmp.Compare(r.Nodes, o.Nodes), cmp.Compare(r.Score, o.Score))
}

// Member is one member's place.
type Member struct {
	Group int
	Use   cluster.Use
	Asks  [][]int32 // places among the node's cards, for each device ask
}

// Configure states the packing and the mix of gangs seen lately. All scores
// are found again where it differs from before.
func (p *Placer) Configure(packing core.Packing, recent []core.Shape) {
	m := newMix(recent)
	for i := range m.kinds {
		k := &m.kinds[i]
		if len(k.models) == 0 {
			k.on = ^uint64(0)
		}
		for _, name := range k.models {
			if at := p.c.Model(name); at >= 0 {
				k.on |= 1 << min(at, 63)
			}
		}
	}
	m.press(p.c.Capacity())
	if packing == p.packing && m.equal(&p.mix) {
		return
	}
	p.packing, p.mix, p.wastes = packing, m, nil
	for _, v := range p.views {
		v.again()
	}
}

// Request finds or makes the request of a gang.
func (p *Placer) Request(g *core.Gang) *Request {
	if p.shape != p.c.Shape || p.classes != p.c.ClassCount() {
		p.shape, p.classes = p.c.Shape, p.c.ClassCount()
		clear(p.requests)
		clear(p.views)
		p.wastes = nil
	}
	p.key = p.key[:0]
	p.key.demand(g)
	r, ok := p.requests[string(p.key)]
	if !ok {
		key := string(p.key)
		r = p.compile(g)
		p.requests[key] = r
	}
	r.used = p.age
	return r
}

// Age forgets requests that nobody has asked for in a while. It is called
// once a cycle.
func (p *Placer) Age() {
	p.age++
	if p.age%64 != 0 {
		return
	}
	for k, r := range p.requests {
		if p.age-r.used > 256 {
			delete(p.requests, k)
		}
	}
	for _, r := range p.requests {
		for _, o := range r.Options {
			for _, v := range o.views {
				v.used = p.age
			}
		}
	}
	for k, v := range p.views {
		if v.used != p.age {
			delete(p.views, k)
		}
	}
}

func (p *Placer) compile(gang *core.Gang) *Request {
	// A copy: a request lives longer than the snapshot that it comes from.
	own := *gang
	own.Groups = slices.Clone(gang.Groups)
	g := &own
	r := &Request{Gang: g, Level: -1, Required: g.Required, distinct: true, spread: g.Spread || g.Service && p.packing != core.PackBin}
	for i := range g.Groups {
		r.Members += g.Groups[i].Count
		r.distinct = r.distinct && distinctHosts(&g.Groups[i])
		r.spread = r.spread || len(g.Groups[i].Spreads) > 0
	}
	r.distinct = r.distinct && len(g.Groups) > 1
	switch {
	case g.Level == core.LevelNode:
		r.Level = len(p.c.Levels)
	case g.Level == core.LevelLink, g.Level == "" && r.Members == 1: // one NVLink domain, where it asks for several cards
	case g.Level != "":
		r.Level = p.c.Level(g.Level)
	case len(p.c.Levels) > 0:
		r.Level, r.Required = len(p.c.Levels)-1, false
	}
	// matches are the models that can serve each ask.
	matches := make([][][]int32, len(g.Groups))
	var models []int32
	primary := true
	for i := range g.Groups {
		matches[i] = make([][]int32, len(g.Groups[i].Devices))
		for j := range g.Groups[i].Devices {
			m, card := p.models(&g.Groups[i].Devices[j])
			matches[i][j] = m
			if card && primary {
				models, primary = m, false
			}
		}
	}
	if primary {
		models = []int32{-1}
	} else if len(g.Models) > 0 {
		var wanted []int32
		for _, name := range g.Models {
			if m := p.c.Model(name); m >= 0 && slices.Contains(models, m) && !slices.Contains(wanted, m) {
				wanted = append(wanted, m)
			}
		}
		models = wanted
	}
	for _, m := range models {
		r.Options = append(r.Options, p.option(g, m, matches))
	}
	return r
}

// view finds or makes the view of a group's members on the given models.
func (p *Placer) view(g *core.Gang, group *core.Group, of []int32) *view {
	p.key = p.key[:0]
	p.key.sight(g, group, of)
	v, ok := p.views[string(p.key)]
	if !ok {
		v = newView(p, group, of, g)
		p.views[string(p.key)] = v
	}
	return v
}

func distinctHosts(g *core.Group) bool {
	return slices.ContainsFunc(g.Constraints, func(k core.Constraint) bool { return k.Operand == "distinct_hosts" && k.Right != "false" })
}

// models lists the card models that can serve an ask, by number, and tells
// whether the ask is for cards at all.
func (p *Placer) models(a *core.DeviceAsk) (models []int32, card bool) {
	for k := range p.c.ClassCount() {
		rep := p.c.Representative(int32(k))
		for d := range rep.Devices {
			m := p.c.Model(rep.Devices[d].Name)
			if m >= 0 && p.c.IsCard(rep.Devices[d].Type) && !slices.Contains(models, m) && feasible.Device(&rep.Devices[d], a) {
				models = append(models, m)
			}
		}
	}
	slices.Sort(models)
	return models, len(models) > 0 || p.c.IsCard(a.Type)
}

func (p *Placer) option(g *core.Gang, m int32, matches [][][]int32) *Option {
	o := &Option{main: m}
	if m >= 0 {
		o.Model = p.c.Models[m]
	}
	all, one := make([]int, len(p.c.Models)), make([]int, len(p.c.Models))
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
			if of[j] < 0 {
				continue
			}
			cards := group.Devices[j].Count
			if group.Devices[j].Shares > 0 {
				cards = 1
			}
			all[of[j]] += group.Count * cards
			if i == 0 {
				one[of[j]] += cards
			}
		}
		o.views = append(o.views, p.view(g, group, of))
		o.order = append(o.order, i)
	}
	for k := range all {
		if all[k] > 0 {
			o.Cards = append(o.Cards, fairshare.Need{Model: int32(k), Cards: all[k]})
		}
		if one[k] > 0 {
			o.PerMember = append(o.PerMember, fairshare.Need{Model: int32(k), Cards: one[k]})
		}
	}
	slices.SortStableFunc(o.order, func(a, b int) int { return cmp.Compare(o.views[b].cards, o.views[a].cards) })
	return o
}

// Place finds a place for the whole gang on one option and takes it in the
// cluster; the caller rolls back if it was a what-if. Where there is none the
// cluster is left as it was.
func (p *Placer) Place(r *Request, o *Option, opt Options) (*Result, bool) {
	s := search{p: p, r: r, o: o, opt: opt}
	for _, v := range o.views {
		v.later = opt.Later
	}
	mark := p.c.Mark()
	members := s.run()
	for _, v := range o.views {
		v.later = nil
	}
	if members == nil {
		p.c.Rollback(mark)
		return nil, false
	}
	slices.SortStableFunc(members, func(a, b Member) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Use.Node, b.Use.Node), cmp.Compare(firstCard(&a.Use), firstCard(&b.Use)))
	})
	res := &Result{Option: o, Members: members}
	p.measure(res, opt.Near)
	return res, true
}

func firstCard(u *cluster.Use) int32 {
	switch {
	case len(u.Cards) > 0:
		return u.Cards[0]
	case len(u.Parts) > 0:
		return u.Parts[0].Card
	}
	return -1
}

// measure counts what a result spans, with the nodes that the gang is on
// already.
func (p *Placer) measure(res *Result, near []int32) {
	nodes := make([]int32, 0, len(res.Members)+len(near))
	nodes = append(nodes, near...)
	for i := range res.Members {
		u := &res.Members[i].Use
		nodes = append(nodes, u.Node)
		res.Score += res.Option.views[res.Members[i].Group].score[u.Node] / int64(len(res.Members))
		for d := range p.c.Nodes[u.Node].Devices {
			dev := &p.c.Nodes[u.Node].Devices[d]
			if dev.Model >= 0 && len(dev.Islands) > 1 && spans(dev, u.Cards) {
				res.Islands = true
			}
		}
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	res.Nodes = len(nodes)
	res.Domains = make([]int, len(p.c.Levels))
	for l := range res.Domains {
		last := int32(-1)
		for _, n := range nodes {
			d := p.c.Blocks[p.c.Nodes[n].Block].Domain[l]
			if p.c.Levels[l].Domains[d].Unknown {
				res.Domains[l]++
			} else if d != last {
				res.Domains[l]++
				last = d
			}
		}
	}
}

// spans tells whether cards of a device group lie in several NVLink domains.
func spans(d *cluster.Device, cards []int32) bool {
	in := -1
	for _, place := range cards {
		at := place - d.First
		if at < 0 || at >= int32(len(d.Src.Cards)) {
			continue
		}
		for i, set := range d.Islands {
			if set[at/64]>>(at%64)&1 == 1 {
				if in >= 0 && in != i {
					return true
				}
				in = i
			}
		}
	}
	return false
}
