package command_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/command"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/httpapi/httpapitest"
	"github.com/nomad-muster/muster/planner/view"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// noon is the time of all goldens.
var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// shell runs commands against a fake planner.
type shell struct {
	t       *testing.T
	planner *httpapitest.Planner
	env     map[string]string
	// lines is told each line that goes to stdout or stderr as it comes.
	lines func(string)
	// terminal: as if on one.
	terminal bool
	stdin    string
	parts    command.Parts
}

func newShell(t *testing.T) *shell {
	t.Helper()
	p := httpapitest.New()
	s := &shell{t: t, planner: p, env: map[string]string{"MUSTER_ADDR": p.Serve(t, httpapitest.Open()).URL}}
	p.Specs["the job"] = `{"ID": "train", "Type": "batch", "Priority": 50, "TaskGroups": [{"Name": "rank", "Count": 4, "Tasks": [{"Name": "t", "Driver": "torchrun", "Config": {"script": "a.py", "nproc_per_node": 1}}]}]}`
	p.Specs["with queue"] = `{"ID": "train", "Meta": {"muster_queue": "gone", "muster_min": "x"}, "Type": "batch", "TaskGroups": [{"Name": "rank", "Count": 4, "Tasks": []}]}`
	p.Specs["periodic"] = `{"ID": "nightly", "Type": "batch", "Periodic": {"Spec": "@daily"}, "TaskGroups": [{"Name": "rank", "Count": 4, "Tasks": []}]}`
	return s
}

