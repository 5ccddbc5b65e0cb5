// Package sched decides where allocations run, the way Nomad's schedulers do: pure functions over a snapshot.
//
// Schedule looks at one evaluation. It compares what the job should have with what it has (reconcile.go), chooses nodes
// for what is missing (select.go) and returns a plan together with the evaluations that go with it. The caller puts
// these into the store in the order Blocked, Followups, Plan, and then the evaluation itself, as a server does; a plan
// that did not go through as a whole is scheduled again on a newer snapshot, MaxAttempts times.
//
// What it models and what a user may trip over: nodes are walked in a shuffled order and only the first few that fit
// are compared; a class of nodes is judged by one of its nodes unless a constraint escapes; device ids are not part of
// a class, so that a constraint on ${device.ids} alone may rule out a class by one unsuitable node; a batch job's
// completed allocations of an older version do not count.
package sched

import (
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/nomadsim/store"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// Env is what a decision needs beside the state.
type Env struct {
	Now        time.Time
	Seed       uint64                // varies the order in which nodes are tried
	NewID      func() string         // a new unique id
	Preemption map[string]bool       // by type of job: whether others may be evicted; nil: system jobs only
	SigningKey string                // id of the key that signs workload identities, noted in each allocation
	Replaced   *wire.Job             // for a dry run: the job as it would be registered
	Deployment func(*wire.Job) bool  // whether rollouts are followed; nil: always
	Cancelled  func() (stopped bool) // asked now and then; nil: never
}

// Result is a decision.
type Result struct {
	Plan        *store.Plan
	Blocked     *wire.Evaluation   // to be made if the evaluation has no blocked one yet
	Followups   []*wire.Evaluation // to be run later; the last is the evaluation's NextEval
	PerNode     []*wire.Evaluation // blocked evaluations of a system job, one a node
	Failed      map[string]*wire.AllocMetric
	Annotations *wire.PlanAnnotations
	Queued      map[string]int
	Deployment  string // id of the deployment that the evaluation belongs to
	Escaped     bool
	Classes     map[string]bool
}

// MaxAttempts is how often the plan of an evaluation of that type of job is tried.
func MaxAttempts(jobType string) int {
	if jobType == wire.TypeBatch {
		return 2
	}
	return 5
}

// Schedule decides about one evaluation.
func Schedule(snap *store.Snapshot, eval *wire.Evaluation, env Env) *Result {
	h := fnv.New64a()
	h.Write([]byte(eval.ID))
	w := &world{snap: snap, m: newMatcher(), now: env.Now, newID: env.NewID, usage: map[string]*usage{},
		rng: rand.New(rand.NewPCG(h.Sum64(), env.Seed+snap.Index()))}
	job := env.Replaced
	if job == nil {
		job = snap.Job(eval.Namespace, eval.JobID)
	}
	p := &planner{w: w, env: env, eval: eval, job: job, plan: &store.Plan{EvalID: eval.ID}, queued: map[string]int{}}
	p.stack = &stack{}
	if !job.Stopped() {
		p.stack = newStack(w, job)
	}
	switch eval.Type {
	case wire.TypeSystem, wire.TypeSysBatch:
		p.system()
	default:
		p.generic()
	}
	res := &Result{Plan: p.plan, Followups: p.followups, PerNode: p.perNode, Failed: p.failed, Annotations: p.annotations, Queued: p.queued}
	if p.deployment != nil {
		res.Deployment = p.deployment.ID
	}
	if p.stack.elig != nil {
		res.Escaped, res.Classes = p.stack.elig.escaped(), p.stack.elig.classes()
	}
	if len(p.failed) > 0 && p.perNode == nil && (len(p.followups) == 0 || !env.Now.Before(eval.WaitUntil.Time)) {
		res.Blocked = BlockedFor(eval, res, env)
	}
	return res
}

// BlockedFor is the evaluation that waits for room for what could not be placed.
func BlockedFor(eval *wire.Evaluation, res *Result, env Env) *wire.Evaluation {
	now := env.Now.UnixNano()
	b := &wire.Evaluation{ID: env.NewID(), Namespace: eval.Namespace, Priority: eval.Priority, Type: eval.Type, TriggeredBy: wire.TriggerQueuedAllocs,
		JobID: eval.JobID, JobModifyIndex: eval.JobModifyIndex, Status: wire.EvalBlocked, StatusDescription: "created to place remaining allocations",
		PreviousEval: eval.ID, FailedTGAllocs: res.Failed, EscapedComputedClass: res.Escaped, CreateTime: now, ModifyTime: now}
	if !res.Escaped {
		b.ClassEligibility = res.Classes
	}
	return b
}

// planner builds the plan of one evaluation.
type planner struct {
	w           *world
	env         Env
	eval        *wire.Evaluation
	job         *wire.Job
	stack       *stack
	plan        *store.Plan
	deployment  *wire.Deployment
	failed      map[string]*wire.AllocMetric
	annotations *wire.PlanAnnotations
	queued      map[string]int
	followups   []*wire.Evaluation
	perNode     []*wire.Evaluation
	available   map[string]int
	inPool      int
}

// stop adds an allocation to be stopped to the plan and takes it off its node.
func (p *planner) stop(a *wire.Allocation, clientStatus, because, followup string) {
	s := *a
	s.DesiredStatus, s.DesiredDescription = wire.DesiredStop, because
	if clientStatus != "" {
		s.ClientStatus = clientStatus
		withState(&s, clientStatus, p.w.now)
	}
	if followup != "" {
		s.FollowupEvalID = followup
	}
	s.ModifyTime = p.w.now.UnixNano()
	p.plan.Stopped = append(p.plan.Stopped, &s)
	p.w.node(a.NodeID).remove(a)
}

// unstop takes a stop back.
func (p *planner) unstop(a *wire.Allocation) {
	p.plan.Stopped = slices.DeleteFunc(p.plan.Stopped, func(s *wire.Allocation) bool { return s.ID == a.ID })
	if !a.ClientTerminal() {
		p.w.node(a.NodeID).add(a)
	}
}

// put adds a new or changed allocation to the plan.
func (p *planner) put(a *wire.Allocation, now bool) {
	if now {
		a.ModifyTime = p.w.now.UnixNano()
	}
	p.plan.Placed = append(p.plan.Placed, a)
	p.w.node(a.NodeID).add(a)
}

func (p *planner) tainted(allocs []*wire.Allocation) map[string]*wire.Node {
	out := map[string]*wire.Node{}
	for _, a := range allocs {
		if _, ok := out[a.NodeID]; ok {
			continue
		}
		n := p.w.snap.Node(a.NodeID)
		if n == nil || n.Status == wire.NodeDown || n.Status == wire.NodeDisconnected || n.DrainStrategy != nil {
			out[a.NodeID] = n
		}
	}
	return out
}

// loseStopped marks what was stopped on a node that has gone as lost, since its client will never say that it ended.
func (p *planner) loseStopped(allocs []*wire.Allocation, tainted map[string]*wire.Node) {
	for _, a := range allocs {
		n, ok := tainted[a.NodeID]
		if !ok || n != nil && n.Status != wire.NodeDown {
			continue
		}
		if a.ServerTerminal() && (a.ClientStatus == wire.ClientRunning || a.ClientStatus == wire.ClientPending) {
			p.stop(a, wire.ClientLost, becauseLost, "")
		}
	}
}

// readyNodes are the nodes of the job's pool and datacenters that take allocations.
func (p *planner) readyNodes() []*wire.Node {
	p.available = map[string]int{}
	ready := p.w.snap.ReadyNodes()
	out := make([]*wire.Node, 0, len(ready))
	wanted := map[string]bool{} // by datacenter
	for _, n := range ready {
		in, known := wanted[n.Datacenter]
		if !known {
			in = inDatacenter(n, p.job.Datacenters)
			wanted[n.Datacenter] = in
		}
		if !in || !inPool(n, p.job.NodePool) {
			continue
		}
		out = append(out, n)
		p.available[n.Datacenter]++
	}
	p.inPool = len(out)
	return out
}

func inPool(n *wire.Node, pool string) bool { return pool == "all" || n.NodePool == pool }

func inDatacenter(n *wire.Node, list []string) bool {
	return slices.ContainsFunc(list, func(glob string) bool { return matchGlob(glob, n.Datacenter) })
}

// matchGlob matches * as any text.
func matchGlob(glob, s string) bool {
	parts := strings.Split(glob, "*")
	if len(parts) == 1 {
		return glob == s
	}
	if !strings.HasPrefix(s, parts[0]) {
		return false
	}
	s = s[len(parts[0]):]
	for _, mid := range parts[1 : len(parts)-1] {
		i := strings.Index(s, mid)
		if i < 0 {
			return false
		}
		s = s[i+len(mid):]
	}
	return strings.HasSuffix(s, parts[len(parts)-1])
}

func (p *planner) complete(m *wire.AllocMetric) {
	m.NodesAvailable, m.NodesInPool, m.NodePool = p.available, p.inPool, p.job.NodePool
}

// allocation is a new allocation for a choice.
func (p *planner) allocation(g *wire.TaskGroup, name string, c *choice, m *wire.AllocMetric) *wire.Allocation {
	now := p.w.now.UnixNano()
	a := &wire.Allocation{ID: p.w.newID(), Namespace: p.job.Namespace, EvalID: p.eval.ID, Name: name, JobID: p.job.ID, Job: p.job,
		TaskGroup: g.Name, Metrics: m, NodeID: c.node.ID, NodeName: c.node.Name, AllocatedResources: c.resources,
		DesiredStatus: wire.DesiredRun, ClientStatus: wire.ClientPending, SigningKeyID: p.env.SigningKey, CreateTime: now, ModifyTime: now}
	if p.deployment.Active() {
		a.DeploymentID = p.deployment.ID
	}
	a.SharedResources = &wire.Resources{DiskMB: g.EphemeralDisk.SizeMB, Networks: c.resources.Shared.Networks}
	a.TaskResources = map[string]*wire.Resources{}
	for name, t := range c.resources.Tasks {
		a.TaskResources[name] = &wire.Resources{CPU: int(t.Cpu.CpuShares), MemoryMB: int(t.Memory.MemoryMB), MemoryMaxMB: int(t.Memory.MemoryMaxMB), Networks: t.Networks}
	}
	a.Resources = combined(c.resources)
	return a
}

// combined is the older, flat form of what an allocation holds.
func combined(r *wire.AllocatedResources) *wire.Resources {
	size := sizeOf(r)
	out := &wire.Resources{CPU: int(size.cpu), MemoryMB: int(size.mem), DiskMB: int(size.disk)}
	for _, t := range r.Tasks {
		out.MemoryMaxMB += int(max(t.Memory.MemoryMaxMB, t.Memory.MemoryMB))
		out.Cores += len(t.Cpu.ReservedCores)
		out.Networks = append(out.Networks, t.Networks...)
		for _, d := range t.Devices {
			out.Devices = append(out.Devices, &wire.RequestedDevice{Name: d.Vendor + "/" + d.Type + "/" + d.Name, Count: uint64(len(d.DeviceIDs))})
		}
	}
	out.Networks = append(out.Networks, r.Shared.Networks...)
	return out
}

// evict adds what a choice pushes out to the plan.
func (p *planner) evict(a *wire.Allocation, c *choice, annotate bool) {
	for _, v := range c.preempted {
		e := *v
		e.DesiredStatus, e.PreemptedByAllocation = wire.DesiredEvict, a.ID
		e.DesiredDescription = "Preempted by alloc ID " + a.ID
		e.ModifyTime = p.w.now.UnixNano()
		p.plan.Preempted = append(p.plan.Preempted, &e)
		p.w.node(v.NodeID).remove(v)
		a.PreemptedAllocations = append(a.PreemptedAllocations, v.ID)
		p.stack.taken[v.Namespace+"\x00"+v.JobID+"\x00"+v.TaskGroup]++
		if annotate {
			p.annotations.PreemptedAllocs = append(p.annotations.PreemptedAllocs, v.Stub(true, false))
			p.annotations.DesiredTGUpdates[a.TaskGroup].Preemptions++
		}
	}
}
