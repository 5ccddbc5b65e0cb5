package httpapi_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/config"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/httpapi/client"
	"github.com/nomad-muster/muster/planner/httpapi/httpapitest"
	"github.com/nomad-muster/muster/planner/view"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

// guarded is a configuration with a token of each role.
func guarded() *config.Config {
	cfg := config.Default()
	token := func(name string, role view.Role, groups, queues []string) config.Token {
		return config.Token{Name: name, Role: role, Groups: groups, Queues: queues, Hash: sha256.Sum256([]byte(name + "-secret-secret-secret"))}
	}
	cfg.Tokens = []config.Token{token("victor", view.RoleViewer, nil, nil), token("sue", view.RoleSubmitter, []string{"team"}, nil),
		token("mallory", view.RoleSubmitter, nil, []string{"other"}), token("oscar", view.RoleOperator, nil, nil)}
	other := cfg.Core.Queues[0]
	other.Name, other.Namespaces, other.Users = "other", []string{"lab"}, []string{"mallory"}
	cfg.Core.Queues = append(cfg.Core.Queues, other)
	return cfg
}

// ask sends a request and gives the status and the answer.
func ask(t *testing.T, method, url, token string, body string, headers ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	must.NoError(t, err)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token+"-secret-secret-secret")
	}
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
	}
	resp, err := http.DefaultClient.Do(req)
	must.NoError(t, err)
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	must.NoError(t, err)
	return resp.StatusCode, string(out)
}

func refusal(t *testing.T, body string) view.Error {
	t.Helper()
	var e view.Error
	dec := json.NewDecoder(strings.NewReader(body))
	dec.DisallowUnknownFields()
	must.NoError(t, dec.Decode(&e), must.Sprint(body))
	must.NotEq(t, "", e.Operation)
	must.NotEq(t, "", e.Cause)
	return e
}

func full() view.Gang {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	exit := &view.Exit{Outcome: contract.OutcomeFailed, Code: 3, Member: 1, Rank: 9, Text: "rank 9 exited with 3"}
	stages := []view.StageTime{{Stage: contract.StageQueued, Entered: at, Left: at.Add(time.Minute), Seconds: 60}, {Stage: contract.StageStarted, Entered: at, Seconds: 3.5}}
	return view.Gang{Namespace: "default", Job: "train", Queue: "default", Type: "batch", Stage: contract.StageStarted, Reason: core.ReasonRunning, Sentence: "runs",
		Priority: 50, Attempt: 2, Members: 2, Cards: 16, Models: []string{"H100"}, Placed: 2, Running: 2, Submitted: at, Started: at, Exit: exit,
		ETA: &view.ETA{From: at, To: at, Assumption: "limits hold"},
		Detail: &view.Detail{
			Verdict: view.Verdict{Action: core.ActionRun, Reason: core.ReasonRunning, Sentence: "runs", Blockers: []view.Blocker{{Reason: core.ReasonCards, Holders: []view.Holder{{Gang: "a/b", Until: at}}}}},
			Stages:  stages, Groups: []view.Group{{Name: "rank", Count: 2, Cards: map[string]int{"nvidia/gpu": 8}}},
			Members: []view.Member{{Index: 0, Group: "rank", State: "training", Cards: []string{"GPU-1"}, Problems: []contract.Problem{{What: "port", Text: "taken"}},
				Exit: &contract.Exit{Outcome: contract.OutcomeFailed, Code: 3, Text: "x", At: at}}},
			Attempts: []view.Attempt{{Number: 1, Placed: at, Nodes: []string{"n1"}, Exit: exit, Stages: stages}},
			Events:   []view.Event{{Index: 1, At: at, Kind: view.EventStage, Stage: contract.StageQueued, Text: "queued"}},
		}}
}

func serve(t *testing.T, cfg *config.Config) (*httpapitest.Planner, string) {
	t.Helper()
	p := httpapitest.New()
	p.Set(full(), view.Event{Text: "started"})
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	p.SetCluster([]view.Queue{{Name: "default", Leaf: true, Order: "priority", Namespaces: []string{"default"}, Users: []string{}, MaxGangs: -1,
		Quota: []view.Quota{{Model: view.AnyModel, Max: -1, Lend: -1}}, Budget: &view.Budget{CardSeconds: 5, Period: "day"}}},
		[]view.Node{{ID: "2", Name: "n2", Status: "ready", Domains: map[string]string{"leaf": "l1"}, Cards: []view.Card{{ID: "GPU-1", State: "healthy", NUMA: -1}}}, {ID: "1", Name: "n1", Domains: map[string]string{}, Cards: []view.Card{}}},
		func(s *view.Status) {
			s.Started, s.Problems = at, []view.Problem{{Object: "card X", Text: "on two allocations"}}
			s.Cards = []view.CardCount{{Model: "H100", Total: 1}}
		})
	p.Specs["ok"] = `{"ID": "ok", "Type": "batch", "TaskGroups": [{"Name": "g", "Count": 2, "Tasks": [{"Name": "t", "Driver": "torchrun", "Config": {"script": "a.py", "nproc_per_node": 1}}]}]}`
	return p, p.Serve(t, cfg).URL
}

