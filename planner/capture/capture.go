// Package capture keeps one decision in a file: the snapshot that it rested on
// and the plan that came of it. Deciding on the snapshot again must give the
// same plan, bit for bit; where it does not, the core has changed, and the
// difference shows how. A scheduling fault that is captured once is a test from
// then on.
//
// The format is JSON of planner/core's own types under a version: it is for
// this project's builds, and no interface for others.
package capture

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/nomad-muster/muster/internal/buildinfo"
	"github.com/nomad-muster/muster/planner/core"
)

// Version of the format that this build writes and reads.
const Version = 1

// Decision is one decision.
type Decision struct {
	V int `json:"v"`
	// Build that made it.
	Build    string         `json:"build"`
	Snapshot *core.Snapshot `json:"snapshot"`
	Plan     *core.Plan     `json:"plan"`
}

// Write writes a decision as one JSON document.
func Write(w io.Writer, s *core.Snapshot, p *core.Plan) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(Decision{V: Version, Build: buildinfo.String(), Snapshot: s, Plan: p}); err != nil {
		return fmt.Errorf("write captured decision: %w", err)
	}
	return nil
}

// Read reads what Write wrote. A field that this build does not know is an
// error: left out, it could change the decision.
func Read(r io.Reader) (*Decision, error) {
	dec := json.NewDecoder(r)
	dec.DisallowUnknownFields()
	var d Decision
	if err := dec.Decode(&d); err != nil {
		return nil, fmt.Errorf("read captured decision: %w", err)
	}
	switch {
	case d.V != Version:
		return nil, fmt.Errorf("read captured decision: version %d is not known here (this build reads %d)", d.V, Version)
	case d.Snapshot == nil || d.Snapshot.Config == nil || d.Plan == nil:
		return nil, errors.New("read captured decision: snapshot, configuration or plan is missing")
	}
	return &d, nil
}

// Replay decides again and tells whether the plan is the same.
func (d *Decision) Replay(with core.Decider) (plan *core.Plan, same bool, err error) {
	plan = with.Decide(d.Snapshot)
	was, err := json.Marshal(d.Plan)
	if err != nil {
		return nil, false, fmt.Errorf("replay decision: %w", err)
	}
	is, err := json.Marshal(plan)
	if err != nil {
		return nil, false, fmt.Errorf("replay decision: %w", err)
	}
	return plan, bytes.Equal(canonical(was), canonical(is)), nil
}

// canonical makes absent and empty lists the same.
func canonical(text []byte) []byte {
	return bytes.ReplaceAll(text, []byte(":[]"), []byte(":null"))
}
