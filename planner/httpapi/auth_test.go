package httpapi_test

import (
	"crypto/sha256"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/config"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/httpapi/httpapitest"
	"github.com/nomad-muster/muster/planner/view"
)

// guarded is a configuration with a token of each role.
func guarded() *config.Config {
	cfg := config.Default()
	token := func(name string, role view.Role, groups, queues []string) config.Token {
		return config.Token{Name: name, Role: role, Groups: groups, Queues: queues, Hash: sha256.Sum256([]byte(name + "-secret-secret-secret"))}
	}
	cfg.Tokens = []config.Token{token("victor", view.RoleViewer, nil, nil), token("sue", view.RoleSubmitter, []string{"team"}, nil),
		token("mallory", view.RoleSubmitter, nil, []string{"other"}), token("oscar", view.RoleOperator, nil, nil), token("rita", view.RoleReporter, nil, nil)}
	other := cfg.Core.Queues[0]
	other.Name, other.Namespaces, other.Users = "other", []string{"lab"}, []string{"mallory"}
	cfg.Core.Queues = append(cfg.Core.Queues, other)
	return cfg
}

// Each role may do what it may, and nothing else; every route is asked.
func TestRoles(t *testing.T) {
	t.Parallel()
	_, url := serve(t, guarded())
	tokens := []struct {
		name string
		role view.Role
	}{{"", view.RoleNone}, {"victor", view.RoleViewer}, {"sue", view.RoleSubmitter}, {"oscar", view.RoleOperator}, {"rita", view.RoleReporter}}
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
	return strings.NewReplacer("{namespace}", "default", "{job}", "train", "{queue}", "default", "{card}", "GPU-1", "{order}", "o1", "{node}", "n2").Replace(path)
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
		{"the scheme in any case", closed, "", []string{"Authorization", "bearer  victor-secret-secret-secret"}, 200, ""},
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
	p.Specs["for oscar"] = strings.Replace(p.Specs["ok"], `"ID"`, `"Meta": {"muster_user": "oscar"}, "ID"`, 1)
	status, body = ask(t, "POST", url+"/v1/jobs", "sue", `{"hcl": "for oscar"}`)
	must.Eq(t, 422, status)
	must.StrContains(t, body, "only operators submit for others")
	status, _ = ask(t, "POST", url+"/v1/jobs", "oscar", `{"hcl": "for oscar"}`)
	must.Eq(t, 200, status)
	status, _ = ask(t, "POST", url+"/v1/jobs", "sue", `{"hcl": "ok"}`)
	must.Eq(t, 200, status)
	must.StrContains(t, p.Calls()[len(p.Calls())-1], "register default/ok by sue")
}
