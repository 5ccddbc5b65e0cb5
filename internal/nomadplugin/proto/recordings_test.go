package proto_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/shoenig/test/must"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/testing/protocmp"
)

// recorded is one line of ../testdata/nomad-recordings.
type recorded struct {
	Launch   int       `json:"launch"`
	RPC      string    `json:"rpc"`
	Request  *recorded `json:"request"`
	Response *recorded `json:"response"`
	Stream   string    `json:"stream"`
	Message  *recorded `json:"message"`
	Error    string    `json:"error"`

	Hex  *string         `json:"hex"`
	JSON json.RawMessage `json:"json"`
}

func recordings(t *testing.T) map[string][]recorded {
	t.Helper()
	files, err := filepath.Glob("../testdata/nomad-recordings/*.jsonl")
	must.NoError(t, err)
	must.Len(t, 2, files)
	out := map[string][]recorded{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		must.NoError(t, err)
		lines := bufio.NewScanner(bytes.NewReader(data))
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			var r recorded
			decoder := json.NewDecoder(bytes.NewReader(lines.Bytes()))
			decoder.DisallowUnknownFields()
			must.NoError(t, decoder.Decode(&r))
			out[filepath.Base(file)] = append(out[filepath.Base(file)], r)
		}
		must.NoError(t, lines.Err())
	}
	return out
}

// Every message that a real Nomad client sent or took is one of ours: it
// decodes without a rest, means what was recorded beside it, and encodes again
// to the same message.
func TestRecordedMessages(t *testing.T) {
	t.Parallel()
	messages := 0
	seen := map[string]bool{}
	for file, lines := range recordings(t) {
		for n, r := range lines {
			method := findMethod(t, r.RPC)
			for _, m := range []struct {
				is   protoreflect.MessageDescriptor
				side *recorded
			}{
				{method.Input(), r.Request}, {method.Output(), r.Response},
				{map[bool]protoreflect.MessageDescriptor{true: method.Input(), false: method.Output()}[r.Stream == "from_nomad"], r.Message},
			} {
				if m.side == nil || m.side.Hex == nil {
					continue
				}
				messages++
				seen[string(m.is.FullName())] = true
				if diff := checkRecorded(t, m.is, m.side); diff != "" {
					t.Errorf("%s line %d, %s of %s: %s", file, n+1, m.is.Name(), r.RPC, diff)
				}
			}
		}
	}
	must.Greater(t, 150, messages)
	t.Logf("%d messages of %d types", messages, len(seen))
	for _, name := range []string{"FingerprintResponse", "StartTaskRequest", "StartTaskResponse", "RecoverTaskRequest", "TaskStatsResponse", "DriverTaskEvent"} {
		must.True(t, seen["hashicorp.nomad.plugins.drivers.proto."+name], must.Sprintf("no %s was recorded", name))
	}
}

func checkRecorded(t *testing.T, is protoreflect.MessageDescriptor, r *recorded) string {
	t.Helper()
	wire, err := hex.DecodeString(*r.Hex)
	must.NoError(t, err)
	kind, err := protoregistry.GlobalTypes.FindMessageByName(is.FullName())
	must.NoError(t, err)

	got := kind.New().Interface()
	if err := proto.Unmarshal(wire, got); err != nil {
		return err.Error()
	}
	if path := unknownFields(got.ProtoReflect(), string(is.Name())); path != "" {
		return "unknown fields in " + path
	}
	want := kind.New().Interface()
	if err := protojson.Unmarshal(r.JSON, want); err != nil {
		return "recorded JSON: " + err.Error()
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		return "bytes and JSON differ (-json +bytes):\n" + diff
	}
	again, err := proto.Marshal(got)
	if err != nil {
		return err.Error()
	}
	if len(again) != len(wire) { // maps have no order on the wire, but a length
		return "encodes to another length"
	}
	back := kind.New().Interface()
	if err := proto.Unmarshal(again, back); err != nil {
		return err.Error()
	}
	return cmp.Diff(got, back, protocmp.Transform())
}

// unknownFields is the path of the first message that has some.
func unknownFields(m protoreflect.Message, path string) (found string) {
	if len(m.GetUnknown()) > 0 {
		return path
	}
	visit := func(v protoreflect.Value, name string) bool {
		if found == "" {
			found = unknownFields(v.Message(), path+"."+name)
		}
		return found == ""
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := string(f.Name())
		switch {
		case f.IsMap() && f.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool { return visit(v, name) })
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				visit(v.List().Get(i), name)
			}
		case !f.IsMap() && !f.IsList() && f.Message() != nil:
			visit(v, name)
		}
		return found == ""
	})
	return found
}

func findMethod(t *testing.T, rpc string) protoreflect.MethodDescriptor {
	t.Helper()
	service, method, ok := strings.Cut(strings.TrimPrefix(rpc, "/"), "/")
	must.True(t, ok)
	d, err := protoregistry.GlobalFiles.FindDescriptorByName(protoreflect.FullName(service))
	must.NoError(t, err)
	m := d.(protoreflect.ServiceDescriptor).Methods().ByName(protoreflect.Name(method))
	must.NotNil(t, m, must.Sprintf("no method %s", rpc))
	return m
}
