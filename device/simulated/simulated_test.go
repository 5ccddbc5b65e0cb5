package simulated

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/topology"
	"github.com/nomad-muster/muster/internal/contract"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cards.hcl")
	must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func scan(t *testing.T, s *Source) card.Scan {
	t.Helper()
	got, err := s.Scan(context.Background())
	must.NoError(t, err)
	return got
}

func TestPresets(t *testing.T) {
	t.Parallel()
	for name := range presets {
		s := New(write(t, fmt.Sprintf("node \"*\" { preset = %q }", name)), "n1")
		got := scan(t, s)
		seen := map[string]bool{}
		byGroup := map[card.Group][]*card.Card{}
		var nics []*card.Card
		for i := range got.Cards {
			c := &got.Cards[i]
			must.False(t, seen[c.ID], must.Sprint(name, c.ID))
			seen[c.ID] = true
			if c.Hidden == "" {
				byGroup[c.Group] = append(byGroup[c.Group], c)
			}
			if c.IsNIC() {
				nics = append(nics, c)
			}
		}
		total := 0
		for _, cards := range byGroup {
			text, err := contract.EncodeCards(topology.Group(cards, nics))
			must.NoError(t, err, must.Sprint(name))
			_, err = contract.DecodeCards(text)
			must.NoError(t, err, must.Sprint(name))
			total += len(text)
		}
		must.Less(t, 6<<10, total, must.Sprint(name))
	}
}

func TestNodesDifferAndStayTheSame(t *testing.T) {
	t.Parallel()
	path := write(t, `node "*" { preset = "small-4" }`)
	a, b, again := scan(t, New(path, "a")), scan(t, New(path, "b")), scan(t, New(path, "a"))
	must.Eq(t, a.Cards[0].ID, again.Cards[0].ID)
	must.NotEq(t, a.Cards[0].ID, b.Cards[0].ID)
	must.NotEq(t, a.Boot, b.Boot)
}

// Every fault of a file is named with its line.
func TestFaultsOfAFile(t *testing.T) {
	t.Parallel()
	path := write(t, `node "a" {
  gpu "0" { vendor = "acme" }
  gpu "0" { memory = -1 }
  gpu "300" { mig = ["3x"] }
  nic "m" { rate = -4 }
  nic "m" { layer = "Token Ring" }
  link {
    cards = [0, 7, 0]
    count = 0
  }
}
node "a" { preset = "none" }
node "b" {}
node "c" {
  gpu "0" { bus = "nowhere" }
  gpu "1" { bus = "01:00.0" }
  gpu "2" { bus = "0000:01:00" }
  gpu "x" {}
}
`)
	_, err := New(path, "a").Scan(context.Background())
	must.Error(t, err)
	for _, want := range []string{":2: ", ":3: ", "described twice", ":4: ", "3g.20gb", ":5: ", ":6: ", ":7: ", "there is no gpu 7", "gpu 0 stands twice", ":12: ", "hgx-h100-8", ":13: ", "no card", ":18: "} {
		must.StrContains(t, err.Error(), want)
	}
	_, err = New(write(t, "node \"a\" {\n gpu \"0\" {\n  colour = 1\n }\n speed = 2\n"), "a").Scan(context.Background())
	must.StrContains(t, err.Error(), "cards.hcl:")
	_, err = New(write(t, `node "a" { preset = "small-4" }`), "z").Scan(context.Background())
	must.StrContains(t, err.Error(), `no node "z"`)
	_, err = New(filepath.Join(t.TempDir(), "absent"), "a").Scan(context.Background())
	must.StrContains(t, err.Error(), "absent")
}