// file writes a job file.
func (s *shell) file(content string) string {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), "job.hcl")
	must.NoError(s.t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

type result struct {
	code           int
	stdout, stderr string
}

// run runs a command line to its end.
func (s *shell) run(args ...string) result { return s.runIn(s.t.Context(), args...) }

func (s *shell) runIn(ctx context.Context, args ...string) result {
	s.t.Helper()
	out, errs := &tee{lines: s.lines}, &tee{lines: s.lines}
	env := &command.Env{Context: ctx, Stdin: strings.NewReader(s.stdin), Stdout: out, Stderr: errs, Getenv: func(k string) string { return s.env[k] },
		Now: func() time.Time { return noon }, Terminal: s.terminal, ErrTerminal: s.terminal, Width: 120, Parts: s.parts}
	code := command.Run(env, args)
	r := result{code, out.text(), errs.text()}
	for _, a := range args {
		if a == "-json" {
			r.document(s.t)
		}
	}
	return r
}

// document is stdout as the one JSON document that it must be.
func (r result) document(t *testing.T) map[string]any {
	t.Helper()
	dec := json.NewDecoder(strings.NewReader(r.stdout))
	var v map[string]any
	must.NoError(t, dec.Decode(&v), must.Sprintf("stdout is no JSON document: %q", r.stdout))
	_, err := dec.Token()
	must.ErrorIs(t, err, io.EOF, must.Sprintf("something follows the document: %q", r.stdout))
	return v
}

// tee keeps what is written and tells its lines.
type tee struct {
	mu    sync.Mutex
	b     bytes.Buffer
	lines func(string)
}

func (w *tee) Write(p []byte) (int, error) {
	w.mu.Lock()
	w.b.Write(p)
	w.mu.Unlock()
	if w.lines != nil {
		w.lines(string(p))
	}
	return len(p), nil
}

func (w *tee) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

func gang(namespace, job string, stage contract.Stage) view.Gang {
	return view.Gang{Namespace: namespace, Job: job, Queue: "default", Type: "batch", Stage: stage, Priority: 50, Members: 4, Cards: 32, Models: []string{"H100"}, Submitted: noon.Add(-time.Hour)}
}

// C39: an exact name always wins, and what changes something takes no other.
func TestC39ExactNames(t *testing.T) {
	t.Parallel()
	setup := func(t *testing.T) *shell {
		s := newShell(t)
		for _, g := range []view.Gang{gang("default", "train", contract.StageTraining), gang("default", "train-1", contract.StageQueued),
			gang("default", "train-10", contract.StageQueued), gang("lab2", "train", contract.StageQueued), gang("lab2", "solo-lab", contract.StageQueued)} {
			s.planner.Set(g, view.Event{})
		}
		return s
	}
	// stop runs a stop and gives the gangs that were called for it.
	stop := func(s *shell, args ...string) (result, []string) {
		before := len(s.planner.Calls())
		r := s.run(append([]string{"job", "stop"}, args...)...)
		return r, s.planner.Calls()[before:]
	}
	t.Run("show train", func(t *testing.T) {
		t.Parallel()
		s := setup(t)
		r := s.run("status", "-t", "{{.ID}} {{.Stage}}", "train")
		must.Eq(t, result{0, "default/train training\n", ""}, r)
		r = s.run("why", "-t", "{{.ID}}", "train-1")
		must.Eq(t, result{0, "default/train-1\n", ""}, r)
	})
	t.Run("show by a prefix", func(t *testing.T) {
		t.Parallel()
		s := setup(t)
		r := s.run("status", "-t", "{{.ID}}", "train-10")
		must.Eq(t, "default/train-10\n", r.stdout)
		s.planner.Set(gang("default", "finetune-llama", contract.StageQueued), view.Event{})
		r = s.run("status", "-t", "{{.ID}}", "fine")
		must.Eq(t, result{0, "default/finetune-llama\n", ""}, r)
		r = s.run("status", "tr")
		must.Eq(t, command.ExitError, r.code)
		must.StrContains(t, r.stderr, "several gangs: default/train, default/train-1, default/train-10")
	})
	t.Run("show what another namespace has", func(t *testing.T) {
		t.Parallel()
		s := setup(t)
		must.Eq(t, "lab2/solo-lab\n", s.run("status", "-t", "{{.ID}}", "solo-lab").stdout)
		must.Eq(t, "lab2/train\n", s.run("status", "-t", "{{.ID}}", "lab2/train").stdout)
		must.Eq(t, "lab2/train\n", s.run("status", "-t", "{{.ID}}", "-namespace=lab2", "train").stdout)
		r := s.run("status", "-namespace=lab2", "train-1")
		must.Eq(t, command.ExitError, r.code)
	})
	t.Run("stop train", func(t *testing.T) {
		t.Parallel()
		s := setup(t)
		r, calls := stop(s, "train")
		must.Eq(t, 0, r.code, must.Sprint(r.stderr))
		must.Eq(t, []string{"stop default/train by anonymous"}, calls)
	})
	t.Run("stop by a prefix", func(t *testing.T) {
		t.Parallel()
		s := setup(t)
		for _, prefix := range []string{"tra", "train-", "solo"} {
			r, calls := stop(s, prefix)
			must.Eq(t, command.ExitError, r.code)
			must.SliceEmpty(t, calls)
			must.StrContains(t, r.stderr, "no gang has this name")
		}
	})
	t.Run("stop after it was purged", func(t *testing.T) {
		t.Parallel()
		s := setup(t)
		s.planner.Remove("default", "train")
		r, calls := stop(s, "train")
		must.Eq(t, command.ExitError, r.code)
		must.SliceEmpty(t, calls, must.Sprint("neither a longer name nor another namespace's is taken"))
		must.StrContains(t, r.stderr, "no gang has this name in namespace default")
		must.StrContains(t, r.stderr, "default/train-1")
		g, _ := s.planner.Gang("default", "train-1")
		must.Eq(t, contract.StageQueued, g.Stage)
	})
	t.Run("stop with all namespaces", func(t *testing.T) {
		t.Parallel()
		s := setup(t)
		r, calls := stop(s, "-namespace=*", "train")
		must.Eq(t, command.ExitError, r.code)
		must.SliceEmpty(t, calls)
		must.StrContains(t, r.stderr, "several gangs: default/train, lab2/train; -namespace says which")
		r, calls = stop(s, "-namespace=*", "solo-lab")
		must.Eq(t, 0, r.code)
		must.Eq(t, []string{"stop lab2/solo-lab by anonymous"}, calls, must.Sprint("one of that name: asked for all, and exact"))
		_, calls = stop(s, "-namespace=lab2", "train")
		must.Eq(t, []string{"stop lab2/train by anonymous"}, calls)
	})
	t.Run("stop train/attempt-3", func(t *testing.T) {
		t.Parallel()
		s := setup(t)
		r, calls := stop(s, "train/attempt-3")
		must.Eq(t, command.ExitError, r.code)
		must.SliceEmpty(t, calls)
		s.planner.Set(gang("default", "train/periodic-1", contract.StageQueued), view.Event{})
		_, calls = stop(s, "train/periodic-1")
		must.Eq(t, []string{"stop default/train/periodic-1 by anonymous"}, calls)
		_, calls = stop(s, "lab2/train")
		must.Eq(t, []string{"stop lab2/train by anonymous"}, calls, must.Sprint("the name as lists and verdicts write it"))
	})
	t.Run("an ambiguous slash", func(t *testing.T) {
		t.Parallel()
		s := setup(t)
		s.planner.Set(gang("default", "lab2/train", contract.StageQueued), view.Event{})
		r, calls := stop(s, "lab2/train")
		must.Eq(t, command.ExitError, r.code)
		must.SliceEmpty(t, calls)
		must.StrContains(t, r.stderr, "several gangs: default/lab2/train, lab2/train")
	})
	t.Run("stop several, one of which does not exist", func(t *testing.T) {
		t.Parallel()
		s := setup(t)
		for _, job := range []string{"a", "c"} {
			s.planner.Set(gang("default", job, contract.StageQueued), view.Event{})
		}
		r, calls := stop(s, "-json", "a", "b", "c")
		must.Eq(t, command.ExitError, r.code)
		must.Eq(t, []string{"stop default/a by anonymous", "stop default/c by anonymous"}, calls)
		must.StrContains(t, r.stderr, "stop gang b: no gang has this name")
		codes := ""
		for _, item := range r.document(t)["results"].([]any) {
			item := item.(map[string]any)
			codes += fmt.Sprint(item["argument"], item["exit_code"], " ")
		}
		must.Eq(t, "a0 b1 c0 ", codes)
	})
}

// What is over already needs no stop, and none is asked for.
func TestStopOver(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.planner.Set(gang("default", "done", contract.StageComplete), view.Event{})
	must.Eq(t, result{0, "done is over already: complete\n", ""}, s.run("job", "stop", "done"))
	must.SliceEmpty(t, s.planner.Calls())
	must.Eq(t, 0, s.run("job", "stop", "-purge", "-detach", "done").code)
	must.Eq(t, []string{"stop default/done by anonymous"}, s.planner.Calls())
}

// C40: each way in which a submission that waits can end has its exit code.
func TestC40ExitCodes(t *testing.T) {
	t.Parallel()
	type step struct {
		stage  contract.Stage
		change func(*view.Gang)
	}
	failed := func(g *view.Gang) {
		g.Exit = &view.Exit{Outcome: contract.OutcomeFailed, Code: 3, Member: 1, Rank: 9, Text: "rank 9 on n2 exited with 3"}
	}
	tests := []struct {
		name   string
		args   []string
		steps  []step
		code   int
		result string
		says   string
	}{
		{name: "starts at once", args: []string{"-until=started"}, steps: []step{{stage: contract.StageStarted}}, code: 0, result: "reached"},
		{name: "waits and starts then", args: []string{"-until=started"}, code: 0, result: "reached",
			steps: []step{{stage: contract.StageQueued}, {stage: contract.StagePlanned}, {stage: contract.StagePlaced}, {stage: contract.StageStarted}}},
		{name: "a service that has started", code: 0, result: "reached", steps: []step{{stage: contract.StageQueued}, {contract.StageStarted, func(g *view.Gang) { g.Type = "service" }}}},
		{name: "starts is not complete", code: 0, result: "complete",
			steps: []step{{stage: contract.StageStarted}, {stage: contract.StageTraining}, {stage: contract.StageComplete}}},
		{name: "never fits", code: command.ExitRejected, result: "refused", says: "needs 64 cards, the whole cluster has 8",
			steps: []step{{contract.StageRefused, func(g *view.Gang) { g.Sentence = "needs 64 cards, the whole cluster has 8" }}}},
		{name: "failed with exit 3", code: command.ExitEnded, result: "failed", says: "rank 9 on n2 exited with 3",
			steps: []step{{stage: contract.StageStarted}, {contract.StageFailed, failed}}},
		{name: "failed before it started", args: []string{"-until=started"}, code: command.ExitEnded, result: "failed",
			steps: []step{{contract.StageFailed, failed}}},
		{name: "cancelled by somebody", code: command.ExitEnded, result: "cancelled", says: "cancelled",
			steps: []step{{stage: contract.StageQueued}, {stage: contract.StageCancelled}}},
		{name: "preempted and started again", code: 0, result: "complete", steps: []step{{contract.StageTraining, func(g *view.Gang) { g.Attempt = 1 }},
			{contract.StageQueued, func(g *view.Gang) { g.Sentence = "preempted by a/b" }}, {contract.StageTraining, func(g *view.Gang) { g.Attempt = 2 }}, {stage: contract.StageComplete}}},
		{name: "the time is over while it is queued", args: []string{"-timeout=50ms"}, code: command.ExitTimeout, result: "timeout", says: "stays in queue default at position 3",
			steps: []step{{contract.StageQueued, func(g *view.Gang) { g.Position = 3 }}}},
		{name: "the time is over while it runs", args: []string{"-timeout=50ms"}, code: command.ExitTimeout, result: "timeout", says: "goes on running",
			steps: []step{{contract.StageTraining, func(g *view.Gang) { g.Started = noon }}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newShell(t)
			// An earlier gang of this name is over: its end is not this one's.
			s.planner.Set(gang("default", "train", contract.StageComplete), view.Event{})
			s.planner.RegisterFunc = func(_ httpapi.Caller, _ json.RawMessage, _ view.Submission) (view.Submitted, error) {
				index := s.planner.Feed.Index()
				go func() {
					for _, step := range test.steps {
						s.planner.Change("default", "train", func(g *view.Gang) {
							g.Stage = step.stage
							if step.change != nil {
								step.change(g)
							}
						})
					}
				}()
				return view.Submitted{Index: index}, nil
			}
			r := s.run(append([]string{"job", "run", "-json", s.file("the job")}, test.args...)...)
			must.Eq(t, test.code, r.code, must.Sprint(r.stderr))
			doc := r.document(t)
			must.Eq(t, any(test.result), doc["result"])
			must.Eq(t, any(float64(test.code)), doc["exit_code"])
			must.StrContains(t, r.stderr, test.says)
			if test.code != 0 {
				must.StrContains(t, doc["error"].(string), test.says)
			}
		})
	}

	t.Run("server not reachable", func(t *testing.T) {
		t.Parallel()
		s := newShell(t)
		s.env["MUSTER_ADDR"] = "http://127.0.0.1:1"
		for _, args := range [][]string{{"job", "run", "-json", s.file("the job")}, {"job", "stop", "-json", "a"}, {"queue", "-json"}, {"status", "-json"}, {"why", "-json", "a"}, {"job", "plan", "-json", s.file("the job")}} {
			r := s.run(args...)
			must.Eq(t, command.ExitNoContact, r.code, must.Sprint(args, r.stderr))
			must.StrContains(t, r.stderr, "http://127.0.0.1:1 (from MUSTER_ADDR)")
			if args[1] != "stop" {
				must.MapContainsKey(t, r.document(t), "error")
			}
		}
	})
	t.Run("Nomad behind it not reachable", func(t *testing.T) {
		t.Parallel()
		s := newShell(t)
		s.planner.RegisterFunc = func(httpapi.Caller, json.RawMessage, view.Submission) (view.Submitted, error) {
			return view.Submitted{}, &view.Error{Code: view.CodeUnavailable, Operation: "register job", Cause: "no contact with Nomad at http://127.0.0.1:4646", Hint: "NOMAD_ADDR names another"}
		}
		r := s.run("job", "run", "-json", s.file("the job"))
		must.Eq(t, command.ExitNoContact, r.code)
		must.StrContains(t, r.stderr, "NOMAD_ADDR names another")
		must.Eq(t, any("unavailable"), r.document(t)["error"].(map[string]any)["code"])
	})
	for _, signal := range []struct {
		cause error
		code  int
		word  string
	}{{command.ErrInterrupted, command.ExitInterrupted, "interrupted"}, {command.ErrTerminated, command.ExitTerminated, "terminated"}} {
		t.Run(signal.word, func(t *testing.T) {
			t.Parallel()
			s := newShell(t)
			ctx, cancel := context.WithCancelCause(t.Context())
			s.planner.RegisterFunc = func(httpapi.Caller, json.RawMessage, view.Submission) (view.Submitted, error) {
				index := s.planner.Feed.Index()
				g := gang("default", "train", contract.StageQueued)
				g.Position = 2
				g.Detail = &view.Detail{Stages: []view.StageTime{{Stage: contract.StageSubmitted, Entered: noon, Left: noon, Seconds: 0.1}, {Stage: contract.StageQueued, Entered: noon}}}
				s.planner.Set(g, view.Event{})
				return view.Submitted{Index: index}, nil
			}
			s.lines = func(line string) {
				if strings.Contains(line, "submitted  ") {
					cancel(signal.cause) // once the gang is seen
				}
			}
			r := s.runIn(ctx, "job", "run", "-json", s.file("the job"))
			must.Eq(t, signal.code, r.code)
			must.StrContains(t, r.stderr, signal.word+": gang default/train stays in queue default at position 2; muster status train shows it, muster job stop train ends it")
			must.Eq(t, any("interrupted"), r.document(t)["result"])
			for _, call := range s.planner.Calls() {
				must.StrNotContains(t, call, "stop", must.Sprint("the gang is left alone"))
			}
		})
	}
	t.Run("a plan that would start something, with a warning", func(t *testing.T) {
		t.Parallel()
		s := newShell(t)
		s.planner.PlanFunc = func(httpapi.Caller, json.RawMessage) (view.Plan, error) {
			return view.Plan{ID: "default/train", Verdict: view.Verdict{Action: core.ActionStart, Blockers: []view.Blocker{}}, Start: &view.Start{Members: []view.Placed{{Node: "n1", Cards: []string{}}}, After: []string{}},
				Evictions: []view.Eviction{}, Warnings: []string{"task t: kill_timeout is short"}}, nil
		}
		r := s.run("job", "plan", "-json", s.file("the job"))
		must.Eq(t, 0, r.code, must.Sprint("a good plan is no error"))
		must.StrContains(t, r.stderr, "kill_timeout is short")
		must.StrNotContains(t, r.stdout, "Warning")
		must.Eq(t, any("n1"), r.document(t)["start"].(map[string]any)["members"].([]any)[0].(map[string]any)["node"])
	})
	t.Run("a plan that would wait, and one that is refused", func(t *testing.T) {
		t.Parallel()
		s := newShell(t)
		for action, code := range map[core.Action]int{core.ActionWait: command.ExitNotNow, core.ActionHold: command.ExitNotNow, core.ActionRefuse: command.ExitRejected, "": command.ExitNotNow} {
			s.planner.PlanFunc = func(httpapi.Caller, json.RawMessage) (view.Plan, error) {
				return view.Plan{Verdict: view.Verdict{Action: action, Sentence: "no"}}, nil
			}
			must.Eq(t, code, s.run("job", "plan", "-json", s.file("the job")).code, must.Sprint(action))
		}
	})
	t.Run("faults", func(t *testing.T) {
		t.Parallel()
		s := newShell(t)
		for _, args := range [][]string{{"job", "run"}, {"job", "plan"}, {"job", "validate"}} {
			r := s.run(append(args, "-json", s.file("with queue"))...)
			must.Eq(t, command.ExitRejected, r.code)
			must.StrContains(t, r.stderr, "meta.muster_min")
			must.StrContains(t, r.stderr, "meta.muster_queue")
		}
		r := s.run("job", "run", "-json", s.file("nonsense"))
		must.Eq(t, command.ExitRejected, r.code)
		must.StrContains(t, r.stderr, "job.hcl:1,1-2: Argument or block definition required")
		must.StrNotContains(t, r.stderr, "input.hcl")
		must.SliceEmpty(t, s.planner.Calls())
	})
	t.Run("detached", func(t *testing.T) {
		t.Parallel()
		s := newShell(t)
		r := s.run("job", "run", "-detach", "-json", s.file("the job"))
		must.Eq(t, 0, r.code)
		must.Eq(t, any("submitted"), r.document(t)["result"])
		r = s.run("job", "run", "-json", s.file("periodic"))
		must.Eq(t, 0, r.code, must.Sprint(r.stderr))
		must.StrContains(t, r.stderr, "The job is periodic")
		must.Eq(t, any("submitted"), r.document(t)["result"])
	})
	t.Run("not permitted", func(t *testing.T) {
		t.Parallel()
		s := newShell(t)
		s.env["MUSTER_TOKEN"] = "nobody's"
		r := s.run("queue", "-json")
		must.Eq(t, command.ExitRejected, r.code)
		must.StrContains(t, r.stderr, "the token is not known")
	})
}

// A planner that goes away while a gang is waited for is waited for too.
func TestLostContactWhileWaiting(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.planner.RegisterFunc = func(httpapi.Caller, json.RawMessage, view.Submission) (view.Submitted, error) {
		index := s.planner.Feed.Index()
		g := gang("default", "train", contract.StageQueued)
		g.Detail = &view.Detail{Stages: []view.StageTime{{Stage: contract.StageSubmitted, Entered: noon, Left: noon}, {Stage: contract.StageQueued, Entered: noon}}}
		s.planner.Set(g, view.Event{})
		return view.Submitted{Index: index}, nil
	}
	// A proxy before the planner that breaks.
	target := s.env["MUSTER_ADDR"]
	var mu sync.Mutex
	broken := false
	proxy := newProxy(t, target, func() bool { mu.Lock(); defer mu.Unlock(); return broken })
	s.env["MUSTER_ADDR"] = proxy
	s.lines = func(line string) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case strings.Contains(line, "submitted  "):
			broken = true
			go s.planner.Change("default", "train", func(g *view.Gang) { g.Position++ }) // ends the read that waits
		case strings.Contains(line, "Lost contact"):
			broken = false
			go s.planner.Change("default", "train", func(g *view.Gang) { g.Stage = contract.StageComplete })
		}
	}
	r := s.run("job", "run", s.file("the job"))
	must.Eq(t, 0, r.code, must.Sprint(r.stderr))
	must.StrContains(t, r.stderr, "Lost contact, still trying")
	must.StrContains(t, r.stderr, "The planner answers again.")
	must.StrContains(t, r.stdout, "default/train complete")
}

