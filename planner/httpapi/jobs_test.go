package httpapi_test

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/httpapi/httpapitest"
	"github.com/nomad-muster/muster/planner/view"
)

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

// Plans are whole decisions: only a few run at a time, whoever asks.
func TestPlansAreBounded(t *testing.T) {
	t.Parallel()
	p, url := serve(t, httpapitest.Open())
	running, most := atomic.Int32{}, atomic.Int32{}
	entered, free := make(chan struct{}, 8), make(chan struct{})
	p.PlanFunc = func(httpapi.Caller, json.RawMessage) (view.Plan, error) {
		most.Store(max(most.Load(), running.Add(1)))
		entered <- struct{}{}
		<-free
		running.Add(-1)
		return view.Plan{}, nil
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if status, body := ask(t, "POST", url+"/v1/plan", "", `{"hcl": "ok"}`); status != 200 {
				t.Error(status, body)
			}
		})
	}
	<-entered
	<-entered
	close(free)
	wg.Wait()
	must.Eq(t, 2, most.Load())
}

// Whatever a submission holds, it is taken or refused with a reason: never a
// panic, never a 500.
func FuzzValidate(f *testing.F) {
	p := httpapitest.New()
	api := httpapi.New(httpapi.Options{Config: httpapitest.Open, Gangs: p, Cluster: p, Jobs: p, Stopper: p, Feed: p.Feed})
	f.Add([]byte(`{"job": {"ID": "a", "Type": "batch", "Meta": {"muster_min": "3"}, "TaskGroups": [{"Name": "g", "Count": 2, "Volumes": {"v": {"PerAlloc": true}}, "Tasks": [{"Name": "t", "Driver": "torchrun", "Config": {"script": "a.py", "nproc_per_node": "gpu"}, "Resources": {"Devices": [{"Name": "nvidia/gpu", "Count": 8}]}}]}]}}`))
	f.Add([]byte(`{"job": {"Job": {"ID": "a", "Constraints": [null, 3], "TaskGroups": [{"Count": -1, "Tasks": [null]}, null]}}}`))
	f.Add([]byte(`{"job": {"ID": "a", "TaskGroups": [{"Count": 1e99, "Tasks": [{"Driver": "torchrun", "Config": {"args": [1, null], "command": {}}}]}]}}`))
	f.Add([]byte(`{"hcl": "x"}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, path := range []string{"/v1/validate", "/v1/jobs"} {
			req := httptest.NewRequest("POST", "http://localhost"+path, bytes.NewReader(body))
			req.RemoteAddr = "127.0.0.1:1"
			req.Header.Set("Content-Type", "application/json")
			w := httptest.NewRecorder()
			api.ServeHTTP(w, req)
			if w.Code != 200 && w.Code != 400 && w.Code != 422 || !json.Valid(w.Body.Bytes()) {
				t.Fatalf("%s: %d %s", path, w.Code, w.Body)
			}
		}
	})
}
