package hclspec

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"math/big"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/go-msgpack/v2/codec"
)

// handle reads msgpack into plain Go values: text as string, maps with string
// keys.
var handle = func() *codec.MsgpackHandle {
	h := &codec.MsgpackHandle{}
	h.RawToString = true
	h.MapType = reflect.TypeFor[map[string]any]()
	return h
}()

// Decode reads a configuration as Nomad's client sends it into the struct that
// into points to, whose fields carry `codec:"name"` tags. All faults are
// reported at once, each with the path of its attribute.
//
// An attribute that the user left out arrives as nil and sets its field to
// zero, so a field that must tell absent from zero is a pointer. Numbers arrive
// as integer, as float or, where no float64 is exact (0.1), as text: each is
// taken for a numeric field if it fits, a whole number only for an integer. An
// attribute without a field is a fault of the code, and reported too. No bytes
// at all mean no configuration and leave into as it is.
func Decode(msgpack []byte, into any) (err error) {
	target := reflect.ValueOf(into)
	if target.Kind() != reflect.Pointer || target.IsNil() || target.Elem().Kind() != reflect.Struct {
		return fmt.Errorf("decode configuration: target is a %T, want a pointer to a struct", into)
	}
	if len(msgpack) == 0 {
		return nil
	}
	value, err := unpack(msgpack)
	if err != nil {
		return fmt.Errorf("decode configuration: %w", err)
	}
	d := decoder{}
	d.set(target.Elem(), value, "")
	if err := errors.Join(d.faults...); err != nil {
		return fmt.Errorf("decode configuration: %w", err)
	}
	return nil
}

func unpack(msgpack []byte) (value any, err error) {
	defer func() { // the codec panics on some malformed input
		if v := recover(); v != nil {
			err = fmt.Errorf("malformed msgpack: %v", v)
		}
	}()
	d := codec.NewDecoderBytes(msgpack, handle)
	if err := d.Decode(&value); err != nil {
		return nil, fmt.Errorf("malformed msgpack: %w", err)
	}
	if rest := len(msgpack) - d.NumBytesRead(); rest != 0 {
		return nil, fmt.Errorf("malformed msgpack: %d bytes after its end", rest)
	}
	return value, nil
}

type decoder struct{ faults []error }

func (d *decoder) fault(path, format string, args ...any) {
	if path == "" {
		path = "configuration"
	}
	d.faults = append(d.faults, fmt.Errorf("%s: %s", path, fmt.Sprintf(format, args...)))
}

// set puts one unpacked value into a Go value of any kind that a configuration
// struct may have.
func (d *decoder) set(to reflect.Value, v any, path string) {
	if v == nil {
		to.SetZero()
		return
	}
	switch to.Kind() {
	case reflect.Pointer:
		p := reflect.New(to.Type().Elem())
		d.set(p.Elem(), v, path)
		to.Set(p)
	case reflect.Struct:
		d.setStruct(to, v, path)
	case reflect.Map:
		d.setMap(to, v, path)
	case reflect.Slice:
		list, ok := v.([]any)
		if !ok {
			d.fault(path, "is %s, want a list", kindOf(v))
			return
		}
		s := reflect.MakeSlice(to.Type(), len(list), len(list))
		for i, e := range list {
			d.set(s.Index(i), e, fmt.Sprintf("%s[%d]", path, i))
		}
		to.Set(s)
	case reflect.Interface:
		if to.NumMethod() != 0 {
			d.fault(path, "cannot go into a %s", to.Type())
			return
		}
		to.Set(reflect.ValueOf(v))
	case reflect.String:
		s, ok := v.(string)
		if !ok {
			d.fault(path, "is %s, want a string", kindOf(v))
			return
		}
		to.SetString(s)
	case reflect.Bool:
		b, ok := v.(bool)
		if !ok {
			d.fault(path, "is %s, want a bool", kindOf(v))
			return
		}
		to.SetBool(b)
	default:
		d.setNumber(to, v, path)
	}
}

func (d *decoder) setStruct(to reflect.Value, v any, path string) {
	m, ok := v.(map[string]any)
	if !ok {
		d.fault(path, "is %s, want an object", kindOf(v))
		return
	}
	fields := make(map[string]reflect.Value, to.NumField())
	for i := range to.NumField() {
		if name, _, _ := strings.Cut(to.Type().Field(i).Tag.Get("codec"), ","); name != "" && name != "-" {
			fields[name] = to.Field(i)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		field, ok := fields[name]
		if !ok {
			d.fault(join(path, name), "%s has no field for it", to.Type())
			continue
		}
		d.set(field, m[name], join(path, name))
	}
}

func (d *decoder) setMap(to reflect.Value, v any, path string) {
	m, ok := v.(map[string]any)
	if !ok {
		d.fault(path, "is %s, want a map", kindOf(v))
		return
	}
	if to.Type().Key().Kind() != reflect.String {
		d.fault(path, "cannot go into a %s", to.Type())
		return
	}
	out := reflect.MakeMapWithSize(to.Type(), len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		e := reflect.New(to.Type().Elem()).Elem()
		d.set(e, m[name], join(path, name))
		out.SetMapIndex(reflect.ValueOf(name).Convert(to.Type().Key()), e)
	}
	to.Set(out)
}

func (d *decoder) setNumber(to reflect.Value, v any, path string) {
	n, ok := number(v)
	if !ok {
		d.fault(path, "is %s, want a number", kindOf(v))
		return
	}
	fits := false
	switch {
	case to.CanInt():
		if !n.IsInt() {
			d.fault(path, "%v is not a whole number", v)
			return
		}
		if i, acc := n.Int64(); acc == big.Exact && !to.OverflowInt(i) {
			fits = true
			to.SetInt(i)
		}
	case to.CanUint():
		if !n.IsInt() {
			d.fault(path, "%v is not a whole number", v)
			return
		}
		if u, acc := n.Uint64(); acc == big.Exact && !to.OverflowUint(u) {
			fits = true
			to.SetUint(u)
		}
	case to.CanFloat():
		if f, _ := n.Float64(); !math.IsInf(f, 0) && !to.OverflowFloat(f) {
			fits = true
			to.SetFloat(f)
		}
	default:
		d.fault(path, "cannot go into a %s", to.Type())
		return
	}
	if !fits {
		d.fault(path, "%v does not fit a %s", v, to.Type())
	}
}

func number(v any) (*big.Float, bool) {
	const precision = 512 // cty's own
	n := new(big.Float).SetPrec(precision)
	switch v := v.(type) {
	case int64:
		return n.SetInt64(v), true
	case uint64:
		return n.SetUint64(v), true
	case float64:
		if math.IsNaN(v) {
			return nil, false
		}
		return n.SetFloat64(v), true
	case float32:
		return number(float64(v))
	case string:
		n, _, err := big.ParseFloat(v, 10, precision, big.ToNearestEven)
		return n, err == nil
	}
	return nil, false
}

func kindOf(v any) string {
	switch v := v.(type) {
	case string:
		return fmt.Sprintf("the string %q", v)
	case bool:
		return fmt.Sprintf("the bool %t", v)
	case map[string]any:
		return "an object"
	case []any:
		return "a list"
	}
	return fmt.Sprintf("the number %v", v)
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