// Each role may do what it may, and nothing else; every route is asked.
func TestRoles(t *testing.T) {
	t.Parallel()
	_, url := serve(t, guarded())
	tokens := []struct {
		name string
		role view.Role
	}{{"", view.RoleNone}, {"victor", view.RoleViewer}, {"sue", view.RoleSubmitter}, {"oscar", view.RoleOperator}}
	for i := range httpapi.Routes {
		r := &httpapi.Routes[i]
		for _, token := range tokens {
			if r.Path == "/v1/events" && token.role.May(r.Role) {
				continue // a stream: TestEvents
			}
			body := ""
			if r.Method == http.MethodPost {
				body = "{}"
			}
			status, answer := ask(t, r.Method, url+fill(r.Path), token.name, body)
			switch {
			case token.role.May(r.Role):
				must.NotEq(t, http.StatusUnauthorized, status, must.Sprint(r.Path, token))
				must.NotEq(t, http.StatusForbidden, status, must.Sprint(r.Path, token))
			case token.name == "":
				must.Eq(t, http.StatusUnauthorized, status, must.Sprint(r.Path))
				must.Eq(t, view.CodeUnauthorized, refusal(t, answer).Code)
			default:
				must.Eq(t, http.StatusForbidden, status, must.Sprint(r.Path, token))
				must.StrContains(t, refusal(t, answer).Cause, "needs the role "+string(r.Role))
			}
		}
	}
}

// fill puts names of things that are there into a route's path.
func fill(path string) string {
	return strings.NewReplacer("{namespace}", "default", "{job}", "train", "{queue}", "default").Replace(path)
}

func TestAuthentication(t *testing.T) {
	t.Parallel()
	closed := guarded()
	open := guarded()
	open.API.Anonymous, open.API.URL = view.RoleViewer, "https://muster.example"
	empty := config.Default()
	tests := []struct {
		name    string
		cfg     *config.Config
		token   string
		headers []string
		want    int
		says    string
	}{
		{"a known token", closed, "victor", nil, 200, ""},
		{"an unknown one", closed, "nobody", nil, 401, "not known"},
		{"another scheme", closed, "", []string{"Authorization", "Basic dmljdG9y"}, 401, "no bearer token"},
		{"none", closed, "", nil, 401, "MUSTER_TOKEN"},
		{"none, and there is none", empty, "", nil, 401, "no token block"},
		{"anonymous from here", open, "", nil, 200, ""},
		{"anonymous, but an unknown token", open, "nobody", nil, 401, "not known"},
		{"anonymous through a proxy", open, "", []string{"X-Forwarded-For", "10.0.0.1"}, 401, "no token"},
		{"anonymous through a standard proxy", open, "", []string{"Forwarded", "for=10.0.0.1"}, 401, "no token"},
		{"anonymous by another name (DNS rebinding)", open, "", []string{"Host", "evil.example:4680"}, 401, "no token"},
		{"anonymous by localhost", open, "", []string{"Host", "localhost:4680"}, 200, ""},
		{"anonymous by IPv6", open, "", []string{"Host", "[::1]:4680"}, 200, ""},
		{"anonymous by the planner's own name", open, "", []string{"Host", "muster.example"}, 200, ""},
		{"a token by any name", closed, "victor", []string{"Host", "whatever.example"}, 200, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			_, url := serve(t, test.cfg)
			status, body := ask(t, "GET", url+"/v1/status", test.token, "", test.headers...)
			must.Eq(t, test.want, status, must.Sprint(body))
			if test.says != "" {
				e := refusal(t, body)
				must.StrContains(t, e.Cause+" "+e.Hint, test.says)
			}
		})
	}

	// From another machine nobody is anonymous, whatever the request says.
	p := httpapitest.New()
	api := httpapi.New(httpapi.Options{Config: func() *config.Config { return open }, Gangs: p, Cluster: p, Jobs: p, Stopper: p, Feed: p.Feed})
	w := httptest.NewRecorder()
	req := httptest.NewRequest("GET", "http://localhost:4680/v1/status", nil)
	req.RemoteAddr = "192.0.2.7:1234"
	api.ServeHTTP(w, req)
	must.Eq(t, 401, w.Code)
	must.StrContains(t, w.Header().Get("WWW-Authenticate"), "Bearer")
}

