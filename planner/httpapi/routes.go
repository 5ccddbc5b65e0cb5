package httpapi

import (
	"net/http"

	"github.com/nomad-muster/muster/planner/view"
)

// Route is one thing that the API does.
type Route struct {
	Method  string
	Path    string    // as http.ServeMux takes it
	Role    view.Role // that a caller needs; RoleNone: anybody, no token asked for
	Changes bool      // something: logged with who did it
	Summary string    // an imperative sentence without a full stop
	Query   []Param
	// Body and Answer are values of the types of the JSON documents; nil: none,
	// or not JSON (Media says what then).
	Body   any
	Answer any
	Media  string // of an answer that is no JSON document
	// Large: the body may be a job specification. Most is the bound of its bytes
	// where it is another one.
	Large  bool
	Most   int64
	handle func(s *Server, q *request) (any, error)
}

// Param is one parameter of the query.
type Param struct{ Name, Type, Doc string }

// Bounds of request bodies in bytes.
const (
	smallBody = 64 << 10
	largeBody = 8 << 20
)

func (r *Route) limit() int64 {
	if r.Most > 0 {
		return r.Most
	}
	if r.Large {
		return largeBody
	}
	return smallBody
}

// span are the parameters of a range of time.
var span = []Param{
	{"from", "string", "a date, or a time as RFC 3339; default a day before to"},
	{"to", "string", "likewise; default now"},
}

