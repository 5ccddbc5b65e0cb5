package sched

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// stack chooses nodes for the groups of one job, one placement at a time. Nodes are taken in a shuffled order that goes on
// where the last placement stopped; among the first few that fit the best score wins.
type stack struct {
	w       *world
	job     *wire.Job
	elig    *eligibility
	nodes   []*wire.Node
	offset  int
	limit   int // how many nodes that fit are compared
	system  bool
	taken   map[string]int
	filters map[string]map[string]string // group -> node -> why it is no use; only what the node alone decides
	props   []*property
}

// choice is a node with what the allocation would take there.
type choice struct {
	node      *wire.Node
	resources *wire.AllocatedResources
	preempted []*wire.Allocation
	score     float64
}

// wish is what is asked of one placement.
type wish struct {
	penalty   map[string]bool // nodes where it failed before
	preferred *wire.Node
	preempt   bool
}

func newStack(w *world, job *wire.Job) *stack {
	return &stack{w: w, job: job, elig: newEligibility(job), filters: map[string]map[string]string{}, taken: map[string]int{}}
}

const (
	maxSkip          = 3   // nodes with a score of zero or less that may be set aside
	limitForFeasible = 100 // nodes compared where affinities or spreads are given
)

func (s *stack) setNodes(nodes []*wire.Node, shuffle bool) {
	s.nodes = slices.Clone(nodes)
	s.offset = 0
	if shuffle {
		s.w.rng.Shuffle(len(s.nodes), func(i, j int) { s.nodes[i], s.nodes[j] = s.nodes[j], s.nodes[i] })
	}
	s.limit = 2
	if n := len(nodes); s.job.Type != wire.TypeBatch && n > 0 {
		s.limit = max(s.limit, int(math.Ceil(math.Log2(float64(n)))))
	}
}

// choose finds a node for one more allocation of the group. The metric tells how, or why not.
func (s *stack) choose(g *wire.TaskGroup, want wish) (*choice, *wire.AllocMetric) {
	if want.preferred != nil {
		nodes, offset := s.nodes, s.offset
		s.nodes, s.offset = []*wire.Node{want.preferred}, 0
		c, m := s.choose(g, wish{penalty: want.penalty, preempt: want.preempt})
		s.nodes, s.offset = nodes, offset
		if c != nil {
			return c, m
		}
	}
	m := &wire.AllocMetric{}
	limit := s.limit
	if len(s.job.Affinities)+len(g.Affinities)+len(s.job.Spreads)+len(g.Spreads) > 0 || taskAffinities(g) {
		limit = max(limitForFeasible, g.Count)
		s.limit = limit
	}
	s.props = s.properties(g)
	spreads := s.spreads(g)
	var best *choice
	take := func(c *choice) {
		if best == nil || c.score > best.score {
			best = c
		}
	}
	var skipped []*choice
	seen := 0
	for range s.nodes {
		n := s.nodes[s.offset]
		s.offset = (s.offset + 1) % len(s.nodes)
		m.NodesEvaluated++
		c := s.try(n, g, want, spreads, m)
		if c == nil {
			continue
		}
		if s.system {
			take(c)
			break
		}
		if c.score <= 0 && len(skipped) < maxSkip {
			skipped = append(skipped, c)
			continue
		}
		take(c)
		if seen++; seen == limit {
			break
		}
	}
	for i := 0; seen < limit && i < len(skipped); i, seen = i+1, seen+1 {
		take(skipped[i])
	}
	slices.SortStableFunc(m.ScoreMetaData, func(a, b *wire.NodeScoreMeta) int { return cmp.Compare(b.NormScore, a.NormScore) })
	if len(m.ScoreMetaData) > 5 {
		m.ScoreMetaData = m.ScoreMetaData[:5]
	}
	return best, m
}

func taskAffinities(g *wire.TaskGroup) bool {
	return slices.ContainsFunc(g.Tasks, func(t *wire.Task) bool { return len(t.Affinities) > 0 })
}

const classIneligible = "computed class ineligible"