// A page of another site changes nothing, even from this machine.
func TestCrossOrigin(t *testing.T) {
	t.Parallel()
	p, url := serve(t, httpapitest.Open())
	status, body := ask(t, "POST", url+"/v1/gang/default/train/stop", "", "{}", "Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site")
	must.Eq(t, 403, status)
	must.StrContains(t, body, "another site")
	status, _ = ask(t, "POST", url+"/v1/gang/default/train/stop", "", "", "Content-Type", "text/plain")
	must.Eq(t, 400, status, must.Sprint("a form cannot be sent as JSON"))
	must.SliceEmpty(t, p.Calls())
}

// Submitters act in their own queues only.
func TestOwnQueues(t *testing.T) {
	t.Parallel()
	p, url := serve(t, guarded())
	g := full()
	g.Namespace, g.Queue = "lab", "other"
	p.Set(g, view.Event{})
	g.Job, g.Queue = "orphan", "gone"
	p.Set(g, view.Event{})
	tests := []struct {
		token, gang string
		want        int
	}{
		{"sue", "lab/train", 403}, {"mallory", "default/train", 403}, {"sue", "lab/orphan", 403},
		{"mallory", "lab/train", 200}, {"sue", "default/train", 200}, {"oscar", "lab/orphan", 200},
	}
	var want []string
	for _, test := range tests {
		status, body := ask(t, "POST", url+"/v1/gang/"+test.gang+"/stop", test.token, "{}")
		must.Eq(t, test.want, status, must.Sprint(test, body))
		if test.want == 200 {
			want = append(want, "stop "+test.gang+" by "+test.token)
		}
	}
	must.Eq(t, want, p.Calls())

	status, body := ask(t, "POST", url+"/v1/jobs", "sue", `{"hcl": "ok", "namespace": "lab"}`)
	must.Eq(t, 422, status)
	must.StrContains(t, body, "sue is none of them")
	status, _ = ask(t, "POST", url+"/v1/jobs", "sue", `{"hcl": "ok"}`)
	must.Eq(t, 200, status)
	must.StrContains(t, p.Calls()[len(p.Calls())-1], "register default/ok by sue")
}

func TestGangNames(t *testing.T) {
	t.Parallel()
	p, url := serve(t, httpapitest.Open())
	c, err := client.New(client.Options{Address: url})
	must.NoError(t, err)
	for _, job := range []string{"a", "a/b", "a/periodic-1", "with space", "ünï", "..", ".", "a//b", "%2F", "why", "q?x=1#y", "a/../b"} {
		p.Set(view.Gang{Namespace: "default", Job: job, Stage: contract.StageQueued, Sentence: "is " + job, Models: []string{}}, view.Event{})
		g, err := c.Gang(t.Context(), "default", job, 0, 0)
		must.NoError(t, err, must.Sprint(job))
		must.Eq(t, "is "+job, g.Sentence)
		w, err := c.Why(t.Context(), "default", job)
		must.NoError(t, err, must.Sprint(job))
		must.Eq(t, "default/"+job, w.ID)
	}
	var refused *view.Error
	_, err = c.Gang(t.Context(), "default", "trai", 0, 0)
	must.True(t, errors.As(err, &refused), must.Sprint("no prefix of a name is a name"))
	must.Eq(t, view.CodeNotFound, refused.Code)
}