// Routes of the API, in the order of the documentation.
var Routes = []Route{
	{Method: http.MethodGet, Path: "/v1/gangs", Role: view.RoleViewer, Summary: "List gangs", Answer: view.GangList{}, handle: (*Server).listGangs, Query: []Param{
		{"namespace", "string", "only of this namespace; * or absent: of all"},
		{"queue", "string", "only of this queue"},
		{"prefix", "string", "only whose job id starts with this"},
		{"stage", "string", "only in this stage"},
		{"ended", "boolean", "also those that are over"},
	}},
	{Method: http.MethodGet, Path: "/v1/gang/{namespace}/{job}", Role: view.RoleViewer, Summary: "Read a gang", Answer: view.Gang{}, handle: (*Server).readGang, Query: []Param{
		{"index", "integer", "wait until the gang's index is above this"},
		{"wait", "string", `for at most so long, such as "30s"; default 5m, at most 10m`},
	}},
	{Method: http.MethodGet, Path: "/v1/gang/{namespace}/{job}/why", Role: view.RoleViewer, Summary: "Explain a gang", Answer: view.Why{}, handle: (*Server).why},
	{Method: http.MethodPost, Path: "/v1/gang/{namespace}/{job}/stop", Role: view.RoleSubmitter, Changes: true, Summary: "Stop a gang", Body: view.StopRequest{},
		Answer: view.Stopped{}, handle: (*Server).stop},
	{Method: http.MethodPost, Path: "/v1/parse", Role: view.RoleViewer, Large: true, Summary: "Parse a job", Body: view.Spec{}, Answer: view.Parsed{}, handle: (*Server).parse},
	{Method: http.MethodPost, Path: "/v1/validate", Role: view.RoleViewer, Large: true, Summary: "Validate a job", Body: view.Spec{}, Answer: view.Validation{}, handle: (*Server).validate},
	{Method: http.MethodPost, Path: "/v1/plan", Role: view.RoleViewer, Large: true, Summary: "Plan a job", Body: view.Spec{}, Answer: view.Plan{}, handle: (*Server).plan},
	{Method: http.MethodPost, Path: "/v1/jobs", Role: view.RoleSubmitter, Changes: true, Large: true, Summary: "Submit a job", Body: view.Submission{},
		Answer: view.Submitted{}, handle: (*Server).submit},
	{Method: http.MethodGet, Path: "/v1/queues", Role: view.RoleViewer, Summary: "List queues", Answer: view.QueueList{}, handle: (*Server).listQueues},
	{Method: http.MethodGet, Path: "/v1/queue/{queue}", Role: view.RoleViewer, Summary: "Read a queue", Answer: view.QueueDetail{}, handle: (*Server).readQueue},
	{Method: http.MethodGet, Path: "/v1/nodes", Role: view.RoleViewer, Summary: "List nodes", Answer: view.NodeList{}, handle: (*Server).listNodes},
	{Method: http.MethodGet, Path: "/v1/usage", Role: view.RoleViewer, Summary: "Sum up usage", Answer: view.Usage{}, handle: (*Server).usage, Query: append([]Param{
		{"by", "string", "dimensions by commas: queue, user, model, gang, attempt, hour, day, month; default queue"},
		{"queue", "string", "only of this queue"},
		{"user", "string", "only of this user"},
		{"model", "string", "only of cards of this model"},
		{"gang", "string", "only of this gang (namespace/job)"},
	}, span...)},
	{Method: http.MethodGet, Path: "/v1/usage/waste", Role: view.RoleViewer, Summary: "Find waste", Answer: view.Waste{}, handle: (*Server).waste, Query: span},
	{Method: http.MethodGet, Path: "/v1/top", Role: view.RoleViewer, Summary: "Read what cards do", Answer: view.Top{}, handle: (*Server).top},
	{Method: http.MethodGet, Path: "/v1/demand", Role: view.RoleViewer, Summary: "Read the demand for nodes", Answer: view.DemandList{}, handle: (*Server).demand},
	{Method: http.MethodGet, Path: "/v1/demand/prometheus/api/v1/query_range", Role: view.RoleViewer, Summary: "Read the demand for nodes as Prometheus answers", Media: "application/json",
		handle: (*Server).demandSeries, Query: []Param{{"query", "string", "a selector of muster_demand_nodes or muster_demand_gangs, with = on labels; several series are added up"},
			{"start", "string", "ignored: the answer is of now"}, {"end", "string", "time of the value"}, {"step", "string", "ignored"}}},
	{Method: http.MethodPost, Path: "/v1/demand/prometheus/api/v1/query_range", Role: view.RoleViewer, Summary: "Read the demand for nodes as Prometheus answers a form", Media: "application/json",
		handle: (*Server).demandSeries},
	{Method: http.MethodGet, Path: "/v1/ledger/check", Role: view.RoleOperator, Summary: "Check the ledger", Answer: view.LedgerCheck{}, handle: (*Server).checkLedger},
	{Method: http.MethodGet, Path: "/v1/status", Role: view.RoleViewer, Summary: "Read the planner's status", Answer: view.Status{}, handle: (*Server).status},
	{Method: http.MethodGet, Path: "/v1/events", Role: view.RoleViewer, Summary: "Stream events", Answer: view.Event{}, Media: "text/event-stream", handle: (*Server).events, Query: []Param{
		{"index", "integer", "start after this event; absent: with the next one (the header Last-Event-ID says the same)"},
		{"gang", "string", "only of this gang (namespace/job)"},
		{"queue", "string", "only of this queue"},
	}},
	{Method: http.MethodGet, Path: "/v1/snapshot", Role: view.RoleOperator, Summary: "Capture a decision", Media: "application/json", handle: (*Server).snapshot},
	{Method: http.MethodGet, Path: "/v1/health", Role: view.RoleNone, Summary: "Read the planner's health", Answer: view.Health{}, handle: (*Server).health},
	{Method: http.MethodGet, Path: "/metrics", Role: view.RoleViewer, Summary: "Read metrics", Media: "text/plain", handle: (*Server).metrics},
}

func init() {
	// In init, since the document is made of Routes itself.
	Routes = append(append(Routes, cardRoutes...), Route{Method: http.MethodGet, Path: "/v1/openapi.json", Role: view.RoleNone, Summary: "Read this description", Media: "application/json",
		handle: (*Server).openapi})
}
