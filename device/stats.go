package device

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/nomad-muster/muster/device/card"
	nomad "github.com/nomad-muster/muster/internal/nomadplugin/device"
)

// sampleWithin bounds the wait for one source's measurements.
const sampleWithin = 5 * time.Second

// differ and sameUse compare fingerprints: in anything, and in what decides
// where work may be placed.
func differ(a, b []nomad.Group) bool { return !reflect.DeepEqual(a, b) }

func sameUse(a, b []nomad.Group) bool {
	use := func(groups []nomad.Group) map[string]bool {
		out := map[string]bool{}
		for _, g := range groups {
			for _, d := range g.Devices {
				out[g.ID()+"/"+d.ID] = d.Healthy
			}
		}
		return out
	}
	return maps.Equal(use(a), use(b))
}

// sampler asks the sources for measurements, each at most once at a time: one
// that hangs leaves the others' alone.
type sampler struct {
	sources []Source
	mu      sync.Mutex
	busy    map[string]bool
}

// sample gives what the sources measured in time, by card id.
func (s *sampler) sample(ctx context.Context) map[string]card.Sample {
	ctx, cancel := context.WithTimeout(ctx, sampleWithin)
	defer cancel()
	results := make(chan map[string]card.Sample, len(s.sources))
	asked := 0
	for _, src := range s.sources {
		s.mu.Lock()
		busy := s.busy[src.Name()]
		s.busy[src.Name()] = true
		s.mu.Unlock()
		if busy {
			continue
		}
		asked++
		go func() {
			got, err := src.Sample(ctx)
			s.mu.Lock()
			s.busy[src.Name()] = false
			s.mu.Unlock()
			if err != nil {
				got = nil // the scan says why
			}
			results <- got
		}()
	}
	out := map[string]card.Sample{}
	for range asked {
		select {
		case got := <-results:
			maps.Copy(out, got)
		case <-ctx.Done():
			return out
		}
	}
	return out
}

// Stats sends the measurements of all offered cards, every interval.
func (p *Plugin) Stats(ctx context.Context, interval time.Duration, send func([]nomad.GroupStats) error) error {
	m, err := p.start()
	if err != nil {
		return err
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		v, _, err := m.current(ctx)
		if err != nil {
			return nil
		}
		if err := send(groupStats(v, m.Sample(ctx), time.Now())); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("send statistics: %w", err)
		}
		timer.Reset(max(interval, time.Second))
	}
}

// Sample measures all cards.
func (m *Monitor) Sample(ctx context.Context) map[string]card.Sample {
	m.mu.Lock()
	if m.sampler == nil {
		m.sampler = &sampler{sources: m.parts.Sources, busy: map[string]bool{}}
	}
	s := m.sampler
	m.mu.Unlock()
	return s.sample(ctx)
}

// groupStats lays the measurements out as Nomad shows them. A share of a card
// shows the card's.
func groupStats(v *view, samples map[string]card.Sample, now time.Time) []nomad.GroupStats {
	var out []nomad.GroupStats
	for _, g := range v.groups {
		gs := nomad.GroupStats{Vendor: g.Vendor, Type: g.Type, Name: g.Name, Devices: map[string]nomad.Stats{}}
		for _, d := range g.Devices {
			seen := v.cards[d.ID]
			s, ok := samples[d.ID]
			if !ok {
				s, ok = samples[seen.card.Parent]
			}
			if !ok {
				s = card.Sample{At: now}
			}
			gs.Devices[d.ID] = deviceStats(s, seen)
		}
		out = append(out, gs)
	}
	return out
}

// deviceStats are one card's values: what was measured, its health, and its
// Xids.
func deviceStats(s card.Sample, seen viewed) nomad.Stats {
	out := nomad.Stats{Values: map[string]nomad.Stat{}, At: s.At}
	for _, f := range card.Fields {
		if v, ok := f.Value(&s); ok {
			out.Values[f.Name] = nomad.Stat{Desc: f.Desc, Unit: f.Unit, Float: &v}
		}
	}
	if len(s.Throttle) > 0 {
		why := strings.Join(s.Throttle, ", ")
		out.Values["throttle_reasons"] = nomad.Stat{Desc: "why the clocks are lowered", String: &why}
	}
	level := string(seen.verdict.Level)
	out.Values["health"] = nomad.Stat{Desc: "healthy, suspect, draining or quarantined", String: &level}
	total := int64(0)
	for code, n := range seen.xids {
		count := int64(n)
		total += count
		out.Values[fmt.Sprintf("xid/%d", code)] = nomad.Stat{Desc: "how often this Xid was told", Int: &count}
	}
	if !seen.card.IsNIC() {
		out.Values["xids"] = nomad.Stat{Desc: "Xids told so far", Int: &total}
	}
	switch used, haveUsed := s.MemUsed, s.MemTotal != nil; {
	case used != nil && haveUsed:
		u, t := int64(*used), int64(*s.MemTotal)
		out.Summary = nomad.Stat{Desc: "memory in use", Unit: "MiB", Int: &u, IntMax: &t}
	case s.GPUUtil != nil:
		out.Summary = nomad.Stat{Desc: "utilisation", Unit: "%", Float: s.GPUUtil}
	case s.Rate != nil:
		out.Summary = nomad.Stat{Desc: "link rate", Unit: "Gb/s", Float: s.Rate}
	default:
		out.Summary = nomad.Stat{Desc: "health", String: &level}
	}
	return out
}
