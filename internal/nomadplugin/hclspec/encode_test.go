package hclspec

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/shoenig/test/must"
	"github.com/zclconf/go-cty/cty"
	"google.golang.org/protobuf/proto"

	"github.com/nomad-muster/muster/internal/nomadplugin/proto/driverpb"
)

// attr is the most frequent description.
func attr(typ string) *Spec { return &Spec{Attr: &Attr{Type: typ}} }

func required(typ string) *Spec { return &Spec{Attr: &Attr{Type: typ, Required: true}} }

func object(fields map[string]*Spec) *Spec { return &Spec{Object: fields} }

// wide has every kind of description.
var wide = object(map[string]*Spec{
	"name":    required("string"),
	"count":   {Default: &Default{Primary: &Spec{Attr: &Attr{Name: "count", Type: "number"}}, Fallback: &Spec{Literal: &Literal{Value: "max(1, 3)"}}}},
	"flag":    attr("bool"),
	"list":    attr("list(string)"),
	"labels":  attr("map(string)"),
	"shape":   attr("object({w=number, h=number})"),
	"renamed": {Attr: &Attr{Name: "other", Type: "string"}},
	"block":   {BlockValue: &Block{Nested: object(map[string]*Spec{"x": required("number")})}},
	"free":    {BlockAttrs: &BlockAttrs{Type: "string"}},
	"mount":   {BlockList: &BlockList{MaxItems: 2, Nested: object(map[string]*Spec{"path": required("string")})}},
	"set":     {BlockSet: &BlockList{Nested: attr1("v")}},
	"port":    {BlockMap: &BlockMap{Labels: []string{"label"}, Nested: object(map[string]*Spec{"to": attr("number")})}},
	"const":   {Literal: &Literal{Value: `"fixed"`}},
	"pair":    {Array: []*Spec{{Attr: &Attr{Name: "first", Type: "string"}}, {Literal: &Literal{Value: "2"}}}},
})

func attr1(name string) *Spec { return &Spec{Attr: &Attr{Name: name, Type: "string"}} }

type wideConfig struct {
	Name   string            `codec:"name"`
	Count  int               `codec:"count"`
	Flag   *bool             `codec:"flag"`
	List   []string          `codec:"list"`
	Labels map[string]string `codec:"labels"`
	Shape  *struct {
		W float64 `codec:"w"`
		H uint8   `codec:"h"`
	} `codec:"shape"`
	Renamed string `codec:"renamed"`
	Block   *struct {
		X int `codec:"x"`
	} `codec:"block"`
	Free  map[string]string `codec:"free"`
	Mount []struct {
		Path string `codec:"path"`
	} `codec:"mount"`
	Set  []string `codec:"set"`
	Port map[string]struct {
		To *int32 `codec:"to"`
	} `codec:"port"`
	Const string `codec:"const"`
	Pair  []any  `codec:"pair"`
}

