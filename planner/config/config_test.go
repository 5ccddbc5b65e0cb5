package config

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/cards"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/notify"
	"github.com/nomad-muster/muster/planner/view"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// files serves token files from memory.
func files(name string) ([]byte, error) {
	switch name {
	case "consul.token":
		return []byte("consul-secret\n"), nil
	case "alice.token":
		return []byte("alice-secret-alice-secret\n"), nil
	}
	return nil, fmt.Errorf("open %s: %w", name, os.ErrNotExist)
}

func TestFull(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile("testdata/good/full.hcl")
	must.NoError(t, err)
	got, err := Parse([]File{{"full.hcl", content}}, files)
	must.NoError(t, err)

	const h100 = core.Model("NVIDIA H100 80GB HBM3")
	none := core.Amounts{Any: -1}
	with := func(change func(q *core.Queue)) core.Queue {
		q := core.DefaultQueue("")
		change(&q)
		return q
	}
	want := &Config{
		LogLevel: "debug", LogJSON: true, DataDir: "/var/lib/muster", Retention: 48 * time.Hour, LostGrace: 2 * time.Minute, Files: []string{"full.hcl"},
		Nomad: Nomad{Address: "https://nomad.example:4646", Region: "global", Token: "nomad-secret", CACert: "/etc/muster/nomad-ca.pem",
			ClientCert: "/etc/muster/nomad.pem", ClientKey: "/etc/muster/nomad.key", TLSServerName: "server.global.nomad"},
		Consul: Consul{Address: "127.0.0.1:8500", Token: "consul-secret", TokenFile: "consul.token", Namespace: "muster", Partition: "default"},
		API: API{Listen: "0.0.0.0:4680", Anonymous: view.RoleViewer, URL: "https://muster.example", CertFile: "/etc/muster/api.pem",
			KeyFile: "/etc/muster/api.key", ClientCA: "/etc/muster/clients.pem"},
		Tokens: []Token{
			{Name: "alice", Role: view.RoleSubmitter, Groups: []string{"team-b"}, Queues: []string{"research"}, Hash: sha256.Sum256([]byte("alice-secret-alice-secret"))},
			{Name: "root", Role: view.RoleOperator, Hash: sha256.Sum256([]byte("0123456789abcdef0123"))},
		},
		Webhooks: []notify.Webhook{
			{Name: "workflow", URL: "https://airflow.example/muster", Secret: []byte("alice-secret-alice-secret"), Types: []string{notify.GangStage}, Queues: []string{"research"}},
			{Name: "all", URL: "http://127.0.0.1:9000/"},
		},
		Cards: Cards{OnQuarantine: "stop", Grace: time.Minute, Settings: cards.Settings{CardTypes: []string{"gpu", "mig", "npu"},
			Breaker:   cards.BreakerRule{Share: 0.1, Within: 5 * time.Minute, Nodes: 4},
			Suspicion: cards.SuspicionRule{Window: 12 * time.Hour, Suspect: 3, Quarantine: 5, Clean: 10 * time.Minute}}},
		Core: core.Config{
			Levels:       []core.Level{{Name: "spine", Attribute: "${meta.spine}"}, {Name: "leaf", Attribute: "${meta.leaf}"}},
			Reservations: 4, QueueReservations: 2, GatherAfter: 20 * time.Minute, PreferWait: 5 * time.Minute, ReserveTimeout: 15 * time.Minute, Packing: core.PackBin,
			MaxAttempts: 5, Consolidate: true, CardTypes: []string{"gpu", "npu"}, Preemption: false, BackfillMost: 500,
			Blast:      []core.BlastLimit{{Level: "leaf", Gangs: 10, Share: 25}, {Level: "node", Gangs: 4}},
			UserLimits: []core.UserLimit{{User: "*", MaxCards: 64, MaxGangs: 20}, {User: "alice", MaxCards: 128}},
			Queues: []core.Queue{
				with(func(q *core.Queue) {
					q.Name, q.Weight = "teams", 3
					q.Guaranteed = core.Amounts{Models: map[core.Model]int{h100: 64}, Any: 72}
					q.Max = core.Amounts{Any: 256}
				}),
				{Name: "research", Parent: "teams", Guaranteed: core.Amounts{Models: map[core.Model]int{h100: 64}, Any: 64},
					Max: core.Amounts{Any: 128}, Lend: core.Amounts{Any: 32}, Weight: 2, Class: 50, Order: core.OrderShortest, TimeLimit: 72 * time.Hour,
					LimitReport: true, Namespaces: []string{"research", "lab2"}, Users: []string{"alice", "team-b"}, MaxGangs: 200, RefuseFull: true,
					Budget: core.Budget{CardSeconds: 50000 * 3600, Period: "month"},
					Aging:  []core.AgingStep{{After: 30 * time.Minute, Raise: 10}, {After: 2 * time.Hour, Top: true}}, TopPerDay: 2,
					Preempt:   core.Preempt{Grace: 5 * time.Minute, MinRuntime: 10 * time.Minute, EvictionsPerDay: 30, PerVictimPerDay: 2, Ratio: 1.5},
					OnPreempt: "scavenger", GiveUp: core.GiveUp{After: 3 * time.Hour, Action: "min"}},
				with(func(q *core.Queue) { q.Name, q.Class, q.Shared = "scavenger", 10, true; q.Max = none }),
				with(func(q *core.Queue) { q.Name, q.Class, q.Urgent = "serving", 90, true }),
			},
		},
	}
	must.Eq(t, "", cmp.Diff(want, got, cmpopts.IgnoreUnexported(Config{})))
}

