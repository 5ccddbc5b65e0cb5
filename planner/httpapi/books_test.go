package httpapi_test

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"testing"

	"github.com/nomad-muster/muster/planner/httpapi/httpapitest"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// Bad questions are refused with what is wrong with them.
func TestUsageQuestions(t *testing.T) {
	t.Parallel()
	_, address := serve(t, httpapitest.Open())
	for query, want := range map[string]string{
		"by=queue,colour":                  "colour",
		"from=yesterday":                   "from=yesterday",
		"to=2026-13-01":                    "to=2026-13-01",
		"from=2026-03-02&to=2026-03-01":    "before from",
		"from=2026-03-01T12:00:00":         "neither a date nor a time",
		"by=" + url.QueryEscape("queue,,"): "no dimension",
	} {
		status, body := ask(t, "GET", address+"/v1/usage?"+query, "", "")
		must.Eq(t, http.StatusBadRequest, status, must.Sprint(query))
		must.StrContains(t, body, want)
	}
	p, address := serve(t, httpapitest.Open())
	status, body := ask(t, "GET", address+"/v1/usage?by=day,user&from=2026-03-01&to=2026-03-02T12:00:00Z&queue=research&gang=a%2Fb", "", "")
	must.Eq(t, http.StatusOK, status, must.Sprint(body))
	must.SliceContains(t, p.Calls(), `usage 2026-03-01T00:00:00Z to 2026-03-02T12:00:00Z by day,user of queue "research" user "" model "" gang "a/b"`)
}

// nomad-autoscaler's prometheus plugin asks as Prometheus' own client does: a
// form first, and takes one series.
func TestDemandAsPrometheusAnswers(t *testing.T) {
	t.Parallel()
	p, address := serve(t, httpapitest.Open())
	p.SetBooks(view.Usage{}, view.Waste{}, view.Top{}, []view.Demand{{Model: "H100", Cards: 8, Pool: "gpu", Nodes: 3, Gangs: 1}, {Model: "H100", Cards: 4, Pool: "gpu", Nodes: 2, Gangs: 2}, {Model: "L40S", Cards: 4, Pool: "cheap", Nodes: 7, Gangs: 1}}, view.LedgerCheck{})
	const path = "/v1/demand/prometheus/api/v1/query_range"
	value := func(body string) string {
		var answer struct {
			Status string
			Data   struct {
				ResultType string
				Result     []struct {
					Metric map[string]string
					Values [][2]any
				}
			}
		}
		must.NoError(t, json.Unmarshal([]byte(body), &answer), must.Sprint(body))
		must.Eq(t, "success", answer.Status)
		must.Eq(t, "matrix", answer.Data.ResultType)
		must.Len(t, 1, answer.Data.Result)
		must.Len(t, 1, answer.Data.Result[0].Values)
		return answer.Data.Result[0].Values[0][1].(string)
	}
	for query, want := range map[string]string{
		`muster_demand_nodes{model="H100",pool="gpu"}`:        "5",
		`sum(muster_demand_nodes{model="H100", cards = "8"})`: "3",
		`muster_demand_nodes`:                                 "12",
		`muster_demand_gangs{pool="gpu"}`:                     "3",
		`muster_demand_nodes{model="B200"}`:                   "0",
	} {
		form := url.Values{"query": {query}, "start": {"1"}, "end": {"2"}, "step": {"1"}}
		resp, err := http.PostForm(address+path, form)
		must.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		must.NoError(t, errors.Join(err, resp.Body.Close()))
		must.Eq(t, want, value(string(body)), must.Sprint(query))
		_, got := ask(t, "GET", address+path+"?"+form.Encode(), "", "")
		must.Eq(t, want, value(got), must.Sprint(query))
	}
	for _, query := range []string{"", "up", `muster_demand_nodes{model=~"H.*"}`, `rate(muster_demand_nodes[5m])`, `muster_demand_nodes{node="n1"}`} {
		status, body := ask(t, "GET", address+path+"?query="+url.QueryEscape(query), "", "")
		must.Eq(t, http.StatusBadRequest, status, must.Sprint(query))
		must.StrContains(t, body, "bad_data")
	}
}
