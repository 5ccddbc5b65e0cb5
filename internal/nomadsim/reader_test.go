package nomadsim_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// reader rewrites a recording into what must be the same in every performance: identities become names by who they are,
// indexes become the lines in which they arose, times and measurements disappear.
type reader struct {
	cast    *cast
	evals   map[string]string // id -> name
	allocs  map[string]string
	nodes   map[string]string
	indexes map[float64]string
	count   map[string]int // of what was named
	skip    map[string]bool
}

var sceneOrder = []string{"nodes", "hold_pin_release", "stop_requeue", "partial", "exits", "variables", "parse", "drain", "card_fault", "node_loss"}

// skipped are fields that tell of what went before: in the recording, the node that is lost is one that had been drained.
var skipped = map[string]map[string]bool{"node_loss": {"LastDrain": true}}

// cutShort are allocations of which the recording ended before their clients told of them.
var cutShort = map[string][]string{"exits": {"<alloc estop.rank[0] #2>"}}

func newReader(c *cast) *reader {
	return &reader{cast: c, evals: map[string]string{}, allocs: map[string]string{}, nodes: map[string]string{}, indexes: map[float64]string{}, count: map[string]int{}}
}

// payload is the object in an event.
func payload(ev any) (kind string, o map[string]any) {
	p, _ := ev.(map[string]any)["Payload"].(map[string]any)
	for _, k := range []string{"Job", "Evaluation", "Allocation", "Node"} {
		if m, ok := p[k].(map[string]any); ok {
			return k, m
		}
	}
	return "", nil
}

// learn names everything in the order in which the scene shows it.
func (r *reader) learn(s *scene) {
	for _, id := range r.cast.ids {
		r.nodes[id] = "<node>"
	}
	var found []map[string]any
	seen := func(v any) {
		walk(v, func(o map[string]any) {
			if str(o, "ID") != "" && (o["TriggeredBy"] != nil || o["ClientStatus"] != nil) {
				found = append(found, o)
			}
		})
	}
	for _, l := range s.Events {
		seen(l["Events"])
	}
	for _, x := range s.Exchanges {
		seen(x.Response)
	}
	slices.SortStableFunc(found, func(a, b map[string]any) int {
		return cmp.Or(cmp.Compare(num(a, "CreateIndex"), num(b, "CreateIndex")), cmp.Compare(str(a, "Name"), str(b, "Name")))
	})
	for _, o := range found {
		m, as := r.allocs, fmt.Sprintf("alloc %s", o["Name"])
		if o["TriggeredBy"] != nil {
			m, as = r.evals, fmt.Sprintf("eval %s %s", o["JobID"], o["TriggeredBy"])
		}
		if id := str(o, "ID"); m[id] == "" {
			r.count[as]++
			m[id] = fmt.Sprintf("<%s #%d>", as, r.count[as])
		}
	}
	lines := map[string]int{}
	for _, l := range s.Events {
		label := lineLabel(l, r)
		lines[label]++
		if r.indexes[l["Index"].(float64)] == "" {
			r.indexes[l["Index"].(float64)] = fmt.Sprintf("<index of %s #%d>", label, lines[label])
		}
	}
}

// lineLabel says what a line of the stream is about.
func lineLabel(l map[string]any, r *reader) string {
	var parts []string
	for _, ev := range l["Events"].([]any) {
		kind, o := payload(ev)
		typ := ev.(map[string]any)["Type"].(string)
		switch kind {
		case "Job":
			parts = append(parts, fmt.Sprintf("%s job %s", typ, o["ID"]))
		case "Evaluation":
			parts = append(parts, fmt.Sprintf("%s %s %s", typ, r.evals[str(o, "ID")], o["Status"]))
		case "Allocation":
			if typ == "AllocationUpdated" {
				parts = append(parts, fmt.Sprintf("%s %s %s", typ, r.allocs[str(o, "ID")], o["ClientStatus"]))
			}
		case "Node":
			if typ != "AllocationUpdated" {
				parts = append(parts, fmt.Sprintf("%s %s", typ, o["Status"]))
			}
		}
	}
	slices.Sort(parts)
	return strings.Join(slices.Compact(parts), ", ")
}

func byWho(a, b any) int {
	k1, o1 := payload(a)
	k2, o2 := payload(b)
	return cmp.Or(cmp.Compare(k1, k2), cmp.Compare(str(o1, "Name"), str(o2, "Name")), cmp.Compare(num(o1, "CreateIndex"), num(o2, "CreateIndex")))
}

func walk(v any, f func(map[string]any)) {
	switch v := v.(type) {
	case map[string]any:
		f(v)
		for _, k := range slices.Sorted(maps.Keys(v)) {
			walk(v[k], f)
		}
	case []any:
		for _, x := range v {
			walk(x, f)
		}
	}
}

