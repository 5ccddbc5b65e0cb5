package agent

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/buildinfo"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/lifecycle"
	"github.com/nomad-muster/muster/planner/nomad/picture"
	"github.com/nomad-muster/muster/planner/view"
)

// Gangs implements httpapi.Gangs.
func (a *Agent) Gangs() []view.Gang {
	a.mu.RLock()
	defer a.mu.RUnlock()
	now := time.Now()
	retention := a.config.Current().Retention
	out := make([]view.Gang, 0, len(a.state.gangs))
	for _, e := range a.state.byName() {
		if end := e.gang.Saved.End; end != nil && retention > 0 && now.Sub(end.At) > retention {
			continue
		}
		out = append(out, a.state.gangView(e))
	}
	return out
}

// Gang implements httpapi.Gangs.
func (a *Agent) Gang(namespace, job string) (view.Gang, bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	e := a.state.gangs[picture.Key{Namespace: namespace, Job: job}]
	if e == nil {
		return view.Gang{}, false
	}
	now := time.Now()
	g := a.state.gangView(e)
	g.Detail = a.state.detail(e, now)
	return g, true
}

func (s *state) gangView(e *entry) view.Gang {
	g, saved := e.gang, &e.gang.Saved
	out := view.Gang{ID: e.key.String(), Namespace: e.key.Namespace, Job: e.key.Job, Index: e.index, Queue: g.QueueName(), User: g.UserName(),
		Attempt: saved.Attempt, Min: g.Meta.Min, Models: append([]string{}, g.Meta.Models...), Submitted: saved.Submitted.UTC(), Type: "batch"}
	if g.User != nil {
		out.Type, out.Priority, out.Members = g.User.Type, g.User.Priority, g.User.Members()
		out.Cards = s.gangCards(e)
	}
	out.Stage, out.Reason, out.Sentence = e.stageNow()
	models := map[string]bool{}
	if e.starting == nil {
		for _, m := range g.Members(s.list(e.key)) {
			if m.Place.Model != "" {
				models[string(m.Place.Model)] = true
			}
			if m.Alloc != nil && !m.Alloc.Terminal() {
				out.Placed++
				if m.Report != nil && (m.Report.State == contract.StateLaunched || m.Report.State == contract.StateTraining) || saved.Phase == lifecycle.Released && m.Report == nil && m.Alloc.Client == "running" {
					out.Running++
				}
			}
		}
	}
	if len(models) > 0 {
		out.Models = sortedKeys(models)
	}
	if saved.Phase == lifecycle.Waiting {
		out.Queued = saved.Queued.UTC()
		if e.decided && e.verdict.Action == core.ActionWait {
			out.Position = e.verdict.Position
			eta := view.FromETA(e.verdict.ETA)
			out.ETA = &eta
		}
	}
	for _, st := range saved.Stages {
		if st.Stage == contract.StageStarted {
			out.Started = st.At.UTC()
		}
	}
	if saved.Record != nil && !saved.Record.Deadline.IsZero() {
		out.LimitEnds = saved.Record.Deadline.UTC()
	}
	switch {
	case saved.End != nil:
		out.Ended = saved.End.At.UTC()
		out.Exit = exitView(saved.End.Exit, saved.End.Member, saved.End.Text)
	case len(saved.Attempts) > 0:
		last := saved.Attempts[len(saved.Attempts)-1]
		out.Exit = exitView(last.Exit, last.Member, last.Text)
	}
	return out
}