func TestListGangs(t *testing.T) {
	t.Parallel()
	p, url := serve(t, httpapitest.Open())
	p.Remove("default", "train")
	for _, g := range []view.Gang{
		{Namespace: "a", Job: "w2", Queue: "q", Stage: contract.StageQueued, Position: 2}, {Namespace: "a", Job: "w1", Queue: "q", Stage: contract.StageQueued, Position: 1},
		{Namespace: "b", Job: "run", Queue: "q", Stage: contract.StageTraining}, {Namespace: "b", Job: "no", Queue: "q", Stage: contract.StageRefused},
		{Namespace: "b", Job: "done", Queue: "q", Stage: contract.StageComplete}, {Namespace: "a", Job: "x", Queue: "o", Stage: contract.StageQueued, Position: 1},
	} {
		p.Set(g, view.Event{})
	}
	for _, test := range []struct{ query, want string }{
		{"", "a/x b/run a/w1 a/w2 b/no"}, {"?ended=true", "a/x b/run a/w1 a/w2 b/no b/done"}, {"?namespace=a", "a/x a/w1 a/w2"}, {"?namespace=*&queue=q", "b/run a/w1 a/w2 b/no"},
		{"?prefix=w", "a/w1 a/w2"}, {"?stage=complete", "b/done"}, {"?stage=training", "b/run"}, {"?queue=none", ""},
	} {
		status, body := ask(t, "GET", url+"/v1/gangs"+test.query, "", "")
		must.Eq(t, 200, status)
		var list view.GangList
		must.NoError(t, json.Unmarshal([]byte(body), &list))
		var ids []string
		for _, g := range list.Gangs {
			ids = append(ids, g.ID)
			must.Nil(t, g.Detail)
		}
		must.Eq(t, test.want, strings.Join(ids, " "), must.Sprint(test.query))
		must.StrContains(t, body, `"gangs":[`)
	}
	status, _ := ask(t, "GET", url+"/v1/gangs?ended=perhaps", "", "")
	must.Eq(t, 400, status)
}

func TestWaitingRead(t *testing.T) {
	t.Parallel()
	p, url := serve(t, httpapitest.Open())
	c, err := client.New(client.Options{Address: url})
	must.NoError(t, err)
	before, err := c.Gang(t.Context(), "default", "train", 0, 0)
	must.NoError(t, err)

	got := make(chan view.Gang, 1)
	go func() {
		g, err := c.Gang(t.Context(), "default", "train", before.Index, time.Minute)
		if err != nil {
			t.Error(err)
		}
		got <- g
	}()
	p.Set(view.Gang{Namespace: "default", Job: "unrelated"}, view.Event{}) // wakes, but is no answer
	p.Change("default", "train", func(g *view.Gang) { g.Stage = contract.StageComplete })
	g := <-got
	must.Eq(t, contract.StageComplete, g.Stage)
	must.Greater(t, before.Index, g.Index)

	g, err = c.Gang(t.Context(), "default", "train", g.Index, 30*time.Millisecond)
	must.NoError(t, err, must.Sprint("the time is over: what there is"))
	must.Eq(t, contract.StageComplete, g.Stage)
	g, err = c.Gang(t.Context(), "default", "train", 1<<40, time.Minute)
	must.NoError(t, err, must.Sprint("an index of another life is no reason to wait"))
	must.Eq(t, contract.StageComplete, g.Stage)
	_, err = c.Gang(t.Context(), "default", "gone", 5, time.Minute)
	must.ErrorContains(t, err, "not found")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.Gang(ctx, "default", "train", g.Index, time.Minute)
	must.ErrorIs(t, err, context.Canceled)
	var contact *client.ContactError
	must.False(t, errors.As(err, &contact), must.Sprint("an interrupt is no lack of contact"))
}

func TestEvents(t *testing.T) {
	t.Parallel()
	p, url := serve(t, httpapitest.Open())
	c, err := client.New(client.Options{Address: url})
	must.NoError(t, err)
	start := p.Feed.Index()
	enough := errors.New("enough")
	read := func(index uint64, gang string, n int) (out []string) {
		err := c.Events(t.Context(), index, gang, func(e view.Event, gap bool) error {
			out = append(out, fmt.Sprintf("%s %s %v", e.Text, e.Gang, gap))
			if len(out) == n {
				return enough
			}
			return nil
		})
		must.ErrorIs(t, err, enough)
		return out
	}
	p.Set(view.Gang{Namespace: "a", Job: "x"}, view.Event{Text: "one"})
	p.Set(view.Gang{Namespace: "a", Job: "y"}, view.Event{Text: "two\nlines"})
	done := make(chan []string)
	go func() { done <- read(start, "", 3) }()
	p.Set(view.Gang{Namespace: "a", Job: "x"}, view.Event{Text: "three"})
	must.Eq(t, []string{"one a/x false", "two\nlines a/y false", "three a/x false"}, <-done)
	must.Eq(t, []string{"one a/x false", "three a/x false"}, read(start, "a/x", 2))

	for i := range 1100 { // more than the feed keeps
		p.Feed.Publish(view.Event{Text: fmt.Sprint(i)})
	}
	got := read(start, "", 1)
	must.Eq(t, []string{"76  true"}, got, must.Sprint("what is forgotten is told"))

	status, body := ask(t, "GET", url+"/v1/events", "", "", "Last-Event-ID", "x")
	must.Eq(t, 400, status, must.Sprint(body))
}