// What stands in one file may as well stand in several, and in JSON.
func TestMerge(t *testing.T) {
	t.Parallel()
	got, err := Parse([]File{
		{"a.hcl", []byte("level \"leaf\" {\n attribute = \"meta.leaf\"\n}\n")},
		{"b.json", []byte(`{"log_level": "warn", "level": {"row": {"attribute": "${meta.row}"}}, "queue": {"x": {"max": {"any": 3}, "preempt": {"grace": "1m"}}}}`)},
		{"c.hcl", []byte(`queue "y" { parent = "root" }`)},
	}, files)
	must.NoError(t, err)
	must.Eq(t, "warn", got.LogLevel)
	must.Eq(t, []core.Level{{Name: "leaf", Attribute: "${meta.leaf}"}, {Name: "row", Attribute: "${meta.row}"}}, got.Core.Levels)
	must.Len(t, 2, got.Core.Queues)
	must.Eq(t, core.Amounts{Any: 3}, got.Core.Queues[0].Max)
	must.Eq(t, time.Minute, got.Core.Queues[0].Preempt.Grace)

	_, err = Parse([]File{{"a.hcl", []byte("log_level = \"warn\"\n")}, {"b.hcl", []byte("\nlog_level = \"warn\"\n")}}, files)
	must.ErrorContains(t, err, "b.hcl:2: Duplicate argument")
}

func TestDefault(t *testing.T) {
	t.Parallel()
	for name, content := range map[string][]File{"no file": nil, "an empty file": {{"a.hcl", nil}}, "only other blocks": {{"a.hcl", []byte("api {\n}\n")}}} {
		got, err := Parse(content, files)
		must.NoError(t, err, must.Sprint(name))
		must.Eq(t, Default().Core, got.Core, must.Sprint(name))
		must.Eq(t, view.RoleNone, got.API.Anonymous, must.Sprint("nobody gets in unless the configuration says so"))
	}
	q := Default().Core.Queues[0]
	must.Eq(t, core.QueueName("default"), q.Name)
	must.Eq(t, []string{"default"}, q.Namespaces)
	must.Eq(t, core.Amounts{Any: -1}, q.Max)
}

// Each file below testdata/faults has all of its faults reported, with file
// and line, as the file of the same name with .want says.
func TestFaults(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("testdata/faults/*.hcl")
	must.NoError(t, err)
	must.SliceNotEmpty(t, names)
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			content, err := os.ReadFile(name)
			must.NoError(t, err)
			_, err = Parse([]File{{filepath.Base(name), content}}, files)
			var faults Faults
			must.True(t, errors.As(err, &faults), must.Sprintf("%v", err))
			got := ""
			for _, f := range faults {
				must.Positive(t, f.Line, must.Sprint(f))
				got += f.String() + "\n"
			}
			golden := strings.TrimSuffix(name, ".hcl") + ".want"
			if *rewrite {
				must.NoError(t, os.WriteFile(golden, []byte(got), 0o644))
			}
			want, err := os.ReadFile(golden)
			must.NoError(t, err)
			must.Eq(t, "", cmp.Diff(string(want), got))
		})
	}
}