// stageNow is how far a gang has come, and why it is there.
func (e *entry) stageNow() (contract.Stage, core.Reason, string) {
	saved := &e.gang.Saved
	stage := contract.StageSubmitted
	if n := len(saved.Stages); n > 0 {
		stage = saved.Stages[n-1].Stage
	}
	if saved.End != nil {
		return saved.End.Stage, "", saved.End.Text
	}
	switch saved.Phase {
	case lifecycle.Waiting:
		if e.decided && e.verdict.Action == core.ActionRefuse {
			return contract.StageRefused, e.verdict.Reason, e.verdict.Sentence
		}
		if e.decided {
			return stage, e.verdict.Reason, e.verdict.Sentence
		}
	case lifecycle.Stopping:
		return stage, core.ReasonStopping, saved.Stop.Sentence()
	case lifecycle.Released:
		if ask := saved.Ask; ask != nil && ask.Kind != contract.AskWithdrawn {
			return stage, core.ReasonEvicted, fmt.Sprintf("asked at %s to save and leave (%s): %s; its grace ends at %s", clock(ask.At), ask.Kind, ask.Why, clock(ask.By))
		}
		switch {
		case e.growing:
			return stage, core.ReasonRunning, "its replicas run; its new version asks for more than they hold, and waits for room in queue " + e.gang.QueueName()
		case e.gang.Service():
			return stage, core.ReasonRunning, "its replicas run; Nomad sees to them"
		}
		if why := e.gang.Unreadable(); why != "" {
			return stage, core.ReasonRunning, "its ranks run on, and the job is stopped when they have ended: " + why
		}
		if slices.Index(contract.Stages, stage) < slices.Index(contract.Stages, contract.StageStarted) {
			return stage, core.ReasonRunning, "all its members are ready, and its ranks start"
		}
		return stage, core.ReasonRunning, "its ranks run"
	case lifecycle.Reserving:
		if text := waitsFor(e.leaving); text != "" {
			return stage, core.ReasonVictims, text
		}
		return stage, core.ReasonRunning, "its members are being placed and made ready"
	}
	return stage, "", ""
}

// verdictNow is the core's verdict, with what has become of it since: a gang
// whose reservation waits names those who are to leave, and one that was asked
// to leave says for whom.
func (s *state) verdictNow(e *entry) core.Verdict {
	v := e.verdict
	saved := &e.gang.Saved
	switch saved.Phase {
	case lifecycle.Waiting:
		return v
	case lifecycle.Over:
		// What the core said of it last is of no interest any more.
		_, _, sentence := e.stageNow()
		return core.Verdict{Gang: v.Gang, Sentence: sentence}
	}
	if _, reason, sentence := e.stageNow(); reason != core.ReasonRunning {
		v.Reason, v.Sentence = reason, sentence
	}
	if len(e.leaving) == 0 {
		return v
	}
	b := core.Blocker{Reason: core.ReasonVictims, Text: waitsFor(e.leaving)}
	for _, l := range e.leaving {
		cards := 0
		for i := range s.claims.values {
			if c := &s.claims.values[i]; string(c.Gang) == l.Gang {
				cards += len(c.Cards)
			}
		}
		b.Holders = append(b.Holders, core.Holder{Gang: core.GangID(l.Gang), Job: l.Gang, Cards: cards, Until: l.Until})
	}
	v.Blockers = append([]core.Blocker{b}, v.Blockers...)
	return v
}

// waitsFor says who a reservation waits for; "": nobody.
func waitsFor(leaving []lifecycle.Leaving) string {
	var who []string
	for i, l := range leaving {
		switch {
		case i == 3:
			return fmt.Sprintf("its places are kept; %s and %d more have to leave them first", strings.Join(who, ", "), len(leaving)-i)
		case !l.Asked:
			who = append(who, l.Gang+" (about to be asked)")
		case l.Members > 0:
			who = append(who, fmt.Sprintf("%d of %s (asked; the grace ends at %s)", l.Members, l.Gang, clock(l.Until)))
		default:
			who = append(who, fmt.Sprintf("%s (asked; its grace ends at %s)", l.Gang, clock(l.Until)))
		}
	}
	if len(who) == 0 {
		return ""
	}
	return fmt.Sprintf("its places are kept; %s has to leave them first", strings.Join(who, ", "))
}

func clock(t time.Time) string { return t.UTC().Format("15:04:05Z") }

func exitView(exit *contract.Exit, member int, text string) *view.Exit {
	if exit == nil {
		return &view.Exit{Outcome: contract.OutcomeUnknown, Code: -1, Member: member, Rank: -1, Text: text}
	}
	return &view.Exit{Outcome: exit.Outcome, Code: exit.Code, Signal: exit.Signal, Member: member, Rank: exit.Rank, Text: cmp.Or(text, exit.Text)}
}

func (s *state) isCard(deviceType string) bool { return slices.Contains(s.set.CardTypes, deviceType) }

// gangCards counts the cards that a gang asks for.
func (s *state) gangCards(e *entry) int {
	n := 0
	groups := e.gang.Groups()
	for i := range groups {
		n += s.groupCards(&groups[i])
	}
	return n
}

// groupCards counts the cards of all members of a group.
func (s *state) groupCards(group *core.Group) (n int) {
	for i := range group.Devices {
		if d := &group.Devices[i]; s.isCard(d.Type) {
			n += d.Count * group.Count
		}
	}
	return n
}

