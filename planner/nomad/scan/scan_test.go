package scan_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nomad-muster/muster/planner/nomad/scan"
	"github.com/shoenig/test/must"
)

var texts = []string{
	`{}`, `null`, ` { } `, `{"a":1}`, `{"a" : {"b":[1,"]}",{}]} , "c":"\\\"" , "d":null, "e":-1.5e3}`, "{\n\t\"a\":true\r}", `{"a":[[],[{}]],"":""}`,
	``, `{`, `}`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{,}`, `{"a":1 "b":2}`, `{"a":"x}`, `{"a":1}x`, `{"a":[1,]}`, `[]`, `"a"`, `{a:1}`,
}

// values walks an object, and arrays in it one by one.
func values(text []byte) (map[string][]string, error) {
	out := map[string][]string{}
	err := scan.Whole(text, func(name, value []byte) error {
		var list []string
		if value[0] != '[' {
			out[string(name)] = []string{string(value)}
			return nil
		}
		n, err := scan.Array(value, func(rest []byte) (int, error) {
			n := scan.End(rest)
			list = append(list, string(rest[:n]))
			return n, nil
		})
		if err == nil && n != len(value) {
			err = scan.ErrNotJSON
		}
		out[string(name)] = list
		return err
	})
	return out, err
}

func FuzzWhole(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got, err := values(text)
		var whole map[string]json.RawMessage
		if json.Unmarshal(text, &whole) != nil {
			return // it may be taken for an object; its values are checked when they are read
		}
		must.NoError(t, err)
		for name, value := range whole {
			want := []string{string(value)}
			var list []json.RawMessage
			if value[0] == '[' {
				must.NoError(t, json.Unmarshal(value, &list))
				want = nil
				for _, e := range list {
					want = append(want, string(e))
				}
			}
			quoted, _ := json.Marshal(name)
			if have, ok := got[string(quoted[1:len(quoted)-1])]; ok && !cmp.Equal(want, have) {
				t.Fatalf("%q of %q: %s", name, text, cmp.Diff(want, have))
			}
		}
	})
}

func TestWhatCannotBeFollowed(t *testing.T) {
	t.Parallel()
	for _, text := range texts {
		_, err := values([]byte(text))
		if json.Valid([]byte(text)) && text != `[]` && text != `"a"` {
			must.NoError(t, err, must.Sprint(text))
		} else {
			must.ErrorIs(t, err, scan.ErrNotJSON, must.Sprint(text))
		}
	}
}

// Read reads what encoding/json reads, and refuses what it refuses.
func FuzzRead(f *testing.F) {
	for _, text := range []string{`"plain"`, `"a\nb"`, `"\u00e9"`, "\"\xff\"", "\"a\x01\"", `""`, `"`, `0`, `007`, `12`, `-3`, `18446744073709551615`, `9223372036854775808`, `1e2`, `null`, `true`, `{}`, ``} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		same(t, value, new(string), new(string))
		same(t, value, new(uint64), new(uint64))
		same(t, value, new(int64), new(int64))
	})
}

func same[T comparable](t *testing.T, value []byte, got, want *T) {
	err, wrong := scan.Read(value, got), json.Unmarshal(value, want)
	if (err == nil) != (wrong == nil) || *got != *want {
		t.Fatalf("%q as %T: %v, %v; encoding/json: %v, %v", value, *got, *got, err, *want, wrong)
	}
}
