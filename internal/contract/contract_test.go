package contract

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func TestJobMeta(t *testing.T) {
	m, faults := ParseJobMeta(map[string]string{
		"muster_queue": "research", "muster_topology": "required:leaf", "muster_time_limit": "48h", "muster_min": "8",
		"muster_models": "NVIDIA H100 80GB HBM3, NVIDIA A100-SXM4-80GB", "muster_retries": "2", "muster_split": "true", "muster_prefer_wait": "5m",
		"muster_min_bandwidth": "25 GB/s", "muster_deadline": "2026-12-24T18:00:00Z", "muster_preemptible": "false", "muster_grace": "20m",
		"muster_spread": "true", "muster_user": "alice", "team": "vision",
	})
	must.SliceEmpty(t, faults)
	must.MapLen(t, len(metaKeys), m.Stated)
	m.Stated = nil
	must.Eq(t, JobMeta{
		Queue: "research", TopologyLevel: "leaf", TopologyRequired: true, TimeLimit: 48 * time.Hour, Min: 8,
		Models: []string{"NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"}, Retries: 2, Split: true, PreferWait: 5 * time.Minute,
		MinBandwidth: 200, Deadline: time.Date(2026, 12, 24, 18, 0, 0, 0, time.UTC), Grace: 20 * time.Minute, Spread: true, User: "alice",
	}, m)
}

func TestJobMetaListsEveryFault(t *testing.T) {
	bad := map[string]string{
		"muster_queue": " ", "muster_topology": "leaf", "muster_time_limit": "2 days", "muster_min": "0", "muster_models": "a,,b", "muster_retries": "-1",
		"muster_split": "perhaps", "muster_prefer_wait": "0s", "muster_min_bandwidth": "100", "muster_deadline": "tomorrow", "muster_preemptible": "",
		"muster_grace": "-1m", "muster_spread": "2", "muster_priorty": "7",
	}
	_, faults := ParseJobMeta(bad)
	must.Len(t, len(bad), faults)
	var fields []string
	for _, f := range faults {
		fields = append(fields, f.Field)
	}
	must.True(t, sortedStrings(fields))
	must.StrContains(t, Faults(faults).Error(), `meta.muster_priorty = "7": no key of Muster has this name; known are muster_deadline,`)
	must.NoError(t, Faults(nil).Err())
}

func sortedStrings(s []string) bool {
	for i := 1; i < len(s); i++ {
		if s[i-1] > s[i] {
			return false
		}
	}
	return true
}

func TestTaskConfig(t *testing.T) {
	c, faults := ParseTaskConfig("config", map[string]any{"script": "local/train.py", "args": []any{"--lr", "0.1"}, "nproc_per_node": "gpu",
		"hang_timeout": "15m", "max_restarts": 3.0, "log_prefix": nil, "elastic": "false"}, 8)
	must.SliceEmpty(t, faults)
	must.Eq(t, TaskConfig{Script: "local/train.py", Args: []string{"--lr", "0.1"}, Launcher: LauncherTorchrun, World: WorldGroup,
		MaxRestarts: 3, HangTimeout: 15 * time.Minute, AskSignal: "SIGUSR1", PreflightTimeout: time.Minute, Isolation: IsolationAuto, ImagePullTimeout: 10 * time.Minute}, c)

	for _, n := range []any{4, int64(4), uint64(4), 4.0, "4"} {
		c, faults := ParseTaskConfig("config", map[string]any{"module": "train", "nproc_per_node": n}, 8)
		must.SliceEmpty(t, faults)
		must.Eq(t, 4, c.NprocPerNode)
	}
	c, faults = ParseTaskConfig("config", map[string]any{"module": "train"}, 0)
	must.SliceEmpty(t, faults)
	must.Eq(t, 1, c.NprocPerNode, must.Sprint("a task without cards has one rank"))
}