func (s *state) list(key picture.Key) []*picture.Alloc {
	var out []*picture.Alloc
	for _, a := range s.byJob[key] {
		out = append(out, a)
	}
	return out
}

func (s *state) detail(e *entry, now time.Time) *view.Detail {
	g, saved := e.gang, &e.gang.Saved
	d := &view.Detail{Verdict: view.FromVerdict(s.verdictNow(e)), Stages: stagesView(saved.Stages, now), Groups: []view.Group{}, Members: []view.Member{},
		Attempts: []view.Attempt{}, Events: append([]view.Event{}, e.events...), Asked: askedView(g), JobVersion: saved.Version, JobModifyIndex: saved.Index,
		Want: view.Want{TimeLimitSeconds: g.Meta.TimeLimit.Seconds(), Deadline: g.Meta.Deadline, Preemptible: g.Meta.Preemptible, GraceSeconds: g.Meta.Grace.Seconds(),
			Retries: g.Meta.Retries, Split: g.Meta.Split, Spread: g.Meta.Spread, MinBandwidthGbit: g.Meta.MinBandwidth, PreferWaitSeconds: g.Meta.PreferWait.Seconds()}}
	if g.Meta.TopologyLevel != "" {
		d.Want.Topology = "preferred:" + g.Meta.TopologyLevel
		if g.Meta.TopologyRequired {
			d.Want.Topology = "required:" + g.Meta.TopologyLevel
		}
	}
	if g.User != nil {
		for _, group := range g.Groups() {
			cards := map[string]int{}
			for _, ask := range group.Devices {
				if slices.Contains(s.set.CardTypes, ask.Type) {
					cards[strings.Trim(ask.Vendor+"/"+ask.Type+"/"+ask.Name, "/")] += ask.Count
				}
			}
			d.Groups = append(d.Groups, view.Group{Name: group.Name, Count: group.Count, Cards: cards})
		}
	}
	for _, m := range g.Members(s.list(e.key)) {
		d.Members = append(d.Members, s.memberView(m, &d.Want))
	}
	if len(d.Members) == 0 {
		for i, m := range saved.Last {
			v := view.Member{Index: i, Group: m.Group, Task: m.Task, Alloc: m.Alloc, Node: m.Node, NodeID: m.NodeID, Address: m.Address, State: cmp.Or(m.Status, "lost"), Status: m.Status, Ranks: m.Ranks,
				Model: string(m.Model), Cards: append([]string{}, m.Cards...), Step: m.Step, Exit: m.Exit}
			if m.State != "" {
				v.State = string(m.State)
			}
			d.Members = append(d.Members, v)
		}
	}
	for _, at := range saved.Attempts {
		v := view.Attempt{Number: at.Number, Reason: at.Reason, For: at.For, Ended: at.Ended.UTC(), Nodes: append([]string{}, at.Nodes...), Exit: exitView(at.Exit, at.Member, at.Text), Stages: stagesView(at.Stages, at.Ended)}
		times(&v, at.Stages)
		d.Attempts = append(d.Attempts, v)
	}
	if saved.Phase != lifecycle.Waiting && saved.Phase != lifecycle.Over && saved.Attempt > 0 {
		v := view.Attempt{Number: saved.Attempt, Nodes: []string{}, Stages: d.Stages}
		for _, m := range d.Members {
			v.Nodes, v.Model = append(v.Nodes, m.Node), m.Model
		}
		times(&v, saved.Stages)
		d.Attempts = append(d.Attempts, v)
	}
	return d
}

// askedView is the ask that is in force; nil: none is.
func askedView(g *lifecycle.Gang) *view.Asked {
	ask := g.Saved.Ask
	l, present := g.Present(g.Saved.Attempt)
	if !present || !l.Asked || ask == nil || g.Saved.Phase != lifecycle.Released {
		return nil
	}
	return &view.Asked{At: ask.At.UTC(), Until: l.Until.UTC(), Kind: ask.Kind, Why: ask.Why}
}

