// Package bandwidth measures how fast one member's bytes reach another, over
// plain TCP on connections that the caller makes.
//
// The taker counts, since what a sender has written may still lie in buffers:
// it lets Warm pass after the first byte, for TCP to open up and for the first
// burst that a shaper lets through, counts for Window, and answers with the
// result. Several connections at once are added up: one alone is bound by a
// single core at some 20 Gbit/s.
//
// What is measured is the way through the kernel's TCP. A fabric that ranks use
// by RDMA is as fast or faster; that it is slower than asked for is found, that
// it reaches its best is not.
package bandwidth

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"sync"
	"time"
)

// The times of one measurement.
const (
	Warm   = 200 * time.Millisecond
	Window = 500 * time.Millisecond
	// limit bounds a measurement for both sides.
	limit = Warm + Window + 5*time.Second
)

// Streams gives how many connections it takes to measure a rate, in Gbit/s.
func Streams(want float64) int { return int(max(1, min(16, math.Ceil(want/10)))) }

// result is the taker's answer: one line of JSON.
type result struct {
	Bytes int64         `json:"bytes"`
	Time  time.Duration `json:"time"`
}

// chunk is what is read and written at once.
const chunk = 256 << 10

// Take counts what comes over a connection and answers. in holds what was read
// from the connection before, if anything.
func Take(conn net.Conn, in io.Reader) error {
	_ = conn.SetDeadline(time.Now().Add(limit))
	buffer := make([]byte, chunk)
	var r result
	var warmed, counting time.Time
	for {
		n, err := in.Read(buffer)
		now := time.Now()
		switch {
		case counting.IsZero() && n > 0 && warmed.IsZero():
			warmed = now.Add(Warm)
		case counting.IsZero() && !warmed.IsZero() && !now.Before(warmed):
			counting = now
		case !counting.IsZero():
			r.Bytes += int64(n)
			r.Time = now.Sub(counting)
		}
		if r.Time >= Window {
			break
		}
		if errors.Is(err, io.EOF) {
			return errors.New("the sender left before the end of the measurement")
		}
		if err != nil {
			return fmt.Errorf("take: %w", err)
		}
	}
	_ = conn.SetWriteDeadline(time.Now().Add(time.Second))
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return err
	}
	// What is still on its way is taken in, so that the answer is not lost to a
	// reset.
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	_, _ = io.CopyBuffer(io.Discard, in, buffer)
	return nil
}

// Send sends over a connection until the taker answers, and gives Gbit/s. in
// holds what was read from the connection before, if anything.
func Send(conn net.Conn, in io.Reader) (float64, error) {
	_ = conn.SetDeadline(time.Now().Add(limit))
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		data := make([]byte, chunk)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if _, err := conn.Write(data); err != nil {
				return
			}
		}
	})
	var r result
	line, err := bufio.NewReader(io.LimitReader(in, 4096)).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &r)
	}
	close(stop)
	_ = conn.SetWriteDeadline(time.Now())
	writer.Wait()
	if err != nil {
		return 0, fmt.Errorf("no answer about what arrived: %w", err)
	}
	if r.Time <= 0 {
		return 0, fmt.Errorf("the other side counted for %v", r.Time)
	}
	return float64(r.Bytes) * 8 / r.Time.Seconds() / 1e9, nil
}

// Measure sends over several connections at once and adds up, in Gbit/s.
func Measure(ctx context.Context, streams int, send func(context.Context) (float64, error)) (float64, error) {
	var mu sync.Mutex
	var sum float64
	var faults []error
	var wg sync.WaitGroup
	for range streams {
		wg.Go(func() {
			rate, err := send(ctx)
			mu.Lock()
			defer mu.Unlock()
			sum += rate
			if err != nil {
				faults = append(faults, err)
			}
		})
	}
	wg.Wait()
	if len(faults) > 0 {
		return 0, faults[0]
	}
	return sum, nil
}
