package wire

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"
)

// A report that always fails is started again with growing pauses, and its
// failure is told once, after the second time.
func TestKeepOpenRestartsWithPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		begin := time.Now()
		var starts []time.Duration
		var told []string
		KeepOpen(ctx, hclog.NewNullLogger(), "Fingerprint", func(int) error { return nil },
			func(context.Context, func(int) error) error {
				starts = append(starts, time.Since(begin))
				switch len(starts) % 3 {
				case 0:
					panic("out of cards")
				case 1:
					return nil
				}
				return errors.New("no driver")
			},
			func(reason error) error {
				told = append(told, reason.Error())
				return nil
			})
		s := time.Second
		must.Eq(t, []time.Duration{0, s, 3 * s, 7 * s, 15 * s, 31 * s, 61 * s, 91 * s}, starts)
		must.Eq(t, []string{"no driver"}, told)
		must.Eq(t, 2*time.Minute, time.Since(begin))
	})
}

// A report that gets messages out before it fails is not failing: short pauses,
// and nobody is told.
func TestKeepOpenMessagesResetPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second+time.Millisecond)
		defer cancel()
		starts, sent := 0, 0
		KeepOpen(ctx, hclog.NewNullLogger(), "Stats", func(int) error { sent++; return nil },
			func(_ context.Context, send func(int) error) error {
				starts++
				return send(1)
			},
			func(error) error { t.Error("told of a failure"); return nil })
		must.Eq(t, 11, starts)
		must.Eq(t, 11, sent)
	})
}

// What a report sends after its end goes nowhere, and concurrent sends go out
// one by one.
func TestKeepOpenGuardsTheStream(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var late func(int) error
	var inSend atomic.Int32
	sent := 0
	send := func(int) error {
		must.Eq(t, 1, inSend.Add(1))
		runtime.Gosched()
		inSend.Add(-1)
		sent++
		return nil
	}
	KeepOpen(ctx, hclog.NewNullLogger(), "TaskEvents", send, func(ctx context.Context, send func(int) error) error {
		late = send
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() { must.NoError(t, send(1)) })
		}
		wg.Wait()
		cancel()
		return nil
	}, nil)
	must.Eq(t, 100, sent)
	must.ErrorContains(t, late(1), "over")
	must.Eq(t, 100, sent)
}

// A send that is refused does not count as a message, and the report learns it.
func TestKeepOpenRefusedMessages(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		refused := errors.New("unit unknown")
		var reason error
		KeepOpen(ctx, hclog.NewNullLogger(), "Fingerprint", func(int) error { return refused },
			func(_ context.Context, send func(int) error) error { return send(1) },
			func(err error) error {
				reason = err
				cancel()
				return err
			})
		must.ErrorIs(t, reason, refused)
	})
}

type broken struct{ text string }

func (b *broken) Error() string { return b.text }

// The classic nil pointer in an error is an error, not the end of the process.
func TestSafely(t *testing.T) {
	t.Parallel()
	log := hclog.NewNullLogger()
	must.NoError(t, Safely("call", log, func() error { return nil }))
	must.EqError(t, Safely("call", log, func() error { return &broken{"no card"} }), "no card")
	must.ErrorContains(t, Safely("call", log, func() error { panic("bug") }), "call panicked: bug")
	must.ErrorContains(t, Safely("call", log, func() error { var b *broken; return b }), "call panicked: runtime error")
}