// newProxy hands requests on to a server, or breaks their connection.
func newProxy(t *testing.T, target string, broken func() bool) string {
	t.Helper()
	server := httpapitest.NewServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if broken() {
			panic(http.ErrAbortHandler)
		}
		req, err := http.NewRequestWithContext(r.Context(), r.Method, target+r.URL.RequestURI(), r.Body)
		if err == nil {
			req.Header = r.Header
			var resp *http.Response
			if resp, err = http.DefaultClient.Do(req); err == nil {
				defer resp.Body.Close()
				if broken() {
					panic(http.ErrAbortHandler)
				}
				w.WriteHeader(resp.StatusCode)
				_, err = io.Copy(w, resp.Body)
			}
		}
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Log(err)
		}
	}))
	return server
}

// Flags may stand behind the arguments, and -- ends them.
func TestFlagsAnywhere(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.planner.Set(gang("lab", "train", contract.StageQueued), view.Event{})
	s.planner.Set(gang("lab", "-odd", contract.StageQueued), view.Event{})
	must.Eq(t, "lab/train\n", s.run("status", "train", "-namespace", "lab", "-t={{.ID}}").stdout)
	must.Eq(t, "lab/-odd\n", s.run("status", "-t={{.ID}}", "-namespace=lab", "--", "-odd").stdout)
	s.env["NOMAD_NAMESPACE"] = "lab"
	must.Eq(t, "lab/train\n", s.run("status", "train", "-t={{.ID}}").stdout)
}

