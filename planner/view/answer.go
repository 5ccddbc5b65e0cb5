package view

import "encoding/json"

// Documents that only wrap others.
type (
	// GangList is all gangs that a filter lets through, ordered by queue, what
	// they do, position and id.
	GangList struct {
		Gangs []Gang `json:"gangs"`
		Index uint64 `json:"index"` // of the last event before
	}
	// QueueList is the queue tree, parents first.
	QueueList struct {
		Queues []Queue `json:"queues"`
		Index  uint64  `json:"index"`
	}
	// QueueDetail is one queue with its gangs.
	QueueDetail struct {
		Queue Queue  `json:"queue"`
		Gangs []Gang `json:"gangs"`
		Index uint64 `json:"index"`
	}
	// NodeList is all nodes, ordered by name.
	NodeList struct {
		Nodes []Node `json:"nodes"`
		Index uint64 `json:"index"`
	}
	// Why is a gang's verdict.
	Why struct {
		ID      string  `json:"id"`
		Queue   string  `json:"queue"`
		Stage   string  `json:"stage"`
		Verdict Verdict `json:"verdict"`
	}
	// Parsed is a job in Nomad's JSON.
	Parsed struct {
		Job json.RawMessage `json:"job"`
	}
	// Health says whether the planner answers and decides.
	Health struct {
		OK    bool   `json:"ok"`
		State string `json:"state"`
	}
)

// EventGap is the kind of the line in a stream of events that says that events
// before are forgotten: the reader has to look at everything again.
const EventGap EventKind = "gap"
