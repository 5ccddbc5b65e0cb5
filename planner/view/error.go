package view

import (
	"fmt"
	"strings"

	"github.com/nomad-muster/muster/internal/contract"
)

// Code sorts errors for programs; each has one HTTP status.
type Code string

// Codes of errors.
const (
	CodeInvalid      Code = "invalid"      // 400: the request itself is wrong
	CodeUnauthorized Code = "unauthorized" // 401: no token, or one that is not known
	CodeForbidden    Code = "forbidden"    // 403: the token may not do this
	CodeNotFound     Code = "not-found"    // 404
	CodeConflict     Code = "conflict"     // 409: changed meanwhile, or the key was used for something else
	CodeTooLarge     Code = "too-large"    // 413: the request's body
	CodeRejected     Code = "rejected"     // 422: the job is wrong or can never run; see Faults
	CodeUnavailable  Code = "unavailable"  // 503: the planner cannot, at the moment (no contact with Nomad, standby)
	CodeInternal     Code = "internal"     // 500
)

// Error is how the API says no: what was tried, on what, why it did not work,
// and what to do next.
type Error struct {
	Code      Code    `json:"code"`
	Operation string  `json:"operation"`
	Object    string  `json:"object,omitempty"`
	Cause     string  `json:"cause"`
	Hint      string  `json:"hint,omitempty"`
	Faults    []Fault `json:"faults,omitempty"`
}

// Error is one line, and one more for each fault.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Operation)
	if e.Object != "" {
		fmt.Fprintf(&b, " %s", e.Object)
	}
	fmt.Fprintf(&b, ": %s", e.Cause)
	for _, f := range e.Faults {
		b.WriteString("\n  " + f.String())
	}
	if e.Hint != "" {
		sep := "; "
		if len(e.Faults) > 0 {
			sep = "\n"
		}
		b.WriteString(sep + e.Hint)
	}
	return b.String()
}

func (f Fault) String() string { return contract.Fault(f).String() }

// FromFaults are a check's findings in the API's words.
func FromFaults(faults []contract.Fault) []Fault {
	out := make([]Fault, len(faults))
	for i, f := range faults {
		out[i] = Fault(f)
	}
	return out
}
