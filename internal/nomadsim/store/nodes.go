package store

import (
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// MaxNodeEvents is how many events a node keeps.
const MaxNodeEvents = 10

// Node returns a node, or nil.
func (tx *Txn) Node(id string) *wire.Node { return as[wire.Node](tx.get(Nodes, id)) }

func (tx *Txn) putNode(n *wire.Node) {
	tx.nodes = true
	tx.put(Nodes, n.ID, n)
	tx.event("Node", "", n.ID, nil, map[string]any{"Node": n.Shown()})
	tx.changes.Nodes = append(tx.changes.Nodes, n)
}

// RegisterNode puts a node as its client describes it. What the server knows of it stays: eligibility, drain, events.
func (tx *Txn) RegisterNode(in *wire.Node) {
	tx.Kind("NodeRegistration")
	n := *in
	n.CreateIndex, n.ModifyIndex = tx.index, tx.index
	if old := tx.Node(n.ID); old != nil {
		n.CreateIndex = old.CreateIndex
		n.SchedulingEligibility, n.DrainStrategy, n.LastDrain = old.SchedulingEligibility, old.DrainStrategy, old.LastDrain
		n.LastMissedHeartbeatIndex, n.LastAllocUpdateIndex = old.LastMissedHeartbeatIndex, old.LastAllocUpdateIndex
		n.Events = old.Events
		if old.Status == wire.NodeDown && n.Status != wire.NodeDown {
			n.Events = withEvent(n.Events, tx.nodeEvent("Cluster", "Node re-registered", nil))
		}
	} else {
		// The first event's index is written before the node's own is known.
		first := &wire.NodeEvent{Message: "Node registered", Subsystem: "Cluster", Timestamp: wire.Time{Time: tx.now.Truncate(1e9)}}
		n.Events = []*wire.NodeEvent{first}
		if n.SchedulingEligibility == "" {
			n.SchedulingEligibility = wire.Eligible
		}
	}
	tx.putNode(&n)
	if tx.get(NodePools, n.NodePool) == nil {
		tx.put(NodePools, n.NodePool, &wire.NodePool{Name: n.NodePool, CreateIndex: tx.index, ModifyIndex: tx.index})
	}
}

// DeleteNode removes a node.
func (tx *Txn) DeleteNode(id string) {
	n := tx.Node(id)
	if n == nil {
		return
	}
	tx.Kind("NodeDeregistration")
	tx.nodes = true
	tx.delete(Nodes, id)
	tx.event("Node", "", id, nil, map[string]any{"Node": n.Shown()})
}

func (tx *Txn) nodeEvent(subsystem, message string, details map[string]string) *wire.NodeEvent {
	return &wire.NodeEvent{Message: message, Subsystem: subsystem, Details: details, Timestamp: wire.Time{Time: tx.now}, CreateIndex: tx.index}
}

func withEvent(list []*wire.NodeEvent, e *wire.NodeEvent) []*wire.NodeEvent {
	out := append(append([]*wire.NodeEvent{}, list...), e)
	if len(out) > MaxNodeEvents {
		out = out[len(out)-MaxNodeEvents:]
	}
	return out
}

// SetNodeStatus changes a node's status, with an event if message is not empty.
func (tx *Txn) SetNodeStatus(id, status, message string) {
	tx.Kind("NodeStreamEvent")
	old := tx.Node(id)
	if old == nil {
		return
	}
	n := *old
	n.Status, n.ModifyIndex, n.StatusUpdatedAt = status, tx.index, tx.now.Unix()
	if message != "" {
		n.Events = withEvent(n.Events, tx.nodeEvent("Cluster", message, nil))
	}
	switch {
	case (status == wire.NodeDown || status == wire.NodeDisconnected) && old.Status == wire.NodeReady:
		n.LastMissedHeartbeatIndex = tx.index
	case status == wire.NodeReady:
		n.LastMissedHeartbeatIndex = 0
	}
	tx.putNode(&n)
}

// SetEligibility lets the scheduler use a node, or not.
func (tx *Txn) SetEligibility(id, eligibility string) {
	tx.Kind("NodeEligibility")
	old := tx.Node(id)
	if old == nil {
		return
	}
	n := *old
	n.SchedulingEligibility, n.ModifyIndex = eligibility, tx.index
	n.Events = withEvent(n.Events, tx.nodeEvent("Cluster", "Node marked as "+eligibility+" for scheduling", nil))
	tx.putNode(&n)
}

// SetDrain begins (strategy given) or ends a drain. A node that ends one is eligible again on request.
func (tx *Txn) SetDrain(id string, strategy *wire.DrainStrategy, markEligible bool, status, message string, meta, details map[string]string) {
	tx.Kind("NodeDrain")
	old := tx.Node(id)
	if old == nil {
		return
	}
	n := *old
	n.DrainStrategy, n.ModifyIndex = strategy, tx.index
	now := wire.Time{Time: tx.now.Truncate(1e9)}
	last := wire.DrainMetadata{StartedAt: now, AccessorID: "token:acls-disabled"}
	if old.LastDrain != nil && old.DrainStrategy != nil {
		last = *old.LastDrain
	}
	switch {
	case strategy != nil:
		n.SchedulingEligibility = wire.Ineligible
		last.UpdatedAt, last.Status = now, "draining"
		if meta != nil {
			last.Meta = meta
		}
		n.LastDrain = &last
	case old.DrainStrategy != nil:
		last.UpdatedAt, last.Status = now, status
		if meta != nil {
			last.Meta = meta
		}
		n.LastDrain = &last
		fallthrough
	default:
		if markEligible {
			n.SchedulingEligibility = wire.Eligible
		}
	}
	if message != "" {
		n.Events = withEvent(n.Events, tx.nodeEvent("Drain", message, details))
	}
	tx.putNode(&n)
}

// allocUpdateOfNode notes that the node's client has told of its allocations. The node's own index stays.
func (tx *Txn) allocUpdateOfNode(id string) {
	old := tx.Node(id)
	if old == nil {
		return
	}
	n := *old
	n.LastAllocUpdateIndex = tx.index
	tx.put(Nodes, n.ID, &n)
	tx.event("Node", "", n.ID, nil, map[string]any{"Node": n.Shown()})
}
