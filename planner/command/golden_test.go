package command_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/command"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/view"
)

// golden compares with testdata/NAME, or writes it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *rewrite {
		must.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	must.NoError(t, err)
	must.Eq(t, "", cmp.Diff(string(want), got))
}

// scene is a cluster with something of everything.
func scene(t *testing.T) *shell {
	t.Helper()
	s := newShell(t)
	after := func(d time.Duration) time.Time { return noon.Add(d) }
	verdict := view.Verdict{Action: core.ActionWait, Reason: core.ReasonCards, Sentence: "waits for 24 cards of NVIDIA H100 80GB HBM3", Position: 1, Effective: 60,
		ETA: view.ETA{From: after(90 * time.Minute), To: after(3 * time.Hour), Assumption: "running gangs end at their time limits", Promised: true},
		Blockers: []view.Blocker{
			{Reason: core.ReasonCards, Model: "NVIDIA H100 80GB HBM3", Missing: 24, Text: "needs 32 cards of NVIDIA H100 80GB HBM3, 8 are free", Remedy: "ask for 1 member of 8 cards, or wait",
				Holders: []view.Holder{{Gang: "research/train-7", Cards: 16, Until: after(90 * time.Minute)}, {Job: "default/web", Cards: 8}}},
			{Reason: core.ReasonUserLimit, Text: "alice holds 60 of at most 64 cards", Holders: []view.Holder{}},
		}}
	waiting := gang("research", "llama-70b", contract.StageQueued)
	waiting.Queue, waiting.User, waiting.Position, waiting.Queued, waiting.ETA = "research", "alice", 1, after(-40*time.Minute), &verdict.ETA
	waiting.Sentence, waiting.Reason, waiting.Priority, waiting.Models = verdict.Sentence, core.ReasonCards, 50, []string{"NVIDIA H100 80GB HBM3"}
	waiting.Detail = &view.Detail{Verdict: verdict, Want: view.Want{Topology: "preferred:leaf", TimeLimitSeconds: 48 * 3600, Preemptible: true},
		Stages: []view.StageTime{{Stage: contract.StageSubmitted, Entered: after(-40 * time.Minute), Left: after(-40 * time.Minute), Seconds: 0.02},
			{Stage: contract.StageQueued, Entered: after(-40 * time.Minute), Seconds: 2400}}}
	s.planner.Set(waiting, view.Event{})

	running := gang("research", "train-7", contract.StageTraining)
	running.Queue, running.User, running.Members, running.Min, running.Cards, running.Placed, running.Running = "research", "bob", 2, 1, 16, 2, 2
	running.Attempt, running.Started, running.LimitEnds, running.Sentence = 2, after(-30*time.Minute), after(90*time.Minute), "runs as attempt 2"
	exit := &view.Exit{Outcome: contract.OutcomeLost, Code: -1, Member: 1, Rank: -1, Text: "node n2 was lost"}
	running.Detail = &view.Detail{
		Verdict: view.Verdict{Action: core.ActionRun, Reason: core.ReasonRunning, Sentence: "runs as attempt 2", Effective: 50, Blockers: []view.Blocker{}},
		Want:    view.Want{Preemptible: false, Retries: 2, CheckpointAt: after(-5 * time.Minute), CheckpointStep: 1200, GraceSeconds: 600},
		Stages: []view.StageTime{{Stage: contract.StageQueued, Entered: after(-32 * time.Minute), Left: after(-31 * time.Minute), Seconds: 60.4},
			{Stage: contract.StagePlaced, Entered: after(-31 * time.Minute), Left: after(-30 * time.Minute), Seconds: 4.2},
			{Stage: contract.StageTraining, Entered: after(-30 * time.Minute), Seconds: 1800}},
		Members: []view.Member{
			{Index: 0, Group: "rank", Node: "n1", Alloc: "0a1b2c3d-0000-0000-0000-000000000000", State: "training", Ranks: 8, Cards: []string{"GPU-1", "GPU-2", "GPU-3", "GPU-4", "GPU-5", "GPU-6", "GPU-7", "GPU-8"}, Step: 1310},
			{Index: 1, Group: "rank", Node: "n3", Alloc: "1a1b2c3d-0000-0000-0000-000000000000", State: "refused", Ranks: 8, Cards: []string{"GPU-9"}, Problems: []contract.Problem{{What: "port", Text: "port 29500 is taken by pid 77"}}}},
		Attempts: []view.Attempt{{Number: 1, Placed: after(-2 * time.Hour), Released: after(-119 * time.Minute), Ended: after(-33 * time.Minute), Nodes: []string{"n1", "n2"}, Exit: exit},
			{Number: 2, Placed: after(-31 * time.Minute), Released: after(-30 * time.Minute), Nodes: []string{"n1", "n3"}}},
		Events: []view.Event{{At: after(-33 * time.Minute), Kind: view.EventMember, Text: "member 1 lost: node n2 is down"}, {At: after(-32 * time.Minute), Kind: view.EventUpdate, Text: "priority 40 to 50", By: "oscar"}},
	}
	s.planner.Set(running, view.Event{})

	refused := gang("default", "huge", contract.StageRefused)
	refused.Sentence, refused.Cards = "needs 4096 cards, the whole cluster has 48", 4096
	s.planner.Set(refused, view.Event{})
	over := gang("default", "old", contract.StageFailed)
	over.Ended, over.Sentence = after(-26*time.Hour), "rank 3 exited with 1"
	over.Exit = &view.Exit{Outcome: contract.OutcomeFailed, Code: 1, Member: 0, Rank: 3, Text: "rank 3 exited with 1"}
	s.planner.Set(over, view.Event{})

	h100 := func(g, m, lend, used, borrowed, lent, waiting int) view.Quota {
		return view.Quota{Model: "NVIDIA H100 80GB HBM3", Guaranteed: g, Max: m, Lend: lend, Used: used, Borrowed: borrowed, Lent: lent, Waiting: waiting}
	}
	sum := func(q view.Quota) view.Quota { q.Model = view.AnyModel; return q }
	s.planner.SetCluster([]view.Queue{
		{Name: "teams", Class: 50, Weight: 1, Order: "priority", Namespaces: []string{}, Users: []string{}, Running: 1, Waiting: 1, MaxGangs: -1, Quota: []view.Quota{h100(32, -1, -1, 16, 0, 8, 32), sum(h100(32, 48, -1, 16, 0, 8, 32))}},
		{Name: "research", Parent: "teams", Leaf: true, Class: 50, Weight: 2, Order: "priority", Namespaces: []string{"research"}, Users: []string{"alice", "bob"}, Running: 1, Waiting: 1, MaxGangs: 200, Urgent: true,
			Quota: []view.Quota{h100(16, 40, 8, 16, 0, 0, 32), sum(h100(16, -1, -1, 16, 0, 0, 32))}, Budget: &view.Budget{CardSeconds: 50000 * 3600, UsedCardSeconds: 12500 * 3600, Period: "month"}},
		{Name: "default", Leaf: true, Class: 10, Weight: 1, Order: "fifo", Namespaces: []string{"default"}, Shared: true, Users: []string{}, Refused: 1, MaxGangs: -1, Quota: []view.Quota{sum(h100(0, -1, -1, 0, 0, 0, 0))}},
	}, []view.Node{
		{ID: "1", Name: "n1", Pool: "gpu", Datacenter: "dc1", Status: "ready", Domains: map[string]string{"spine": "s1", "leaf": "l1"}, CPU: 64000, CPUUsed: 16000, MemoryMB: 524288, MemUsed: 131072,
			Cards: []view.Card{{ID: "GPU-1", Model: "NVIDIA H100 80GB HBM3", Type: "gpu", State: "healthy", Holder: "research/train-7"}, {ID: "GPU-2", Model: "NVIDIA H100 80GB HBM3", Type: "gpu", State: "healthy"}, {ID: "mlx5_0", Model: "ConnectX-7", Type: "nic", State: "healthy"}}},
		{ID: "2", Name: "n2", Pool: "gpu", Datacenter: "dc1", Status: "excluded", Why: "card GPU-9: Xid 79, fell off the bus", Suspect: true, Domains: map[string]string{}, CPU: 64000, MemoryMB: 524288,
			Cards: []view.Card{{ID: "GPU-9", Model: "NVIDIA H100 80GB HBM3", Type: "gpu", State: "quarantined"}}},
	}, func(k *view.Status) {
		*k = view.Status{Version: "0.1.0", State: "active", Started: after(-50 * time.Hour), Region: "global", Nomad: view.Contact{Address: "http://127.0.0.1:4646", Version: "2.0.6", OK: true},
			Consul: view.Contact{Address: "127.0.0.1:8500", Error: "connection refused"}, Cycles: 812, LastCycle: after(-2 * time.Second), CycleSeconds: 0.0031,
			Gangs: map[string]int{"queued": 1, "training": 1, "refused": 1}, Nodes: 2, Cards: []view.CardCount{{Model: "NVIDIA H100 80GB HBM3", Total: 48, Free: 8, Used: 16, Other: 16, Out: 8}},
			Problems: []view.Problem{{Object: "card GPU-9", Text: "Xid 79", Hint: "muster card clear GPU-9", Since: after(-4 * time.Hour)}}}
	})
	h := func(name string) string { return "NVIDIA H100 80GB HBM3" + name }
	share := func(mean float64) view.Share {
		return view.Share{Known: true, Mean: mean, P10: mean / 2, P50: mean, P90: min(mean*1.5, 1)}
	}
	line := view.UsageLine{Queue: "research", User: "alice", Model: h(""), CardSeconds: 57600, Guaranteed: 50000, Borrowed: 7600, Held: 600, Training: 57000, LostTotal: 9000, Lost: map[string]int64{"preempted": 8000, "node-lost": 1000}}
	other := view.UsageLine{Queue: "default", User: "=cmd()", Model: h(""), CardSeconds: 3600, Borrowed: 3600, Training: 3600, Lost: map[string]int64{}}
	total := view.UsageLine{CardSeconds: 61200, Guaranteed: 50000, Borrowed: 11200, Held: 600, Training: 60600, LostTotal: 9000, Lost: map[string]int64{"preempted": 8000, "node-lost": 1000}}
	s.planner.SetBooks(view.Usage{Lines: []view.UsageLine{other, line}, Total: total},
		view.Waste{Lines: []view.WasteLine{{Queue: "research", User: "alice", Model: h(""), CardSeconds: 57600, Held: 600, Lost: 9000, Sampled: 56000, Idle: 5600, Activity: share(.6), Memory: share(.7)}},
			Worst: []view.WasteAttempt{{Gang: "research/train-7", Attempt: 2, Queue: "research", User: "bob", Model: h(""), Running: true, Cards: 16, NeverBusy: 3, Wasted: 6200, Held: 600, Sampled: 28000, Idle: 5600, Activity: share(.6), Memory: share(.7), UntouchedMiB: 163840}}},
		view.Top{Cards: []view.CardCount{{Model: h(""), Total: 48, Free: 8, Used: 16, Other: 16, Out: 8}},
			Gangs: []view.TopGang{{Gang: "research/train-7", Attempt: 2, Queue: "research", User: "bob", Model: h(""), Cards: 16, Sampled: 15, IdleNow: 3, Activity: share(.55), Memory: share(.7), Watts: 8123, Mean: share(.6), Idle: .2},
				{Gang: "research/unsampled", Attempt: 1, Queue: "research", User: "bob", Model: h(""), Cards: 8}}},
		[]view.Demand{{Model: h(""), Cards: 8, Pool: "gpu", Nodes: 3, Gangs: 1}},
		view.LedgerCheck{Path: "/var/lib/muster/ledger.db", Schema: 1, Booked: noon.Truncate(time.Hour), Attempts: 12, Allocations: 96, CardSeconds: 61200, NomadAllocations: 24, NomadCardSeconds: 57600, OK: true})
	s.planner.PlanFunc = func(httpapi.Caller, json.RawMessage) (view.Plan, error) {
		return view.Plan{ID: "research/new", Queue: "research", Members: 2, Cards: 4, Verdict: view.Verdict{Action: core.ActionStart, Reason: core.ReasonFits, Blockers: []view.Blocker{}},
			Start: &view.Start{Model: "NVIDIA H100 80GB HBM3", After: []string{"default/scav"}, Why: "one leaf, two half-full nodes",
				Members: []view.Placed{{Member: 0, Group: "rank", Node: "n1", Cards: []string{"GPU-1", "GPU-2"}}, {Member: 1, Group: "rank", Node: "n3", Cards: []string{"GPU-5", "GPU-6"}}}},
			Evictions: []view.Eviction{{Gang: "default/scav", Kind: "class", GraceSeconds: 600, LostCardSeconds: 4000, Why: "class 10 gives way to class 50"}}}, nil
	}
	return s
}

