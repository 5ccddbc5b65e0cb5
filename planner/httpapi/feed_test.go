package httpapi

import (
	"testing"

	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

func TestFeed(t *testing.T) {
	t.Parallel()
	f := NewFeed(3, 100)
	events, next, gap := f.After(100)
	must.Len(t, 0, events)
	must.False(t, gap)
	select {
	case <-next:
		t.Fatal("woken before anything was published")
	default:
	}

	must.Eq(t, 101, f.Publish(view.Event{Text: "a"}))
	<-next // woken
	events, _, gap = f.After(100)
	must.False(t, gap)
	must.Eq(t, []view.Event{{Index: 101, Text: "a"}}, events)

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
			events, _, gap := f.After(test.after)
			texts := ""
			for _, e := range events {
				texts += e.Text
			}
			must.Eq(t, test.texts, texts)
			must.Eq(t, test.gap, gap)
		})
	}
}