func TestBadFileKeepsTheLastGoodOne(t *testing.T) {
	t.Parallel()
	path := write(t, `node "a" { preset = "small-4" }`)
	s := New(path, "a")
	before := scan(t, s)
	must.NoError(t, os.WriteFile(path, []byte("node \"a\" {\n  presett = 1\n}\n"), 0o600))
	after := scan(t, s)
	must.Eq(t, len(before.Cards), len(after.Cards))
	must.Len(t, 1, after.Notes)
	must.StrContains(t, after.Notes[0], "cards.hcl:2")
	must.NoError(t, os.WriteFile(path, []byte(`node "a" { preset = "hgx-h100-8" }`), 0o600))
	must.Len(t, 16, scan(t, s).Cards)
}

func TestJSONToo(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "cards.json")
	must.NoError(t, os.WriteFile(path, []byte(`{"node": {"a": {"gpu": {"0": {"count": 2, "model": "X"}}, "link": [{"cards": [0,1], "count": 2}]}}}`), 0o600))
	got := scan(t, New(path, "a"))
	must.Len(t, 2, got.Cards)
	must.MapLen(t, 1, got.Cards[0].Links)
}

func TestLinks(t *testing.T) {
	t.Parallel()
	path := write(t, `node "direct" { preset = "islands-2x4" }
node "switched" { preset = "hgx-h100-8" }`)
	must.NoError(t, Inject(path, Injection{Node: "direct", Card: 0, Do: "link-down", N: 4}))   // its first link to card 2
	must.NoError(t, Inject(path, Injection{Node: "switched", Card: 0, Do: "link-down", N: 3})) // to the switch
	byIndex := func(node string) map[int]card.Card {
		out := map[int]card.Card{}
		for _, c := range scan(t, New(path, node)).Cards {
			if !c.IsNIC() {
				out[c.Index] = c
			}
		}
		return out
	}
	d := byIndex("direct")
	must.Eq(t, map[string]int{d[1].ID: 4, d[2].ID: 3, d[3].ID: 4}, d[0].Links)
	must.Eq(t, map[string]int{d[0].ID: 3, d[1].ID: 4, d[3].ID: 4}, d[2].Links)
	must.Eq(t, map[string]int{d[5].ID: 4, d[6].ID: 4, d[7].ID: 4}, d[4].Links)
	must.Len(t, 11, d[0].Up)
	must.Len(t, 12, d[2].Up)
	must.NotEq(t, d[0].Domain, d[4].Domain)
	sw := byIndex("switched")
	must.Eq(t, 17, sw[0].Links[sw[1].ID])
	must.Eq(t, 17, sw[1].Links[sw[0].ID])
	must.Eq(t, 18, sw[1].Links[sw[2].ID])
}