func TestBodies(t *testing.T) {
	t.Parallel()
	_, url := serve(t, httpapitest.Open())
	big := `{"hcl": "` + strings.Repeat("x", 9<<20) + `"}`
	tests := []struct {
		name, path, body string
		headers          []string
		want             int
		says             string
	}{
		{"too large", "/v1/jobs", big, nil, 413, "8388608 bytes"},
		{"too large for a small one", "/v1/gang/default/train/stop", `{"reason": "` + strings.Repeat("x", 70<<10) + `"}`, nil, 413, "65536 bytes"},
		{"no JSON", "/v1/jobs", "job \"x\" {}", nil, 400, "read body"},
		{"two documents", "/v1/jobs", `{"hcl": "ok"} {}`, nil, 400, "follows"},
		{"an unknown field", "/v1/jobs", `{"hcl": "ok", "prioritty": 3}`, nil, 400, "prioritty"},
		{"nothing", "/v1/jobs", "", []string{"Content-Type", "application/json"}, 400, "empty"},
		{"neither", "/v1/jobs", "{}", nil, 400, "neither hcl nor job"},
		{"both", "/v1/jobs", `{"hcl": "ok", "job": {"ID": "x"}}`, nil, 400, "both"},
		{"a list for a job", "/v1/jobs", `{"job": []}`, nil, 400, "read job"},
		{"a job of the wrong shape", "/v1/jobs", `{"job": {"ID": 7}}`, nil, 422, "read job"},
		{"groups of the wrong shape", "/v1/jobs", `{"job": {"ID": "a", "TaskGroups": [null]}}`, nil, 422, "task group 1"},
		{"HCL that Nomad refuses", "/v1/validate", `{"hcl": "nonsense"}`, nil, 422, "definition required"},
		{"form", "/v1/jobs", "hcl=ok", []string{"Content-Type", "application/x-www-form-urlencoded"}, 400, "application/json"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			status, body := ask(t, "POST", url+test.path, "", test.body, test.headers...)
			must.Eq(t, test.want, status, must.Sprint(body))
			e := refusal(t, body)
			must.StrContains(t, e.Cause, test.says)
		})
	}
	status, body := ask(t, "GET", url+"/v1/nowhere", "", "")
	must.Eq(t, 404, status)
	must.Eq(t, view.CodeNotFound, refusal(t, body).Code)
	status, body = ask(t, "DELETE", url+"/v1/jobs", "", "")
	must.Eq(t, 400, status)
	must.StrContains(t, refusal(t, body).Cause, "takes POST")
}

// All that is wrong with a job is in one answer, and nothing is registered.
func TestFaultsAtOnce(t *testing.T) {
	t.Parallel()
	p, url := serve(t, httpapitest.Open())
	job := `{"job": {"Job": {"ID": "bad", "Type": "batch", "Meta": {"muster_min": "many", "muster_time_limit": "-1h", "muster_colour": "red", "muster_queue": "gone"},
		"TaskGroups": [{"Name": "g", "Count": 2, "Tasks": [{"Name": "t", "Driver": "torchrun", "Config": {"script": "a.py", "module": "b", "nproc_per_node": -1, "hang_timeout": "x"}}]}]}}}`
	status, body := ask(t, "POST", url+"/v1/jobs", "", job)
	must.Eq(t, 422, status)
	e := refusal(t, body)
	must.Eq(t, "default/bad", e.Object)
	text := e.Error()
	for _, want := range []string{"meta.muster_min", "meta.muster_time_limit", "meta.muster_colour", "meta.muster_queue", "no queue has this name",
		`group "g" task "t" config.script`, "config.nproc_per_node", "config.hang_timeout"} {
		must.StrContains(t, text, want)
	}
	must.Len(t, 7, e.Faults, must.Sprint(text))

	var v view.Validation
	status, body = ask(t, "POST", url+"/v1/validate", "", job)
	must.Eq(t, 200, status)
	must.NoError(t, json.Unmarshal([]byte(body), &v))
	must.False(t, v.Valid)
	must.Eq(t, e.Faults, v.Faults)
	status, body = ask(t, "POST", url+"/v1/plan", "", job)
	must.Eq(t, 422, status)
	must.Eq(t, e.Faults, refusal(t, body).Faults)
	must.SliceEmpty(t, p.Calls())
}

