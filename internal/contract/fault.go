package contract

import (
	"fmt"
	"strings"
)

// Fault is one thing that is wrong with what a user wrote.
type Fault struct {
	Field string // where: meta.muster_min, group "rank" task "train" config.script
	Value string // what stands there; empty: nothing does
	Want  string // what is needed instead, or why it cannot be
}

func (f Fault) String() string {
	if f.Value == "" {
		return f.Field + ": " + f.Want
	}
	return fmt.Sprintf("%s = %q: %s", f.Field, f.Value, f.Want)
}

// Faults is an error that lists them all.
type Faults []Fault

// Err is nil where there are none.
func (f Faults) Err() error {
	if len(f) == 0 {
		return nil
	}
	return f
}

func (f Faults) Error() string {
	lines := make([]string, len(f))
	for i, fault := range f {
		lines[i] = fault.String()
	}
	if len(lines) == 1 {
		return lines[0]
	}
	return fmt.Sprintf("%d faults:\n  %s", len(lines), strings.Join(lines, "\n  "))
}