func (s *state) memberView(m lifecycle.Member, want *view.Want) view.Member {
	v := view.Member{Index: m.Index, Group: m.Place.Group, Task: m.Task, NodeID: m.Place.Node, Model: string(m.Place.Model), State: "pending", Cards: []string{}}
	if n := s.nodes[m.Place.Node]; n != nil {
		v.Node = n.Name
	}
	if m.Alloc == nil {
		for _, ids := range m.Place.Cards {
			for _, id := range ids {
				v.Cards = append(v.Cards, string(id))
			}
		}
		return v
	}
	v.Alloc, v.Status, v.State, v.Node = m.Alloc.ID, m.Alloc.Client, "placed", m.Alloc.NodeName
	switch m.Alloc.Client {
	case "lost", "unknown":
		v.State = m.Alloc.Client
	}
	for _, d := range m.Alloc.Devices {
		v.Cards = append(v.Cards, d.IDs...)
	}
	if r := m.Report; r != nil {
		v.Address, v.Ranks, v.Step, v.Problems, v.Exit = r.Address, r.Ranks, r.Step, r.Problems, r.Exit
		if v.State == "placed" || r.State == contract.StateEnded {
			v.State = string(r.State)
		}
		if r.Checkpoint.After(want.CheckpointAt) {
			want.CheckpointAt = r.Checkpoint.UTC()
		}
		want.CheckpointStep = max(want.CheckpointStep, r.Step)
	}
	return v
}

func stagesView(stages []lifecycle.Stage, now time.Time) []view.StageTime {
	out := make([]view.StageTime, len(stages))
	for i, st := range stages {
		out[i] = view.StageTime{Stage: st.Stage, Entered: st.At.UTC(), Text: st.Text}
		switch {
		case i+1 < len(stages):
			out[i].Left = stages[i+1].At.UTC()
		case st.Stage.Ended():
			out[i].Left = st.At.UTC()
		}
		until := now
		if !out[i].Left.IsZero() {
			until = out[i].Left
		}
		out[i].Seconds = max(until.Sub(st.At).Seconds(), 0)
	}
	return out
}

func times(v *view.Attempt, stages []lifecycle.Stage) {
	for _, st := range stages {
		switch st.Stage {
		case contract.StagePlanned:
			v.Planned = st.At.UTC()
		case contract.StagePlaced:
			v.Placed = st.At.UTC()
		case contract.StageStarted:
			v.Released = st.At.UTC()
		}
	}
}

// Nodes implements httpapi.Cluster.
func (a *Agent) Nodes() []view.Node {
	a.mu.RLock()
	defer a.mu.RUnlock()
	s := &a.state
	holder := s.holders()
	used := map[core.NodeID]core.Resources{}
	for _, c := range s.claims.values {
		u := used[c.Node]
		u.CPU, u.MemoryMB = u.CPU+c.Use.CPU, u.MemoryMB+c.Use.MemoryMB
		used[c.Node] = u
	}
	levels := a.config.Current().Core.Levels
	out := make([]view.Node, 0, len(s.nodes))
	for _, n := range s.nodes {
		v := view.Node{ID: string(n.ID), Name: n.Name, Datacenter: n.Datacenter, Pool: n.Pool, Suspect: n.Suspect, Domains: map[string]string{}, Cards: []view.Card{},
			CPU: n.Capacity.CPU, MemoryMB: n.Capacity.MemoryMB, CPUUsed: used[n.ID].CPU, MemUsed: used[n.ID].MemoryMB}
		v.Status, v.Why = nodeStatus(n)
		if n.Suspect && v.Why == "" {
			v.Why = n.SuspectWhy
		}
		v.Reporting = a.cards.Reporting(n.ID)
		for i, l := range levels {
			if i < len(n.Domains) {
				v.Domains[l.Name] = n.Domains[i]
			}
		}
		for _, g := range n.Devices {
			for _, c := range g.Cards {
				card := view.Card{ID: string(c.ID), Vendor: g.Vendor, Type: g.Type, Model: string(g.Name), State: cardState(c), Why: c.Why, Domain: c.Domain, NUMA: c.NUMA}
				if h, ok := holder[c.ID]; ok {
					card.Holder, card.Alloc = h.Job, h.Alloc
				}
				v.Cards = append(v.Cards, card)
			}
		}
		out = append(out, v)
	}
	sort.Slice(out, func(i, j int) bool {
		return out[i].Name < out[j].Name || out[i].Name == out[j].Name && out[i].ID < out[j].ID
	})
	return out
}

