package agent

import (
	"fmt"
	"path/filepath"

	"github.com/nomad-muster/muster/planner/config"
	"github.com/nomad-muster/muster/planner/notify"
	"github.com/nomad-muster/muster/planner/view"
)

// announced is the data of an event on a gang; docs/events.md shows it.
type announced struct {
	view.Event
	Link string `json:"link"` // the gang, in the planner's API
}

// announce tells the webhooks what became of a gang. The event's id is made of
// the gang, what happened and when, so that a planner that starts between a
// change and the telling of it can tell it again.
func (a *Agent) announce(e *entry, event view.Event) {
	kind, what := notify.GangStage, string(event.Stage)
	switch event.Kind {
	case view.EventStage:
	case view.EventEvict:
		kind, what = notify.GangEvict, "evict"
	default:
		return
	}
	event.Index = 0 // of this process alone
	a.events.Post(notify.Event{
		ID:   fmt.Sprintf("%s/%s/%d", e.key, what, event.At.UnixMilli()),
		Type: kind, Subject: e.key.String(), Queue: event.Queue, Time: event.At,
		Data: announced{Event: event, Link: a.config.Current().API.Base() + "/v1/gang/" + e.key.String()},
	})
}

// tellHooks starts to send to the webhooks of the configuration.
func (a *Agent) tellHooks(cfg *config.Config, region string) {
	o := notify.Options{Source: "muster/" + region, Webhooks: cfg.Webhooks, Log: a.log}
	if cfg.DataDir != "" {
		o.Dir = filepath.Join(cfg.DataDir, "webhooks")
	}
	a.events = notify.Start(o)
	for _, s := range a.events.Status() {
		if s.Disk != "" {
			a.log.Error("a webhook's queue is in memory alone", "webhook", s.Name, "error", s.Disk)
		}
	}
}

// hookProblems are what an operator should know of the webhooks.
func (a *Agent) hookProblems() (out []view.Problem) {
	for _, s := range a.events.Status() {
		p := view.Problem{Object: "webhook " + s.Name, Since: s.Oldest}
		if s.LastError != "" {
			p.Text, p.Hint = fmt.Sprintf("%d events wait: %s", s.Pending, s.LastError), "events are sent again until they are accepted; the oldest go after a day"
			out = append(out, p)
		}
		if s.Disk != "" {
			p.Text, p.Hint = "its events are in memory alone: "+s.Disk, "free the disk, or name another data_dir"
			out = append(out, p)
		}
		if s.Dropped > 0 {
			p.Text, p.Hint = fmt.Sprintf("%d events were given up since the planner's start", s.Dropped), "read what was missed from /v1/gangs?ended=true"
			out = append(out, p)
		}
	}
	return out
}