// What a file's variables and namespaces become.
func TestSubmissionsSource(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	var got view.Submission
	s.planner.RegisterFunc = func(_ httpapi.Caller, _ json.RawMessage, in view.Submission) (view.Submitted, error) {
		got = in
		return view.Submitted{}, nil
	}
	vars := s.file("size = 4\n")
	r := s.run("job", "run", "-detach", "-namespace=lab", "-check-index=0", "-keep-refused", "-var", `name=a "b" ${c}`, "-var=list=[1, 2]", "-var-file="+vars, s.file("the job"))
	// The namespace lab has no queue: the refusal shows that it was used.
	must.Eq(t, command.ExitRejected, r.code)
	must.StrContains(t, r.stderr, `no queue is bound to the namespace "lab"`)
	r = s.run("job", "run", "-detach", "-check-index=0", "-keep-refused", "-var", `name=a "b" ${c}`, "-var=list=[1, 2]", "-var-file="+vars, s.file("the job"))
	must.Eq(t, 0, r.code, must.Sprint(r.stderr))
	must.Eq(t, "", cmp.Diff(view.Submission{Spec: view.Spec{HCL: "the job", Variables: "size = 4\n\nname = \"a \\\"b\\\" $${c}\"\nlist = [1, 2]\n"}, EnforceIndex: true, KeepRefused: true}, got))

	s.stdin = ` {"Job": {"ID": "x", "Type": "batch", "TaskGroups": [{"Name": "g", "Count": 1, "Tasks": [{"Name": "t", "Driver": "torchrun", "Config": {"script": "a.py"}}]}]}}`
	r = s.run("job", "run", "-detach", "-")
	must.Eq(t, 0, r.code, must.Sprint(r.stderr))
	must.Eq(t, "", got.HCL)
	must.StrContains(t, string(got.Job), `"ID":"x"`)
}

