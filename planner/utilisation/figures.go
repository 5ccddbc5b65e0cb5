// Package utilisation tells how busy cards are that somebody holds: time-weighted
// means and quantiles of each attempt, what it asked for against what it used,
// and sums by queue, user and model, without keeping a single sample. It is
// pure: samples and assignments come in with their times, figures go out.
//
// # Samples
//
// A sample stands for the time since the card's last sample, at most Reach: what
// lies further back is not known and counts for nothing. The time is the
// planner's own monotonic one at which reports came in, so a node's clock may
// step as it likes. Reports of one life of a device plugin are numbered; one
// that is not newer than the last is ignored, so repeated and late ones do no
// harm. A card that vanishes and returns goes on with its next sample.
//
// # Figures
//
// Activity is in per mille: real activity of the card's units where the device
// plugin measures it, else NVML's utilisation, which counts a card as busy when
// any kernel runs. A card is idle while its activity is below Idle, and never
// busy if it was idle in all samples of an attempt. Memory that was never
// touched is the card's memory less the most that was ever in use.
//
// A histogram of fixed buckets keeps the distribution; histograms add up, so
// quantiles of a queue or a week come from the same figures.
package utilisation

import (
	"encoding/binary"
	"fmt"
	"time"
)

const (
	// Reach is the longest time that one sample stands for.
	Reach = 150 * time.Second
	// Idle is the activity, in per mille, below which a card does nothing.
	Idle = 10
	// Buckets of a histogram: the first is idle, the others 5 % each.
	Buckets = 21
)

// Figures are sums over time; Mean, Quantile and Memory read them.
type Figures struct {
	Sampled     int64 // card-milliseconds that samples stand for
	Activity    int64 // card-milliseconds times per mille
	Idle        int64 // card-milliseconds
	Memory      int64 // MiB-seconds in use
	MemoryTotal int64 // MiB-seconds of the cards
	Energy      int64 // millijoules
	Histogram   [Buckets]int64
}

// Add sums up.
func (f *Figures) Add(o *Figures) {
	f.Sampled += o.Sampled
	f.Activity += o.Activity
	f.Idle += o.Idle
	f.Memory += o.Memory
	f.MemoryTotal += o.MemoryTotal
	f.Energy += o.Energy
	for i := range f.Histogram {
		f.Histogram[i] += o.Histogram[i]
	}
}

// take adds what one sample says of d.
func (f *Figures) take(s *Sample, d time.Duration) {
	ms := d.Milliseconds()
	activity := min(max(int64(s.Activity), 0), 1000)
	f.Sampled += ms
	f.Activity += ms * activity
	bucket := 0
	if activity < Idle {
		f.Idle += ms
	} else {
		bucket = 1 + int(min(activity/50, Buckets-2))
	}
	f.Histogram[bucket] += ms
	f.Memory += int64(s.MemoryUsed) * ms / 1000
	f.MemoryTotal += int64(s.MemoryTotal) * ms / 1000
	f.Energy += int64(s.Power) * ms
}

// Mean activity, 0 to 1; false: nothing was sampled.
func (f *Figures) Mean() (float64, bool) {
	if f.Sampled == 0 {
		return 0, false
	}
	return float64(f.Activity) / 1000 / float64(f.Sampled), true
}

// Quantile of activity, 0 to 1, within its bucket by proportion.
func (f *Figures) Quantile(q float64) (float64, bool) {
	var all int64
	for _, n := range f.Histogram {
		all += n
	}
	if all == 0 {
		return 0, false
	}
	rest := q * float64(all)
	for i, n := range f.Histogram {
		if rest > float64(n) || n == 0 {
			rest -= float64(n)
			continue
		}
		if i == 0 {
			return 0, true
		}
		return (float64(i-1) + rest/float64(n)) / (Buckets - 1), true
	}
	return 1, true
}

// MemoryShare is the mean share of memory in use, 0 to 1.
func (f *Figures) MemoryShare() (float64, bool) {
	if f.MemoryTotal == 0 {
		return 0, false
	}
	return float64(f.Memory) / float64(f.MemoryTotal), true
}

// Pack is the histogram in a few bytes; Unpack reads it.
func (f *Figures) Pack() []byte {
	var b []byte
	for _, n := range f.Histogram {
		b = binary.AppendUvarint(b, uint64(n))
	}
	return b
}

// Unpack reads a histogram into f.
func (f *Figures) Unpack(b []byte) error {
	for i := range f.Histogram {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > 1<<62 {
			return fmt.Errorf("read histogram: bucket %d of %d is not there", i, Buckets)
		}
		f.Histogram[i], b = int64(n), b[size:]
	}
	if len(b) > 0 {
		return fmt.Errorf("read histogram: %d bytes are left over", len(b))
	}
	return nil
}