// try checks one node and scores it.
func (s *stack) try(n *wire.Node, g *wire.TaskGroup, want wish, spreads []*spread, m *wire.AllocMetric) *choice {
	if why := s.feasible(n, g); why != "" {
		filtered(m, n, why)
		return nil
	}
	u := s.w.node(n.ID)
	if !s.system {
		if why := s.distinctHosts(u, g); why != "" {
			filtered(m, n, why)
			return nil
		}
	}
	for _, p := range s.props {
		if ok, why := p.allows(n); !ok {
			filtered(m, n, why)
			return nil
		}
	}
	c, scores := s.fit(n, u, g, want.preempt, m)
	if c == nil {
		return nil
	}
	if !s.system {
		scores = s.preferences(n, u, g, want, spreads, m, scores)
	}
	if len(c.preempted) > 0 {
		p := preemptionScore(c.preempted)
		scores = append(scores, p)
		scored(m, n.ID, "preemption", p)
	}
	total := 0.0
	for _, v := range scores {
		total += v
	}
	c.score = total / float64(len(scores))
	m.ScoreMetaData[len(m.ScoreMetaData)-1].NormScore = c.score
	return c
}

func (s *stack) preferences(n *wire.Node, u *usage, g *wire.TaskGroup, want wish, spreads []*spread, m *wire.AllocMetric, scores []float64) []float64 {
	same := 0
	for _, a := range u.allocs {
		if a.JobID == s.job.ID && a.Namespace == s.job.Namespace && a.TaskGroup == g.Name {
			same++
		}
	}
	anti := 0.0
	if same > 0 {
		anti = -float64(same+1) / float64(g.Count)
		scores = append(scores, anti)
	}
	scored(m, n.ID, "job-anti-affinity", anti)
	penalty := 0.0
	if want.penalty[n.ID] {
		penalty = -1
		scores = append(scores, penalty)
	}
	scored(m, n.ID, "node-reschedule-penalty", penalty)
	affinity := 0.0
	all := slices.Concat(s.job.Affinities, g.Affinities)
	for _, t := range g.Tasks {
		all = append(all, t.Affinities...)
	}
	if len(all) > 0 {
		sum := 0.0
		for _, a := range all {
			sum += math.Abs(float64(a.Weight))
			if s.w.m.constraint(&wire.Constraint{LTarget: a.LTarget, RTarget: a.RTarget, Operand: a.Operand}, n) {
				affinity += float64(a.Weight)
			}
		}
		if sum > 0 {
			affinity /= sum
		}
		scores = append(scores, affinity)
	}
	scored(m, n.ID, "node-affinity", affinity)
	boost := 0.0
	for _, sp := range spreads {
		boost += sp.boost(n)
	}
	if boost != 0 {
		scores = append(scores, boost)
		scored(m, n.ID, "allocation-spread", boost)
	}
	return scores
}

// feasible says why a node is no use for the group, or nothing. A class found wanting is not looked at again, unless a
// constraint tells its nodes apart.
func (s *stack) feasible(n *wire.Node, g *wire.TaskGroup) string {
	class := n.ComputedClass
	if s.elig.jobEscaped {
		if why := s.filter("", n, func() string { return s.constraints(n, s.job.Constraints) }); why != "" {
			return why
		}
	} else {
		switch s.elig.job[class] {
		case ineligible:
			return classIneligible
		case unknown:
			if why := s.constraints(n, s.job.Constraints); why != "" {
				s.elig.job[class] = ineligible
				return why
			}
			s.elig.job[class] = eligible
		}
	}
	group, escaped := s.elig.groups[g.Name], s.elig.groupEscaped[g.Name]
	if group == nil {
		group = map[string]verdict{}
		s.elig.groups[g.Name] = group
	}
	if !escaped {
		switch group[class] {
		case ineligible:
			return classIneligible
		case eligible:
			return s.volumes(n, g)
		}
	}
	if escaped {
		if why := s.filter(g.Name, n, func() string { return s.groupFits(n, g) }); why != "" {
			return why
		}
		return s.volumes(n, g)
	}
	if why := s.groupFits(n, g); why != "" {
		group[class] = ineligible
		return why
	}
	group[class] = eligible
	return s.volumes(n, g)
}

// filter remembers what the node alone decides, for the next placement, where its class cannot speak for it.
func (s *stack) filter(group string, n *wire.Node, f func() string) string {
	known := s.filters[group]
	if known == nil {
		known = map[string]string{}
		s.filters[group] = known
	}
	why, ok := known[n.ID]
	if !ok {
		why = f()
		known[n.ID] = why
	}
	return why
}