// What the cluster could never run is a fault too.
func TestValidateAsksTheCore(t *testing.T) {
	t.Parallel()
	p, url := serve(t, httpapitest.Open())
	p.PlanFunc = func(httpapi.Caller, json.RawMessage) (view.Plan, error) {
		return view.Plan{Verdict: view.Verdict{Action: core.ActionRefuse, Reason: core.ReasonTooLarge, Blockers: []view.Blocker{{Text: "needs 64 cards, the whole cluster has 8", Remedy: "ask for fewer members"}}}}, nil
	}
	_, body := ask(t, "POST", url+"/v1/validate", "", `{"hcl": "ok"}`)
	var v view.Validation
	must.NoError(t, json.Unmarshal([]byte(body), &v))
	must.False(t, v.Valid)
	must.Eq(t, []view.Fault{{Field: "job", Want: "needs 64 cards, the whole cluster has 8: ask for fewer members"}}, v.Faults)
	must.Eq(t, "default", v.Queue)
	must.Len(t, 4, v.Added)

	// Nor is it submitted, unless its user says that the cluster will change.
	status, body := ask(t, "POST", url+"/v1/jobs", "", `{"hcl": "ok"}`)
	must.Eq(t, 422, status)
	e := refusal(t, body)
	must.StrContains(t, e.Error(), "needs 64 cards")
	for _, call := range p.Calls() {
		must.StrNotContains(t, call, "register")
	}
	status, body = ask(t, "POST", url+"/v1/jobs", "", `{"hcl": "ok", "keep_refused": true}`)
	must.Eq(t, 200, status, must.Sprint(body))
}

// A job that only starts others is registered as what it is.
func TestStarters(t *testing.T) {
	t.Parallel()
	_, url := serve(t, httpapitest.Open())
	for field, want := range map[string]string{"Periodic": "periodic", "ParameterizedJob": "parameterized"} {
		_, body := ask(t, "POST", url+"/v1/jobs", "", `{"job": {"ID": "s", "Type": "batch", "`+field+`": {}, "TaskGroups": [{"Name": "g", "Tasks": []}]}}`)
		var out view.Submitted
		must.NoError(t, json.Unmarshal([]byte(body), &out), must.Sprint(body))
		must.Eq(t, want, out.Starts, must.Sprint(body))
	}
}

func TestSubmitCompletes(t *testing.T) {
	t.Parallel()
	p, url := serve(t, httpapitest.Open())
	var registered json.RawMessage
	var source view.Submission
	var by httpapi.Caller
	p.RegisterFunc = func(c httpapi.Caller, job json.RawMessage, s view.Submission) (view.Submitted, error) {
		registered, source, by = job, s, c
		return view.Submitted{JobModifyIndex: 9, Warnings: []string{"of Nomad"}}, nil
	}
	status, body := ask(t, "POST", url+"/v1/jobs", "", `{"hcl": "ok", "variables": "v=1", "enforce_index": true}`, "X-Nomad-Token", "nomad-token")
	must.Eq(t, 200, status, must.Sprint(body))
	var out view.Submitted
	must.NoError(t, json.Unmarshal([]byte(body), &out))
	must.Eq(t, "default/ok", out.ID)
	must.Eq(t, "default", out.Queue)
	must.Len(t, 4, out.Added)
	must.Eq(t, []string{"of Nomad"}, out.Warnings)
	must.StrContains(t, string(registered), contract.HoldValue)
	must.Eq(t, "", cmp.Diff(view.Submission{Spec: view.Spec{HCL: "ok", Variables: "v=1"}, EnforceIndex: true}, source))
	must.Eq(t, "nomad-token", by.NomadToken)
}

func TestIdempotencyKey(t *testing.T) {
	t.Parallel()
	p, url := serve(t, httpapitest.Open())
	send := func(key, body string) (int, string) {
		return ask(t, "POST", url+"/v1/jobs", "", body, "Idempotency-Key", key)
	}
	const ok = `{"hcl": "ok"}`
	var wg sync.WaitGroup
	answers := make([]string, 8)
	for i := range answers {
		wg.Go(func() { _, answers[i] = send("k1", ok) })
	}
	wg.Wait()
	for _, a := range answers {
		must.Eq(t, answers[0], a)
	}
	must.Eq(t, []string{"plan default/ok by anonymous", "register default/ok by anonymous"}, p.Calls(), must.Sprint("eight submissions, one registration"))

	status, body := send("k1", `{"hcl": "ok", "variables": "other"}`)
	must.Eq(t, 409, status)
	must.Eq(t, view.CodeConflict, refusal(t, body).Code)
	status, _ = send("k2", ok)
	must.Eq(t, 200, status)
	must.Len(t, 4, p.Calls())

	fail := true
	p.RegisterFunc = func(httpapi.Caller, json.RawMessage, view.Submission) (view.Submitted, error) {
		if fail {
			return view.Submitted{}, &view.Error{Code: view.CodeUnavailable, Operation: "submit job", Cause: "no contact with Nomad at http://127.0.0.1:4646"}
		}
		return view.Submitted{}, nil
	}
	status, _ = send("k3", ok)
	must.Eq(t, 503, status)
	fail = false
	status, _ = send("k3", ok)
	must.Eq(t, 200, status, must.Sprint("a submission that failed may be tried again"))
	status, _ = send(strings.Repeat("k", 300), ok)
	must.Eq(t, 400, status)
}