func TestInjections(t *testing.T) {
	t.Parallel()
	path := write(t, `node "a" { preset = "small-4" }`)
	s := New(path, "a")
	inject := func(card int, words ...string) {
		t.Helper()
		i, err := ParseInjection(Injection{Node: "a", Card: card}, words)
		must.NoError(t, err)
		must.NoError(t, Inject(path, i))
	}
	at := func(i int) card.Card { return scan(t, s).Cards[i] }
	first, err := s.Next(context.Background())
	must.NoError(t, err)
	must.SliceEmpty(t, first) // an empty log does not block the start

	inject(1, "xid", "48")
	inject(1, "xid", "79")
	inject(2, "line", "NVRM:", "GPU", "%BUS%.0:", "GPU", "has", "fallen", "off", "the", "bus.")
	records, err := s.Next(context.Background())
	must.NoError(t, err)
	must.Len(t, 3, records)
	must.StrContains(t, records[1].Text, "NVRM: Xid (PCI:0000:20:00): 79")
	must.StrContains(t, records[2].Text, "GPU 0000:28:00.0: GPU has fallen")
	c := at(1)
	must.True(t, c.Has(health.OffBus))

	before := at(1)
	inject(1, "reset")
	c = at(1)
	must.False(t, c.Has(health.OffBus))
	must.Less(t, before.Odometer, c.Odometer)

	inject(0, "thermal")
	inject(0, "remap")
	inject(0, "counter", "pcie_replay", "7")
	inject(0, "process", "python3")
	c = at(0)
	must.True(t, c.Has(health.HotSlowdown) && c.Has(health.RemapPending))
	must.Eq(t, 7, c.Counters["pcie_replay"])
	must.Len(t, 1, c.Processes)
	inject(0, "clear")
	c = at(0)
	must.SliceEmpty(t, c.Conditions)

	old := at(3)
	inject(3, "swap")
	c = at(3)
	must.NotEq(t, old.ID, c.ID)
	must.Eq(t, old.Bus, c.Bus)

	boot := scan(t, s).Boot
	inject(-1, "reboot")
	got := scan(t, s)
	must.NotEq(t, boot, got.Boot)
	inject(0, "xid", "13")
	records, err = s.Next(context.Background())
	must.NoError(t, err)
	must.Len(t, 1, records)
	must.Eq(t, 1, records[0].Seq)
	must.Eq(t, got.Boot, records[0].Boot)

	must.NoError(t, Inject(path, Injection{Node: "a", Card: -1, NIC: "mlx5_0", Do: "nic-down"}))
	nic := at(4)
	must.True(t, nic.Has(health.NICDown))

	for _, bad := range []Injection{{Node: "a", Card: 9, Do: "lost"}, {Node: "a", NIC: "x", Card: -1, Do: "nic-down"}, {Node: "a", Card: 0, Do: "explode"}, {Card: 0, Do: "lost"},
		{Node: "a", Card: 0, Do: "xid"}, {Node: "a", Card: -1, Do: "swap"}, {Node: "a", Card: 0, Do: "line", Text: "a\nb"}} {
		must.Error(t, Inject(path, bad))
	}
	for _, words := range [][]string{{}, {"xid"}, {"xid", "x"}, {"lost", "now"}, {"counter", "a"}, {"link-down"}, {"nothing"}} {
		_, err := ParseInjection(Injection{Node: "a", Card: 0}, words)
		must.Error(t, err, must.Sprint(words))
	}
}

func TestJournalFaultsAreNamed(t *testing.T) {
	t.Parallel()
	path := write(t, `node "a" { preset = "small-4" }`)
	must.NoError(t, os.WriteFile(JournalPath(path), []byte("{\"node\":\"a\",\"card\":0,\"do\":\"lost\"}\nnonsense\n{\"node\":\"a\",\"card\":1,\"do\":\"lo"), 0o600))
	got := scan(t, New(path, "a"))
	must.True(t, got.Cards[0].Has(health.OffBus)) // what can be read counts
	must.False(t, got.Cards[1].Has(health.OffBus))
	must.Len(t, 1, got.Notes)
	must.StrContains(t, got.Notes[0], ".injected:2")
	must.StrNotContains(t, got.Notes[0], ".injected:3") // a line being written is no fault
}

func TestWatchPokesOnChange(t *testing.T) {
	t.Parallel()
	path := write(t, `node "a" { preset = "small-4" }`)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	pokes := make(chan struct{}, 8)
	done := make(chan error)
	s := New(path, "a")
	go func() { done <- s.Watch(ctx, nil, func() { pokes <- struct{}{} }) }()
	<-pokes
	must.NoError(t, Inject(path, Injection{Node: "a", Card: 0, Do: "lost"}))
	<-pokes
	cancel()
	must.NoError(t, <-done)
}

func FuzzParse(f *testing.F) {
	f.Add(`node "a" { preset = "hgx-h100-8" }`)
	f.Add("node \"a\" {\n gpu \"0\" {\n count = 2\n mig = [\"1g.5gb\"] }\n link {\n cards=[0,1]\n count=2 } }")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parse([]byte(text), "f.hcl")
		if err != nil {
			return
		}
		for _, n := range got.Nodes {
			w := build(n.Name, n, nil)
			for _, c := range w.scan(began).Cards {
				must.NotEq(t, "", c.ID)
				must.False(t, strings.ContainsAny(c.ID, "\n,"))
			}
			w.sample(began)
		}
	})
}
