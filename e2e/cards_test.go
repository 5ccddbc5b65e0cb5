//go:build e2e && linux

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/trial"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// mixed are nodes with two NVLink islands, with a card that is cut into slices,
// and two of four cards.
func mixed() []trial.Node {
	nodes := trial.Nodes(4, 4)
	nodes[0].Preset, nodes[0].Cards = "islands-2x4", 8
	nodes[1].Preset, nodes[1].Cards = "mig-a100-2", 1
	return nodes
}

const (
	islandModel = "NVIDIA A100 80GB PCIe"
	slicedModel = "NVIDIA A100-SXM4-40GB"
	plainModel  = "NVIDIA H100 80GB HBM3"
)

// cards are a node's accelerators as the planner has them, by index.
func (l *lab) cards(ctx context.Context, t *testing.T, node string) []view.CardState {
	t.Helper()
	var list view.CardList
	must.NoError(t, getJSON(ctx, l.MusterAddr+"/v1/cards?node="+node, &list))
	return slices.DeleteFunc(list.Cards, func(c view.CardState) bool { return c.Type == contract.TypeNIC || c.Hidden != "" })
}

// awaitCard returns when the planner has a card as wanted.
func (l *lab) awaitCard(ctx context.Context, t *testing.T, node string, index int, what string, ok func(view.CardState) bool) view.CardState {
	t.Helper()
	var last view.CardState
	poll(ctx, t, fmt.Sprintf("wait for card %d of %s: %s", index, node, what), func() error {
		for _, c := range l.cards(ctx, t, node) {
			if c.Index == index {
				last = c
			}
		}
		if !ok(last) {
			text, _ := json.Marshal(last)
			return fmt.Errorf("it is %s", text)
		}
		return nil
	})
	return last
}

func inState(state string) func(view.CardState) bool {
	return func(c view.CardState) bool { return c.State == state }
}

