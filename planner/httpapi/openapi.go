package httpapi

import (
	"encoding/json"
	"reflect"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/view"
)

func (s *Server) openapi(q *request) (any, error) {
	q.streamed = true
	q.w.Header().Set("Content-Type", "application/json")
	_, _ = q.w.Write(OpenAPI())
	return nil, nil
}

// OpenAPI is the API's description (OpenAPI 3.1), made of Routes and of the
// types that they name.
var OpenAPI = sync.OnceValue(func() []byte {
	schemas := map[string]any{}
	paths := map[string]map[string]any{}
	for i := range Routes {
		r := &Routes[i]
		path := paths[r.Path]
		if path == nil {
			path = map[string]any{}
			paths[r.Path] = path
		}
		path[strings.ToLower(r.Method)] = describe(r, schemas)
	}
	doc := map[string]any{
		"openapi": "3.1.0",
		"info": map[string]any{"title": "Muster", "version": "v1", "license": map[string]any{"name": "MPL-2.0", "identifier": "MPL-2.0"},
			"description": "Gang scheduling for HashiCorp Nomad: what waits, why, for what, and what runs where."},
		"paths": paths,
		"components": map[string]any{"schemas": schemas,
			"securitySchemes": map[string]any{"token": map[string]any{"type": "http", "scheme": "bearer"}}},
	}
	out, err := json.MarshalIndent(doc, "", "  ") // maps come out sorted
	if err != nil {
		panic("httpapi: the description cannot be written: " + err.Error())
	}
	return append(out, '\n')
})

func describe(r *Route, schemas map[string]any) map[string]any {
	object := func(v any) map[string]any { return map[string]any{"schema": schema(reflect.TypeOf(v), schemas)} }
	var params []any
	for _, segment := range strings.Split(r.Path, "/") {
		if name, ok := strings.CutPrefix(segment, "{"); ok {
			params = append(params, map[string]any{"name": strings.TrimSuffix(name, "}"), "in": "path", "required": true, "schema": map[string]any{"type": "string"}})
		}
	}
	for _, p := range r.Query {
		params = append(params, map[string]any{"name": p.Name, "in": "query", "description": p.Doc, "schema": map[string]any{"type": p.Type}})
	}
	if r.Path == "/v1/jobs" {
		params = append(params, map[string]any{"name": "Idempotency-Key", "in": "header", "schema": map[string]any{"type": "string"},
			"description": "a submission that is sent again with the same key within a day registers nothing and gets the first one's answer"})
	}
	ok := map[string]any{"description": "done"}
	switch {
	case r.Media != "" && r.Answer != nil:
		ok["content"] = map[string]any{r.Media: object(r.Answer)}
	case r.Media != "":
		ok["content"] = map[string]any{r.Media: map[string]any{"schema": map[string]any{}}}
	case r.Answer != nil:
		ok["content"] = map[string]any{"application/json": object(r.Answer)}
	}
	out := map[string]any{
		"summary": r.Summary, "operationId": operationID(r),
		"responses": map[string]any{"200": ok, "default": map[string]any{"description": "not done", "content": map[string]any{"application/json": object(view.Error{})}}},
	}
	if len(params) > 0 {
		out["parameters"] = params
	}
	if r.Body != nil {
		out["requestBody"] = map[string]any{"required": true, "content": map[string]any{"application/json": object(r.Body)}}
	}
	if r.Role == view.RoleNone {
		out["security"] = []any{}
	} else {
		out["security"] = []any{map[string]any{"token": []any{}}}
		out["description"] = "Needs the role " + string(r.Role) + "."
	}
	return out
}

func operationID(r *Route) string {
	words := strings.Fields(r.Summary)
	id := strings.ToLower(words[0])
	for _, w := range words[1:] {
		if w = strings.ReplaceAll(w, "'s", ""); w != "a" && w != "the" && w != "this" {
			id += strings.ToUpper(w[:1]) + w[1:]
		}
	}
	return id
}

// enums are the values of types that are one of a few words.
var enums = map[reflect.Type][]string{
	reflect.TypeFor[contract.Stage](): append(stageNames(contract.Stages), stageNames([]contract.Stage{contract.StageRefused, contract.StageComplete,
		contract.StageFailed, contract.StageCancelled})...),
	reflect.TypeFor[view.Code](): {string(view.CodeInvalid), string(view.CodeUnauthorized), string(view.CodeForbidden), string(view.CodeNotFound),
		string(view.CodeConflict), string(view.CodeTooLarge), string(view.CodeRejected), string(view.CodeUnavailable), string(view.CodeInternal)},
	reflect.TypeFor[view.EventKind](): {string(view.EventStage), string(view.EventVerdict), string(view.EventMember), string(view.EventEvict),
		string(view.EventUpdate), string(view.EventNode), string(view.EventPlanner), string(view.EventCard)},
}

func stageNames(stages []contract.Stage) []string {
	out := make([]string, len(stages))
	for i, s := range stages {
		out[i] = string(s)
	}
	return out
}

// schema describes a type as encoding/json writes it; structs with a name are
// put into schemas and referred to.
func schema(t reflect.Type, schemas map[string]any) map[string]any {
	if words, ok := enums[t]; ok {
		return map[string]any{"type": "string", "enum": words}
	}
	switch t {
	case reflect.TypeFor[time.Time]():
		return map[string]any{"type": "string", "format": "date-time"}
	case reflect.TypeFor[json.RawMessage]():
		return map[string]any{"type": "object", "description": "a job in Nomad's JSON"}
	case reflect.TypeFor[time.Duration]():
		return map[string]any{"type": "integer", "description": "nanoseconds"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return schema(t.Elem(), schemas)
	case reflect.String:
		return map[string]any{"type": "string"}
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int, reflect.Int64, reflect.Uint64:
		return map[string]any{"type": "integer"}
	case reflect.Float64:
		return map[string]any{"type": "number"}
	case reflect.Slice:
		return map[string]any{"type": "array", "items": schema(t.Elem(), schemas)}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": schema(t.Elem(), schemas)}
	case reflect.Struct:
		name := t.Name()
		if t.PkgPath() == reflect.TypeFor[contract.Exit]().PkgPath() {
			name = "Reported" + name // by a member, beside the planner's own Exit
		}
		if _, done := schemas[name]; !done {
			schemas[name] = nil // a type may hold itself
			schemas[name] = structSchema(t, schemas)
		}
		return map[string]any{"$ref": "#/components/schemas/" + name}
	}
	panic("httpapi: the API cannot carry a " + t.String())
}

func structSchema(t reflect.Type, schemas map[string]any) map[string]any {
	properties := map[string]any{}
	var required []string
	var walk func(t reflect.Type)
	walk = func(t reflect.Type) {
		for i := range t.NumField() {
			f := t.Field(i)
			tag := f.Tag.Get("json")
			if f.Anonymous && tag == "" {
				walk(f.Type)
				continue
			}
			name, options, _ := strings.Cut(tag, ",")
			if name == "" || name == "-" {
				panic("httpapi: " + t.String() + "." + f.Name + " has no name in JSON")
			}
			properties[name] = schema(f.Type, schemas)
			if options == "" {
				required = append(required, name)
			}
		}
	}
	walk(t)
	sort.Strings(required)
	out := map[string]any{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		out["required"] = required
	}
	return out
}
