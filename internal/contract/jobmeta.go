package contract

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"
)

// JobMeta is what a job's meta block says of it as a gang. Zero values mean
// that the job did not say.
type JobMeta struct {
	Queue string
	// TopologyLevel names a level of the configuration (or node, nvlink);
	// TopologyRequired says that the gang waits rather than cross it.
	TopologyLevel    string
	TopologyRequired bool
	TimeLimit        time.Duration
	// Min is the least number of members of an elastic gang; 0: not elastic.
	Min int
	// Models that the gang accepts, in order of preference; empty: any model
	// that its device asks match.
	Models  []string
	Retries int // for failures of the script; see Stated
	Split   bool
	// PreferWait is how long a preferred level is waited for.
	PreferWait time.Duration
	// MinBandwidth between members, in Gbit/s; 0: not probed.
	MinBandwidth float64
	Deadline     time.Time
	Preemptible  bool // true where not stated
	Grace        time.Duration
	Spread       bool
	User         string
	// Stated holds the keys that the job has.
	Stated map[string]bool
}

// ParseJobMeta reads the muster_ keys of a job's meta block. It returns every
// fault, ordered by key; other keys are not Muster's business.
func ParseJobMeta(meta map[string]string) (JobMeta, []Fault) {
	m := JobMeta{Preemptible: true, Stated: map[string]bool{}}
	var faults []Fault
	keys := make([]string, 0, len(meta))
	for k := range meta {
		if strings.HasPrefix(k, metaPrefix) {
			keys = append(keys, k)
		}
	}
	sort.Strings(keys)
	for _, key := range keys {
		value := strings.TrimSpace(meta[key])
		m.Stated[key] = true
		wrong := func(want string) {
			faults = append(faults, Fault{Field: "meta." + key, Value: meta[key], Want: want})
		}
		duration := func(into *time.Duration) {
			d, err := time.ParseDuration(value)
			if err != nil || d <= 0 {
				wrong(`a duration above zero such as "90m" or "48h"`)
				return
			}
			*into = d
		}
		boolean := func(into *bool) {
			b, err := strconv.ParseBool(value)
			if err != nil {
				wrong("true or false")
				return
			}
			*into = b
		}
		count := func(into *int, least int) {
			n, err := strconv.Atoi(value)
			if err != nil || n < least {
				wrong(fmt.Sprintf("a whole number of at least %d", least))
				return
			}
			*into = n
		}
		switch key {
		case MetaQueue:
			if m.Queue = value; value == "" {
				wrong("the name of a queue")
			}
		case MetaTopology:
			kind, level, ok := strings.Cut(value, ":")
			if !ok || level == "" || kind != "required" && kind != "preferred" {
				wrong("required:<level> or preferred:<level>")
				break
			}
			m.TopologyLevel, m.TopologyRequired = level, kind == "required"
		case MetaTimeLimit:
			duration(&m.TimeLimit)
		case MetaMin:
			count(&m.Min, 1)
		case MetaModels:
			for _, model := range strings.Split(value, ",") {
				if model = strings.TrimSpace(model); model == "" {
					wrong("names of card models, separated by commas")
					break
				}
				m.Models = append(m.Models, model)
			}
		case MetaRetries:
			count(&m.Retries, 0)
		case MetaSplit:
			boolean(&m.Split)
		case MetaPreferWait:
			duration(&m.PreferWait)
		case MetaMinBandwidth:
			gbit, err := parseBandwidth(value)
			if err != nil {
				wrong(`a rate such as "100 Gbit/s"`)
			}
			m.MinBandwidth = gbit
		case MetaDeadline:
			at, err := time.Parse(time.RFC3339, value)
			if err != nil {
				wrong("a time such as 2026-12-24T18:00:00Z")
			}
			m.Deadline = at
		case MetaPreemptible:
			boolean(&m.Preemptible)
		case MetaGrace:
			duration(&m.Grace)
		case MetaSpread:
			boolean(&m.Spread)
		case MetaUser:
			m.User = value
		default:
			faults = append(faults, Fault{Field: "meta." + key, Value: meta[key], Want: "no key of Muster has this name; known are " + strings.Join(metaKeys, ", ")})
		}
	}
	return m, faults
}

// metaKeys are all keys that ParseJobMeta knows, in alphabetical order.
var metaKeys = []string{MetaDeadline, MetaGrace, MetaMin, MetaMinBandwidth, MetaModels, MetaPreemptible, MetaPreferWait, MetaQueue,
	MetaRetries, MetaSplit, MetaSpread, MetaTimeLimit, MetaTopology, MetaUser}

// parseBandwidth reads a rate and gives Gbit/s.
func parseBandwidth(s string) (float64, error) {
	number, unit, _ := strings.Cut(strings.TrimSpace(s), " ")
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || !(v > 0) || v > 1e6 {
		return 0, fmt.Errorf("bandwidth %q is not a positive number", s)
	}
	switch strings.TrimSpace(unit) {
	case "Gbit/s", "Gbps":
		return v, nil
	case "Mbit/s", "Mbps":
		return v / 1000, nil
	case "GB/s":
		return v * 8, nil
	}
	return 0, fmt.Errorf("bandwidth %q has no unit of Gbit/s, Mbit/s or GB/s", s)
}
