package cards

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/view"
)

// List gives every card, by node and index. Node, where not empty, names one.
func (s *Service) List(node string) []view.CardState {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := []view.CardState{}
	for _, n := range s.book.nodes {
		if node == "" || n.of.Name == node || string(n.of.ID) == node {
			out = append(out, s.book.list(n, s.holders[n.of.ID])...)
		}
	}
	for _, r := range s.book.reporters {
		if r.node == "" && (node == "" || r.last.Node == node) { // Nomad does not know the node, or its cards, yet
			for i := range r.last.Cards {
				out = append(out, stray(r, &r.last.Cards[i]))
			}
		}
	}
	slices.SortFunc(out, func(a, b view.CardState) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.NodeID, b.NodeID), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Index, b.Index), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// Card gives one card with its detail: by its exact id, and by its node where
// several have one of that id.
func (s *Service) Card(card, node string) (view.CardState, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, _, err := s.book.Where(card, node)
	if err != nil {
		return view.CardState{}, err
	}
	var out view.CardState
	var told *contract.CardStatus
	if n := s.book.nodes[id]; n != nil {
		list := s.book.list(n, s.holders[id])
		out = list[slices.IndexFunc(list, func(c view.CardState) bool { return c.ID == card })]
		told, _ = n.lastTold(card)
	} else {
		for _, r := range s.book.reporters {
			if at := slices.IndexFunc(r.last.Cards, func(c contract.CardStatus) bool { return c.ID == card }); r.node == "" && at >= 0 {
				told = &r.last.Cards[at]
				out = stray(r, told)
			}
		}
	}
	out.Detail = s.book.detail(id, card, told)
	return out, nil
}

// lastTold is the card in the newest report that lists it, and whether that is
// too old to count.
func (n *node) lastTold(card string) (*contract.CardStatus, *reporter) {
	var best *reporter
	var found *contract.CardStatus
	for _, r := range n.reporters {
		if at := slices.IndexFunc(r.last.Cards, func(c contract.CardStatus) bool { return c.ID == card }); at >= 0 && (best == nil || r.heard.After(best.heard)) {
			best, found = r, &r.last.Cards[at]
		}
	}
	return found, best
}

func (b *Book) list(n *node, holders map[string]Holder) []view.CardState {
	byID := map[string]view.CardState{}
	for i := range n.of.Devices {
		g := &n.of.Devices[i]
		for j := range g.Cards {
			c := &g.Cards[j]
			v := view.CardState{ID: string(c.ID), Vendor: g.Vendor, Type: g.Type, Model: string(g.Name), Index: j, Nomad: "healthy", From: "nomad", Parent: string(c.Parent)}
			if !c.Healthy {
				v.Nomad = "unhealthy"
			}
			byID[v.ID] = v
		}
	}
	for _, r := range n.reporters {
		for i := range r.last.Cards {
			if _, known := byID[r.last.Cards[i].ID]; !known {
				byID[r.last.Cards[i].ID] = view.CardState{ID: r.last.Cards[i].ID, From: "report"}
			}
		}
	}
	out := make([]view.CardState, 0, len(byID))
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		v := byID[id]
		v.Node, v.NodeID, v.State = n.of.Name, string(n.of.ID), contract.CardHealthy
		if told, r := n.lastTold(id); told != nil {
			fill(&v, told, r)
		}
		if verdict, bad := n.verdicts[id]; bad {
			v.State, v.Why, v.From = StateName(verdict.State), verdict.Why, verdict.From
			if !verdict.Since.IsZero() {
				v.Since = verdict.Since.UTC()
			}
			if v.From == "planner" {
				v.Clears = "time, or a clean run"
				if verdict.State == core.CardQuarantined {
					v.Clears = "a person (muster card clear)"
				}
			}
		} else {
			v.Why, v.Clears, v.Since = "", "", time.Time{}
		}
		if h, ok := holders[id]; ok {
			v.Holder, v.Alloc = cmp.Or(h.Gang, h.Job), h.Alloc
		}
		out = append(out, v)
	}
	return out
}

// fill takes over what a report says.
func fill(v *view.CardState, k *contract.CardStatus, r *reporter) {
	if parts := strings.SplitN(k.Group, "/", 3); v.Model == "" && len(parts) == 3 {
		v.Vendor, v.Type, v.Model = parts[0], parts[1], parts[2]
	}
	v.Index, v.Slot, v.Serial, v.Parent, v.Hidden, v.Accepted = k.Index, k.Slot, k.Serial, cmp.Or(k.Parent, v.Parent), k.Hidden, k.Accepted
	v.Why, v.Clears, v.Since = k.Why, k.Clears, k.Since.UTC()
	v.Reported, v.ReportAt, v.Silent = StateName(stateOf(k.State)), r.heard.UTC(), r.quiet
	if !r.quiet {
		v.From = "report"
	}
}

// stray is a card that only a report knows of.
func stray(r *reporter, k *contract.CardStatus) view.CardState {
	v := view.CardState{ID: k.ID, Node: r.last.Node}
	fill(&v, k, r)
	v.From, v.State = "report", v.Reported
	if v.State == contract.CardHealthy {
		v.Why, v.Clears, v.Since = "", "", time.Time{}
	}
	return v
}

func (b *Book) detail(id core.NodeID, card string, told *contract.CardStatus) *view.CardDetail {
	d := &view.CardDetail{Evidence: []view.CardEvidence{}, Record: []view.CardNote{}, Orders: []view.CardOrder{}, Xids: []view.CardXid{}}
	for _, o := range b.OrdersOf(id, card) {
		d.Orders = append(d.Orders, b.orderView(&o))
	}
	if m := b.saved.Suspicion.card(id, card); m != nil {
		d.Evidence = append(d.Evidence, view.CardEvidence{State: StateName(b.marked(m)), What: m.Why, Since: m.Since.UTC(), Last: m.Since.UTC(), Times: 1})
	}
	if told == nil {
		return d
	}
	for _, e := range told.Evidence {
		d.Evidence = append(d.Evidence, view.CardEvidence{State: e.State, What: e.What, Line: e.Line, Since: e.Since.UTC(), Last: e.Last.UTC(), Times: e.Times})
	}
	for _, n := range told.Record {
		d.Record = append(d.Record, view.CardNote{At: n.At.UTC(), Kind: n.Kind, Who: n.Who, Text: n.Text})
	}
	for _, code := range slices.Sorted(maps.Keys(told.Xids)) {
		d.Xids = append(d.Xids, view.CardXid{Code: code, Times: told.Xids[code]})
	}
	d.Strikes = told.Strikes
	if m := told.Measured; m != nil {
		d.Measured = &view.CardUse{Utilization: m.Utilization, MemoryUsed: m.MemoryUsed, MemoryTotal: m.MemoryTotal, Processes: m.Processes}
	}
	return d
}