func TestValidateOffline(t *testing.T) {
	t.Parallel()
	s := newShell(t)
	s.env["MUSTER_ADDR"] = "http://127.0.0.1:1"
	good := `{"ID": "x", "Type": "batch", "Meta": {"muster_queue": "any"}, "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "torchrun", "Config": {"script": "a.py"}}]}]}`
	r := s.run("job", "validate", "-offline", s.file(good))
	must.Eq(t, 0, r.code, must.Sprint(r.stderr))
	must.StrContains(t, r.stdout, "Nothing is wrong with job default/x, which goes to queue any.")
	r = s.run("job", "validate", "-offline", "-json", s.file(strings.Replace(good, "a.py", "", 1)))
	must.Eq(t, command.ExitRejected, r.code)
	must.StrContains(t, r.stderr, "exactly one of script, module and command")
	hcl := "variable \"n\" {\n  type = number\n}\njob \"x\" {\n  type = \"batch\"\n  group \"g\" {\n    count = var.n\n    task \"t\" {\n      driver = \"torchrun\"\n      config {\n        script = \"a.py\"\n        world  = \"flat\"\n      }\n    }\n  }\n}\n"
	r = s.run("job", "validate", "-offline", "-var=n=3", s.file(hcl))
	must.Eq(t, command.ExitRejected, r.code)
	must.StrContains(t, r.stderr, `group "g" task "t" config.world = "flat"`)
	must.Eq(t, 0, s.run("job", "validate", "-offline", "-var=n=3", s.file(strings.Replace(hcl, "flat", "gang", 1))).code)
	r = s.run("job", "validate", "-offline", s.file("the job"))
	must.Eq(t, command.ExitRejected, r.code)
	must.StrContains(t, r.stderr, "job.hcl:1,")
	r = s.run("job", "validate", s.file(good))
	must.Eq(t, command.ExitNoContact, r.code)
}
