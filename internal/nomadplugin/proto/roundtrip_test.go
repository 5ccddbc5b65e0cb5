package proto_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
	_ "github.com/hashicorp/go-plugin" // registers messages of its own beside ours
	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/shoenig/test/must"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	"github.com/nomad-muster/muster/internal/nomadplugin/proto/basepb"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/devicepb"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/driverpb"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/hclspecpb"
	"github.com/nomad-muster/muster/internal/nomadplugin/proto/structspb"
)

var files = []protoreflect.FileDescriptor{
	basepb.File_internal_nomadplugin_proto_basepb_base_proto,
	devicepb.File_internal_nomadplugin_proto_devicepb_device_proto,
	driverpb.File_internal_nomadplugin_proto_driverpb_driver_proto,
	hclspecpb.File_internal_nomadplugin_proto_hclspecpb_hclspec_proto,
	structspb.File_internal_nomadplugin_proto_structspb_structs_proto,
}

func messages(in interface {
	Messages() protoreflect.MessageDescriptors
}) (out []protoreflect.MessageDescriptor) {
	for i := range in.Messages().Len() {
		if m := in.Messages().Get(i); !m.IsMapEntry() {
			out = append(append(out, m), messages(m)...)
		}
	}
	return out
}

// Every message with zero, typical and extreme values in every field comes
// back as it was.
func TestRoundTrip(t *testing.T) {
	t.Parallel()
	n := 0
	for _, file := range files {
		for _, m := range messages(file) {
			n++
			t.Run(string(m.FullName()), func(t *testing.T) {
				t.Parallel()
				kind, err := protoregistry.GlobalTypes.FindMessageByName(m.FullName())
				must.NoError(t, err)
				rapid.Check(t, func(t *rapid.T) {
					want := drawMessage(t, kind, 3)
					wire, err := proto.Marshal(want)
					if err != nil {
						t.Fatal(err)
					}
					got := kind.New().Interface()
					if err := proto.Unmarshal(wire, got); err != nil {
						t.Fatal(err)
					}
					if !proto.Equal(want, got) {
						t.Fatalf("-sent +received:\n%s", cmp.Diff(want, got, protocmp.Transform()))
					}
				})
			})
		}
	}
	must.Greater(t, 80, n)
}

// drawMessage fills each field or leaves it out; depth limits messages in
// messages.
func drawMessage(t *rapid.T, kind protoreflect.MessageType, depth int) proto.Message {
	m := kind.New()
	fields := kind.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if (f.Message() != nil && depth == 0) || !rapid.Bool().Draw(t, "has "+string(f.Name())) {
			continue
		}
		switch {
		case f.IsMap():
			for range rapid.IntRange(0, 2).Draw(t, "entries") {
				key := drawScalar(t, f.MapKey()).MapKey()
				value := m.Mutable(f).Map().NewValue()
				if f.MapValue().Message() != nil {
					value = protoreflect.ValueOfMessage(drawNested(t, value.Message(), depth-1))
				} else {
					value = drawScalar(t, f.MapValue())
				}
				m.Mutable(f).Map().Set(key, value)
			}
		case f.IsList():
			for range rapid.IntRange(0, 2).Draw(t, "items") {
				if f.Message() != nil {
					m.Mutable(f).List().Append(protoreflect.ValueOfMessage(drawNested(t, m.Mutable(f).List().NewElement().Message(), depth-1)))
				} else {
					m.Mutable(f).List().Append(drawScalar(t, f))
				}
			}
		case f.Message() != nil:
			m.Set(f, protoreflect.ValueOfMessage(drawNested(t, m.NewField(f).Message(), depth-1)))
		default:
			m.Set(f, drawScalar(t, f))
		}
	}
	return m.Interface()
}

func drawNested(t *rapid.T, empty protoreflect.Message, depth int) protoreflect.Message {
	return drawMessage(t, empty.Type(), depth).ProtoReflect()
}

func drawScalar(t *rapid.T, f protoreflect.FieldDescriptor) protoreflect.Value {
	name := string(f.Name())
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(rapid.Bool().Draw(t, name))
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "\x00", "\U0010FFFF", "a/b\n"})).Draw(t, name))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, name))
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(rapid.OneOf(rapid.Int32(), rapid.SampledFrom([]int32{math.MinInt32, math.MaxInt32})).Draw(t, name))
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(rapid.OneOf(rapid.Int64(), rapid.SampledFrom([]int64{math.MinInt64, math.MaxInt64})).Draw(t, name))
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(rapid.OneOf(rapid.Uint32(), rapid.Just(uint32(math.MaxUint32))).Draw(t, name))
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(rapid.OneOf(rapid.Uint64(), rapid.Just(uint64(math.MaxUint64))).Draw(t, name))
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(rapid.OneOf(rapid.Float64(), rapid.SampledFrom([]float64{
			math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, math.SmallestNonzeroFloat64, math.Copysign(0, -1),
		})).Draw(t, name))
	case protoreflect.EnumKind:
		values := f.Enum().Values()
		known := values.Get(rapid.IntRange(0, values.Len()-1).Draw(t, name)).Number()
		return protoreflect.ValueOfEnum(rapid.SampledFrom([]protoreflect.EnumNumber{known, math.MaxInt32}).Draw(t, name))
	}
	t.Fatalf("no values for fields of kind %v", f.Kind())
	return protoreflect.Value{}
}

// The services' names are what Nomad dials.
func TestServiceNames(t *testing.T) {
	t.Parallel()
	must.Eq(t, "hashicorp.nomad.plugins.base.proto.BasePlugin", basepb.BasePlugin_ServiceDesc.ServiceName)
	must.Eq(t, "hashicorp.nomad.plugins.device.DevicePlugin", devicepb.DevicePlugin_ServiceDesc.ServiceName)
	must.Eq(t, "hashicorp.nomad.plugins.drivers.proto.Driver", driverpb.Driver_ServiceDesc.ServiceName)
}
