package bandwidth

import (
	"context"
	"io"
	"math"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoenig/test/must"
)

// taker listens and takes on each connection.
func taker(t *testing.T, through func(net.Conn) io.Reader) net.Addr {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_ = Take(conn, through(conn))
			}()
		}
	}()
	return l.Addr()
}

// throttled lets through so many bytes a second, and no burst after a pause.
type throttled struct {
	io.Reader
	rate float64
}

func (r *throttled) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p[:min(len(p), 4096)])
	time.Sleep(time.Duration(float64(n) / r.rate * float64(time.Second)))
	return n, err
}

func send(t *testing.T, to net.Addr) func(context.Context) (float64, error) {
	return func(context.Context) (float64, error) {
		conn, err := net.Dial("tcp", to.String())
		must.NoError(t, err)
		defer conn.Close()
		return Send(conn, conn)
	}
}

// What is measured is what arrives, not what the sender could write. How busy
// the machine is may only make it less.
func TestMeasureThrottled(t *testing.T) {
	t.Parallel()
	to := taker(t, func(c net.Conn) io.Reader { return &throttled{Reader: c, rate: 2e6} })
	for _, streams := range []int{1, 3} {
		rate, err := Measure(t.Context(), streams, send(t, to))
		must.NoError(t, err)
		must.Between(t, 0.0001, rate, 0.016*float64(streams)*1.1)
	}
}

func TestMeasureIsExact(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rate, err := Measure(t.Context(), 3, func(context.Context) (float64, error) {
			here, there := net.Pipe()
			defer here.Close()
			go func() {
				defer there.Close()
				_ = Take(there, &throttled{Reader: there, rate: 2e6})
			}()
			return Send(here, here)
		})
		must.NoError(t, err)
		must.Between(t, 0.048*0.98, rate, 0.048*1.02)
	})
}

func TestMeasureFast(t *testing.T) {
	t.Parallel()
	rate, err := Measure(t.Context(), 2, send(t, taker(t, func(c net.Conn) io.Reader { return c })))
	must.NoError(t, err)
	must.Greater(t, 0.1, rate)
}

// A taker that leaves, or says something else, is an error and no rate.
func TestMeasureRefuses(t *testing.T) {
	t.Parallel()
	for _, answer := range []string{"", "hello\n", "{\"bytes\":5}\n"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must.NoError(t, err)
		go func() {
			conn, err := l.Accept()
			if err == nil {
				_, _ = io.WriteString(conn, answer)
				time.Sleep(50 * time.Millisecond)
				conn.Close()
			}
		}()
		_, err = Measure(t.Context(), 1, send(t, l.Addr()))
		must.Error(t, err)
		l.Close()
	}
	here, there := net.Pipe()
	go func() { _, _ = there.Write(make([]byte, 100)); there.Close() }()
	must.ErrorContains(t, Take(here, here), "left before the end")
}

func TestStreams(t *testing.T) {
	for want, streams := range map[float64]int{0.1: 1, 10: 1, 25: 3, 100: 10, 400: 16} {
		must.Eq(t, streams, Streams(want))
	}
}

// Nor does a rate beyond all numbers ask for none.
func TestStreamsOfAnyRate(t *testing.T) {
	for want, n := range map[float64]int{0: 1, 11: 2, 1e5: 16, 1e300: 16, math.Inf(1): 16} {
		must.Eq(t, n, Streams(want), must.Sprint(want))
	}
}