func nodeStatus(n *picture.Node) (status, why string) {
	switch {
	case n.Status == "disconnected":
		return "disconnected", "Nomad lost contact with it"
	case !n.Ready:
		return "down", "Nomad calls it " + n.Status
	case n.Draining:
		return "draining", "it is being drained"
	case !n.Eligible:
		return "ineligible", "it was marked ineligible"
	case n.Excluded:
		return "excluded", n.ExcludedWhy
	}
	return "ready", ""
}

func cardState(c core.Card) string {
	switch {
	case !c.Healthy && c.State < core.CardDraining:
		return "unhealthy"
	case c.State == core.CardSuspect:
		return "suspect"
	case c.State == core.CardDraining:
		return "draining"
	case c.State == core.CardQuarantined:
		return "quarantined"
	}
	return "healthy"
}

// holders tells who holds each device.
func (s *state) holders() map[core.CardID]*core.Claim {
	out := map[core.CardID]*core.Claim{}
	for i := range s.claims.values {
		for _, id := range s.claims.values[i].Cards {
			out[id] = &s.claims.values[i]
		}
	}
	return out
}

// cardCounts counts cards by model.
func (s *state) cardCounts() []view.CardCount {
	holder := s.holders()
	counts := map[string]*view.CardCount{}
	for _, n := range s.nodes {
		status, _ := nodeStatus(n)
		for _, g := range n.Devices {
			if !slices.Contains(s.set.CardTypes, g.Type) {
				continue
			}
			c := counts[string(g.Name)]
			if c == nil {
				c = &view.CardCount{Model: string(g.Name)}
				counts[string(g.Name)] = c
			}
			for _, card := range g.Cards {
				c.Total++
				switch h, held := holder[card.ID]; {
				case held && h.Gang != "":
					c.Used++
				case held:
					c.Other++
				case status != "ready" || !card.Healthy || card.State >= core.CardDraining:
					c.Out++
				default:
					c.Free++
				}
			}
		}
	}
	out := make([]view.CardCount, 0, len(counts))
	for _, model := range sortedKeys(counts) {
		out = append(out, *counts[model])
	}
	return out
}

// Status implements httpapi.Cluster.
func (a *Agent) Status() view.Status {
	a.mu.RLock()
	defer a.mu.RUnlock()
	s := &a.state
	out := view.Status{Version: buildinfo.String(), State: "active", Started: s.started.UTC(), Region: s.server.Region, Cycles: s.cycles, LastCycle: s.lastCycle.UTC(), CycleSeconds: s.lastTook.Seconds(),
		Gangs: map[string]int{}, Nodes: len(s.nodes), Cards: []view.CardCount{}, Problems: []view.Problem{}, Index: a.feed.Index()}
	out.Nomad = view.Contact{Address: a.client.Address(), Version: s.server.Version, OK: s.contact.OK, Last: s.contact.At.UTC()}
	if s.contact.Err != nil {
		out.Nomad.Error = s.contact.Err.Error()
	}
	if s.lastCycle.IsZero() {
		out.LastCycle = time.Time{}
	}
	out.Consul = view.Contact{OK: a.consul != nil}
	if a.consul != nil {
		out.Consul.Address = a.consul.Address()
		out.Consul.OK, out.Consul.Last, out.Consul.Error = a.consul.Contact()
	} else {
		out.Consul.Error = "not configured: members get their records through Nomad's signals"
	}
	switch {
	case !s.whole || !s.loaded:
		out.State, out.Why = "starting", "the picture of the cluster is not complete yet"
	case !s.contact.OK:
		out.State, out.Why = "stale", "no contact with Nomad"
	case s.paused != "":
		out.State, out.Why = "paused", s.paused
	}
	for _, e := range s.gangs {
		stage, _, _ := e.stageNow()
		out.Gangs[string(stage)]++
	}
	if s.set != nil {
		out.Cards = s.cardCounts()
	}
	if b := a.cards.Breaker(); b.Open {
		out.Problems = append(out.Problems, view.Problem{Object: "the cards' circuit breaker", Text: "open: " + b.Why, Hint: "find out what the cards have in common, then muster card breaker -close", Since: b.Since})
	}
	for _, n := range s.notices {
		out.Problems = append(out.Problems, view.FromNotice(n))
	}
	for _, n := range s.nodes {
		for _, notice := range n.Notices {
			out.Problems = append(out.Problems, view.FromNotice(notice))
		}
	}
	out.Problems = append(out.Problems, a.hookProblems()...)
	out.Problems = append(out.Problems, a.meterProblems()...)
	return out
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
