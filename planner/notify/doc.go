// Package notify tells webhooks what happens, as CloudEvents 1.0 in structured
// JSON: a gang's stages and its end, evictions, quarantined cards, a tripped
// breaker. Workflow tools follow gangs by it, operators' tools raise alarms.
//
// # Promises
//
//   - At least once: an event that Post has taken, and that Flush has returned
//     after, reaches every webhook that wants it, over restarts and a kill -9 of
//     the planner, until it is delivered, or too old, or pushed out (see below).
//   - In order for each subject (a gang, a card): the next event of a subject is
//     sent when the one before has been accepted. Subjects do not wait for each
//     other, webhooks neither.
//   - Never in the way: Post does not block and does no I/O; scheduling goes on
//     whatever becomes of a webhook or the disk.
//   - Bounded: a webhook that does not answer has at most MaxPending events kept
//     for it; beyond that the oldest go, counted and told in Status. An event
//     older than MaxAge is given up likewise.
//
// An event has an id that is made of what it tells. A planner that starts anew
// tells again what it cannot know to have told; whatever has that id already,
// waiting or delivered among the last Remembered, is passed over.
//
// # A request
//
//	POST <url>
//	Content-Type: application/cloudevents+json; charset=utf-8
//	Webhook-Id: <the event's id>
//	Webhook-Timestamp: <Unix seconds of this try>
//	Webhook-Signature: v1,<base64 of HMAC-SHA256(secret, id "." timestamp "." body)>
//
// The signature, as the Standard Webhooks convention has it, is there where the
// webhook has a secret. Any 2xx accepts the event. Everything else is tried
// again with a growing pause (Retry-After is heeded), redirects included: an
// event goes nowhere but to the configured address.
//
// # On disk
//
// One file a webhook, lines of JSON: events taken, and ids done. A line that
// was torn by a crash is cut off when the file is opened. Without a folder the
// queue is in memory alone. A disk that fails is told in Status; events are then
// kept in memory until the file can be written again.
package notify

import (
	"encoding/json"
	"slices"
	"time"
)

// Event types. Data is documented beside each in docs/events.md.
const (
	GangStage       = "muster.gang.stage"       // a gang entered a stage, or ended
	GangEvict       = "muster.gang.evict"       // a gang is asked to leave
	CardQuarantined = "muster.card.quarantined" // a card is out of the pool
	CardReturned    = "muster.card.returned"    // and back
	BreakerTripped  = "muster.breaker.tripped"  // too many cards fail at once: condemning stops
)

// Types are all event types.
func Types() []string {
	return []string{GangStage, GangEvict, CardQuarantined, CardReturned, BreakerTripped}
}

// Event is something to tell.
type Event struct {
	ID      string    // made of what happened: the same news has the same id
	Type    string    // one of Types
	Subject string    // "namespace/job" of a gang, "node/card" of a card
	Queue   string    // of the gang concerned; "": none
	Time    time.Time // when it happened
	Data    any       // goes into the event as JSON
}

// Webhook is where to tell it.
type Webhook struct {
	Name   string
	URL    string
	Secret []byte            // signs; empty: unsigned
	Header map[string]string // sent with each request
	// Types and Queues let only such events through; empty: all. An event that
	// belongs to no queue passes every queue filter.
	Types  []string
	Queues []string
}

func (w *Webhook) wants(e *Event) bool {
	return (len(w.Types) == 0 || slices.Contains(w.Types, e.Type)) && (len(w.Queues) == 0 || e.Queue == "" || slices.Contains(w.Queues, e.Queue))
}

// cloudEvent is the wire form of an event: CloudEvents 1.0, structured JSON.
type cloudEvent struct {
	SpecVersion     string          `json:"specversion"`
	ID              string          `json:"id"`
	Source          string          `json:"source"`
	Type            string          `json:"type"`
	Subject         string          `json:"subject"`
	Time            time.Time       `json:"time"`
	DataContentType string          `json:"datacontenttype"`
	Queue           string          `json:"musterqueue,omitempty"`
	Data            json.RawMessage `json:"data"`
}
