//go:build cgo && linux

package nvml

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/xid"
)

const (
	// waitFor bounds one wait for an event.
	waitFor = time.Second
	// After an error the next wait is put off, longer each time: after a card
	// is lost, waiting fails at once for ever.
	firstPause = time.Second
	maxPause   = 5 * time.Second
	// calmAfter is how long waiting must go well to forget earlier errors.
	calmAfter = time.Minute
	// registerEvery is how often cards that appeared are watched as well.
	registerEvery = time.Minute
	// absentPause is how often an absent driver is looked for again.
	absentPause = 30 * time.Second
)

// watch is one registration for events.
type watch struct {
	set   nvml.EventSet
	cards map[nvml.Device]string // UUIDs of the cards that are watched
	life  int                    // of the library
	until time.Time              // when to look for new cards
}

// Watch tells of Xids as the driver reports them. It paces itself after errors,
// so it only returns when ctx ends.
func (s *Source) Watch(ctx context.Context, tell func(card.Sighting), poke func()) error {
	var w *watch
	defer func() { s.free(w) }()
	pause := firstPause
	well := time.Now()
	for ctx.Err() == nil {
		if w == nil || s.stale(w) {
			s.free(w)
			var err error
			if w, err = s.register(); err != nil {
				w = nil
				wait := pause
				if errors.Is(err, errAbsent) || errors.Is(err, errNothing) {
					wait = absentPause
				}
				sleep(ctx, wait)
				pause = min(2*pause, maxPause)
				continue
			}
		}
		event, ret := s.wait(w)
		switch ret {
		case nvml.SUCCESS:
			if sighting, ok := s.sighting(w, event); ok {
				tell(sighting)
			}
			continue
		case nvml.ERROR_TIMEOUT:
			if time.Since(well) > calmAfter {
				pause = firstPause
			}
			continue
		}
		// The scan finds out which card it is; the others are watched again
		// without it.
		poke()
		if ret == nvml.ERROR_UNINITIALIZED || ret == nvml.ERROR_DRIVER_NOT_LOADED {
			s.free(w)
			w = nil
			s.restart()
		} else if ret == nvml.ERROR_GPU_IS_LOST {
			s.free(w)
			w = nil
		}
		sleep(ctx, pause)
		pause = min(2*pause, maxPause)
		well = time.Now()
	}
	return nil
}

// errNothing: no card can be watched.
var errNothing = errors.New("no card reports events")

// register watches every card that answers and can report.
func (s *Source) register() (*watch, error) {
	if err := s.start(); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	set, ret := ask(s, "nvmlEventSetCreate", s.lib.EventSetCreate)
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("watch for events: %s", text(ret))
	}
	w := &watch{set: set, cards: map[nvml.Device]string{}, life: s.life, until: time.Now().Add(registerEvery)}
	count, _ := ask(s, "nvmlDeviceGetCount", s.lib.DeviceGetCount)
	for i := range count {
		handle, ret := s.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		uuid, ret := handle.GetUUID()
		if ret != nvml.SUCCESS {
			continue // lost: watching it would make every wait fail
		}
		// A card that cannot report has the kernel log.
		if _, ret := ask(s, "nvmlDeviceRegisterEvents", func() (struct{}, nvml.Return) {
			return struct{}{}, handle.RegisterEvents(nvml.EventTypeXidCriticalError, set)
		}); ret == nvml.SUCCESS {
			w.cards[handle] = uuid
		}
	}
	if len(w.cards) == 0 {
		set.Free()
		return nil, errNothing
	}
	return w, nil
}

func (s *Source) stale(w *watch) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return w.life != s.life || !s.started || time.Now().After(w.until)
}

func (s *Source) free(w *watch) {
	if w == nil {
		return
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.started && w.life == s.life {
		w.set.Free()
	}
}

// wait waits for one event. The library is not kept from being restarted
// meanwhile: a wait on an ended library fails.
func (s *Source) wait(w *watch) (nvml.EventData, nvml.Return) {
	return w.set.Wait(uint32(waitFor.Milliseconds()))
}

// sighting says what an event is of.
func (s *Source) sighting(w *watch, event nvml.EventData) (card.Sighting, bool) {
	if event.EventType != nvml.EventTypeXidCriticalError {
		return card.Sighting{}, false
	}
	uuid, known := w.cards[event.Device]
	if !known {
		var ret nvml.Return
		if uuid, ret = event.Device.GetUUID(); ret != nvml.SUCCESS {
			uuid = "a card that does not answer"
		}
	}
	code := int(event.EventData)
	e := health.Event{Kind: health.Xid, At: time.Now(), From: name, Code: code, Text: fmt.Sprintf("NVML: Xid %d on %s", code, uuid)}
	if xid.LineDecides(code) && s.options.LinesElsewhere {
		// The kernel log has the line that says how grave it is.
		e.Class = xid.Degraded
		if code == xid.RecoveryAction {
			e.Class = xid.Informational
		}
	}
	t := card.Target{ID: uuid, GI: instance(event.GpuInstanceId), CI: instance(event.ComputeInstanceId)}
	if t.GI >= 0 {
		e.Instance = fmt.Sprintf("gi %d", t.GI)
		if t.CI >= 0 {
			e.Instance += fmt.Sprintf(" ci %d", t.CI)
		}
	}
	return card.Sighting{Target: t, Event: e}, true
}

// instance reads a MIG instance number; 0xFFFFFFFF is none.
func instance(n uint32) int {
	if n > 0xffff {
		return -1
	}
	return int(n)
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