func TestTaskConfigListsEveryFault(t *testing.T) {
	_, faults := ParseTaskConfig(`task "train" config`, map[string]any{
		"script": "a.py", "module": "b", "args": "--lr 0.1", "launcher": "ranks", "elastic": true, "max_restarts": 2, "checkpoint": "ckpt",
		"hang_timeout": "soon", "nproc_per_node": "gpu", "world": "all", "ask_signal": "SIGKILL", "log_prefix": "maybe", "scrpt": 1,
		"preflight_command": []any{1}, "image": "a\x00b",
	}, 0)
	got := map[string]bool{}
	for _, f := range faults {
		got[strings.TrimPrefix(f.Field, `task "train" config.`)] = true
	}
	want := map[string]bool{}
	for _, name := range []string{"script", "args", "elastic", "max_restarts", "checkpoint", "hang_timeout", "nproc_per_node", "world", "ask_signal",
		"log_prefix", "scrpt", "preflight_command", "image"} {
		want[name] = true
	}
	must.Eq(t, want, got)
}

func TestTaskConfigOfImages(t *testing.T) {
	for want, change := range map[string]map[string]any{
		"":                                       {"image": "registry.example:5000/team/train@sha256:0123", "image_pull_timeout": "1h"},
		"config.image":                           {"image": "--privileged"},
		"config.image config.isolation":          {"image": "a b", "isolation": "none"},
		"config.image_pull_timeout":              {"image_pull_timeout": "5m"},
		"config.image config.image_pull_timeout": {"image": "a\nb", "image_pull_timeout": "never"},
	} {
		raw := map[string]any{"script": "train.py"}
		for k, v := range change {
			raw[k] = v
		}
		_, faults := ParseTaskConfig("config", raw, 8)
		var got []string
		for _, f := range faults {
			got = append(got, f.Field)
		}
		must.Eq(t, want, strings.Join(got, " "))
	}
}

// Nothing that a user can write crashes the readers, and what they accept
// stands for itself: reading it again gives no fault.
func FuzzTaskConfig(f *testing.F) {
	f.Add(`{"script":"train.py","nproc_per_node":"gpu"}`, 8)
	f.Add(`{"command":["a"],"launcher":"ranks","nproc_per_node":1e300}`, 0)
	f.Add(`{"module":[{}],"args":{"a":1}}`, -1)
	f.Fuzz(func(t *testing.T, text string, cards int) {
		var raw map[string]any
		if json.Unmarshal([]byte(text), &raw) != nil {
			t.Skip()
		}
		c, faults := ParseTaskConfig("", raw, cards)
		if len(faults) == 0 && c.Script == "" && c.Module == "" && len(c.Command) == 0 {
			t.Fatalf("%s is accepted although it runs nothing", text)
		}
	})
}

