package nomadsim

import (
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-muster/muster/internal/nomadsim/store"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

func (q *request) nodes(string) (any, error) {
	if err := q.method(http.MethodGet); err != nil {
		return nil, err
	}
	resources, err := q.flag("resources")
	if err != nil {
		return nil, err
	}
	os, err := q.flag("os")
	if err != nil {
		return nil, err
	}
	keep, err := q.filter()
	if err != nil {
		return nil, err
	}
	prefix := q.q.Get("prefix")
	if prefix != "" && !isIDPrefix(prefix) {
		return nil, fmt.Errorf("invalid UUID: %s", prefix)
	}
	return q.query(func(s *store.Snapshot) (any, uint64, error) {
		list := []*wire.NodeStub{}
		for n := range s.Nodes(prefix) {
			if ok, err := keep(n); err != nil {
				return nil, 0, err
			} else if ok {
				list = append(list, n.Stub(os, resources))
			}
		}
		list, err := page(q, list, func(n *wire.NodeStub) string { return n.ID })
		return list, s.TableIndex(store.Nodes), err
	}, store.Nodes)
}

func isIDPrefix(s string) bool {
	for _, c := range strings.ToLower(s) {
		if !strings.ContainsRune("0123456789abcdef-", c) {
			return false
		}
	}
	return true
}

func (q *request) node(rest string) (any, error) {
	id, what, _ := strings.Cut(rest, "/")
	switch what {
	case "":
		return q.query(func(s *store.Snapshot) (any, uint64, error) {
			n := s.Node(id)
			if err := wholeID("node", id); err != nil {
				return nil, 0, err
			}
			if n == nil {
				return nil, s.TableIndex(store.Nodes), fail(http.StatusNotFound, "node not found")
			}
			return n, n.ModifyIndex, nil
		}, store.Nodes)
	case "allocations":
		return q.query(func(s *store.Snapshot) (any, uint64, error) {
			list := []*wire.Allocation{}
			index := uint64(0)
			for a := range s.AllocsByNode(id) {
				list = append(list, a)
				index = max(index, a.ModifyIndex)
			}
			if len(list) == 0 {
				index = s.TableIndex(store.Allocs)
			}
			return list, index, nil
		}, store.Allocs)
	case "evaluate":
		return q.nodeEvaluate(id)
	case "drain":
		return q.nodeDrain(id)
	case "eligibility":
		return q.nodeEligibility(id)
	case "purge":
		return q.nodePurge(id)
	}
	return nil, errUnmodelled
}

// nodeWrite is what a write of a node answers.
type nodeWrite struct {
	EvalIDs         []string
	EvalCreateIndex uint64
	NodeModifyIndex uint64
	Index           uint64
}

func (q *request) nodeDrain(id string) (any, error) {
	if err := q.write(); err != nil {
		return nil, err
	}
	var body api.NodeUpdateDrainRequest
	if err := q.decode(&body); err != nil {
		return nil, err
	}
	if q.c.store.Snapshot().Node(id) == nil {
		return nil, fmt.Errorf("node not found")
	}
	var spec *wire.DrainSpec
	if body.DrainSpec != nil {
		spec = &wire.DrainSpec{Deadline: body.DrainSpec.Deadline, IgnoreSystemJobs: body.DrainSpec.IgnoreSystemJobs}
	}
	out := nodeWrite{}
	out.Index, out.EvalIDs, out.EvalCreateIndex = q.c.setDrain(id, spec, body.MarkEligible, body.Meta)
	out.NodeModifyIndex = out.Index
	q.index(out.Index)
	return out, nil
}

func (q *request) nodeEligibility(id string) (any, error) {
	if err := q.write(); err != nil {
		return nil, err
	}
	var body api.NodeUpdateEligibilityRequest
	if err := q.decode(&body); err != nil {
		return nil, err
	}
	n := q.c.store.Snapshot().Node(id)
	switch {
	case body.Eligibility != wire.Eligible && body.Eligibility != wire.Ineligible:
		return nil, fmt.Errorf("invalid scheduling eligibility %q", body.Eligibility)
	case n == nil:
		return nil, fmt.Errorf("node not found")
	case n.DrainStrategy != nil && body.Eligibility == wire.Eligible:
		return nil, fmt.Errorf("can not set node's scheduling eligibility to eligible while it is draining")
	}
	out := nodeWrite{}
	if n.SchedulingEligibility != body.Eligibility {
		out.Index = q.c.store.Apply(func(tx *store.Txn) { tx.SetEligibility(id, body.Eligibility) })
		if body.Eligibility == wire.Eligible {
			out.EvalIDs, out.EvalCreateIndex = q.c.nodeEvals(id, out.Index)
		}
	}
	q.index(out.Index)
	return out, nil
}

func (q *request) nodeEvaluate(id string) (any, error) {
	if err := q.write(); err != nil {
		return nil, err
	}
	n := q.c.store.Snapshot().Node(id)
	if n == nil {
		return nil, fmt.Errorf("node not found")
	}
	// What a node is told that registers; a server answers the same here.
	var out struct {
		HeartbeatTTL          time.Duration
		EvalIDs               []string
		EvalCreateIndex       uint64
		NodeModifyIndex       uint64
		Features              uint64
		LeaderRPCAddr         string
		NumNodes              int
		Servers               []serverInfo
		SchedulingEligibility string
		SignedIdentity        *string
		Index                 uint64
		NextToken             string
		LastContact           int64
		KnownLeader           bool
	}
	out.EvalIDs, out.EvalCreateIndex = q.c.nodeEvals(id, n.ModifyIndex)
	out.Index, out.SchedulingEligibility = out.EvalCreateIndex, n.SchedulingEligibility
	out.LeaderRPCAddr = rpcAddr
	out.Servers = []serverInfo{{RPCAdvertiseAddr: rpcAddr, Datacenter: "dc1"}}
	out.NumNodes = q.c.store.Snapshot().NodeCount()
	q.index(out.Index)
	return out, nil
}

// serverInfo is a server as clients are told of it.
type serverInfo struct {
	RPCAdvertiseAddr string
	RPCMajorVersion  int32
	RPCMinorVersion  int32
	Datacenter       string
}

func (q *request) nodePurge(id string) (any, error) {
	if err := q.write(); err != nil {
		return nil, err
	}
	if q.c.store.Snapshot().Node(id) == nil {
		return nil, fmt.Errorf("node not found")
	}
	evals, at := q.c.nodeEvals(id, q.c.store.Snapshot().Index())
	index := q.c.store.Apply(func(tx *store.Txn) { tx.DeleteNode(id) })
	q.index(index)
	return nodeWrite{EvalIDs: evals, EvalCreateIndex: at, NodeModifyIndex: index, Index: index}, nil
}

func (q *request) nodePools(string) (any, error) {
	if err := q.method(http.MethodGet, http.MethodPut, http.MethodPost); err != nil {
		return nil, err
	}
	if q.r.Method != http.MethodGet {
		return q.nodePoolWrite()
	}
	prefix := q.q.Get("prefix")
	return q.query(func(s *store.Snapshot) (any, uint64, error) {
		list := []*wire.NodePool{}
		for p := range s.NodePools(prefix) {
			list = append(list, p)
		}
		return list, s.TableIndex(store.NodePools), nil
	}, store.NodePools)
}

func (q *request) nodePoolWrite() (any, error) {
	var body api.NodePool // whose durations may be text
	if err := q.decode(&body); err != nil {
		return nil, err
	}
	p := wire.NodePool{Name: body.Name, Description: body.Description, Meta: body.Meta, NodeIdentityTTL: cmp.Or(body.NodeIdentityTTL, 24*time.Hour)}
	if p.Name == "" {
		return nil, fail(http.StatusBadRequest, "missing node pool name")
	}
	index := q.c.store.Apply(func(tx *store.Txn) { tx.PutNodePool(&p) })
	q.index(index)
	return nil, nil
}

func (q *request) nodePool(rest string) (any, error) {
	name, what, _ := strings.Cut(rest, "/")
	switch what {
	case "":
	case "nodes":
		return q.query(func(s *store.Snapshot) (any, uint64, error) {
			list := []*wire.NodeStub{}
			for n := range s.Nodes("") {
				if name == "all" || n.NodePool == name {
					list = append(list, n.Stub(false, false))
				}
			}
			return list, s.TableIndex(store.Nodes), nil
		}, store.Nodes)
	case "jobs":
		return q.query(func(s *store.Snapshot) (any, uint64, error) {
			list := []*wire.JobStub{}
			for j := range s.Jobs(q.namespace, "") {
				if j.NodePool == name {
					list = append(list, j.Stub(s.Summary(j.Namespace, j.ID), false))
				}
			}
			return list, s.TableIndex(store.Jobs), nil
		}, store.Jobs)
	default:
		return nil, errUnmodelled
	}
	switch q.r.Method {
	case http.MethodGet, http.MethodHead:
		return q.query(func(s *store.Snapshot) (any, uint64, error) {
			p := s.NodePool(name)
			if p == nil {
				return nil, s.TableIndex(store.NodePools), fail(http.StatusNotFound, "node pool not found")
			}
			return p, p.ModifyIndex, nil
		}, store.NodePools)
	case http.MethodPut, http.MethodPost:
		return q.nodePoolWrite()
	case http.MethodDelete:
		for n := range q.c.store.Snapshot().Nodes("") {
			if n.NodePool == name {
				return nil, fmt.Errorf("node pool %q has nodes in regions: [%s]", name, q.c.opts.Region)
			}
		}
		index := q.c.store.Apply(func(tx *store.Txn) { tx.DeleteNodePool(name) })
		q.index(index)
		return nil, nil
	}
	return nil, errMethod
}

// clientStats is what a node's client measures of its host.
func (q *request) clientStats() (any, error) {
	id := q.q.Get("node_id")
	if id == "" {
		return nil, fail(http.StatusBadRequest, "Unknown node ID: the simulated server is no client")
	}
	n := q.c.store.Snapshot().Node(id)
	if n == nil {
		return nil, fail(http.StatusNotFound, "Unknown node %s", id)
	}
	a := q.c.agent(id)
	a.mu.Lock()
	reachable := a.up && !a.cut
	a.mu.Unlock()
	if !reachable {
		return nil, fail(http.StatusNotFound, "No path to node")
	}
	now := q.c.clock.Now()
	disk := map[string]any{"Available": n.NodeResources.Disk.DiskMB << 20, "Device": "/dev/vda", "InodesUsedPercent": 1.0, "Mountpoint": "/",
		"Size": n.NodeResources.Disk.DiskMB << 20, "Used": 0, "UsedPercent": 0.0}
	allocDir := map[string]any{}
	for k, v := range disk {
		allocDir[k] = v
	}
	allocDir["Device"], allocDir["Mountpoint"] = "", ""
	var cpus []any
	for i := range n.NodeResources.Cpu.ReservableCpuCores {
		cpus = append(cpus, map[string]any{"CPU": fmt.Sprintf("cpu%d", i), "Idle": 100.0, "System": 0.0, "TotalPercent": 0.0, "TotalTicks": 0.0, "User": 0.0})
	}
	total := n.NodeResources.Memory.MemoryMB << 20
	out := map[string]any{"AllocDirStats": allocDir, "CPU": cpus, "CPUTicksConsumed": 0.0, "DeviceStats": []any{}, "DiskStats": []any{disk},
		"Memory": map[string]any{"Available": total, "Free": total, "Total": total, "Used": 0}, "Timestamp": now.UnixNano(), "Uptime": 3600}
	if a.live != nil {
		out["DeviceStats"] = a.live.deviceStats()
		return out, nil
	}
	groups := []any{}
	for _, d := range n.NodeResources.Devices {
		stats := map[string]any{}
		told := map[string]any{"Stats": map[string]any{"Attributes": map[string]any{}, "Nested": map[string]any{}},
			"Summary": map[string]any{"Desc": "virtual device", "IntNumeratorVal": 0}}
		for _, g := range a.cfg.Devices {
			if g.Stats != nil && g.Vendor == d.Vendor && g.Type == d.Type && g.Name == d.Name {
				told = g.Stats
			}
		}
		for _, in := range d.Instances {
			s := maps.Clone(told)
			s["Timestamp"] = wire.Time{Time: now}
			stats[in.ID] = s
		}
		groups = append(groups, map[string]any{"InstanceStats": stats, "Name": d.Name, "Type": d.Type, "Vendor": d.Vendor})
	}
	out["DeviceStats"] = groups
	return out, nil
}
