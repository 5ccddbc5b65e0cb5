package hclspec

import (
	"bytes"
	"math"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-msgpack/v2/codec"
	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/shoenig/test/must"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/msgpack"
	"pgregory.net/rapid"
)

type numbers struct {
	Int   int      `codec:"int"`
	Small int8     `codec:"small"`
	Uint  uint64   `codec:"uint"`
	Float float64  `codec:"float"`
	Half  float32  `codec:"half"`
	Ptr   *int64   `codec:"ptr"`
	Text  string   `codec:"text"`
	Bool  bool     `codec:"bool"`
	Any   any      `codec:"any"`
	List  []int    `codec:"list"`
	Map   labels   `codec:"map"`
	Plain string   // without a tag: never set
	Inner *numbers `codec:"inner"`
}

type labels map[label]int
type label string

func pack(t testing.TB, v any) []byte {
	var out []byte
	must.NoError(t, codec.NewEncoderBytes(&out, handle).Encode(v))
	return out
}

func TestDecode(t *testing.T) {
	t.Parallel()
	seven := int64(7)
	for name, c := range map[string]struct {
		in   map[string]any
		want numbers
	}{
		"empty":            {map[string]any{}, numbers{}},
		"all nil":          {map[string]any{"int": nil, "ptr": nil, "text": nil, "list": nil, "map": nil, "inner": nil}, numbers{}},
		"integers":         {map[string]any{"int": math.MinInt64, "small": -128, "uint": uint64(math.MaxUint64), "ptr": 7}, numbers{Int: math.MinInt64, Small: -128, Uint: math.MaxUint64, Ptr: &seven}},
		"floats":           {map[string]any{"int": 3.0, "float": 3, "half": 0.5}, numbers{Int: 3, Float: 3, Half: 0.5}},
		"numbers as text":  {map[string]any{"float": "0.1", "int": "12", "uint": "1e3"}, numbers{Float: 0.1, Int: 12, Uint: 1000}},
		"text":             {map[string]any{"text": "häh", "any": "x", "bool": true}, numbers{Text: "häh", Any: "x", Bool: true}},
		"collections":      {map[string]any{"list": []any{1, 2}, "map": map[string]any{"a": 1}}, numbers{List: []int{1, 2}, Map: labels{"a": 1}}},
		"empty lists stay": {map[string]any{"list": []any{}, "map": map[string]any{}}, numbers{List: []int{}, Map: labels{}}},
		"nested":           {map[string]any{"inner": map[string]any{"inner": map[string]any{"int": 1}}}, numbers{Inner: &numbers{Inner: &numbers{Int: 1}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got numbers
			must.NoError(t, Decode(pack(t, c.in), &got))
			must.Eq(t, "", cmp.Diff(c.want, got))
		})
	}
}

// A second configuration leaves nothing of the first.
func TestDecodeOverwrites(t *testing.T) {
	t.Parallel()
	got := numbers{Int: 5, List: []int{1}, Map: labels{"old": 1}}
	must.NoError(t, Decode(nil, &got))
	must.Eq(t, 5, got.Int)
	must.NoError(t, Decode(pack(t, map[string]any{"int": nil, "list": nil, "map": map[string]any{"new": 2}}), &got))
	must.Eq(t, numbers{Map: labels{"new": 2}}, got)
}

func TestDecodeListsAllFaults(t *testing.T) {
	t.Parallel()
	var got numbers
	err := Decode(pack(t, map[string]any{
		"int": 1.5, "small": 128, "uint": -1, "float": "much", "ptr": true, "text": 5, "bool": "yes",
		"list": map[string]any{}, "map": []any{}, "half": 1e300, "nobody": 1, "Plain": "x",
		"inner": map[string]any{"list": []any{1, "x", 2.5}, "int": uint64(math.MaxUint64)},
	}), &got)
	must.Error(t, err)
	for _, want := range []string{
		"int: 1.5 is not a whole number", "small: 128 does not fit a int8", "uint: -1 does not fit", `float: is the string "much", want a number`,
		"ptr: is the bool true, want a number", "text: is the number 5, want a string", `bool: is the string "yes"`, "list: is an object, want a list",
		"map: is a list, want a map", "half: 1e+300 does not fit", "nobody: ", "has no field for it", "Plain: ",
		`inner.list[1]: is the string "x"`, "inner.list[2]: 2.5 is not a whole number", "inner.int: 18446744073709551615 does not fit a int",
	} {
		must.StrContains(t, err.Error(), want)
	}
}

func TestDecodeRefusesBadInput(t *testing.T) {
	t.Parallel()
	var got numbers
	for name, in := range map[string]string{
		"a list": "\x90", "a number": "\x05", "cut short": "\x81", "endless map": "\xdf\xff\xff\xff\xff", "endless list": "\xdd\xff\xff\xff\xff",
		"something behind": "\x80\x00", "reserved byte": "\xc1", "endless text": "\xdb\xff\xff\xff\xff",
		"deep": string(bytes.Repeat([]byte{0x91}, 1<<20)),
	} {
		must.Error(t, Decode([]byte(in), &got), must.Sprint(name))
	}
	for _, into := range []any{nil, numbers{}, (*numbers)(nil), new(int), map[string]any{}} {
		must.ErrorContains(t, Decode([]byte("\x80"), into), "want a pointer to a struct")
	}
	var odd struct {
		F func()           `codec:"f"`
		M map[int]int      `codec:"m"`
		E interface{ X() } `codec:"e"`
	}
	err := Decode(pack(t, map[string]any{"f": 1, "m": map[string]any{"a": 1}, "e": 1}), &odd)
	for _, want := range []string{"f: cannot go into", "m: cannot go into", "e: cannot go into"} {
		must.ErrorContains(t, err, want)
	}
}

// Any number that a user can write arrives in a float64 as the nearest one,
// whether Nomad sends it as integer, float or text.
func TestDecodeEveryNumber(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := rapid.Float64().Draw(t, "number")
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return
		}
		text := strconv.FormatFloat(f, 'g', -1, 64)
		n, err := cty.ParseNumberVal(text)
		if err != nil {
			t.Fatal(err)
		}
		v := cty.ObjectVal(map[string]cty.Value{"float": n})
		wire, err := msgpack.Marshal(v, v.Type())
		if err != nil {
			t.Fatal(err)
		}
		var got numbers
		if err := Decode(wire, &got); err != nil {
			t.Fatal(err)
		}
		if got.Float != f {
			t.Fatalf("%s arrived as %v", text, got.Float)
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("\x80"))
	f.Add([]byte("\x82\xa3int\xcb\x3f\xe0\x00\x00\x00\x00\x00\x00\xa4text\xc4\x01x"))
	f.Add([]byte("\x81\xa5inner\x81\xa4list\x93\x01\xc0\xa30.1"))
	f.Add([]byte("\xdf\xff\xff\xff\xff"))
	f.Add([]byte("\x81\xa3any\xd6\xff\x00\x00\x00\x00"))
	f.Add(pack(f, map[string]any{"map": map[string]any{"a": 1}, "uint": uint64(math.MaxUint64)}))
	f.Fuzz(func(t *testing.T, data []byte) {
		var got numbers
		if err := Decode(data, &got); err != nil {
			return
		}
		var again numbers
		if err := Decode(data, &again); err != nil {
			t.Fatalf("the second time: %v", err)
		}
	})
}