func TestAgainst(t *testing.T) {
	t.Parallel()
	c, err := Parse([]File{{"c.hcl", []byte(`
level "leaf" {
  attribute = "meta.leaf"
}
queue "a" {
  guaranteed = {
    H100 = 4
    H800 = 2
  }
  max        = { H800 = 9 }
  namespaces = ["default", "gone"]
}
`)}}, files)
	must.NoError(t, err)
	var got []string
	for _, f := range c.Against(Cluster{Models: []string{"H100", "A100"}, Namespaces: []string{"default"}, Domains: map[string]int{}}) {
		got = append(got, f.String())
	}
	must.Eq(t, []string{
		`c.hcl:2: level "leaf": no node has ${meta.leaf}`,
		`c.hcl:8: queue "a": guaranteed names the model "H800", which no node has; nodes have A100, H100`,
		`c.hcl:10: queue "a": max names the model "H800", which no node has; nodes have A100, H100`,
		`c.hcl:11: queue "a": namespace "gone" does not exist in Nomad; there are default`,
	}, got)
	must.Len(t, 0, c.Against(Cluster{Models: []string{"H100", "H800"}}))
}

func TestLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	single := write("one.hcl", `log_level = "warn"`)
	write("folder/b.hcl", `queue "b" {}`)
	write("folder/a.hcl", `queue "a" {}`)
	write("folder/notes.txt", `not read`)
	write("empty/notes.txt", `not read`)

	c, err := Load(single, filepath.Join(dir, "folder"))
	must.NoError(t, err)
	must.Eq(t, "warn", c.LogLevel)
	must.Eq(t, []string{single, filepath.Join(dir, "folder/a.hcl"), filepath.Join(dir, "folder/b.hcl")}, c.Files)

	_, err = Load(filepath.Join(dir, "gone.hcl"), filepath.Join(dir, "empty"), filepath.Join(dir, "absent"))
	for _, want := range []string{"gone.hcl", "holds no *.hcl or *.json file", "absent"} {
		must.ErrorContains(t, err, want)
	}
	_, err = Load(single, single)
	must.ErrorContains(t, err, "named twice")
}

func TestReload(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "muster.hcl")
	token := filepath.Join(t.TempDir(), "nomad.token")
	write := func(path, content string) { must.NoError(t, os.WriteFile(path, []byte(content), 0o600)) }
	write(token, "first")
	write(path, "nomad {\n address = \"http://a:4646\"\n token_file = \""+token+"\"\n}\nqueue \"a\" {\n}\n")
	live, err := Open(path)
	must.NoError(t, err)
	before := live.Current()
	must.Eq(t, "first", before.Nomad.Token)

	write(path, "queue \"a\" {\n  weight = -1\n}\n")
	_, err = live.Reload()
	must.ErrorContains(t, err, "muster.hcl:2: weight = -1")
	must.True(t, before == live.Current(), must.Sprint("a faulty file leaves the old configuration in force"))

	write(token, "second")
	write(path, "api {\n listen = \"127.0.0.1:1\"\n anonymous = \"viewer\"\n}\nnomad {\n address = \"http://a:4646\"\n token_file = \""+token+"\"\n}\nqueue \"b\" {\n}\n")
	restart, err := live.Reload()
	must.NoError(t, err)
	must.Eq(t, []string{"api"}, restart)
	now := live.Current()
	must.Eq(t, core.QueueName("b"), now.Core.Queues[0].Name)
	must.Eq(t, DefaultListen, now.API.Listen, must.Sprint("an address changes at the next start only"))
	must.Eq(t, view.RoleViewer, now.API.Anonymous)
	must.Eq(t, "second", now.Nomad.Token, must.Sprint("a rotated token is taken"))

	must.Eq(t, core.QueueName("a"), before.Core.Queues[0].Name, must.Sprint("who holds the old one keeps it unchanged"))
	restart, err = Fixed(Default()).Reload()
	must.NoError(t, err)
	must.Nil(t, restart)
}

