package httpapi_test

import (
	"io"
	"net/http"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/httpapi/httpapitest"
)

func TestReportForms(t *testing.T) {
	t.Parallel()
	_, url := serve(t, httpapitest.Open())
	get := func(query string) (int, string, string) {
		resp, err := http.Get(url + "/v1/report?" + query)
		must.NoError(t, err)
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		must.NoError(t, err)
		return resp.StatusCode, resp.Header.Get("Content-Type"), string(body)
	}
	const week = "from=2026-11-23T00:00:00Z&to=2026-11-30T00:00:00Z"
	for form, want := range map[string][2]string{"": {"text/html; charset=utf-8", "<!doctype html>"}, "&format=json": {"application/json", `"totals"`}, "&format=plots": {"application/json", `"waits"`}} {
		code, media, body := get(week + form)
		must.Eq(t, 200, code)
		must.Eq(t, want[0], media)
		must.StrContains(t, body, want[1])
	}
	for query, want := range map[string]string{"from=yesterday": "neither a date", "from=2026-11-23&to=later": "neither a date", "from=2026-11-23T00:00:00Z&to=2026-11-23": "not after", week + "&format=pdf": "none of html"} {
		code, _, body := get(query)
		must.Eq(t, 400, code)
		must.StrContains(t, body, want)
	}
}