// published are the devices of a type on a node that Nomad has, with their
// health.
func (l *lab) published(ctx context.Context, node, kind string) (map[string]bool, error) {
	list, _, err := l.nomad.Nodes().List((&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, n := range list {
		if n.Name != node {
			continue
		}
		info, _, err := l.nomad.Nodes().Info(n.ID, (&api.QueryOptions{}).WithContext(ctx))
		if err != nil {
			return nil, err
		}
		for _, g := range info.NodeResources.Devices {
			if g.Type == kind {
				for _, i := range g.Instances {
					out[i.ID] = i.Healthy
				}
			}
		}
	}
	return out, nil
}

// awaitPublished returns when Nomad has so many devices of a type on a node, so
// many of them healthy. It says how long that took.
func (l *lab) awaitPublished(ctx context.Context, t *testing.T, node, kind string, all, healthy int) {
	t.Helper()
	began := time.Now()
	poll(ctx, t, fmt.Sprintf("wait for %d of %d healthy %s on %s in Nomad", healthy, all, kind, node), func() error {
		p, err := l.published(ctx, node, kind)
		if err != nil {
			return err
		}
		good := 0
		for _, h := range p {
			if h {
				good++
			}
		}
		if len(p) != all || good != healthy {
			return fmt.Errorf("it has %d, %d healthy", len(p), good)
		}
		return nil
	})
	t.Logf("Nomad has %d of %d healthy on %s after %s", healthy, all, node, time.Since(began).Round(10*time.Millisecond))
}

func (l *lab) muster(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	r, err := l.Muster(ctx, args...)
	must.NoError(t, err)
	must.Eq(t, 0, r.Code, must.Sprintf("muster %v: %s%s", args, r.Stdout, r.Stderr))
	return r.Stdout
}

// Four cards of one member come out of one NVLink island, and a plain card is
// never a slice.
func TestCardsAreChosen(t *testing.T) {
	ctx, l := own(t, trial.Options{Nodes: mixed()})
	domains := map[string]string{}
	for _, n := range l.nodes(ctx, t) {
		for _, c := range n.Cards {
			domains[c.ID] = c.Domain
		}
	}
	one, four := folder(t), folder(t)
	l.submit(ctx, t, gangJob{name: "one-card", members: 1, cards: 1, meta: map[string]string{contract.MetaModels: islandModel}, config: shellRanks(t, one, 1)}.hcl())
	taken := awaitStarted(ctx, t, one, 1, 1)[0].cards
	l.submit(ctx, t, gangJob{name: "one-island", members: 1, cards: 4, meta: map[string]string{contract.MetaModels: islandModel}, config: shellRanks(t, four, 1)}.hcl())
	got := strings.Split(awaitStarted(ctx, t, four, 1, 1)[0].cards, ",")
	must.Len(t, 4, got)
	islands := map[string]bool{}
	for _, id := range got {
		must.NotEq(t, "", domains[id])
		islands[domains[id]] = true
	}
	must.MapLen(t, 1, islands, must.Sprintf("cards %v are in %v", got, islands))
	must.False(t, islands[domains[taken]], must.Sprint("the whole island was free, the other one was not"))

	// One whole card, seven-eighths of another as slices: a second plain card is
	// waited for, for Nomad's own jobs too.
	whole := folder(t)
	l.submit(ctx, t, gangJob{name: "whole", members: 1, cards: 1, meta: map[string]string{contract.MetaModels: slicedModel}, config: shellRanks(t, whole, 1)}.hcl())
	card := awaitStarted(ctx, t, whole, 1, 1)[0].cards
	must.StrHasPrefix(t, "GPU-", card)
	l.submit(ctx, t, gangJob{name: "second", members: 1, cards: 1, meta: map[string]string{contract.MetaModels: slicedModel}, config: shellRanks(t, folder(t), 1)}.hcl())
	l.await(ctx, t, "second", "that it waits for a whole card", func(g *view.Gang) bool { return g.Stage == contract.StageQueued && g.Reason != "" && g.Attempt == 0 })
	plain := strings.Replace(plainJob("plain-card", "batch", 50, 1, 1), `device "nvidia/gpu" {`, fmt.Sprintf("device %q {", "nvidia/gpu/"+slicedModel), 1)
	l.register(ctx, t, plain)
	l.awaitEvaluated(ctx, t, "plain-card")
	must.SliceEmpty(t, alive(l.allocations(ctx, t, "plain-card")))
	slice := strings.Replace(plainJob("plain-slice", "batch", 50, 1, 1), `device "nvidia/gpu" {`, `device "nvidia/mig" {`, 1)
	l.register(ctx, t, slice)
	l.awaitAllocations(ctx, t, "plain-slice", "it runs on a slice", func(list []*api.AllocationListStub) bool {
		return len(list) == 1 && list[0].ClientStatus == "running"
	})
}

func (l *lab) nodes(ctx context.Context, t *testing.T) []view.Node {
	t.Helper()
	var list view.NodeList
	must.NoError(t, getJSON(ctx, l.MusterAddr+"/v1/nodes", &list))
	return list.Nodes
}

// A quarantined card is out of the next plan, and comes back only when a person
// clears it.
func TestCardIsQuarantinedAndCleared(t *testing.T) {
	ctx, l := own(t, trial.Options{Nodes: trial.Nodes(2, 4)})
	l.awaitCard(ctx, t, "n1", 2, "reported directly", func(c view.CardState) bool { return c.From == "report" && c.State == contract.CardHealthy })
	began := time.Now()
	must.NoError(t, l.Inject(ctx, "n1", "-card", "2", "xid", "54"))
	card := l.awaitCard(ctx, t, "n1", 2, "quarantined", inState(contract.CardQuarantined))
	took := time.Since(began)
	t.Logf("the planner refuses the card %s after the injection; Nomad calls it %s then", took.Round(time.Millisecond), card.Nomad)
	must.Less(t, 5*time.Second, took)
	must.StrContains(t, l.muster(ctx, t, "card", "status", "n1/2"), "NVRM: Xid")
	must.StrContains(t, l.muster(ctx, t, "cards", "-state=bad"), "Xid 54")

	dir := folder(t)
	l.submit(ctx, t, gangJob{name: "all-cards", members: 2, cards: 4, config: shellRanks(t, dir, 1)}.hcl())
	l.await(ctx, t, "all-cards", "that it waits, or is refused, for the card", func(g *view.Gang) bool {
		return g.Reason != "" && g.Attempt == 0 && (g.Stage == contract.StageQueued || g.Stage == contract.StageRefused)
	})
	// Time, a restart of the plugin and of the planner clear nothing.
	must.NoError(t, l.KillPlugin("n1", trial.DevicePlugin))
	must.NoError(t, l.Planner.Kill())
	must.NoError(t, l.StartPlanner(ctx))
	l.awaitCard(ctx, t, "n1", 2, "quarantined after the restarts", func(c view.CardState) bool { return c.State == contract.CardQuarantined && c.From == "report" })
	noneStarted(t, dir)

	l.muster(ctx, t, "card", "confirm", "n1/2", "work", "order", "4711")
	c := l.awaitCard(ctx, t, "n1", 2, "confirmed", func(c view.CardState) bool { return c.Accepted != "" })
	must.StrContains(t, c.Accepted, "work order 4711")
	must.Eq(t, contract.CardQuarantined, c.State)
	l.muster(ctx, t, "card", "note", "n1/2", "spare", "is", "on", "its", "way")
	l.muster(ctx, t, "card", "clear", "n1/2", "replaced")
	l.awaitCard(ctx, t, "n1", 2, "healthy", inState(contract.CardHealthy))
	awaitStarted(ctx, t, dir, 1, 2)
	text := l.muster(ctx, t, "card", "status", "n1/2")
	for _, want := range []string{"confirm by anonymous: work order 4711", "note by anonymous: spare is on its way", "test-passed", "clear by anonymous: replaced"} {
		must.StrContains(t, text, want)
	}
	touch(t, dir, "end", "")
	l.awaitStage(ctx, t, "all-cards", contract.StageComplete)
}

// A card that is lost under a gang: the gang goes on elsewhere, as a failure of
// the site.
func TestCardIsLostUnderAGang(t *testing.T) {
	ctx, l := own(t, trial.Options{Nodes: trial.Nodes(3, 2), PlannerConfig: "cards {\n  grace = \"2s\"\n}\n"})
	dir := folder(t)
	touch(t, dir, "gentle", "")
	l.submit(ctx, t, gangJob{name: "loses-a-card", members: 2, cards: 2, config: shellRanks(t, dir, 1)}.hcl())
	awaitStarted(ctx, t, dir, 1, 2)
	g := l.awaitStage(ctx, t, "loses-a-card", contract.StageStarted)
	bad := g.Detail.Members[1].Node
	must.NoError(t, l.Inject(ctx, bad, "-card", "1", "xid", "79"))
	awaitStarted(ctx, t, dir, 2, 2)
	g = l.awaitStage(ctx, t, "loses-a-card", contract.StageStarted)
	must.Eq(t, 2, g.Attempt)
	for _, m := range g.Detail.Members {
		must.NotEq(t, bad, m.Node)
	}
	must.StrContains(t, g.Detail.Attempts[0].Exit.Text, "Xid 79")
	must.True(t, slices.ContainsFunc(g.Detail.Events, func(e view.Event) bool { return e.Kind == view.EventCard && strings.Contains(e.Text, "quarantined") }))
	touch(t, dir, "end", "")
	l.awaitStage(ctx, t, "loses-a-card", contract.StageComplete)
}

// What happens to one card leaves the others published: a card that is lost, an
// Xid, a crash and a restart of the client agent, a changed MIG layout.
func TestOtherCardsStayPublished(t *testing.T) {
	ctx, l := own(t, trial.Options{Nodes: mixed()})
	dir := folder(t)
	l.submit(ctx, t, gangJob{name: "bystander", members: 1, cards: 2, meta: map[string]string{contract.MetaModels: plainModel}, config: shellRanks(t, dir, 1)}.hcl())
	awaitStarted(ctx, t, dir, 1, 1)
	g := l.awaitStage(ctx, t, "bystander", contract.StageStarted)
	node := g.Detail.Members[0].Node
	free := []int{}
	for _, c := range l.cards(ctx, t, node) {
		if !slices.Contains(g.Detail.Members[0].Cards, c.ID) {
			free = append(free, c.Index)
		}
	}
	must.Len(t, 2, free)
	l.awaitPublished(ctx, t, node, "gpu", 4, 4)
	must.NoError(t, l.Inject(ctx, node, "-card", fmt.Sprint(free[0]), "lost"))
	l.awaitCard(ctx, t, node, free[0], "out", func(c view.CardState) bool {
		return c.State == contract.CardQuarantined || c.State == contract.CardDraining
	})
	l.awaitPublished(ctx, t, node, "gpu", 4, 3)
	must.NoError(t, l.Inject(ctx, node, "-card", fmt.Sprint(free[1]), "xid", "48"))
	l.awaitCard(ctx, t, node, free[1], "draining", inState(contract.CardDraining))
	l.awaitPublished(ctx, t, node, "gpu", 4, 2)

	must.NoError(t, l.KillClient(node))
	must.NoError(t, l.KillPlugin(node, trial.DevicePlugin)) // a real agent leaves it behind; the next one starts its own
	killed := time.Now()
	must.NoError(t, l.StartClient(node))
	poll(ctx, t, "wait for the new agent's device plugin to report", func() error {
		for _, n := range l.nodes(ctx, t) {
			if n.Name == node && n.Reporting != nil && n.Reporting.At.After(killed) && n.Status == "ready" {
				return nil
			}
		}
		return fmt.Errorf("it does not")
	})
	l.awaitPublished(ctx, t, node, "gpu", 4, 2)
	states := []string{}
	for _, c := range l.cards(ctx, t, node) {
		states = append(states, c.State)
	}
	sort.Strings(states)
	must.Eq(t, []string{contract.CardHealthy, contract.CardHealthy}, states[1:3], must.Sprint(states))

	// A changed MIG layout on the other node.
	p, err := l.published(ctx, "n2", "mig")
	must.NoError(t, err)
	must.MapLen(t, 3, p)
	text := "node \"n2\" {\n  gpu \"0\" {\n    model  = \"NVIDIA A100-SXM4-40GB\"\n    memory = 40960\n    numa   = 0\n    place  = \"b0\"\n  }\n" +
		"  gpu \"1\" {\n    model  = \"NVIDIA A100-SXM4-40GB\"\n    memory = 40960\n    numa   = 1\n    place  = \"b1\"\n    mig    = [\"3g.20gb\", \"3g.20gb\"]\n  }\n}\n"
	must.NoError(t, os.WriteFile(l.CardsFile("n2"), []byte(text), 0o644))
	l.awaitPublished(ctx, t, "n2", "mig", 2, 2)
	l.awaitPublished(ctx, t, "n2", "gpu", 1, 1)

	// The bystander never noticed.
	g = l.awaitStage(ctx, t, "bystander", contract.StageStarted)
	must.Eq(t, 1, g.Attempt)
	touch(t, dir, "end", "")
	l.awaitStage(ctx, t, "bystander", contract.StageComplete)
	startedOnce(t, dir, 1, 1)
}

// Without the direct path the same is known from Nomad alone, some seconds
// later.
func TestCardsThroughNomadAlone(t *testing.T) {
	ctx, l := own(t, trial.Options{Nodes: trial.Nodes(1, 4), NoReports: true})
	began := time.Now()
	must.NoError(t, l.Inject(ctx, "n1", "-card", "3", "xid", "54"))
	c := l.awaitCard(ctx, t, "n1", 3, "quarantined", inState(contract.CardQuarantined))
	t.Logf("known from Nomad alone after %s", time.Since(began).Round(10*time.Millisecond))
	must.Eq(t, "nomad", c.From)
	must.StrContains(t, c.Why, "Xid 54")
	r, err := l.Muster(ctx, "card", "clear", "-timeout=1s", "n1/3")
	must.NoError(t, err)
	must.Eq(t, 5, r.Code)
	must.StrContains(t, r.Stderr, "nomad-device-gpu card clear")
}
