//go:build cgo && linux

package nvml

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/nomad-muster/muster/device/card"
)

// Source lists NVIDIA's cards.
type Source struct {
	options Options

	// mu keeps the library from being started and ended while it is asked. The
	// library itself may be asked from several threads.
	mu      sync.RWMutex
	lib     nvml.Interface
	started bool
	life    int             // how often the library was started
	symbols map[string]bool // which functions the driver has

	memory sync.Mutex
	links  map[string]map[int]remote // what is at the far end of links, by UUID
	gpm    map[string]nvml.GpmSample // the last activity sample, by UUID
	noGPM  map[string]bool
}

// New makes the source. The library is opened at the first scan.
func New(o Options) *Source {
	var options []nvml.LibraryOption
	if o.Library != "" {
		options = append(options, nvml.WithLibraryPath(o.Library))
	}
	return With(nvml.New(options...), o)
}

// With makes the source of a given library, such as a scripted one.
func With(lib nvml.Interface, o Options) *Source {
	return &Source{options: o, lib: lib, symbols: map[string]bool{}, links: map[string]map[int]remote{}, gpm: map[string]nvml.GpmSample{}, noGPM: map[string]bool{}}
}

// Name is "nvml".
func (s *Source) Name() string { return name }

// errAbsent is the absence of the driver, which is no fault.
var errAbsent = errors.New("NVML is absent")

// errUnloaded is an absence that somebody may want to mend.
var errUnloaded = fmt.Errorf("%w: the library is there, but the driver is not loaded (modprobe nvidia): NVIDIA cards are not seen", errAbsent)

// start makes the library ready. Where it is or becomes unusable, the next call
// tries again.
func (s *Source) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started {
		return nil
	}
	switch ret := s.lib.Init(); ret {
	case nvml.SUCCESS, nvml.ERROR_ALREADY_INITIALIZED:
		s.started = true
		s.life++
		s.symbols = map[string]bool{}
		return nil
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		library := s.options.Library
		if library == "" {
			library = "libnvidia-ml.so.1"
		}
		return fmt.Errorf("%w: %s cannot be opened, so there is no NVIDIA driver here: NVIDIA cards are not seen", errAbsent, library)
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return errUnloaded
	default:
		return fmt.Errorf("start NVML: %s", text(ret))
	}
}

// restart ends the library, so that the next start begins anew.
func (s *Source) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started {
		s.lib.Shutdown()
		s.started = false
		s.memory.Lock()
		s.links, s.gpm, s.noGPM = map[string]map[int]remote{}, map[string]nvml.GpmSample{}, map[string]bool{}
		s.memory.Unlock()
	}
}

// has tells whether the driver has a function.
func (s *Source) has(function string) bool {
	s.memory.Lock()
	defer s.memory.Unlock()
	known, asked := s.symbols[function]
	if !asked {
		known = s.lib.Extensions().LookupSymbol(function) == nil
		s.symbols[function] = known
	}
	return known
}

// text names a return code. The library's own words are not asked for: it may
// be gone.
func text(ret nvml.Return) string {
	if words, known := returns[ret]; known {
		return words
	}
	return fmt.Sprintf("NVML error %d", int(ret))
}

var returns = map[nvml.Return]string{
	nvml.ERROR_UNINITIALIZED: "NVML is not initialised", nvml.ERROR_INVALID_ARGUMENT: "invalid argument", nvml.ERROR_NOT_SUPPORTED: "not supported",
	nvml.ERROR_NO_PERMISSION: "no permission", nvml.ERROR_NOT_FOUND: "not found", nvml.ERROR_INSUFFICIENT_SIZE: "insufficient size",
	nvml.ERROR_INSUFFICIENT_POWER: "insufficient power: check the card's power cables", nvml.ERROR_DRIVER_NOT_LOADED: "the driver is not loaded",
	nvml.ERROR_TIMEOUT: "timeout", nvml.ERROR_IRQ_ISSUE: "the kernel has an interrupt problem with the card", nvml.ERROR_LIBRARY_NOT_FOUND: "the library is missing",
	nvml.ERROR_FUNCTION_NOT_FOUND: "the driver is too old for this function", nvml.ERROR_CORRUPTED_INFOROM: "the card's InfoROM is corrupted",
	nvml.ERROR_GPU_IS_LOST: "the GPU is lost: it fell off the bus or is otherwise inaccessible", nvml.ERROR_RESET_REQUIRED: "the GPU needs a reset",
	nvml.ERROR_OPERATING_SYSTEM: "the operating system blocks the driver", nvml.ERROR_LIB_RM_VERSION_MISMATCH: "library and driver have different versions: the driver was updated and not loaded anew",
	nvml.ERROR_IN_USE: "the GPU is in use", nvml.ERROR_MEMORY: "out of memory", nvml.ERROR_NO_DATA: "no data", nvml.ERROR_UNKNOWN: "unknown error",
}

// ask calls a function if the driver has it.
func ask[T any](s *Source, function string, call func() (T, nvml.Return)) (T, nvml.Return) {
	if !s.has(function) {
		var none T
		return none, nvml.ERROR_FUNCTION_NOT_FOUND
	}
	return call()
}

// Scan lists the cards.
func (s *Source) Scan(context.Context) (card.Scan, error) {
	err := s.start()
	if errors.Is(err, errUnloaded) {
		return card.Scan{Notes: []string{err.Error()}}, nil
	}
	if errors.Is(err, errAbsent) {
		return card.Scan{Absent: err.Error()}, nil
	}
	if err != nil {
		return card.Scan{}, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.scan()
}
