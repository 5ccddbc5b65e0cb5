package nomadsim_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"
)

// byLength sorts the stories of nodes: which node it was that something happened to is chance.
func byLength(a, b any) int {
	return cmp.Or(cmp.Compare(len(b.([]any)), len(a.([]any))), cmp.Compare(len(encode(a)), len(encode(b))))
}

func TestScenesAsRecorded(t *testing.T) {
	t.Parallel()
	s := newStage(t, recordedCast())
	played := s.play()
	for _, name := range sceneOrder {
		t.Run(name, func(t *testing.T) {
			rec := readScene(t, name)
			want, got := newReader(s.cast), newReader(s.cast)
			want.skip = skipped[name]
			got.skip = skipped[name]
			want.learn(rec)
			got.learn(played[name])
			compare(t, "answers", want.answers(rec), got.answers(played[name]))
			ws, wa, wn := want.story(rec)
			gs, ga, gn := got.story(played[name])
			if dir := os.Getenv("SCENES_OUT"); dir != "" {
				must.NoError(t, os.WriteFile(dir+"/"+name+".ev", []byte(encode(played[name].Events)), 0o644))
				must.NoError(t, os.WriteFile(dir+"/"+name+".want", []byte(pretty(ws)), 0o644))
				must.NoError(t, os.WriteFile(dir+"/"+name+".got", []byte(pretty(gs)), 0o644))
			}
			compare(t, "server lines", ws, gs)
			for _, k := range cutShort[name] {
				must.MapNotContainsKey(t, wa, k)
				delete(ga, k)
			}
			compare(t, "allocation lines", wa, ga)
			compare(t, "node lines", wn, gn)
		})
	}
}

// TestScenesWithOthers plays the scenes with other nodes, names and cards: what does not hinge on how many nodes there
// are must be told as recorded.
func TestScenesWithOthers(t *testing.T) {
	t.Parallel()
	for _, n := range []int{5, 9} {
		t.Run(fmt.Sprintf("%d nodes", n), func(t *testing.T) {
			t.Parallel()
			c := otherCast(n)
			played := newStage(t, c).play()
			for _, name := range sceneOrder {
				t.Run(name, func(t *testing.T) {
					rec := readScene(t, name)
					want, got := newReader(recordedCast()), newReader(c)
					want.skip, got.skip = skipped[name], skipped[name]
					if name == "parse" { // no node plays in it
						compare(t, "answers", want.answers(rec)[:3], want.answers(played[name])[:3])
						return
					}
					want.learn(rec)
					got.learn(played[name])
					compare(t, "answers", each(want.answers(rec), 4), each(got.answers(played[name]), n))
					ws, _, _ := want.story(rec)
					gs, _, _ := got.story(played[name])
					compare(t, "server lines", each(ws, 4), each(gs, n))
				})
			}
		})
	}
}

// shapes leaves of a value what does not hinge on the number of nodes: of lists what their elements have different, of
// counts how they relate to the number of nodes.
func shapes(key string, v any, n int) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, x := range v {
			switch k {
			case "Metrics", "ScoreMetaData":
				if m, ok := x.(map[string]any); ok {
					x = visits(m)
				}
			case "NodesFiltered", "NodesEvaluated", "ConstraintFiltered":
				continue
			case "Count":
				if v["Tasks"] != nil {
					k = "members"
				}
			}
			out[manyRule.ReplaceAllString(k, "$1...")] = shapes(k, x, n)
		}
		return out
	case []any:
		seen := map[string]any{}
		for _, x := range v {
			x = shapes(key, x, n)
			seen[encode(x)] = x
		}
		var out []any
		for _, k := range slices.Sorted(maps.Keys(seen)) {
			out = append(out, seen[k])
		}
		return out
	case string:
		v = manyRule.ReplaceAllString(v, "$1...")
		return rankRule.ReplaceAllString(v, "[i]$1")
	case float64:
		switch key {
		case "Queued", "Running", "Starting", "Unknown", "Complete", "Lost", "members", "create", "NodesInPool", "dc1", "Place", "Stop", "InPlaceUpdate", "DestructiveUpdate", "Ignore", "rank", "distinct_hosts", "CoalescedFailures", "NodesExhausted", "devices: no devices match request":
			if v >= 3 {
				return fmt.Sprintf("N%+d", int(v)-n)
			}
		case "NormScore", "binpack", "job-anti-affinity", "allocations": // the more, the less
			return "<score>"
		}
	}
	return v
}

var (
	manyRule = regexp.MustCompile(`(<node>|<card>)(,(<node>|<card>))+`)
	rankRule = regexp.MustCompile(`\[\d+\](>?)`)
)

