// Package rendezvous is how the members of a gang hear of each other: the gang
// record that the planner writes reaches every member, and every member's
// report reaches the planner and its peers.
//
// There are two ways, behind one port (Board). With Consul, the record is a key
// that members watch, and reports are keys held by a session: a member that
// vanishes loses its session within twice SessionTTL, and with it its report.
// Without Consul the record comes as the text of a Nomad signal, reports leave
// as task events, and members learn of their peers only what the planner tells
// them by a further record.
//
// What the port promises, in both ways and tested by one suite:
//
//   - A record is delivered whole and checked, or not at all. One that cannot be
//     read is told as trouble, and the last good one stays in force.
//   - Records of one member are delivered in the order in which they were
//     written; intermediate ones may be skipped, the last never.
//   - Every key carries the attempt. Nothing of another attempt is ever
//     delivered as a report or an endpoint of the one that lists the member.
//   - Loss of contact changes nothing that was delivered: an outage is trouble,
//     not the end of a peer.
package rendezvous

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
)

// SessionTTL is how long Consul believes in a member that it does not hear of;
// Consul may take twice as long. It is the least that Consul accepts.
const SessionTTL = 10 * time.Second

// EndedTTL is how long the report of a member that ended is kept for a planner
// that is away. The planner removes it earlier, with its attempt.
const EndedTTL = time.Hour

// Self is the member that a Board speaks for.
type Self struct {
	Gang  contract.GangID
	Alloc string
	Task  string
	Start int
}

// Key is the member's name among the members of its gang.
func (s Self) Key() string { return MemberKey(s.Alloc, s.Task) }

// MemberKey names a member among those of its gang: allocation and task.
func MemberKey(alloc, task string) string { return alloc + "." + task }

// Sight is what a member sees of its gang.
type Sight struct {
	// Record is the gang's record; nil where there is none.
	Record *contract.Record
	// Reports of the members of the attempt that lists this member, itself
	// included, by MemberKey. Nil where they cannot be seen: without Consul,
	// and before the first answer.
	Reports map[string]contract.Report
	// Endpoints are worlds' stores that moved, by the world's name.
	Endpoints map[string]contract.Endpoint
}

// Board is one member's place in the rendezvous.
type Board interface {
	// Follow calls see with what there is, at once and at each change, until ctx
	// ends. Calls do not overlap. Trouble is told to warn, nil when it is over.
	Follow(ctx context.Context, see func(Sight), warn func(error))
	// Publish replaces the member's report. The report of a member that ended
	// outlives the member.
	Publish(ctx context.Context, r contract.Report) error
	// Move tells the world where its store is now.
	Move(ctx context.Context, attempt int, world string, e contract.Endpoint) error
	// Close takes the member off the board; its ended report stays.
	Close(ctx context.Context) error
}

// world and member key of a report's or an endpoint's place below
// GangID.AttemptPrefix.
func splitKey(key, prefix string) (kind, name string) {
	rest, ok := strings.CutPrefix(key, prefix)
	if !ok {
		return "", ""
	}
	kind, name, _ = strings.Cut(rest, "/")
	return kind, name
}

// checkReport guards against publishing what a planner would have to refuse.
func checkReport(self Self, r contract.Report) error {
	if r.Alloc != self.Alloc || r.Task != self.Task || r.Gang != self.Gang {
		return fmt.Errorf("publish report: it is of %s %s.%s, and this is the board of %s %s", r.Gang, r.Alloc, r.Task, self.Gang, self.Key())
	}
	return nil
}