func (s *stack) constraints(n *wire.Node, list []*wire.Constraint) string {
	for _, c := range list {
		if !s.w.m.constraint(c, n) {
			return c.String()
		}
	}
	return ""
}

func (s *stack) groupFits(n *wire.Node, g *wire.TaskGroup) string {
	var asks []*wire.RequestedDevice
	for _, t := range g.Tasks {
		if !hasDriver(n, t.Driver) {
			return "missing drivers"
		}
		asks = append(asks, t.Resources.Devices...)
	}
	if why := s.constraints(n, g.Constraints); why != "" {
		return why
	}
	for _, t := range g.Tasks {
		if why := s.constraints(n, t.Constraints); why != "" {
			return why
		}
	}
	if !s.w.m.hasDevices(n, asks) {
		return "missing devices"
	}
	if len(g.Networks) > 0 {
		return missingNetwork(n, g.Networks[0])
	}
	return ""
}

func hasDriver(n *wire.Node, name string) bool {
	if d, ok := n.Drivers[name]; ok {
		return d.Detected && d.Healthy
	}
	on, _ := strconv.ParseBool(n.Attributes["driver."+name])
	return on
}

func missingNetwork(n *wire.Node, ask *wire.NetworkResource) string {
	mode := ask.Mode
	switch mode {
	case "none":
		return ""
	case "":
		mode = "host"
	}
	found := slices.ContainsFunc(n.NodeResources.Networks, func(nw *wire.NetworkResource) bool {
		return nw.Mode == mode || nw.Mode == "" && mode == "host"
	})
	if !found {
		return "missing network"
	}
	for _, p := range slices.Concat(ask.DynamicPorts, ask.ReservedPorts) {
		if p.HostNetwork != "" && len(addresses(n, p.HostNetwork)) == 0 {
			return fmt.Sprintf("missing host network %q for port %q", p.HostNetwork, p.Label)
		}
	}
	return ""
}

func (s *stack) volumes(n *wire.Node, g *wire.TaskGroup) string {
	for _, v := range g.Volumes {
		switch v.Type {
		case "host", "":
			h := n.HostVolumes[v.Source]
			if h == nil || h.ReadOnly && !v.ReadOnly {
				return "missing compatible host volumes"
			}
		default:
			return "missing CSI plugins"
		}
	}
	return ""
}

// distinctHosts keeps allocations of the job, or of the group, apart where that is asked for.
func (s *stack) distinctHosts(u *usage, g *wire.TaskGroup) string {
	byJob, byGroup := wantsDistinct(s.job.Constraints), wantsDistinct(g.Constraints)
	if !byJob && !byGroup {
		return ""
	}
	for _, a := range u.allocs {
		if a.JobID == s.job.ID && a.Namespace == s.job.Namespace && (byJob || a.TaskGroup == g.Name) {
			return opDistinctHosts
		}
	}
	return ""
}

func wantsDistinct(list []*wire.Constraint) bool {
	for _, c := range list {
		if c.Operand == opDistinctHosts {
			on, err := strconv.ParseBool(c.RTarget)
			return c.RTarget == "" || err != nil || on
		}
	}
	return false
}