func each(l []any, n int) (out []any) {
	for _, x := range l {
		out = append(out, shapes("", x, n))
	}
	return out
}

func pretty(v any) string {
	b, _ := json.MarshalIndent(v, "", " ")
	return string(b)
}

func compare(t *testing.T, what string, want, got any) {
	t.Helper()
	var out []string
	differ("", clone(want), clone(got), &out)
	if len(out) > 40 {
		out = append(out[:40], fmt.Sprintf("and %d more", len(out)-40))
	}
	if len(out) > 0 {
		t.Errorf("%s differ, recorded and simulated:\n%s", what, strings.Join(out, "\n"))
	}
}

// differ lists the places in which two values differ.
func differ(path string, want, got any, out *[]string) {
	note := func(format string, args ...any) {
		s := path + ": " + fmt.Sprintf(format, args...)
		if len(s) > 1400 {
			s = s[:1400] + "..."
		}
		*out = append(*out, s)
	}
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			note("%s, not %s", encode(got), encode(want))
			return
		}
		keys := slices.Collect(maps.Keys(w))
		for k := range g {
			if _, ok := w[k]; !ok {
				keys = append(keys, k)
			}
		}
		slices.Sort(keys)
		for _, k := range keys {
			at := path
			path = at + "." + k
			switch wv, inW := w[k]; {
			case !inW:
				note("only simulated: %s", encode(g[k]))
			default:
				if gv, inG := g[k]; !inG {
					note("only recorded: %s", encode(wv))
				} else {
					differ(path, wv, gv, out)
				}
			}
			path = at
		}
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			note("recorded %d %s\n    simulated %d %s", len(w), brief(w), len(g), brief(g))
			return
		}
		for i := range w {
			differ(fmt.Sprintf("%s[%d]", path, i), w[i], g[i], out)
		}
	default:
		if encode(want) != encode(got) {
			note("%s, not %s", encode(got), encode(want))
		}
	}
}

// brief tells of a list what its elements are about.
func brief(l []any) string {
	var parts []string
	for _, x := range l {
		s := encode(x)
		if line, ok := x.([]any); ok {
			s = ""
			for _, e := range line {
				m, _ := e.(map[string]any)
				kind, o := payload(m)
				s += fmt.Sprintf("{%v %s %v %v %v}", m["Type"], kind, o["ID"], o["Status"], o["ClientStatus"])
			}
		} else if len(s) > 120 {
			s = s[:120]
		}
		parts = append(parts, s)
	}
	return "[" + strings.Join(parts, "\n      ") + "]"
}

// knownDifferences are the fields that reader_test.go takes out although they differ for certain.
var knownDifferences = []string{"`Resources.Devices[].Constraints`", "`ComputedClass`"}

// TestKnownDifferences holds the page to the list, and shows that nobody tells them apart: of the first that whoever
// decodes it gets the same, of the second that nothing of this module outside the simulated cluster names the field.
// TestNomadCommand shows it of the nomad command.
func TestKnownDifferences(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/nomadsim.md")
	must.NoError(t, err)
	_, table, ok := strings.Cut(string(page), "## Known differences")
	must.True(t, ok)
	var rows []string
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "| ") && !strings.HasPrefix(line, "| Field") {
			rows = append(rows, line)
		}
	}
	must.Len(t, len(knownDifferences), rows)
	for i, d := range knownDifferences {
		must.StrHasPrefix(t, "| "+d, rows[i])
	}
	var lists []int
	for _, text := range []string{"[]", "null"} {
		e := api.Event{Topic: api.TopicJob, Payload: clone(map[string]any{"Job": map[string]any{"TaskGroups": []any{map[string]any{"Tasks": []any{map[string]any{
			"Resources": map[string]any{"Devices": []any{map[string]any{"Name": "gpu", "Constraints": json.RawMessage(text)}}}}}}}}}).(map[string]any)}
		j, err := e.Job()
		must.NoError(t, err)
		lists = append(lists, len(j.TaskGroups[0].Tasks[0].Resources.Devices[0].Constraints))
	}
	must.Eq(t, []int{0, 0}, lists)

	root := os.DirFS("../..")
	read := 0
	must.NoError(t, fs.WalkDir(root, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && (path == "internal/nomadsim" || path == ".git" || d.Name() == "testdata") {
			return cmp.Or(err, fs.SkipDir)
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		text, err := fs.ReadFile(root, path)
		read++
		if strings.Contains(string(text), "ComputedClass") {
			t.Errorf("%s reads ComputedClass, in which the simulated cluster differs from Nomad", path)
		}
		return err
	}))
	must.Greater(t, 100, read)
}
