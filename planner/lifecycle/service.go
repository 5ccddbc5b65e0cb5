package lifecycle

import (
	"fmt"
	"slices"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/nomad/jobspec"
	"github.com/nomad-muster/muster/planner/nomad/picture"
)

// Services. The whole job is held until there is room for all of its replicas,
// and then admitted at once, at the server's highest priority, so that the room
// that was made for it is its own. Nomad places the replicas, replaces those
// that fail and rolls updates out; nothing is pinned. The planner books what
// they hold, and takes the job back whole where Nomad does not place it within
// the reserve timeout. A version that asks for no more than what the service
// holds is let through as it comes; one that asks for more once the queue
// admits it, the old one serving until then.

// Service tells whether Nomad places the gang's members by itself.
func (g *Gang) Service() bool { return g.User != nil && g.User.Type == "service" }

// admit registers a service without its hold.
func (g *Gang) admit(v Seen, next Saved) Register {
	return Register{Job: g.User.Admitted(next.Attempt, g.set.MaxPriority), Index: v.Job.JobModifyIndex, Version: next.Version}
}

// serving: the service was admitted; it is whole once all replicas are placed.
func (g *Gang) serving(v Seen, job *jobspec.Job) []Effect {
	s := &g.Saved
	if len(s.Leavers) > 0 && s.Room.IsZero() && len(v.Leaving) == 0 {
		next := *s
		next.Room = v.Now
		return []Effect{Save{next}}
	}
	live := g.replicas(v)
	want := g.User.Members()
	if len(live) < want {
		until := g.reservedUntil(v)
		if v.Now.Before(until) {
			g.wake(until)
			return nil
		}
		why := fmt.Sprintf("%d of %d replicas were placed within %s", len(live), want, g.set.ReserveTimeout)
		if e := g.evalOf(job.JobModifyIndex); e != nil && e.Why != "" {
			why += ": " + e.Why
		}
		return g.stop(v, *s, Stop{Reason: ReasonReservation, Text: why, Site: true, Member: -1})
	}
	at := live[0].Created
	for _, a := range live {
		if a.Created.After(at) {
			at = a.Created
		}
	}
	g.enter(contract.StagePlaced, at, "")
	next := *s
	next.Phase, next.Stages = Released, g.Saved.Stages
	next.Record = &contract.Record{V: contract.RecordVersion, Gang: g.Channel(), Attempt: s.Attempt, Phase: contract.PhaseReleased, Queue: g.QueueName()}
	return []Effect{Save{next}}
}

// serve: the service runs until it is stopped.
func (g *Gang) serve(v Seen) []Effect {
	s := &g.Saved
	if v.Job == nil || v.Job.Stop {
		return g.stop(v, *s, g.stopped(v, "its job was stopped"))
	}
	if g.User == nil || v.Job.Gang == nil {
		return g.stop(v, *s, Stop{Reason: ReasonUpdated, Text: "its job is no gang any more", Final: contract.StageCancelled, Member: -1})
	}
	if job := v.Job.Gang; job.Mark() != s.Attempt {
		return g.renew(v)
	}
	live := g.replicas(v)
	if g.upTo(contract.StageStarted) && len(live) >= g.User.Members() {
		var at time.Time
		for _, a := range live {
			if a.Client != "running" {
				return nil
			}
			for _, t := range a.Tasks {
				if t.Started.After(at) {
					at = t.Started
				}
			}
		}
		if at.IsZero() {
			at = v.Now
		}
		g.enter(contract.StageFetched, at, "")
		g.enter(contract.StageStarted, at, "")
		return []Effect{Save{g.Saved}}
	}
	return nil
}

// upTo tells whether a stage is still to be entered.
func (g *Gang) upTo(stage contract.Stage) bool {
	return !slices.ContainsFunc(g.Saved.Stages, func(s Stage) bool { return s.Stage == stage })
}

// renew lets a version through that was registered while the service runs.
func (g *Gang) renew(v Seen) []Effect {
	if g.growing(v) && !g.admitted {
		g.wake(v.Now.Add(time.Second))
		return nil
	}
	g.admitted = false
	return []Effect{g.admit(v, g.Saved)}
}

// growing tells whether a new version of a running service asks for more cards
// or members than the service holds.
func (g *Gang) growing(v Seen) bool {
	cards, members := 0, 0
	for _, a := range g.replicas(v) {
		members++
		for _, d := range a.Devices {
			if slices.Contains(g.set.CardTypes, d.Type) {
				cards += len(d.IDs)
			}
		}
	}
	for i := range g.groups {
		members -= g.groups[i].Count
		for _, d := range g.groups[i].Devices {
			if slices.Contains(g.set.CardTypes, d.Type) {
				cards -= d.Count * g.groups[i].Count
			}
		}
	}
	return cards < 0 || members < 0
}

// Growing tells whether a running service has a new version that waits for
// room.
func (g *Gang) Growing(v Seen) bool {
	return g.Service() && g.Saved.Phase == Released && v.Job != nil && !v.Job.Stop && v.Job.Gang != nil && v.Job.Gang.Mark() != g.Saved.Attempt && g.growing(v)
}

// replicas are the service's allocations that Nomad means to run.
func (g *Gang) replicas(v Seen) []*picture.Alloc {
	return slices.DeleteFunc(g.live(v, g.Saved.Base), func(a *picture.Alloc) bool { return a.Desired != "run" || a.Unknown() })
}

// serviceMembers are the replicas as members, numbered by name; those that are
// to come have the place of the plan.
func (g *Gang) serviceMembers(allocs []*picture.Alloc) []Member {
	var out []Member
	for _, a := range allocs {
		if a.CreateIndex <= g.Saved.Base || a.Terminal() {
			continue
		}
		m := Member{Place: Place{Group: a.Group, Node: a.NodeID}, Alloc: a}
		for _, d := range a.Devices {
			ids := make([]core.CardID, len(d.IDs))
			for i, id := range d.IDs {
				ids[i] = core.CardID(id)
			}
			m.Place.Cards = append(m.Place.Cards, ids)
			if slices.Contains(g.set.CardTypes, d.Type) {
				m.Place.Model = core.Model(d.Name)
			}
		}
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b Member) int { return byName(a.Alloc, b.Alloc) })
	if len(out) == 0 && g.Saved.Phase == Reserving {
		for _, p := range g.Saved.Places {
			out = append(out, Member{Place: p})
		}
	}
	for i := range out {
		out[i].Index = i
	}
	return out
}