// fit works out what the group would take on a node, evicting others if it may, and scores how full the node gets.
func (s *stack) fit(n *wire.Node, u *usage, g *wire.TaskGroup, preempt bool, m *wire.AllocMetric) (*choice, []float64) {
	res := &wire.AllocatedResources{Tasks: map[string]*wire.AllocatedTask{}, TaskLifecycles: map[string]*wire.Lifecycle{},
		Shared: wire.AllocatedShared{DiskMB: int64(g.EphemeralDisk.SizeMB)}}
	var evicted []*wire.Allocation
	view := u // what the node would hold; a copy once something is evicted
	evict := func(list []*wire.Allocation) {
		v := newUsage()
		for _, a := range view.allocs {
			v.add(a)
		}
		for _, a := range list {
			v.remove(a)
		}
		view = v
		evicted = append(evicted, list...)
	}
	ports := map[string]bool{}
	if len(g.Networks) > 0 {
		given, err := view.assignPorts(n, g.Networks[0], ports, s.w.rng)
		if err != nil && preempt {
			if list := s.preemptForPorts(n, view, g.Networks[0]); list != nil {
				evict(list)
				given, err = view.assignPorts(n, g.Networks[0], ports, s.w.rng)
			}
		}
		if err != nil {
			exhausted(m, n, "network: "+err.Error())
			return nil, nil
		}
		res.Shared.Ports = given
		res.Shared.Networks = []*wire.NetworkResource{networkOf(n, g.Networks[0], given)}
	}
	held := maps.Clone(view.devices)
	devWeight, devHeld := 0.0, 0.0
	cores := map[uint16]bool{}
	for _, t := range g.Tasks {
		r := t.Resources
		at := &wire.AllocatedTask{Cpu: wire.AllocatedCPU{CpuShares: int64(r.CPU)}, Memory: wire.AllocatedMemory{MemoryMB: int64(r.MemoryMB + r.SecretsMB)}}
		if len(r.Networks) > 0 {
			given, err := view.assignPorts(n, r.Networks[0], ports, s.w.rng)
			if err != nil {
				exhausted(m, n, "network: "+err.Error())
				return nil, nil
			}
			at.Networks = []*wire.NetworkResource{networkOf(n, r.Networks[0], given)}
		}
		for _, ask := range r.Devices {
			offer, affinity, err := s.w.m.offerDevices(n, held, ask, s.w.rng)
			if err != nil && preempt {
				if list := s.preemptForDevice(n, view, held, ask); list != nil {
					evict(list)
					held = maps.Clone(view.devices)
					for _, other := range res.Tasks {
						for _, d := range other.Devices {
							held.add(d, 1)
						}
					}
					for _, d := range at.Devices {
						held.add(d, 1)
					}
					offer, affinity, err = s.w.m.offerDevices(n, held, ask, s.w.rng)
				}
			}
			if err != nil {
				exhausted(m, n, "devices: "+err.Error())
				return nil, nil
			}
			held.add(offer, 1)
			at.Devices = append(at.Devices, offer)
			for _, a := range ask.Affinities {
				devWeight += math.Abs(float64(a.Weight))
			}
			devHeld += affinity
		}
		if r.Cores > 0 {
			free := freeCores(n, view, cores)
			if len(free) < r.Cores {
				exhausted(m, n, "cores")
				return nil, nil
			}
			at.Cpu.ReservedCores = free[:r.Cores]
			per := n.NodeResources.Cpu.CpuShares / int64(max(n.NodeResources.Cpu.TotalCpuCores, 1))
			at.Cpu.CpuShares = per * int64(r.Cores)
			for _, c := range at.Cpu.ReservedCores {
				cores[c] = true
			}
		}
		res.Tasks[t.Name] = at
		res.TaskLifecycles[t.Name] = t.Lifecycle
	}
	need := sizeOf(res)
	has := capacity(n)
	used := amount{view.cpu, view.mem, view.disk}
	if dim := has.lacks(used.plus(need)); dim != "" {
		var list []*wire.Allocation
		if preempt {
			list = s.preemptForSize(n, view, need)
		}
		if list == nil {
			exhausted(m, n, dim)
			return nil, nil
		}
		evict(list)
		used = amount{view.cpu, view.mem, view.disk}
	}
	bin := binpack(has, used.plus(need))
	scores := []float64{bin}
	scored(m, n.ID, "binpack", bin)
	if devWeight != 0 {
		d := devHeld / devWeight
		scores = append(scores, d)
		scored(m, n.ID, "devices", d)
	}
	return &choice{node: n, resources: res, preempted: evicted}, scores
}

func freeCores(n *wire.Node, u *usage, taken map[uint16]bool) []uint16 {
	var out []uint16
	for _, c := range n.NodeResources.Cpu.ReservableCpuCores {
		if u.cores[c] == 0 && !taken[c] {
			out = append(out, c)
		}
	}
	return out
}

// binpack is 0 for an empty node and 1 for a full one: fuller nodes are preferred.
func binpack(has, used amount) float64 {
	free := func(h, u int64) float64 {
		if h == 0 {
			return 0
		}
		return 1 - float64(u)/float64(h)
	}
	fit := 20 - (math.Pow(10, free(has.cpu, used.cpu)) + math.Pow(10, free(has.mem, used.mem)))
	return min(max(fit, 0), 18) / 18
}
