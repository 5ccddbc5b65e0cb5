package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
)

// Pauses between two starts of a report function that ended early.
const (
	minPause = time.Second
	maxPause = 30 * time.Second
)

// KeepOpen runs report until ctx ends, for a stream whose end Nomad answers
// badly: a device plugin loses its devices for good, a driver is called again
// without any pause.
//
// report is given a send function of which it may use copies in other
// goroutines; after its return they fail. A report that returns or panics
// before ctx ends is logged and started again, after 1 s at first and up to
// 30 s later; a message that went out resets the pause. When it fails twice
// without one, failing is called with the reason, so that what was reported
// before does not stand for ever; it may send too.
func KeepOpen[T any](
	ctx context.Context, log hclog.Logger, name string,
	send func(T) error,
	report func(ctx context.Context, send func(T) error) error,
	failing func(reason error) error,
) {
	pause := minPause
	failures := 0
	for {
		gate := &gate[T]{send: send}
		err := Safely(name, log, func() error { return report(ctx, gate.pass) })
		sent := gate.close()
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("returned before its context ended")
		}
		if sent > 0 {
			pause, failures = minPause, 0
		}
		failures++
		log.Error("stream of the plugin ended early, starting it again", "stream", name, "error", err, "pause", pause.String())
		if failures == 2 && failing != nil {
			if err := failing(err); err != nil {
				log.Error("failure could not be reported to nomad", "stream", name, "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		pause = min(2*pause, maxPause)
	}
}

// gate lets messages pass one at a time until it is closed: a gRPC stream
// stands neither concurrent sends nor sends after its end.
type gate[T any] struct {
	mu     sync.Mutex
	closed bool
	sent   int
	send   func(T) error
}

func (g *gate[T]) pass(v T) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errors.New("the stream is over")
	}
	if err := g.send(v); err != nil {
		return err
	}
	g.sent++
	return nil
}

func (g *gate[T]) close() (sent int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	return g.sent
}

// Follow calls receive with every message of a stream. It returns receive's
// error, nil at the plugin's end of the stream, and ended, the call's raw error,
// apart from it.
func Follow[P any](stream grpc.ServerStreamingClient[P], receive func(*P) error) (err, ended error) {
	for {
		p, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		if err := receive(p); err != nil {
			return err, nil
		}
	}
}

// Gate is a send function for one run of report outside KeepOpen, and the
// function that closes it.
func Gate[T any](send func(T) error) (pass func(T) error, end func()) {
	g := &gate[T]{send: send}
	return g.pass, func() { g.close() }
}

// Safely turns a panic of f into an error and logs its stack. An error whose
// text panics (a nil pointer in an error) counts as one.
func Safely(name string, log hclog.Logger, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			log.Error("the plugin panicked", "call", name, "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			err = fmt.Errorf("%s panicked: %v", name, v)
		}
	}()
	if err = f(); err != nil {
		_ = err.Error()
	}
	return err
}
