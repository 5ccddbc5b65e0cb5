package jobdiff

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// flat gives the plain values of a struct by name, those of its maps as name[key]; nil for a nil pointer.
func flat[T any](p *T, skip ...string) map[string]string {
	if p == nil {
		return nil
	}
	out := map[string]string{}
	v := reflect.ValueOf(p).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		if slices.Contains(skip, name) {
			continue
		}
		f := v.Field(i)
		switch f.Kind() {
		case reflect.Bool, reflect.String, reflect.Float32, reflect.Float64:
			out[name] = fmt.Sprint(f.Interface())
		case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
			out[name] = fmt.Sprint(f.Int())
		case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
			out[name] = fmt.Sprint(f.Uint())
		case reflect.Map:
			if f.Type().Elem().Kind() == reflect.String {
				for _, k := range f.MapKeys() {
					out[fmt.Sprintf("%s[%s]", name, k)] = f.MapIndex(k).String()
				}
			}
		}
	}
	return out
}

// flatAny gives everything in a free value by its path.
func flatAny(prefix string, v any, out map[string]string) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			at := k
			if prefix != "" {
				at = fmt.Sprintf("%s[%s]", prefix, k)
			}
			flatAny(at, x, out)
		}
	case []any:
		for i, x := range v {
			flatAny(fmt.Sprintf("%s[%d]", prefix, i), x, out)
		}
	case nil:
		out[prefix] = "nil"
	default:
		out[prefix] = fmt.Sprint(v)
	}
}

func fields(old, new map[string]string, context bool) []*Field {
	all := maps.Clone(old)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, new)
	var out []*Field
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if f := field(name, old[name], new[name], context); f != nil {
			out = append(out, f)
		}
	}
	return out
}

func field(name, old, new string, context bool) *Field {
	f := &Field{Type: Edited, Name: name, Old: old, New: new}
	switch {
	case old == new:
		if !context {
			return nil
		}
		f.Type = None
	case old == "":
		f.Type = Added
	case new == "":
		f.Type = Deleted
	}
	return f
}

// object compares two blocks by their plain values; nil if these are alike.
func object[T any](name string, old, new *T, context bool, skip ...string) *Object {
	return judged(name, flat(old, skip...), flat(new, skip...), context)
}

func judged(name string, old, new map[string]string, context bool) *Object {
	d := &Object{Name: name, Fields: fields(old, new, context)}
	var added, deleted, edited bool
	for _, f := range d.Fields {
		added = added || f.Type == Added
		deleted = deleted || f.Type == Deleted
		edited = edited || f.Type == Edited
	}
	switch {
	case edited || added && deleted:
		d.Type = Edited
	case added:
		d.Type = Added
	case deleted:
		d.Type = Deleted
	default:
		return nil
	}
	return d
}

// set compares blocks that have neither names nor order: what is not on both sides is gone or new.
func set[T any](name string, old, new []*T, context bool) []*Object {
	has := func(list []*T, x *T) bool {
		return slices.ContainsFunc(list, func(y *T) bool { return reflect.DeepEqual(x, y) })
	}
	var out []*Object
	for _, o := range old {
		if !has(new, o) {
			if d := object(name, o, nil, context); d != nil {
				out = append(out, d)
			}
		}
	}
	for _, n := range new {
		if !has(old, n) {
			if d := object(name, nil, n, context); d != nil {
				out = append(out, d)
			}
		}
	}
	slices.SortStableFunc(out, byObject)
	return out
}

// free compares blocks of which nothing is known but their values.
func free(name string, old, new map[string]any, context bool) *Object {
	if len(old) == 0 && len(new) == 0 || reflect.DeepEqual(old, new) {
		return nil
	}
	of, nf := map[string]string{}, map[string]string{}
	flatAny("", old, of)
	flatAny("", new, nf)
	delete(of, "")
	delete(nf, "")
	d := &Object{Type: Edited, Name: name, Fields: fields(of, nf, context)}
	switch {
	case len(old) == 0:
		d.Type = Added
	case len(new) == 0:
		d.Type = Deleted
	}
	return d
}

// freeSet compares lists of such blocks, by their names where they have one.
func freeSet(name string, old, new []map[string]any, context bool) []*Object {
	id := func(m map[string]any) string {
		s, _ := m["Name"].(string)
		return s
	}
	var out []*Object
	var matched []int
	for i, o := range old {
		k := slices.IndexFunc(new, func(n map[string]any) bool { return reflect.DeepEqual(o, n) || id(o) != "" && id(o) == id(n) })
		if k < 0 && len(old) == 1 && len(new) == 1 {
			k = i
		}
		var other map[string]any
		if k >= 0 {
			matched = append(matched, k)
			other = new[k]
		}
		if d := free(name, o, other, context); d != nil {
			out = append(out, d)
		}
	}
	for i, n := range new {
		if !slices.Contains(matched, i) {
			if d := free(name, nil, n, context); d != nil {
				out = append(out, d)
			}
		}
	}
	slices.SortStableFunc(out, byObject)
	return out
}

func stringSet(name string, old, new []string, context bool) *Object {
	d := &Object{Name: name}
	var added, deleted bool
	for _, s := range old {
		if slices.Contains(new, s) {
			if context {
				d.Fields = append(d.Fields, field(name, s, s, true))
			}
			continue
		}
		deleted = true
		d.Fields = append(d.Fields, field(name, s, "", context))
	}
	for _, s := range new {
		if !slices.Contains(old, s) {
			added = true
			d.Fields = append(d.Fields, field(name, "", s, context))
		}
	}
	slices.SortStableFunc(d.Fields, func(a, b *Field) int { return cmp.Or(cmp.Compare(a.Old, b.Old), cmp.Compare(a.New, b.New)) })
	switch {
	case added && deleted:
		d.Type = Edited
	case added:
		d.Type = Added
	case deleted:
		d.Type = Deleted
	case len(d.Fields) == 0:
		return nil
	default:
		d.Type = None
	}
	return d
}

func keys[T any](a, b map[string]T) []string {
	all := map[string]bool{}
	for k := range a {
		all[k] = true
	}
	for k := range b {
		all[k] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// byObject orders differences: edited, added, deleted, then by their fields.
func byObject(a, b *Object) int {
	rank := func(t string) int { return slices.Index([]string{Edited, Added, Deleted, None}, t) }
	if c := cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(rank(a.Type), rank(b.Type)), cmp.Compare(len(a.Fields), len(b.Fields)), cmp.Compare(len(a.Objects), len(b.Objects))); c != 0 {
		return c
	}
	for i := range a.Fields {
		x, y := a.Fields[i], b.Fields[i]
		if c := cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(x.Old, y.Old), cmp.Compare(x.New, y.New)); c != 0 {
			return c
		}
	}
	return 0
}
