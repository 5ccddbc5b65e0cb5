package httpapi

import (
	"testing"

	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

func TestFeed(t *testing.T) {
	t.Parallel()
	f := NewFeed(3, 100)
	empty := f.After(100)
	must.Len(t, 0, empty.Events)
	must.False(t, empty.Gap)
	select {
	case <-empty.Next:
		t.Fatal("woken before anything was published")
	default:
	}

	must.Eq(t, 101, f.Publish(view.Event{Text: "a"}))
	<-empty.Next // woken
	one := f.After(100)
	must.False(t, one.Gap)
	must.Eq(t, 101, one.Last)
	must.Eq(t, []view.Event{{Index: 101, Text: "a"}}, one.Events)

	for _, text := range []string{"b", "c", "d"} {
		f.Publish(view.Event{Text: text})
	}
	must.Eq(t, 104, f.Index())
	tests := []struct {
		name  string
		after uint64
		gap   bool
		texts string
	}{
		{"all that is kept", 101, false, "bcd"},
		{"a part", 103, false, "d"},
		{"nothing new", 104, false, ""},
		{"forgotten", 100, true, "bcd"},
		{"from another life", 2000, true, "bcd"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			tail := f.After(test.after)
			texts := ""
			for _, e := range tail.Events {
				texts += e.Text
			}
			must.Eq(t, test.texts, texts)
			must.Eq(t, test.gap, tail.Gap)
		})
	}
}
