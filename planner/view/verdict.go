package view

import (
	"time"

	"github.com/nomad-muster/muster/planner/core"
)

// Verdict is core.Verdict as JSON, word for word.
type Verdict struct {
	Action    core.Action `json:"action"`
	Reason    core.Reason `json:"reason"`
	Sentence  string      `json:"sentence"`
	Blockers  []Blocker   `json:"blockers"` // all of them, the one that matters most first
	Position  int         `json:"position"` // in its queue, from 1; 0: not waiting
	ETA       ETA         `json:"eta"`
	Effective int         `json:"effective_priority"`
}

// Blocker is one thing in a gang's way.
type Blocker struct {
	Reason  core.Reason `json:"reason"`
	Model   string      `json:"model,omitempty"`
	Missing int         `json:"missing,omitempty"`
	Text    string      `json:"text"`
	Holders []Holder    `json:"holders"`
	Remedy  string      `json:"remedy,omitempty"`
}

// Holder has what a gang lacks.
type Holder struct {
	Gang  string    `json:"gang,omitempty"`
	Job   string    `json:"job,omitempty"`
	Cards int       `json:"cards"`
	Until time.Time `json:"until,omitzero"` // expected end; absent: not known
}

// ETA is when a gang is expected to start, with what that rests on. From
// absent: not known.
type ETA struct {
	From       time.Time `json:"from,omitzero"`
	To         time.Time `json:"to,omitzero"`
	Assumption string    `json:"assumption,omitempty"`
	Promised   bool      `json:"promised"`
}

// FromVerdict is the core's verdict in the API's words.
func FromVerdict(v core.Verdict) Verdict {
	out := Verdict{Action: v.Action, Reason: v.Reason, Sentence: v.Sentence, Blockers: make([]Blocker, len(v.Blockers)),
		Position: v.Position, ETA: FromETA(v.ETA), Effective: v.Effective}
	for i, b := range v.Blockers {
		out.Blockers[i] = Blocker{Reason: b.Reason, Model: string(b.Model), Missing: b.Missing, Text: b.Text,
			Holders: make([]Holder, len(b.Holders)), Remedy: b.Remedy}
		for j, h := range b.Holders {
			out.Blockers[i].Holders[j] = Holder{Gang: string(h.Gang), Job: h.Job, Cards: h.Cards, Until: utc(h.Until)}
		}
	}
	return out
}

// FromETA is the core's ETA in the API's words.
func FromETA(e core.ETA) ETA {
	return ETA{From: utc(e.From), To: utc(e.To), Assumption: e.Assumption, Promised: e.Promised}
}

func utc(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC()
}
