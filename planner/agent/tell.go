package agent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/accounting"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/lifecycle"
	"github.com/nomad-muster/muster/planner/view"
)

// eventsKept of each gang.
const eventsKept = 64

// describeEvery bounds how often a job's description for Nomad's UI is renewed:
// each makes a version of the job.
const describeEvery = 5 * time.Minute

// publish makes an event known, and the gang's index move.
func (a *Agent) publish(e *entry, event view.Event) {
	if e != nil {
		event.Gang, event.Queue, event.Attempt = e.key.String(), e.gang.QueueName(), e.gang.Saved.Attempt
		e.index = a.feed.Publish(event)
		event.Index = e.index
		if len(e.events) == eventsKept {
			e.events = slices.Delete(e.events, 0, 1)
		}
		e.events = append(e.events, event)
		a.announce(e, event)
		return
	}
	a.feed.Publish(event)
}

// tell publishes the stages that a gang has entered since it was last told of,
// and books their times.
func (a *Agent) tell(e *entry, now time.Time) {
	a.tellAsk(e, now)
	stages := e.gang.Saved.Stages
	// Stages are only ever appended, or begun anew.
	from := e.told
	if from > len(stages) || from > 0 && stages[from-1] != e.toldLast {
		from = 0
		if len(stages) > 0 && stages[0].Stage == contract.StageSubmitted && e.told > 0 {
			from = 1
		}
	}
	if e.repeat && e.gang.QueueName() != "" {
		e.repeat = false
		for _, st := range stages[:from] {
			a.announce(e, stageEvent(e, st))
		}
	}
	if from == len(stages) {
		return
	}
	if e.settled {
		a.metrics.entered(e.gang, stages[max(from-1, 0):])
	}
	for _, st := range stages[from:] {
		a.publish(e, stageEvent(e, st))
		a.log.Info("gang entered a stage", "gang", e.key.String(), "attempt", e.gang.Saved.Attempt, "stage", string(st.Stage), "text", st.Text)
	}
	e.told = len(stages)
	e.toldLast = stages[len(stages)-1]
	e.settled = true
	_ = now
}

func stageEvent(e *entry, st lifecycle.Stage) view.Event {
	text := string(st.Stage)
	if st.Text != "" {
		text += ": " + st.Text
	}
	return view.Event{At: st.At.UTC(), Kind: view.EventStage, Stage: st.Stage, Text: text, Gang: e.key.String(), Queue: e.gang.QueueName(), Attempt: e.gang.Saved.Attempt}
}

// tellAsk publishes that a gang was asked to leave, or may stay.
func (a *Agent) tellAsk(e *entry, now time.Time) {
	kind, text := "", ""
	if ask := e.gang.Saved.Ask; ask != nil && e.gang.Saved.Phase == lifecycle.Released {
		kind = ask.Kind + ask.At.String()
		text = fmt.Sprintf("evict: asked to save and leave within %s (%s): %s", ask.Grace.Round(time.Second), ask.Kind, ask.Why)
		if ask.Kind == contract.AskWithdrawn {
			text = "run: may stay: " + ask.Why
		}
	}
	if kind == e.askTold {
		return
	}
	e.askTold = kind
	if text != "" {
		a.publish(e, view.Event{At: now.UTC(), Kind: view.EventEvict, Text: text})
		ask := e.gang.Saved.Ask
		a.meter.decide(accounting.Decision{At: ask.At, Gang: e.key.String(), Attempt: e.gang.Saved.Attempt, Queue: e.gang.QueueName(), Action: string(core.ActionEvict), Reason: cmp.Or(string(ask.Cause), ask.Kind), Text: text})
		a.log.Info("gang is asked", "gang", e.key.String(), "attempt", e.gang.Saved.Attempt, "text", text)
	}
}

// judge keeps a gang's verdict and tells of one that changed.
func (a *Agent) judge(v *core.Verdict, now time.Time) {
	e := a.state.gangs[gangKey(v.Gang)]
	if e == nil {
		return
	}
	changed := !e.decided || e.verdict.Action != v.Action || e.verdict.Reason != v.Reason
	if !e.decided || e.verdict.Reason != v.Reason {
		e.reasonAt = now
	}
	e.verdict, e.decided = *v, true
	e.foresee(v, now)
	// A gang whose first blocker goes to and fro is not booked each time.
	if changed && (v.Action != core.ActionWait || now.Sub(e.waitBooked) >= time.Minute) {
		if v.Action == core.ActionWait {
			e.waitBooked = now
		}
		a.meter.decide(accounting.Decision{At: now, Gang: e.key.String(), Attempt: e.gang.Saved.Attempt, Queue: e.gang.QueueName(), Action: string(v.Action), Reason: string(v.Reason), Text: v.Sentence})
	}
	if changed && (v.Action == core.ActionWait || v.Action == core.ActionRefuse || v.Action == core.ActionFail) {
		a.publish(e, view.Event{At: now.UTC(), Kind: view.EventVerdict, Text: fmt.Sprintf("%s: %s", v.Action, v.Sentence)})
	}
}

// describe gives held jobs that are refused, or that wait for a while, a
// description in Nomad's UI, where a held job is labelled as failed otherwise.
func (a *Agent) describe(_ context.Context, now time.Time, run func(*entry, []lifecycle.Effect)) {
	s := &a.state
	for _, e := range s.order() {
		if e.busy || e.dirty || !e.decided || e.gang.Saved.Phase != lifecycle.Waiting || now.Sub(e.reasonAt) < a.describeAfter || now.Sub(e.describedAt) < describeEvery || e.describedFor == e.verdict.Reason {
			continue
		}
		if e.verdict.Action != core.ActionWait && e.verdict.Action != core.ActionRefuse {
			continue
		}
		word := "waits in queue " + e.gang.QueueName()
		if e.verdict.Action == core.ActionRefuse {
			word = "refused"
		}
		effects := e.gang.Describe(s.seen(e, now), fmt.Sprintf("%s: %s", word, e.verdict.Sentence))
		e.describedAt, e.describedFor = now, e.verdict.Reason
		if len(effects) > 0 {
			run(e, effects)
		}
	}
}