var uuidRule = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
var timeRule = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d`)

var inTextRule = regexp.MustCompile(`index:? \d+`)

// text rewrites ids, names of nodes and cards in a text.
func (r *reader) text(s string) string {
	s = uuidRule.ReplaceAllStringFunc(s, func(id string) string {
		for _, m := range []map[string]string{r.evals, r.allocs, r.nodes} {
			if n := m[id]; n != "" {
				return n
			}
		}
		if id == "00000000-0000-0000-0000-000000000000" {
			return "<nobody>"
		}
		return "<id>"
	})
	s = inTextRule.ReplaceAllString(s, "index <index>")
	for _, cards := range r.cast.cards {
		for _, c := range cards {
			s = strings.ReplaceAll(s, c, "<card>")
		}
	}
	if s == r.cast.device || strings.HasPrefix(s, r.cast.device+"/") {
		s = "<device>"
	}
	for _, n := range r.cast.names {
		if s == n {
			s = "<name>"
		}
	}
	return s
}

// index says when something arose. How clients put together what they tell, and which node came last, is chance: of
// that it tells only what it was.
func (r *reader) index(v float64, own bool) any {
	l := r.indexes[v]
	switch {
	case v == 0:
		return v
	case l == "":
		return "<index>"
	case strings.Contains(l, "AllocationUpdated"):
		return "<index of what a client told>"
	case strings.HasPrefix(l, "<index of Node"):
		return l[:strings.Index(l, " #")] + ">"
	}
	return l
}

// clean rewrites a value. key is the field that it is in.
func (r *reader) clean(key string, v any) any { return r.cleanOf(key, v, false) }

// own says whether the value is a field of an allocation, of a node, or of an event of one.
func (r *reader) cleanOf(key string, v any, own bool) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		if v["Vendor"] != nil {
			v = maps.Clone(v)
			v["Vendor"], v["Type"], v["Name"] = "<vendor>", "<type>", "<model>"
			delete(v, "Attributes")
		}
		own := v["ClientStatus"] != nil || v["SchedulingEligibility"] != nil || v["Topic"] != nil
		for k, x := range v {
			if l, ok := x.([]any); ok && k == "Events" && r.skip["LastDrain"] {
				x = slices.DeleteFunc(slices.Clone(l), func(e any) bool { return str(e, "Subsystem") == "Drain" })
			}
			if r.skip[k] {
				continue
			}
			if l, ok := x.([]any); ok && len(l) == 0 && key == "Devices" && k == "Constraints" {
				x = nil // an event of a job that was there before has [], everything else null: the same to whoever reads it
			}
			if m, ok := x.(map[string]any); ok && k == "Metrics" && v["JobID"] == "d1" {
				x = visits(m)
			}
			nk := r.text(k)
			if key == "ClassEligibility" {
				out["<class>"] = x
				continue
			}
			out[nk] = r.cleanOf(k, x, own)
		}
		return out
	case []any:
		out := make([]any, 0, len(v))
		for _, x := range v {
			out = append(out, r.cleanOf(key, x, own))
		}
		switch key {
		case "ScoreMetaData", "DeviceIDs", "evaluations", "allocations", "evals":
			slices.SortFunc(out, func(a, b any) int { return cmp.Compare(encode(a), encode(b)) })
		}
		return out
	case float64:
		switch {
		case key == "SnapshotIndex":
			return "<snapshot>"
		case strings.HasSuffix(key, "Index"):
			return r.index(v, own)
		case key == "AllocationTime":
			return "<duration>"
		case key == "StatusUpdatedAt", strings.HasSuffix(key, "Time") && v > 1e15, key == "Timestamp":
			return "<time>"
		}
		return v
	case string:
		switch {
		case timeRule.MatchString(v):
			return "<time>"
		case key == "os.signals":
			l := strings.Split(v, ",")
			slices.Sort(l)
			return strings.Join(l, ",")
		case key == "leaf":
			return "<leaf>"
		case key == "ComputedClass":
			return "<class>"
		case key == "unique.advertise.address" || key == "HTTPAddr" || key == "Address" && strings.Contains(v, ":"):
			return "<address>"
		}
		return r.text(v)
	}
	return v
}

// visits is a placement's account where it is chance in which order the nodes were visited until two would do: it only
// has to add up.
func visits(m map[string]any) any {
	out := maps.Clone(m)
	filtered := 0.0
	for _, n := range asMap(m["ConstraintFiltered"]) {
		filtered += n.(float64)
	}
	scored := 0
	if l, ok := m["ScoreMetaData"].([]any); ok {
		scored = len(l)
	}
	out["adds up"] = filtered == num(m, "NodesFiltered") && num(m, "NodesEvaluated") == filtered+float64(scored)
	for _, k := range []string{"ConstraintFiltered", "NodesFiltered", "NodesEvaluated", "ScoreMetaData"} {
		delete(out, k)
	}
	return out
}

func asMap(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

// names keeps of measurements what they are of: the names of the fields, the first of each list.
func names(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, x := range v {
			out[k] = names(x)
		}
		return out
	case []any:
		if len(v) == 0 {
			return []any{}
		}
		return []any{names(v[0])}
	}
	return fmt.Sprintf("%T", v)
}

func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

func clone(v any) any {
	var out any
	if err := json.Unmarshal([]byte(encode(v)), &out); err != nil {
		panic(err)
	}
	return out
}

// sortList puts the elements of a list that a server gives in order of their ids into an order of who they are.
func sortList(v any) any {
	l, ok := v.([]any)
	if !ok {
		return v
	}
	l = slices.Clone(l)
	slices.SortStableFunc(l, func(a, b any) int {
		if str(a, "SchedulingEligibility") != "" { // which node something happened to is chance
			return cmp.Or(cmp.Compare(str(a, "Status"), str(b, "Status")), cmp.Compare(len(encode(object{"": a.(object)["LastDrain"]})), len(encode(object{"": b.(object)["LastDrain"]}))))
		}
		return cmp.Or(cmp.Compare(str(a, "Name"), str(b, "Name")), cmp.Compare(str(a, "TriggeredBy"), str(b, "TriggeredBy")), cmp.Compare(num(a, "CreateIndex"), num(b, "CreateIndex")))
	})
	return l
}

// answers are the calls of a scene, rewritten.
func (r *reader) answers(s *scene) []any {
	var out []any
	for _, x := range s.Exchanges {
		path := x.Method + " " + r.text(x.Path)
		headers := map[string]any{}
		for k, v := range x.Headers {
			k = strings.ToLower(k)
			if k == "x-nomad-index" {
				var f float64
				fmt.Sscan(v, &f)
				headers[k] = r.clean("Index", f)
				continue
			}
			headers[k] = v
		}
		if strings.HasPrefix(x.Path, "/v1/nodes?prefix=") {
			path = "GET /v1/nodes?prefix=<part>"
		}
		if strings.Contains(path, "?cas=") && !strings.HasSuffix(path, "cas=0") {
			path = path[:strings.Index(path, "cas=")] + "cas=<index>"
		}
		answer := sortList(clone(x.Response))
		switch path {
		case "GET /v1/client/stats?node_id=<node>": // what a host measures: only the names
			answer = names(answer)
		case "GET /v1/status/leader":
			answer = "<address>"
		}
		if strings.HasPrefix(x.Note, "node back") { // asked while it was still settling
			delete(headers, "x-nomad-index")
			walk(answer, func(o map[string]any) {
				for _, k := range []string{"Status", "StatusDescription", "ModifyIndex", "ModifyTime", "SnapshotIndex", "PlanAnnotations", "QueuedAllocations", "BlockedEval"} {
					delete(o, k)
				}
			})
		}
		if strings.HasPrefix(x.Note, "held again") { // asked before clients told that they are at it
			if strings.Contains(x.Path, "/allocations") {
				delete(headers, "x-nomad-index")
			}
			walk(answer, func(o map[string]any) {
				if o["ClientStatus"] != nil {
					delete(o, "ModifyIndex")
					delete(o, "ModifyTime")
				}
				if l, ok := o["Events"].([]any); ok {
					o["Events"] = slices.DeleteFunc(l, func(e any) bool { return str(e, "Type") == "Killing" })
				}
			})
		}
		out = append(out, map[string]any{"note": x.Note, "call": path, "status": x.Status, "headers": headers, "answer": r.clean("", answer)})
	}
	return out
}

// story is what the event stream tells, rewritten and in three parts: the lines of the server in order; what clients
// tell of each allocation; what is told of each node.
func (r *reader) story(s *scene) (server []any, allocs map[string][]any, nodes []any) {
	allocs = map[string][]any{}
	byNode := map[string][]any{}
	for _, l := range s.Events {
		var line []any
		events := slices.Clone(l["Events"].([]any))
		slices.SortStableFunc(events, byWho)
		for _, ev := range events {
			e := clone(ev).(map[string]any)
			kind, o := payload(e)
			typ := e["Type"].(string)
			what := r.clean("", e)
			switch {
			case kind == "Node":
				k := str(o, "Name")
				// That a client has told of allocations shows in its node's index alone.
				if typ != "AllocationUpdated" {
					byNode[k] = append(byNode[k], what)
				}
			case kind == "Allocation" && typ == "AllocationUpdated":
				switch str(o, "ClientStatus") { // what only a slow start, a slow end or a slow task shows
				case "pending":
					continue
				case "running":
					if str(o, "DesiredStatus") != "run" || slices.Contains([]string{"e0", "e42", "esig"}, str(o, "JobID")) {
						continue
					}
				}
				k := r.allocs[str(o, "ID")]
				allocs[k] = append(allocs[k], what)
			default:
				line = append(line, what)
			}
		}
		if len(line) > 0 {
			server = append(server, line)
		}
	}
	// A node that is back has three evaluations made within a moment: their order is chance.
	if i := slices.IndexFunc(server, func(l any) bool { return strings.Contains(encode(l), "allocs reconnected") }); i >= 0 {
		slices.SortFunc(server[i+1:], func(a, b any) int { return cmp.Compare(encode(a), encode(b)) })
	}
	for _, k := range slices.Sorted(maps.Keys(byNode)) {
		nodes = append(nodes, byNode[k])
	}
	slices.SortStableFunc(nodes, byLength)
	return server, allocs, nodes
}