// What a user writes arrives in the plugin's struct, from HCL and from the
// JSON that Nomad's API makes of it.
func TestEncodeDecode(t *testing.T) {
	t.Parallel()
	yes, to := true, int32(80)
	want := wideConfig{
		Name: "x86", Count: 3, Flag: &yes, List: []string{"a", "b"}, Labels: map[string]string{"k": "v"},
		Renamed: "r", Free: map[string]string{"A": "1"}, Set: []string{"s"}, Const: "fixed", Pair: []any{"f", int64(2)},
	}
	want.Shape = &struct {
		W float64 `codec:"w"`
		H uint8   `codec:"h"`
	}{0.1, 255}
	want.Block = &struct {
		X int `codec:"x"`
	}{-1}
	want.Mount = []struct {
		Path string `codec:"path"`
	}{{"/a"}, {"/b"}}
	want.Port = map[string]struct {
		To *int32 `codec:"to"`
	}{"http": {&to}, "none": {}}

	vars := Variables(map[string]string{"attr.cpu.arch": "x86"})
	fromHCL, err := EncodeHCL(wide, []byte(`
		name   = attr.cpu.arch
		flag   = true
		list   = ["a", lower("B")]
		labels = { k = "v" }
		shape  = { w = 0.1, h = 255 }
		other  = "r"
		first  = "f"
		block { x = -1 }
		free { A = 1 }
		mount { path = "/a" }
		mount { path = "/b" }
		set { v = "s" }
		set { v = "s" }
		port "http" { to = 80 }
		port "none" {}
	`), vars)
	must.NoError(t, err)
	var fromJSON map[string]any
	must.NoError(t, json.Unmarshal([]byte(`{
		"name": "${attr.cpu.arch}", "flag": true, "list": ["a", "${lower(\"B\")}"], "labels": {"k": "v"},
		"shape": {"w": 0.1, "h": 255}, "other": "r", "first": "f", "block": [{"x": -1}], "free": [{"A": 1}],
		"mount": [{"path": "/a"}, {"path": "/b"}], "set": [{"v": "s"}, {"v": "s"}], "port": [{"http": {"to": 80}, "none": {}}]
	}`), &fromJSON))
	encoded, err := Encode(wide, fromJSON, vars)
	must.NoError(t, err)

	for name, msgpack := range map[string][]byte{"HCL": fromHCL, "JSON": encoded} {
		var got wideConfig
		must.NoError(t, Decode(msgpack, &got), must.Sprint(name))
		must.Eq(t, "", cmp.Diff(want, got), must.Sprint(name))
	}
}

// An attribute that is left out is present as nil.
func TestEncodeUnset(t *testing.T) {
	t.Parallel()
	got, err := Encode(object(map[string]*Spec{"args": attr("list(string)"), "n": attr("number")}), map[string]any{"n": 1}, nil)
	must.NoError(t, err)
	must.Eq(t, "82a461726773c0a16e01", hex.EncodeToString(got))
}

func TestEncodeFaults(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config map[string]any
		want   []string
	}{
		"all at once": {
			map[string]any{"bogus": 1, "flag": "maybe", "count": []any{}, "nonsense": true},
			[]string{
				`Invalid label: No argument or block type is named "bogus".`,
				`Invalid label: No argument or block type is named "nonsense".`,
				`Incorrect attribute value type: Inappropriate value for attribute "flag": a bool is required.`,
				`Incorrect attribute value type: Inappropriate value for attribute "count": number required, but have tuple.`,
				`Missing required argument: The argument "name" is required, but no definition was found.`,
			},
		},
		"too many blocks":  {map[string]any{"name": "x", "mount": []any{map[string]any{"path": "a"}, map[string]any{"path": "b"}, map[string]any{"path": "c"}}}, []string{"mount blocks"}},
		"unknown variable": {map[string]any{"name": "${attr.nothing}"}, []string{"Unsupported attribute"}},
		"bad template":     {map[string]any{"name": "${"}, []string{"Missing expression"}},
		"none":             {nil, []string{"The root value in a JSON-based configuration must be either a JSON object"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Encode(wide, c.config, Variables(map[string]string{"attr.arch": "x86"}))
			must.Error(t, err)
			for _, want := range c.want {
				must.StrContains(t, err.Error(), want)
			}
		})
	}
	_, err := EncodeHCL(wide, []byte("name = \nbogus {"), nil)
	must.Error(t, err)
	_, err = EncodeHCL(wide, []byte(`name = "x"`+"\n"+`bogus = 1`), nil)
	must.ErrorContains(t, err, `An argument named "bogus" is not expected here.`)
	_, err = Encode(nil, map[string]any{}, nil)
	must.ErrorContains(t, err, "no description")
}