func FuzzDecodeRecord(f *testing.F) {
	good, _ := json.Marshal(released())
	f.Add(string(good))
	f.Add(`{"v":1,"members":[{"i":0}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := DecodeRecord([]byte(text))
		if err != nil {
			return
		}
		for _, m := range r.Members {
			if _, _, ok := r.WorldOf(m.Index); r.Phase == PhaseReleased && !ok {
				t.Fatalf("member %d of a released record is in no world: %s", m.Index, text)
			}
		}
	})
}

func FuzzDecodeCards(f *testing.F) {
	f.Add(`{"v":1,"cards":[{"id":"GPU-1","i":0},{"id":"GPU-2","i":1}],"links":[[0,1,12]],"near":[[0,1,"PIX"]]}`)
	f.Fuzz(func(t *testing.T, text string) {
		g, err := DecodeCards(text)
		if err != nil {
			return
		}
		for _, l := range g.Links {
			_, _ = g.Cards[l.A], g.Cards[l.B]
		}
	})
}

func released() Record {
	return Record{V: RecordVersion, Gang: GangID{"global", "default", "j"}, Attempt: 2, Phase: PhaseReleased,
		Members: []Member{
			{Index: 0, Alloc: "a0", Task: "train", Group: "rank", Start: 1, Node: "n1", Address: "192.0.2.11", Ranks: 8},
			{Index: 1, Alloc: "a1", Task: "train", Group: "rank", Start: 1, Node: "n2", Address: "192.0.2.12", Ranks: 8},
		},
		Worlds: []World{{Name: "rank", Members: []int{1, 0}, Host: "192.0.2.12", Port: 20100, HostMember: 1}}}
}

func TestRecord(t *testing.T) {
	r := released()
	text, err := json.Marshal(r)
	must.NoError(t, err)
	back, err := DecodeRecord(text)
	must.NoError(t, err)
	must.Eq(t, r, *back, must.Cmp(cmp.AllowUnexported()))

	_, ok := r.Lists("a1", "train", 1)
	must.True(t, ok)
	_, ok = r.Lists("a1", "train", 2)
	must.False(t, ok, must.Sprint("a released member never starts again inside its attempt"))
	_, ok = r.Lists("a2", "train", 1)
	must.False(t, ok)
	w, rank, ok := r.WorldOf(0)
	must.True(t, ok)
	must.Eq(t, 1, rank)
	must.Eq(t, "192.0.2.12", w.Host)

	r.Phase = PhasePlaced
	_, ok = r.Lists("a1", "train", 7)
	must.True(t, ok, must.Sprint("before release any start of a listed allocation belongs"))
}

func TestRecordThatContradictsItselfIsRefused(t *testing.T) {
	for name, spoil := range map[string]func(*Record){
		"no attempt":         func(r *Record) { r.Attempt = 0 },
		"unknown phase":      func(r *Record) { r.Phase = "go" },
		"member twice":       func(r *Record) { r.Members[1].Alloc = "a0" },
		"order":              func(r *Record) { r.Members[1].Index = 0 },
		"no start number":    func(r *Record) { r.Members[1].Start = 0 },
		"no store":           func(r *Record) { r.Worlds[0].Port = 0 },
		"foreign host":       func(r *Record) { r.Worlds[0].HostMember = 5 },
		"member in no world": func(r *Record) { r.Worlds[0].Members = []int{1} },
		"member in two":      func(r *Record) { r.Worlds = append(r.Worlds, r.Worlds[0]) },
		"newer version":      func(r *Record) { r.V++ },
	} {
		t.Run(name, func(t *testing.T) {
			r := released()
			spoil(&r)
			text, err := json.Marshal(r)
			must.NoError(t, err)
			_, err = DecodeRecord(text)
			must.Error(t, err)
		})
	}
}

// No two gangs, attempts or worlds ever share a key or a run id, whatever
// characters their names have.
func TestKeysAreDistinct(t *testing.T) {
	name := rapid.StringMatching(`[a./%]{0,3}`)
	rapid.Check(t, func(t *rapid.T) {
		draw := func() (GangID, int, string) {
			return GangID{Region: name.Draw(t, "region"), Namespace: name.Draw(t, "namespace"), Job: name.Draw(t, "job")},
				rapid.IntRange(1, 12).Draw(t, "attempt"), name.Draw(t, "world")
		}
		g1, a1, w1 := draw()
		g2, a2, w2 := draw()
		if g1 == g2 && a1 == a2 && w1 == w2 {
			t.Skip()
		}
		if g1.RunID(a1, w1) == g2.RunID(a2, w2) || g1.EndpointKey(a1, w1) == g2.EndpointKey(a2, w2) {
			t.Fatalf("%v %d %q and %v %d %q are one", g1, a1, w1, g2, a2, w2)
		}
		if g1 != g2 && g1.RecordKey() == g2.RecordKey() {
			t.Fatalf("%v and %v share a record", g1, g2)
		}
		if g1.Job != g2.Job && g1.VariablePath() == g2.VariablePath() {
			t.Fatalf("%q and %q share a variable", g1.Job, g2.Job)
		}
	})
}

var variablePath = regexp.MustCompile(`^[a-zA-Z0-9-_~/]{1,128}$`) // what Nomad allows

func TestVariablePathsAreAllowed(t *testing.T) {
	seen := map[string]string{}
	for _, job := range []string{"train", "train.v2", "a/b", "ü", "x-y", "h-y", "..", "dispatch-1/dispatch-1700000000-abcdef01", strings.Repeat("j", 60), strings.Repeat("j", 64),
		strings.Repeat("j", 65), strings.Repeat("ü", 40), strings.Repeat("j", 2000), strings.Repeat("j", 1999)} {
		path := GangID{"global", "default", job}.VariablePath()
		must.RegexMatch(t, variablePath, path+"/parts/dka1b2c3d4e5f6-1000", must.Sprint("with what names a part"))
		must.Eq(t, "", seen[path])
		seen[path] = job
	}
}

func TestCards(t *testing.T) {
	numa := 1
	g := CardGroup{V: CardsVersion, Far: HopSYS,
		Cards: []Card{{ID: "GPU-a", Index: 0, Bus: "00000000:06:00.0", NUMA: &numa, Domain: "s", NICs: []NIC{{"mlx5_0", HopPIX}}}, {ID: "GPU-b", Index: 1, Domain: "s"}},
		Links: []Link{{0, 1, 18}}, Near: []Distance{{0, 1, HopPXB}}}
	text, err := EncodeCards(g)
	must.NoError(t, err)
	back, err := DecodeCards(text)
	must.NoError(t, err)
	must.Eq(t, g, back)

	for name, text := range map[string]string{
		"not JSON": "{", "no version": `{"cards":[]}`, "newer": `{"v":2,"cards":[]}`, "link outside": `{"v":1,"cards":[{"id":"a","i":0}],"links":[[0,1,1]]}`,
		"link to itself": `{"v":1,"cards":[{"id":"a","i":0}],"links":[[0,0,1]]}`, "id twice": `{"v":1,"cards":[{"id":"a","i":0},{"id":"a","i":1}]}`,
		"short link": `{"v":1,"cards":[],"links":[[0]]}`,
	} {
		_, err := DecodeCards(text)
		must.Error(t, err, must.Sprint(name))
	}
}

func TestCardsStaySmall(t *testing.T) {
	var g CardGroup
	for i := range 16 {
		c := Card{ID: "GPU-00000000-0000-0000-0000-0000000000" + string(rune('a'+i)), Index: i, Bus: "00000000:06:00.0", Domain: "nvswitch", Serial: "1650000000000"}
		for n := range 8 {
			c.NICs = append(c.NICs, NIC{ID: "mlx5_" + string(rune('0'+n)), Hop: HopNODE})
		}
		g.Cards = append(g.Cards, c)
		for j := range i {
			g.Links = append(g.Links, Link{j, i, 18})
			g.Near = append(g.Near, Distance{j, i, HopNODE})
		}
	}
	text, err := EncodeCards(g)
	must.NoError(t, err)
	must.LessEq(t, CardsLimit, len(text))
	back, err := DecodeCards(text)
	must.NoError(t, err)
	must.Len(t, len(g.Links), back.Links, must.Sprint("links are what placement needs most"))
}

// The page lists every key, attribute and variable that the code has.
func TestPageNamesEverything(t *testing.T) {
	page, err := os.ReadFile("../../docs/contract.md")
	must.NoError(t, err)
	for _, file := range []string{"contract.go", "cards.go"} {
		source, err := os.ReadFile(file)
		must.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?m)^\s+((?:Meta|Env|Attr|Annotation|Signal)\w+)\s+= "([^"]+)"`).FindAllSubmatch(source, -1) {
			must.StrContains(t, string(page), "`"+string(m[2])+"`", must.Sprintf("%s is missing", m[1]))
		}
	}
	names, _, docs := TaskFields()
	for _, name := range names {
		must.StrContains(t, string(page), "| `"+name+"` |", must.Sprint("config field ", name))
		must.NotEq(t, "", docs[name])
	}
}
