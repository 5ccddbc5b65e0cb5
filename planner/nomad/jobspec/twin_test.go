package jobspec

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/shoenig/test/must"
)

func TestTwin(t *testing.T) {
	t.Parallel()
	child := edit(t, load(t, "held.json"), func(j map[string]any) {
		j["ID"], j["ParentID"], j["Dispatched"], j["Version"] = "train/dispatch-1", "train", true, 3
		j["ParameterizedJob"] = map[string]any{"Payload": "required"}
		j["Payload"] = []byte{5, 4 << 2, 'h', 'e', 'l', 'l', 'o'}
		task := object(list(object(list(j["TaskGroups"])[0])["Tasks"])[0])
		task["DispatchPayload"] = map[string]any{"File": "input.txt"}
		task["Templates"] = []any{map[string]any{"DestPath": "local/own"}}
	})
	must.True(t, child.IsChild())
	raw, err := Twin(child.Raw())
	must.NoError(t, err)
	twin, err := Parse(raw)
	must.NoError(t, err)
	must.Eq(t, "train/dispatch-1/run", twin.ID)
	must.False(t, twin.IsChild())
	must.Nil(t, twin.ParameterizedJob)
	must.Nil(t, twin.Payload)
	must.True(t, twin.IsHeld())
	must.Eq(t, "train/dispatch-1", TwinOf(twin.ID))
	must.Eq(t, "", TwinOf("/run"))
	must.Eq(t, "", TwinOf("run"))
	must.Eq(t, child.Meta, twin.Meta)
	var tree struct {
		TaskGroups []struct {
			Tasks []struct {
				DispatchPayload any
				Templates       []struct{ DestPath, EmbeddedTmpl, ChangeMode string }
			}
		}
	}
	must.NoError(t, json.Unmarshal(raw, &tree))
	task := tree.TaskGroups[0].Tasks[0]
	must.Nil(t, task.DispatchPayload)
	must.Eq(t, "local/own", task.Templates[0].DestPath)
	must.Eq(t, "local/input.txt", task.Templates[1].DestPath)
	must.Eq(t, `{{ base64Decode "aGVsbG8=" }}`, task.Templates[1].EmbeddedTmpl)
	must.Eq(t, "noop", task.Templates[1].ChangeMode)
}

func TestUnsnap(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		in   []byte
		want []byte
	}{
		"nothing":      {nil, nil},
		"a literal":    {[]byte{3, 2 << 2, 'a', 'b', 'c'}, []byte("abc")},
		"short copy":   {[]byte{7, 2 << 2, 'a', 'b', 'c', 0<<2 | 1, 3}, []byte("abcabca")},
		"copy of two":  {[]byte{6, 2 << 2, 'a', 'b', 'c', 2<<2 | 2, 3, 0}, []byte("abcabc")},
		"copy of four": {[]byte{5, 0, 'a', 3<<2 | 3, 1, 0, 0, 0}, []byte("aaaaa")},
		"long literal": {append([]byte{70, 60 << 2, 69}, bytes.Repeat([]byte{'x'}, 70)...), bytes.Repeat([]byte{'x'}, 70)},
	} {
		got, err := unsnap(test.in)
		must.NoError(t, err, must.Sprint(name))
		must.Eq(t, test.want, got, must.Sprint(name))
	}
	for name, in := range map[string][]byte{
		"too short":          {3, 2 << 2, 'a'},
		"another length":     {4, 2 << 2, 'a', 'b', 'c'},
		"copy from nowhere":  {4, 0<<2 | 1, 3},
		"copy of offset 0":   {5, 0, 'a', 0<<2 | 1, 0},
		"a length above all": {0xff, 0xff, 0xff, 0xff, 0x0f, 0},
		"no length":          {0x80},
	} {
		_, err := unsnap(in)
		must.Error(t, err, must.Sprint(name))
	}
}

func FuzzUnsnap(f *testing.F) {
	f.Add([]byte{7, 2 << 2, 'a', 'b', 'c', 0<<2 | 1, 3})
	f.Add(append([]byte{70, 60 << 2, 69}, bytes.Repeat([]byte{'x'}, 70)...))
	f.Fuzz(func(t *testing.T, in []byte) {
		if out, err := unsnap(in); err == nil && len(out) > payloadMost {
			t.Fatalf("%d bytes out of %d", len(out), len(in))
		}
	})
}
