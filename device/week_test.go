package device_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/device"
	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/kernlog"
	"github.com/nomad-muster/muster/device/pci"
)

// A week of 1,250 nodes of 8 cards with the published failure rates (3.79 and
// 6.50 failures per 1,000 node-days) and many times as many Xids of programs
// that crash. A card is falsely condemned if it is not usable although no
// hardware error was injected into it; a fault is missed if the card stays
// usable right after one that needs a reset or a restart.
func TestSyntheticWeek(t *testing.T) {
	t.Parallel()
	for _, rate := range []float64{3.79, 6.50} {
		t.Run(fmt.Sprint(rate), func(t *testing.T) {
			t.Parallel()
			const nodes, cards, seed = 1250, 8, 20261129
			rng := rand.New(rand.NewPCG(seed, uint64(rate*100)))
			week := 7 * 24 * time.Hour
			start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			when := func() time.Time { return start.Add(time.Duration(rng.Int64N(int64(week)))) }
			programs, faults := []int{13, 31, 43, 45, 32, 69, 8}, []int{48, 64, 74, 79, 95, 109, 119, 120, 140, 63, 94}
			policy := health.Default()
			injected, condemned, missed, lines := 0, 0, 0, 0
			type told struct {
				at          time.Time
				index, code int
				hardware    bool
			}
			for range nodes {
				var events []told
				for range 20 { // a program that crashes often does so on several cards at once
					at, code := when(), programs[rng.IntN(len(programs))]
					for index := range 1 + rng.IntN(cards) {
						events = append(events, told{at, index, code, false})
					}
				}
				for range poisson(rng, rate/1000*7) {
					injected++
					events = append(events, told{when(), rng.IntN(cards), faults[rng.IntN(len(faults))], true})
				}
				slices.SortStableFunc(events, func(a, b told) int { return a.at.Compare(b.at) })
				hit := map[int]bool{}
				state := make([]health.State, cards)
				find := kernlog.Finder{From: "kernel log"}
				for _, e := range events {
					lines++
					record := kernlog.Record{Seq: uint64(lines), At: e.at, Text: kernlog.NVRMLine(pci.Address{Bus: uint8(e.index + 1)}, e.code, "")}
					for _, s := range find.Find(record) {
						i := int(s.Target.Bus.Bus) - 1
						var v health.Verdict
						state[i], v = health.Evolve(state[i], []health.Event{s.Event}, policy)
						hit[i] = hit[i] || e.hardware
						if !v.Level.Usable() && !hit[i] {
							condemned++
						}
						// A remapped row and a contained error do not take the card away.
						if e.hardware && e.code != 63 && e.code != 94 && v.Level.Usable() {
							missed++
						}
					}
				}
			}
			t.Logf("seed %d: %d lines, %d hardware faults, %d falsely condemned, %d missed", seed, lines, injected, condemned, missed)
			must.Zero(t, condemned)
			must.Zero(t, missed)
			must.Positive(t, injected)
		})
	}
}

// poisson draws how many events come where mean are expected.
func poisson(rng *rand.Rand, mean float64) int {
	n := 0
	for at := rng.ExpFloat64(); at < mean; at += rng.ExpFloat64() {
		n++
	}
	return n
}

// A day of faults: an Xid every three seconds on eight cards, counters that
// race, links that flap. What is kept stays small, on disk and in memory.
func TestADayOfFaultsStaysSmall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		s := &stormy{}
		config, err := device.ParseConfig(encode(t, device.New(nil, nil), map[string]any{"state_dir": dir, "sources": []string{"nvml"}, "fingerprint_period": "1h"}))
		must.NoError(t, err)
		m := device.NewMonitor(config, device.Parts{Sources: []device.Source{s}, Logs: []device.Log{s}}, hclog.NewNullLogger())
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); m.Run(ctx) }()
		time.Sleep(24 * time.Hour)
		synctest.Wait()
		status := m.Status()
		must.Len(t, 8, status)
		for _, st := range status {
			text, err := json.Marshal(st.Health)
			must.NoError(t, err)
			must.Less(t, 32<<10, len(text))
			must.Greater(t, uint64(250), st.Health.Xids[13])
		}
		var mem runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&mem)
		t.Logf("%d records; after a day of faults: heap in use %.1f MiB, obtained from the system for all purposes %.1f MiB", s.seq, float64(mem.HeapInuse)/(1<<20), float64(mem.Sys)/(1<<20))
		must.Less(t, 40<<20, mem.HeapInuse)
		cancel()
		<-done
	})
}

// stormy is eight cards and a kernel log in which something happens all the
// time, in portions of ten minutes.
type stormy struct {
	seq   uint64
	begun bool
}

func (*stormy) Name() string { return "nvml" }

func (*stormy) Scan(context.Context) (card.Scan, error) {
	scan := card.Scan{Boot: "b"}
	for i := range 8 {
		scan.Cards = append(scan.Cards, card.Card{ID: fmt.Sprintf("GPU-%d", i), Index: i, Bus: pci.Address{Bus: uint8(i + 1)}, NUMA: -1, GI: -1, CI: -1, Group: card.Group{Vendor: "nvidia", Type: "gpu", Model: "X"},
			Counters: map[string]uint64{health.PCIeReplay: uint64(time.Now().Unix())}, Up: []int{0, 1}[:1+time.Now().Hour()%2]})
	}
	return scan, nil
}

func (*stormy) Sample(context.Context) (map[string]card.Sample, error) { return nil, nil }

func (s *stormy) Next(ctx context.Context) ([]kernlog.Record, error) {
	if !s.begun {
		s.begun = true
		return nil, nil
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(10 * time.Minute):
	}
	codes := []int{13, 31, 43, 13, 48, 79, 94, 119, 63, 901, 902, 154}
	var out []kernlog.Record
	for i := range 200 {
		s.seq++
		out = append(out, kernlog.Record{Boot: "b", Seq: s.seq, At: time.Now().Add(time.Duration(i-200) * 3 * time.Second),
			Text: kernlog.NVRMLine(pci.Address{Bus: uint8(s.seq%8 + 1)}, codes[int(s.seq/8)%len(codes)], "")})
	}
	return out, nil
}