// Each screen as people see it.
func TestScreens(t *testing.T) {
	t.Parallel()
	waits := func(s *shell) {
		s.planner.PlanFunc = func(httpapi.Caller, json.RawMessage) (view.Plan, error) {
			g, _ := s.planner.Gang("research", "llama-70b")
			return view.Plan{ID: "research/new", Queue: "research", Members: 4, Cards: 32, Update: true, Verdict: g.Detail.Verdict,
				Reservation: &view.Reservation{At: noon.Add(90 * time.Minute), Nodes: []string{"n1", "n2"}, Cause: "n4 was lost"}}, nil
		}
	}
	for _, test := range []struct {
		name  string
		args  []string
		setup func(*shell)
		code  int
	}{
		{"queue", []string{"queue"}, nil, 0},
		{"queue_all", []string{"queue", "-all", "-queue=default"}, nil, 0},
		{"queue_none", []string{"queue", "-stage=placed"}, nil, 0},
		{"queue_status", []string{"queue", "status"}, nil, 0},
		{"queue_status_one", []string{"queue", "status", "research"}, nil, 0},
		{"status_planner", []string{"status"}, nil, 0},
		{"status_stale", []string{"status"}, func(s *shell) {
			s.planner.SetCluster(nil, nil, func(k *view.Status) {
				k.State, k.Why, k.Nomad.OK, k.Nomad.Error = "stale", "no answer from Nomad for 2m", false, "connection refused"
			})
		}, command.ExitNoContact},
		{"status_running", []string{"status", "train"}, nil, 0},
		{"status_waiting", []string{"status", "llama"}, nil, 0},
		{"status_over", []string{"status", "old"}, nil, 0},
		{"why_waiting", []string{"why", "llama"}, nil, 0},
		{"why_running", []string{"why", "train-7"}, nil, 0},
		{"eta_waiting", []string{"eta", "llama"}, nil, 0},
		{"eta_unknown", []string{"eta", "llama"}, func(s *shell) {
			s.planner.Change("research", "llama-70b", func(g *view.Gang) {
				v := &g.Detail.Verdict
				v.ETA, v.Blockers = view.ETA{}, []view.Blocker{{Reason: core.ReasonCards, Holders: []view.Holder{{Gang: "research/train-7", Cards: 16}, {Job: "default/web", Cards: 8}}}}
			})
		}, 0},
		{"eta_running", []string{"eta", "train-7"}, nil, 0},
		{"nodes", []string{"nodes"}, nil, 0},
		{"usage", []string{"usage", "-by=queue,user,model"}, nil, 0},
		{"usage_seconds", []string{"usage", "-by=user", "-unit=s", "-from=7d", "-to=2026-03-01"}, nil, 0},
		{"usage_waste", []string{"usage", "-waste"}, nil, 0},
		{"top", []string{"top"}, nil, 0},
		{"demand", []string{"demand"}, nil, 0},
		{"ledger_verify", []string{"ledger", "verify"}, nil, 0},
		{"ledger_wrong", []string{"ledger", "verify"}, func(s *shell) {
			s.planner.SetBooks(view.Usage{}, view.Waste{}, view.Top{}, nil, view.LedgerCheck{Path: "l.db", Schema: 1, Findings: []string{"usage: attempt 1 of a/b: its allocations held 7 card-seconds of H100 (0 of them training), and 8 (0) are booked"}})
		}, command.ExitError},
		{"why_file_waits", []string{"why", "JOB"}, waits, 0},
		{"why_file_starts", []string{"why", "JOB"}, nil, 0},
		{"eta_file_waits", []string{"eta", "JOB"}, waits, 0},
		{"eta_file_starts", []string{"eta", "JOB"}, nil, 0},
		{"plan_start", []string{"job", "plan", "JOB"}, nil, 0},
		{"plan_wait", []string{"job", "plan", "JOB"}, waits, command.ExitNotNow},
		{"validate", []string{"job", "validate", "JOB"}, nil, 0},
		{"detach", []string{"job", "run", "-detach", "JOB"}, nil, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := scene(t)
			if test.setup != nil {
				test.setup(s)
			}
			for i, a := range test.args {
				if a == "JOB" {
					test.args[i] = s.file("the job")
				}
			}
			if last := test.args[len(test.args)-1]; (test.args[0] == "status" || test.args[0] == "why" || test.args[0] == "eta") && !strings.HasSuffix(last, ".hcl") {
				s.env["NOMAD_NAMESPACE"] = "*"
			}
			r := s.run(test.args...)
			must.Eq(t, test.code, r.code, must.Sprint(r.stderr))
			got := r.stdout
			if r.stderr != "" {
				got += "--- stderr\n" + r.stderr
			}
			must.StrNotContains(t, got, "\x1b", must.Sprint("no colour where there is no terminal"))
			golden(t, test.name+".txt", got)
			must.Eq(t, test.code, s.run(append(test.args, "-json")...).code, must.Sprint("each has a twin in JSON"))
		})
	}
}