func TestErrors(t *testing.T) {
	t.Parallel()
	p, url := serve(t, httpapitest.Open())
	answer := error(nil)
	p.StopFunc = func(httpapi.Caller, string, string, view.StopRequest) (view.Stopped, error) {
		if answer == nil {
			panic("a bug")
		}
		return view.Stopped{}, answer
	}
	stop := func() (int, view.Error) {
		status, body := ask(t, "POST", url+"/v1/gang/default/train/stop", "", "{}")
		return status, refusal(t, body)
	}
	status, e := stop()
	must.Eq(t, 500, status, must.Sprint("a panic is an answer, and the planner goes on"))
	must.StrNotContains(t, e.Error(), "a bug")
	answer = errors.New("disk full")
	status, e = stop()
	must.Eq(t, 500, status)
	must.Eq(t, view.CodeInternal, e.Code)
	answer = fmt.Errorf("stop: %w", &view.Error{Code: view.CodeUnavailable, Operation: "stop gang", Cause: "no contact with Nomad"})
	status, e = stop()
	must.Eq(t, 503, status)
	must.Eq(t, view.CodeUnavailable, e.Code)
	answer = fmt.Errorf("register: %w", context.DeadlineExceeded)
	status, _ = stop()
	must.Eq(t, 503, status)

	p.StopFunc = nil
	p.Change("default", "train", func(g *view.Gang) { g.Stage = contract.StageComplete })
	status, e = stop()
	must.Eq(t, 409, status, must.Sprint("what is over is not stopped"))
	must.StrContains(t, e.Cause, "it is over")
	status, _ = ask(t, "POST", url+"/v1/gang/default/train/stop", "", `{"purge": true}`)
	must.Eq(t, 200, status)

	p.SetCluster(nil, nil, func(s *view.Status) { s.State = "starting" })
	_, body := ask(t, "GET", url+"/v1/gang/default/gone", "", "")
	must.StrContains(t, refusal(t, body).Cause, "starting")
	status, body = ask(t, "GET", url+"/v1/health", "", "")
	must.Eq(t, 503, status)
	must.StrContains(t, body, `"ok":false`)
}

func TestServeEnds(t *testing.T) {
	t.Parallel()
	p := httpapitest.New()
	p.Set(full(), view.Event{})
	api := httpapi.New(httpapi.Options{Config: httpapitest.Open, Gangs: p, Cluster: p, Jobs: p, Stopper: p, Feed: p.Feed})
	l := listen(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- api.Serve(ctx, l) }()
	c, err := client.New(client.Options{Address: "http://" + l.Addr().String()})
	must.NoError(t, err)
	stream := make(chan error, 1)
	first := make(chan struct{})
	go func() {
		stream <- c.Events(t.Context(), 0, "", func(view.Event, bool) error { close(first); return nil })
	}()
	<-first
	cancel()
	must.NoError(t, <-done, must.Sprint("streams do not hold up the end"))
	var contact *client.ContactError
	must.True(t, errors.As(<-stream, &contact))
	_, err = c.Status(t.Context())
	must.True(t, errors.As(err, &contact))
	must.StrContains(t, err.Error(), l.Addr().String())
	must.StrContains(t, err.Error(), "MUSTER_ADDR")
}

// What answers at the address is no planner.
func TestForeignServer(t *testing.T) {
	t.Parallel()
	for _, answer := range []func(http.ResponseWriter){
		func(w http.ResponseWriter) { http.Error(w, "nginx", 502) },
		func(w http.ResponseWriter) { _, _ = io.WriteString(w, "<html>") },
		func(w http.ResponseWriter) { w.WriteHeader(404); _, _ = io.WriteString(w, `{"error": "x"}`) },
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { answer(w) }))
		defer server.Close()
		c, err := client.New(client.Options{Address: server.URL, From: "MUSTER_ADDR"})
		must.NoError(t, err)
		_, err = c.Status(t.Context())
		var contact *client.ContactError
		must.True(t, errors.As(err, &contact), must.Sprint(err))
	}
	_, err := client.New(client.Options{Address: "ftp://x", From: "-address"})
	must.ErrorContains(t, err, "-address")
}