// Whatever stands in a file, the reading ends with a configuration that keeps
// the rules of the tree, or with faults that have a place; never a panic.
func FuzzParse(f *testing.F) {
	seeds, err := filepath.Glob("testdata/*/*.hcl")
	must.NoError(f, err)
	for _, name := range seeds {
		content, err := os.ReadFile(name)
		must.NoError(f, err)
		f.Add(content, false)
	}
	f.Add([]byte(`{"queue": {"a": {"max": {"any": 3}}}, "level": {"leaf": {"attribute": "${meta.leaf}"}}}`), true)
	f.Add([]byte(`{"queue": [{"a": [{}, {}]}], "classes": {"x": "y"}, "token": {"t": {"secret": null}}}`), true)
	f.Fuzz(func(t *testing.T, content []byte, asJSON bool) {
		name := "c.hcl"
		if asJSON {
			name = "c.json"
		}
		c, err := Parse([]File{{name, content}}, files)
		if err != nil {
			var faults Faults
			if !errors.As(err, &faults) || len(faults) == 0 || strings.TrimSpace(err.Error()) == "" {
				t.Fatalf("an error that is no list of faults: %v", err)
			}
			return
		}
		if len(c.Core.Queues) == 0 {
			t.Fatal("a configuration without queues")
		}
		for _, q := range c.Core.Queues {
			depth := 0
			for at := q; at.Parent != ""; depth++ {
				found := false
				for _, other := range c.Core.Queues {
					if other.Name == at.Parent {
						at, found = other, true
						break
					}
				}
				if !found || depth > len(c.Core.Queues) {
					t.Fatalf("queue %q hangs on nothing or on itself", q.Name)
				}
			}
			if q.Weight < 1 || q.Guaranteed.Any < -1 || total(q.Guaranteed) > q.Max.Any && q.Max.Any >= 0 {
				t.Fatalf("queue %q: %+v", q.Name, q)
			}
		}
	})
}

// docs/configuration.md tells of every block and attribute that full.hcl has,
// and full.hcl has all.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	prose, err := os.ReadFile("../../docs/configuration.md")
	must.NoError(t, err)
	var source strings.Builder
	for _, name := range []string{"read.go", "queue.go"} {
		text, err := os.ReadFile(name)
		must.NoError(t, err)
		source.Write(text)
	}
	full, err := os.ReadFile("testdata/good/full.hcl")
	must.NoError(t, err)
	// Names are given to open as texts.
	opened := regexp.MustCompile(`(?s)r\.open\([^{]*?(\[\]string\{[^}]*\}|nil)[^)]*\)`)
	found := 0
	for _, call := range opened.FindAllString(source.String(), -1) {
		for _, m := range regexp.MustCompile(`"([a-z_]+)(?: [a-z]+)?"`).FindAllStringSubmatch(call, -1) {
			found++
			must.StrContains(t, string(prose), m[1])
			if m[1] != "disabled" && m[1] != "plaintext" && m[1] != "secret_file" { // exclude others that full.hcl has
				must.StrContains(t, string(full), m[1])
			}
		}
	}
	must.Greater(t, 80, found)
}

// What the documentation shows is right.
func TestDocumentedExamples(t *testing.T) {
	t.Parallel()
	prose, err := os.ReadFile("../../docs/configuration.md")
	must.NoError(t, err)
	secret := func(string) ([]byte, error) { return []byte("0123456789abcdef"), nil }
	blocks := regexp.MustCompile("(?s)```hcl\n(.*?)```").FindAllStringSubmatch(string(prose), -1)
	must.Len(t, 4, blocks)
	for _, b := range blocks {
		text := b[1]
		switch {
		case strings.HasPrefix(text, "  "):
			text = "queue \"a\" {\n" + text + "}\n"
		case strings.HasPrefix(text, "limits"):
			text = "level \"leaf\" {\n attribute = \"meta.leaf\"\n}\n" + text
		}
		_, err := Parse([]File{{"example.hcl", []byte(text)}}, secret)
		must.NoError(t, err)
	}
	// The values shown for cards and for a queue are the defaults.
	c, err := Parse([]File{{"example.hcl", []byte(blocks[2][1])}}, secret)
	must.NoError(t, err)
	must.Eq(t, Default().Cards, c.Cards)
	c, err = Parse([]File{{"example.hcl", []byte("queue \"a\" {\n" + blocks[3][1] + "}\n")}}, secret)
	must.NoError(t, err)
	must.Eq(t, core.DefaultQueue("a"), c.Core.Queues[0])
}