func TestColour(t *testing.T) {
	t.Parallel()
	s := scene(t)
	s.terminal = true
	r := s.run("queue")
	must.StrContains(t, r.stdout, "\x1b[32mtraining\x1b[0m")
	for _, line := range strings.Split(r.stdout, "\n") {
		must.LessEq(t, 120, len([]rune(regexp.MustCompile("\x1b\\[[0-9]+m").ReplaceAllString(line, ""))), must.Sprint("lines fit the terminal"))
	}
	must.StrNotContains(t, s.run("queue", "-no-color").stdout, "\x1b")
	s.env["NO_COLOR"] = "1"
	must.StrNotContains(t, s.run("queue").stdout, "\x1b")
}

// The stages that job run shows, with a preemption between them.
func TestRunShowsStages(t *testing.T) {
	t.Parallel()
	for _, terminal := range []bool{false, true} {
		s := newShell(t)
		s.terminal = terminal
		s.env["NO_COLOR"] = "1"
		s.planner.RegisterFunc = func(httpapi.Caller, json.RawMessage, view.Submission) (view.Submitted, error) {
			g := gang("default", "train", contract.StageComplete)
			g.Attempt = 2
			g.Detail = &view.Detail{}
			add := func(stage contract.Stage, seconds float64, text string) {
				g.Detail.Stages = append(g.Detail.Stages, view.StageTime{Stage: stage, Entered: noon.Add(time.Duration(len(g.Detail.Stages)) * time.Second), Left: noon.Add(time.Hour), Seconds: seconds, Text: text})
			}
			add(contract.StageSubmitted, 0.02, "")
			add(contract.StageQueued, 63, "position 2")
			add(contract.StagePlaced, 4.2, "n1, n2")
			add(contract.StageTraining, 900, "preempted by a/b")
			add(contract.StageQueued, 30, "")
			add(contract.StageTraining, 4000, "")
			add(contract.StageComplete, 0, "")
			s.planner.Set(g, view.Event{})
			return view.Submitted{}, nil
		}
		r := s.run("job", "run", s.file("the job"))
		must.Eq(t, 0, r.code, must.Sprint(r.stderr))
		golden(t, "run_stages.txt", r.stdout)
	}
}