func TestValidateListsAllFaults(t *testing.T) {
	t.Parallel()
	err := Validate(object(map[string]*Spec{
		"nothing":  {},
		"missing":  nil,
		"two":      {Attr: &Attr{Type: "string"}, Literal: &Literal{Value: "1"}},
		"type":     attr("strin"),
		"no type":  attr(""),
		"literal":  {Literal: &Literal{Value: "unquoted"}},
		"default":  {Default: &Default{Primary: attr("string"), Fallback: &Spec{Literal: &Literal{Value: "1"}}}},
		"labels":   {BlockMap: &BlockMap{Nested: attr1("x")}},
		"nested":   {BlockValue: &Block{}},
		"too many": {BlockList: &BlockList{MaxItems: 1 << 40, Nested: attr1("x")}},
		"array":    {Array: []*Spec{attr("number")}},
	}))
	for _, want := range []string{
		"nothing: 0 of the fields", "missing: no description", "two: 2 of the fields", `type: type "strin"`, `no type: type ""`,
		`literal: literal "unquoted"`, "default: no name", "labels: a block map needs", "nested: no description", "too many: limit",
		"array[0]: no name",
	} {
		must.ErrorContains(t, err, want)
	}
	must.NoError(t, Validate(wide))
	must.Error(t, Validate(nil))
}

func TestProtoRoundTrip(t *testing.T) {
	t.Parallel()
	must.Eq(t, "", cmp.Diff(wide, FromProto(ToProto(wide))))
	must.Nil(t, FromProto(ToProto(nil)))
	must.Eq(t, &Spec{}, FromProto(ToProto(&Spec{})))
}

func TestVariables(t *testing.T) {
	t.Parallel()
	got := Variables(map[string]string{"a": "1", "a.b": "2", "a.b.c": "3", "x..y": "4", "z.": "5", "": "6", "node.class": "gpu"})
	must.MapContainsKeys(t, got, []string{"a", "node", "env"})
	must.MapLen(t, 3, got)
	must.True(t, got["a"].RawEquals(cty.ObjectVal(map[string]cty.Value{"b": cty.ObjectVal(map[string]cty.Value{"c": cty.StringVal("3")})})))
	must.Eq(t, "4", got["env"].Index(cty.StringVal("x..y")).AsString())
	must.MapEmpty(t, Variables(nil))
}

// The bytes are those that a real Nomad client sent for the same configuration
// and schema.
func TestEncodeMatchesRecordedNomad(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../testdata/nomad-recordings/plugin_nomad-driver-torchrun.jsonl")
	must.NoError(t, err)
	type side struct {
		Hex string `json:"hex"`
	}
	var schema *Spec
	compared := map[string]bool{}
	for line := range bytes.Lines(data) {
		var r struct {
			RPC               string `json:"rpc"`
			Request, Response side
		}
		must.NoError(t, json.Unmarshal(line, &r))
		switch r.RPC {
		case driverpb.Driver_TaskConfigSchema_FullMethodName:
			var m driverpb.TaskConfigSchemaResponse
			unmarshal(t, r.Response.Hex, &m)
			schema = FromProto(m.GetSpec())
		case driverpb.Driver_StartTask_FullMethodName:
			var m driverpb.StartTaskRequest
			unmarshal(t, r.Request.Hex, &m)
			want := m.GetTask().GetMsgpackDriverConfig()
			var config map[string]any
			switch mode := m.GetTask().GetJobName(); mode {
			case "full":
				config = map[string]any{
					"script": "local/train.py", "args": []any{"--lr", "0.1"}, "nproc_per_node": "gpu", "max_restarts": 3,
					"hang_timeout": "15m", "isolate": true, "labels": map[string]any{"a": "b"}, "ratio": 0.5,
				}
			case "starterr", "startrec":
				config = map[string]any{"mode": mode}
			default:
				continue
			}
			got, err := Encode(schema, config, nil)
			must.NoError(t, err)
			must.Eq(t, hex.EncodeToString(want), hex.EncodeToString(got), must.Sprint(m.GetTask().GetJobName()))
			compared[m.GetTask().GetJobName()] = true
		}
	}
	must.Eq(t, map[string]bool{"full": true, "starterr": true, "startrec": true}, compared)
}

func unmarshal(t *testing.T, text string, m proto.Message) {
	t.Helper()
	wire, err := hex.DecodeString(text)
	must.NoError(t, err)
	must.NoError(t, proto.Unmarshal(wire, m))
}