// The description names every route and every answer obeys it.
func TestOpenAPI(t *testing.T) {
	t.Parallel()
	const golden = "../../docs/openapi.json"
	if *rewrite {
		must.NoError(t, os.WriteFile(golden, httpapi.OpenAPI(), 0o644))
	}
	want, err := os.ReadFile(golden)
	must.NoError(t, err)
	must.Eq(t, "", cmp.Diff(string(want), string(httpapi.OpenAPI())), must.Sprint("the API changed: look at the difference, then go test ./planner/httpapi -rewrite"))
	prose, err := os.ReadFile("../../docs/api.md")
	must.NoError(t, err)

	var doc map[string]any
	must.NoError(t, json.Unmarshal(want, &doc))
	_, url := serve(t, httpapitest.Open())
	_, body := ask(t, "GET", url+"/v1/openapi.json", "", "")
	must.Eq(t, string(want), body)
	ids := map[string]bool{}
	for i := range httpapi.Routes {
		r := &httpapi.Routes[i]
		must.StrContains(t, string(prose), "`"+r.Method+" "+r.Path+"`", must.Sprint("docs/api.md names every route"))
		for _, p := range r.Query {
			must.StrContains(t, string(prose), "`"+p.Name+"`")
		}
		op := dig(doc, "paths", r.Path, strings.ToLower(r.Method)).(map[string]any)
		must.False(t, ids[op["operationId"].(string)], must.Sprint(op["operationId"]))
		ids[op["operationId"].(string)] = true
		if r.Media != "" {
			continue
		}
		body := ""
		switch {
		case r.Large:
			body = `{"hcl": "ok"}`
		case r.Method == http.MethodPost:
			body = `{"reason": "test"}`
		}
		status, answer := ask(t, r.Method, url+fill(r.Path), "", body)
		must.Eq(t, 200, status, must.Sprint(r.Path, answer))
		must.NoError(t, conforms(doc, dig(op, "responses", "200", "content", "application/json", "schema"), answer), must.Sprint(r.Path))
		status, answer = ask(t, r.Method, url+"/v1/gang/x/y", "", "")
		must.NotEq(t, 200, status)
		must.NoError(t, conforms(doc, dig(op, "responses", "default", "content", "application/json", "schema"), answer))
	}
}

func dig(v any, path ...string) any {
	for _, p := range path {
		v = v.(map[string]any)[p]
	}
	return v
}

// conforms checks a JSON document against a schema of the description.
func conforms(doc map[string]any, schema any, document string) error {
	var v any
	if err := json.NewDecoder(bytes.NewBufferString(document)).Decode(&v); err != nil {
		return err
	}
	return conform(doc, schema.(map[string]any), v, "$")
}

func conform(doc, schema map[string]any, v any, at string) error {
	if ref, ok := schema["$ref"].(string); ok {
		return conform(doc, dig(doc, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...).(map[string]any), v, at)
	}
	wrong := func() error { return fmt.Errorf("%s: %v is no %v", at, v, schema["type"]) }
	switch schema["type"] {
	case "string":
		s, ok := v.(string)
		if !ok {
			return wrong()
		}
		if words, ok := schema["enum"].([]any); ok {
			for _, w := range words {
				if w == s {
					return nil
				}
			}
			return fmt.Errorf("%s: %q is none of %v", at, s, words)
		}
	case "boolean":
		if _, ok := v.(bool); !ok {
			return wrong()
		}
	case "integer", "number":
		if _, ok := v.(float64); !ok {
			return wrong()
		}
	case "array":
		list, ok := v.([]any)
		if !ok {
			return wrong()
		}
		for i, item := range list {
			if err := conform(doc, schema["items"].(map[string]any), item, fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
	case "object":
		object, ok := v.(map[string]any)
		if !ok {
			return wrong()
		}
		required, _ := schema["required"].([]any)
		for _, name := range required {
			if _, ok := object[name.(string)]; !ok {
				return fmt.Errorf("%s: %v is missing", at, name)
			}
		}
		properties, _ := schema["properties"].(map[string]any)
		for name, item := range object {
			field, known := properties[name].(map[string]any)
			if more, ok := schema["additionalProperties"].(map[string]any); ok && !known {
				field, known = more, true
			}
			if !known && schema["additionalProperties"] == false {
				return fmt.Errorf("%s.%s is not described", at, name)
			}
			if known {
				if err := conform(doc, field, item, at+"."+name); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
