package httpapi_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/httpapi/httpapitest"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew")

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
		case r.Path == contract.PathCardReports:
			body = `{"v": 1, "reporter": "r", "seq": 1, "node": "n2", "at": "2026-03-01T12:00:00Z", "cards": [{"id": "GPU-1", "group": "nvidia/gpu/H100", "i": 0, "state": "healthy"}]}`
		case strings.HasPrefix(r.Path, "/v1/card") || strings.HasPrefix(r.Path, "/v1/node/"):
			if body = `{"why": "test"}`; r.Method == http.MethodGet {
				body = ""
			}
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
