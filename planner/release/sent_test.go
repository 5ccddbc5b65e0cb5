package release

import (
	"context"
	"testing"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/shoenig/test/must"
)

// A record that did not reach all is sent again to those that it missed, and to
// nobody twice; another record goes to all.
func TestSignalsAreNotRepeated(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := &signaller{fails: map[string]bool{"alloc-1": true}}
	ch := Signals{Nomad: s, Sent: &Sent{}}
	placed := record(3, contract.PhasePlaced, 3)
	must.Error(t, ch.Publish(ctx, placed))
	must.Error(t, ch.Publish(ctx, placed))
	must.Len(t, 1, s.sent["default/alloc-0.train"])
	must.Len(t, 0, s.sent["default/alloc-1.train"])
	s.fails = nil
	must.NoError(t, ch.Publish(ctx, placed))
	for _, m := range []string{"alloc-0", "alloc-1", "alloc-2"} {
		must.Len(t, 1, s.sent["default/"+m+".train"])
	}
	// Sent once more on purpose it goes to all.
	must.NoError(t, ch.Publish(ctx, placed))
	must.Len(t, 2, s.sent["default/alloc-0.train"])
	must.NoError(t, ch.Publish(ctx, record(3, contract.PhaseReleased, 3)))
	must.Len(t, 3, s.sent["default/alloc-0.train"])
}
