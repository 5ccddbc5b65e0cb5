package agent

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/accounting"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/recent"
	"github.com/nomad-muster/muster/planner/lifecycle"
	"github.com/nomad-muster/muster/planner/nomad/picture"
)

// sight is what is seen of a gang, with the cards of its allocations.
type sight struct {
	gang accounting.Gang
	// cards by allocation and model.
	cards map[string]map[string][]string
}

// account is what a gang's usage is booked on.
type account struct {
	queue, user    string
	members, cards int
}

// account of a gang; false: it is not known yet. The user's version of one that
// was over when the planner started is not read any more: the job as it stands
// tells the same.
func (s *state) account(e *entry) (account, bool) {
	g := e.gang
	if g.User != nil {
		return account{g.QueueName(), g.UserName(), g.User.Members(), s.gangCards(e)}, true
	}
	j := s.jobs[e.key]
	if g.Saved.Phase != lifecycle.Over || j == nil || j.Gang == nil {
		return account{}, false
	}
	asked := lifecycle.Hypothetical(j.Gang, s.set, time.Time{})
	a := account{queue: string(asked.Queue), user: cmp.Or(g.Saved.User, asked.User)}
	for i := range asked.Groups {
		a.members += asked.Groups[i].Count
		a.cards += s.groupCards(&asked.Groups[i])
	}
	return a, true
}

// sight of a gang; false: what it is booked on is not known yet.
func (s *state) sight(e *entry) (sight, bool) {
	g, saved := e.gang, &e.gang.Saved
	account, ok := s.account(e)
	if !ok {
		return sight{}, false
	}
	out := sight{gang: accounting.Gang{Name: e.key.String(), Whole: true}, cards: map[string]map[string][]string{}}
	out.gang.Came = s.came(e)
	add := func(a accounting.Attempt) {
		a.Gang, a.Queue, a.User, a.Members, a.Cards, a.Submitted = e.key.String(), account.queue, account.user, account.members, account.cards, saved.Submitted
		for _, st := range a.Stages {
			switch st.Stage {
			case contract.StageQueued:
				a.Queued = st.At
			case contract.StagePlanned:
				a.Planned = st.At
			}
		}
		out.gang.Attempts = append(out.gang.Attempts, a)
	}
	for i := range saved.Attempts {
		at := &saved.Attempts[i]
		end := accounting.AttemptEnd{At: at.Ended, Outcome: at.Outcome, Reason: at.Reason, Code: -1, Text: at.Text}
		if at.Exit != nil {
			end.Code = at.Exit.Code
		}
		add(accounting.Attempt{Key: accounting.Key{Number: at.Number, Base: at.Base}, Stages: bookedStages(at.Stages), Checkpoint: at.Checkpoint, Eviction: string(at.Cause), End: &end})
	}
	if saved.Phase != lifecycle.Waiting && saved.Phase != lifecycle.Over && saved.Attempt > 0 {
		a := accounting.Attempt{Key: accounting.Key{Number: saved.Attempt, Base: saved.Base}, Stages: bookedStages(saved.Stages), Checkpoint: g.Checkpoint(), Foretold: e.foretold}
		if saved.Ask != nil {
			a.Eviction = string(saved.Ask.Cause)
		}
		add(a)
	}
	if end := saved.End; end != nil {
		out.gang.End = &accounting.GangEnd{At: end.At, Submitted: saved.Submitted, Stage: end.Stage, Queue: account.queue, User: account.user, Cards: account.cards, Attempts: saved.Attempt, Ran: g.Took()}
	}
	running := len(out.gang.Attempts) - 1 // of one that has not ended, where there is one
	for _, alloc := range s.byJob[e.key] {
		owner := -1
		for i := range out.gang.Attempts {
			if base := out.gang.Attempts[i].Base; base > 0 && base < alloc.CreateIndex && (owner < 0 || base > out.gang.Attempts[owner].Base) {
				owner = i
			}
		}
		if owner < 0 {
			out.gang.Others = append(out.gang.Others, alloc.ID)
			continue
		}
		booked, cards := s.bookedAlloc(alloc)
		out.gang.Attempts[owner].Allocs = append(out.gang.Attempts[owner].Allocs, booked)
		out.cards[alloc.ID] = cards
	}
	if running >= 0 && out.gang.Attempts[running].End == nil && saved.Phase == lifecycle.Reserving && len(out.gang.Attempts[running].Allocs) == 0 {
		// Nomad may refuse it yet, and the number would be another's.
		out.gang.Attempts = out.gang.Attempts[:running]
	}
	return out, true
}

// came is what a gang asked for when it was submitted, as recent demand counts
// it; nil: it does not count.
func (s *state) came(e *entry) *recent.Gang {
	asked, known := e.gang.Asked()
	if j := s.jobs[e.key]; !known && e.gang.Saved.Phase == lifecycle.Over && j != nil && j.Gang != nil {
		asked, known = lifecycle.Hypothetical(j.Gang, s.set, time.Time{}), true
	}
	if asked.Submitted = e.gang.Saved.Submitted; !known {
		return nil
	}
	if came, ok := recent.Of(&asked, s.isCard); ok {
		return &came
	}
	return nil
}

func bookedStages(stages []lifecycle.Stage) []accounting.Stage {
	out := make([]accounting.Stage, len(stages))
	for i, st := range stages {
		out[i] = accounting.Stage{Stage: st.Stage, At: st.At}
	}
	return out
}

// bookedAlloc is an allocation with the cards that it holds, by model.
func (s *state) bookedAlloc(a *picture.Alloc) (accounting.Alloc, map[string][]string) {
	out := accounting.Alloc{ID: a.ID, Node: a.NodeName, Created: a.Created}
	cards := map[string][]string{}
	for _, d := range a.Devices {
		if s.isCard(d.Type) {
			cards[d.Name] = append(cards[d.Name], d.IDs...)
		}
	}
	for _, model := range slices.Sorted(maps.Keys(cards)) {
		out.Holds = append(out.Holds, accounting.Hold{Model: model, Cards: len(cards[model])})
	}
	if a.Terminal() {
		out.Ended, out.Exact = a.End()
		out.How = a.Client
	}
	return out, cards
}

// foresee keeps the first start that a waiting gang is told.
func (e *entry) foresee(v *core.Verdict, now time.Time) {
	switch {
	case e.gang.Saved.Phase != lifecycle.Waiting:
	case !e.foretoldFor.Equal(e.gang.Saved.Queued):
		e.foretold, e.foretoldFor = accounting.ETA{}, e.gang.Saved.Queued
		fallthrough
	default:
		if e.foretold.From.IsZero() && !v.ETA.From.IsZero() && v.Action == core.ActionWait {
			e.foretold = accounting.ETA{Made: now, From: v.ETA.From, To: v.ETA.To}
		}
	}
}
