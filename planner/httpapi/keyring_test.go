package httpapi

import (
	"errors"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/view"
)

func TestKeyringForgets(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	k := newKeyring(3, time.Hour)
	k.now = func() time.Time { return now }
	runs := 0
	do := func(key string) {
		_, same, err := k.do(t.Context(), key, []byte(key), func() (view.Submitted, error) { runs++; return view.Submitted{}, nil })
		must.NoError(t, err)
		must.True(t, same)
	}
	for _, key := range []string{"a", "b", "c", "a", "b", "c"} {
		do(key)
	}
	must.Eq(t, 3, runs)
	do("d") // one too many: the oldest goes
	do("b")
	do("c")
	do("d")
	must.Eq(t, 4, runs)
	do("a")
	must.Eq(t, 5, runs, must.Sprint("a is forgotten"))
	must.MapLen(t, 3, k.held)

	now = now.Add(2 * time.Hour)
	do("d")
	must.Eq(t, 6, runs, must.Sprint("too old"))
	must.MapLen(t, 1, k.held)

	for range 10 {
		_, _, err := k.do(t.Context(), "fails", nil, func() (view.Submitted, error) { return view.Submitted{}, errors.New("no") })
		must.Error(t, err)
	}
	must.MapLen(t, 1, k.held, must.Sprint("failures are not kept"))
	now = now.Add(2 * time.Hour)
	do("x")
	must.LessEq(t, 4, len(k.old), must.Sprint("and their keys do not pile up"))

	// A submission that panics is forgotten too: the next with its key runs.
	func() {
		defer func() { must.NotNil(t, recover()) }()
		_, _, _ = k.do(t.Context(), "p", nil, func() (view.Submitted, error) { panic("bug") })
	}()
	_, _, err := k.do(t.Context(), "p", nil, func() (view.Submitted, error) { return view.Submitted{}, nil })
	must.NoError(t, err)
}
