package httpapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/config"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/httpapi/client"
	"github.com/nomad-muster/muster/planner/httpapi/httpapitest"
	"github.com/nomad-muster/muster/planner/view"
)

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
	p.SetCards([]view.CardState{
		{ID: "GPU-1", Node: "n2", NodeID: "2", Vendor: "nvidia", Type: "gpu", Model: "H100", State: contract.CardQuarantined, Why: "Xid 79", From: "report", Reported: contract.CardQuarantined, ReportAt: at, Since: at,
			Detail: &view.CardDetail{Evidence: []view.CardEvidence{{State: contract.CardQuarantined, What: "Xid 79", Since: at, Last: at, Times: 1}}, Record: []view.CardNote{{At: at, Kind: "note", Who: "ann"}},
				Orders: []view.CardOrder{}, Xids: []view.CardXid{{Code: 79, Times: 1}}, Measured: &view.CardUse{MemoryTotal: 81559}}},
		{ID: "GPU-2", Node: "n2", NodeID: "2", Vendor: "nvidia", Type: "gpu", Model: "H100", State: contract.CardHealthy, From: "nomad"}}, view.CardBreaker{})
	p.Specs["ok"] = `{"ID": "ok", "Type": "batch", "TaskGroups": [{"Name": "g", "Count": 2, "Tasks": [{"Name": "t", "Driver": "torchrun", "Config": {"script": "a.py", "nproc_per_node": 1}}]}]}`
	return p, p.Serve(t, cfg).URL
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

	// What is not known is not reported as nothing.
	p.SetCluster(nil, nil, func(s *view.Status) { s.State = "starting" })
	for _, path := range []string{"/v1/gang/default/gone", "/v1/gangs", "/v1/queues", "/v1/queue/default", "/v1/nodes"} {
		status, body := ask(t, "GET", url+path, "", "")
		must.Eq(t, 503, status)
		must.StrContains(t, refusal(t, body).Cause, "starting")
	}
	p.SetCluster(nil, nil, func(s *view.Status) { s.Nomad.Address, s.Nomad.Error = "http://127.0.0.1:1", "connection refused" })
	_, body := ask(t, "GET", url+"/v1/gangs", "", "")
	e = refusal(t, body)
	must.StrContains(t, e.Error(), "http://127.0.0.1:1: connection refused")
	must.StrContains(t, e.Error(), "NOMAD_ADDR")
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
		func(w http.ResponseWriter) { http.Error(w, "nginx", http.StatusBadGateway) },
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