// What README shows of a cluster is what the commands print of it.
func TestReadme(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../README.md")
	must.NoError(t, err)
	found := 0
	for _, m := range regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
		for _, part := range strings.Split("\n"+m[1], "\n$ ")[1:] {
			line, output, _ := strings.Cut(part, "\n")
			if strings.TrimSpace(output) == "" || !strings.HasPrefix(line, "muster ") {
				continue
			}
			s := scene(t)
			s.env["NOMAD_NAMESPACE"] = "*"
			r := s.run(strings.Fields(line)[1:]...)
			must.Eq(t, 0, r.code, must.Sprint(r.stderr))
			must.Eq(t, "", cmp.Diff(strings.TrimRight(r.stdout, "\n"), strings.TrimRight(output, "\n")), must.Sprint(line))
			found++
		}
	}
	must.Eq(t, 2, found)
}

var marker = regexp.MustCompile("(?s)```text muster ([a-z ]+)\n(.*?)```\n")

// docs/cli.md has each command's help word for word, and every exit code. The
// flags that many commands have stand in it once.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	const path = "../../docs/cli.md"
	content, err := os.ReadFile(path)
	must.NoError(t, err)
	s := newShell(t)
	s.parts = command.Parts{Agent: noAgent, Dev: noDev}
	whole := func(words string) string { return s.run(append(strings.Fields(words), "-h")...).stdout }
	_, shared, _ := strings.Cut(whole("queue status"), "\n\nOutput:")
	shared = "Output:" + shared
	printed, asking, _ := strings.Cut(shared, "\n\nPlanner:")
	asking = "Planner:" + asking
	help := func(words string) string {
		if words == "flags" {
			return shared
		}
		text := whole(words)
		for _, group := range []string{asking, printed + "\n", printed} {
			text = strings.Replace(text, "\n"+group, "", 1)
		}
		must.StrNotContains(t, text, "\nPlanner:")
		return text
	}
	if *rewrite {
		content = marker.ReplaceAllFunc(content, func(m []byte) []byte {
			words := string(marker.FindSubmatch(m)[1])
			return []byte("```text muster " + words + "\n" + help(words) + "```\n")
		})
		must.NoError(t, os.WriteFile(path, content, 0o644))
	}
	var documented []string
	for _, m := range marker.FindAllSubmatch(content, -1) {
		words := string(m[1])
		if words != "flags" {
			documented = append(documented, words)
		}
		must.Eq(t, "", cmp.Diff(help(words), string(m[2])), must.Sprintf("docs/cli.md: muster %s: go test ./planner/command -rewrite", words))
	}
	sort.Strings(documented)
	must.Eq(t, command.Names(s.parts), documented, must.Sprint("docs/cli.md has every command, and no other"))
	for _, code := range []string{"| 0 |", "| 1 |", "| 2 |", "| 3 |", "| 4 |", "| 5 |", "| 6 |", "| 130 |"} {
		must.StrContains(t, string(content), code)
	}
}
