package command

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/httpapi/client"
	"github.com/nomad-muster/muster/planner/view"
)

// untils are what job run can wait for: a stage to be reached.
var untils = []string{string(contract.StageQueued), string(contract.StagePlaced), string(contract.StageStarted), string(contract.StageTraining), string(contract.StageComplete)}

// follower waits for a gang to get somewhere and shows how it does.
type follower struct {
	*Call
	api  *client.Client
	name name
	// until is the stage that is waited for.
	until contract.Stage
	// cancelled: to be cancelled is what was asked for (job stop).
	cancelled bool
	timeout   time.Duration // 0: none
	// patience is how long a lost contact is borne.
	patience time.Duration
	// lines gets a line for each stage; nil: nobody does.
	lines func(string)

	shown    []view.StageTime
	asked    time.Time // the ask that was told of
	attempt  int
	progress int // columns of the progress line that stands on the terminal
}

// errTimeout is the cause with which the context of a wait ends.
var errTimeout = errors.New("the time allowed is over")

// follow reads on from an index, which leaves out what is older (0: nothing).
// It waits until the gang is where it should be, or cannot get there. The
// answer is the gang as last seen; the error tells what happened otherwise, as
// an Exit.
func (f *follower) follow(index uint64) (g view.Gang, err error) {
	ctx := f.Context
	if f.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, f.timeout, errTimeout)
		defer cancel()
	}
	defer f.clear()
	began, lost := f.Now(), time.Time{}
	seen, rounds := false, 0
	round := 20 * time.Second
	if f.ErrTerminal {
		round = time.Second // the progress line counts on
	}
	for {
		got, err := f.api.Gang(ctx, f.name.namespace, f.name.job, index, round)
		var contact *client.ContactError
		var refused *view.Error
		switch {
		case err == nil:
			if !lost.IsZero() {
				f.clear()
				f.say("The planner answers again.")
				lost = time.Time{}
			}
			// What has not changed since the submission is an earlier gang of this
			// name.
			if !seen && got.Index <= index && (got.Stage.Ended() || rounds == 0) {
				rounds++
				continue
			}
			g, seen, index = got, true, max(got.Index, 1)
		case ctx.Err() != nil:
			return g, f.gaveUp(context.Cause(ctx), g)
		case errors.As(err, &contact) || errors.As(err, &refused) && refused.Code == view.CodeUnavailable:
			if lost.IsZero() {
				lost = f.Now()
				f.clear()
				f.say("Lost contact, still trying: %v", err)
			}
			if f.Now().Sub(lost) > f.patience {
				return g, &Exit{ExitNoContact, fmt.Errorf("%w; %s", err, f.goesOn(g))}
			}
			if !sleep(ctx, time.Second) {
				return g, f.gaveUp(context.Cause(ctx), g)
			}
			continue
		case errors.As(err, &refused) && refused.Code == view.CodeNotFound && f.cancelled:
			return g, nil // over, and its job removed
		case errors.As(err, &refused) && refused.Code == view.CodeNotFound && !seen:
			// Taken a moment ago, and not in the planner's picture yet.
			if f.Now().Sub(began) > 30*time.Second {
				return g, err
			}
			if !sleep(ctx, 200*time.Millisecond) {
				return g, f.gaveUp(context.Cause(ctx), g)
			}
			continue
		case errors.As(err, &refused) && refused.Code == view.CodeNotFound:
			return g, &Exit{ExitEnded, fmt.Errorf("gang %s is gone: its job was removed while it was waited for", f.name)}
		default:
			return g, err
		}
		f.show(g)
		if done, err := f.arrived(g); done {
			return g, err
		}
	}
}

// arrived tells whether there is nothing more to wait for.
func (f *follower) arrived(g view.Gang) (bool, error) {
	switch {
	case g.Stage == contract.StageComplete:
		return true, nil
	case g.Stage == contract.StageCancelled && f.cancelled:
		return true, nil
	case g.Stage == contract.StageFailed && f.cancelled:
		return true, nil // ended all the same
	case g.Stage.Ended():
		text := fmt.Sprintf("gang %s %s", g.ID, g.Stage)
		if g.Exit != nil && g.Exit.Text != "" {
			text += ": " + g.Exit.Text
		} else if g.Sentence != "" {
			text += ": " + g.Sentence
		}
		return true, &Exit{ExitEnded, errors.New(text + "; muster status " + f.args() + " has the details")}
	case f.cancelled:
		return false, nil
	case g.Stage == contract.StageRefused:
		return true, &Exit{ExitRejected, fmt.Errorf("gang %s is refused: %s; it is looked at again when nodes or queues change; muster job stop %s takes it away",
			g.ID, g.Sentence, f.args())}
	}
	until := f.until
	if until == contract.StageComplete && g.Type == "service" {
		until = contract.StageStarted // it is to run for ever
	}
	return until != contract.StageComplete && slices.Index(contract.Stages, g.Stage) >= slices.Index(contract.Stages, until), nil
}

// gaveUp tells why the wait ended before the gang was there.
func (f *follower) gaveUp(cause error, g view.Gang) error {
	switch {
	case errors.Is(cause, errTimeout):
		return &Exit{ExitTimeout, fmt.Errorf("%s is over: %s", f.timeout, f.goesOn(g))}
	case errors.Is(cause, ErrTerminated):
		return &Exit{ExitTerminated, fmt.Errorf("terminated: %s", f.goesOn(g))}
	}
	return &Exit{ExitInterrupted, fmt.Errorf("interrupted: %s", f.goesOn(g))}
}

// goesOn says where the gang is left, and how to get back to it.
func (f *follower) goesOn(g view.Gang) string {
	where := "stays with the planner"
	switch {
	case g.ID == "":
	case f.cancelled:
		where = "is being stopped (" + string(g.Stage) + ")"
		if g.Detail != nil && g.Detail.Asked != nil {
			return fmt.Sprintf("gang %s %s; muster status %s shows it, muster job stop -now %s ends it at once", f.name, where, f.args(), f.args())
		}
	case g.Position > 0:
		where = fmt.Sprintf("stays in queue %s at position %d", g.Queue, g.Position)
	case g.Started.IsZero():
		where = "stays in queue " + g.Queue
	default:
		where = "goes on running"
	}
	text := fmt.Sprintf("gang %s %s; muster status %s shows it", f.name, where, f.args())
	if !f.cancelled {
		text += ", muster job stop " + f.args() + " ends it"
	}
	return text
}

// args are the arguments that name the gang to another command.
func (f *follower) args() string {
	if f.name.namespace == "default" {
		return f.name.job
	}
	return "-namespace=" + f.name.namespace + " " + f.name.job
}

// show prints the stages that are over, and the one that is not on the
// progress line.
func (f *follower) show(g view.Gang) {
	if g.Detail != nil && f.lines != nil {
		// While it waits, a gang has the number of its last attempt.
		if waits := slices.Index(contract.Stages, g.Stage) <= slices.Index(contract.Stages, contract.StageQueued); !waits {
			if g.Attempt != f.attempt && f.attempt > 0 {
				f.clear()
				f.lines(fmt.Sprintf("    attempt %d", g.Attempt))
			}
			f.attempt = g.Attempt
		}
		for _, s := range g.Detail.Stages {
			if s.Left.IsZero() && !s.Stage.Ended() {
				continue
			}
			if slices.ContainsFunc(f.shown, func(o view.StageTime) bool { return o.Stage == s.Stage && o.Entered.Equal(s.Entered) }) {
				continue
			}
			f.shown = append(f.shown, s)
			f.clear()
			line := fmt.Sprintf("    %-13s  %7s", s.Stage, seconds(s.Seconds))
			if s.Stage.Ended() {
				line = "    " + string(s.Stage)
			}
			if s.Text != "" {
				line += "  " + s.Text
			}
			f.lines(line)
		}
	}
	f.tellAsked(g)
	f.line(g)
}

// tellAsked says what a stop waits for: without it, its user sees nothing for
// as long as the grace is.
func (f *follower) tellAsked(g view.Gang) {
	if !f.cancelled || g.Detail == nil || g.Detail.Asked == nil || g.Detail.Asked.At.Equal(f.asked) {
		return
	}
	ask := g.Detail.Asked
	f.asked = ask.At
	f.clear()
	f.say("%s: %s asked to save and leave, and stopped at %s (in %s) if still there; muster job stop -now %s does not wait for that",
		g.ID, are(len(g.Detail.Members), "member"), f.clock(ask.Until), f.left(ask.Until), f.args())
}

// line draws the progress line on a terminal.
func (f *follower) line(g view.Gang) {
	if !f.ErrTerminal || g.Stage.Ended() {
		return
	}
	parts := []string{g.ID, string(g.Stage)}
	if f.cancelled && g.Detail != nil && g.Detail.Asked != nil {
		f.draw(append([]string{g.ID}, f.leaving(g.Detail)...))
		return
	}
	if since := g.Since(); !since.IsZero() {
		parts[1] += " " + f.ago(since)
	}
	if g.Position > 0 {
		parts = append(parts, fmt.Sprintf("position %d in %s", g.Position, g.Queue))
	}
	switch {
	case g.ETA != nil && !g.ETA.From.IsZero():
		parts = append(parts, "starts "+f.eta(g.ETA))
	case g.Placed > 0 && g.Running < g.Members:
		parts = append(parts, fmt.Sprintf("%d/%d members placed, %d running", g.Placed, g.Members, g.Running))
	}
	if g.Sentence != "" {
		parts = append(parts, g.Sentence)
	}
	f.draw(parts)
}

// leaving says how far a gang is that was asked to leave.
func (f *follower) leaving(d *view.Detail) []string {
	left := 0
	for _, m := range d.Members {
		if m.State == string(contract.StateEnded) || m.Exit != nil {
			left++
		}
	}
	grace := "the grace is over, they are stopped"
	if d.Asked.Until.After(f.Now()) {
		grace = "at most " + f.left(d.Asked.Until) + " more"
	}
	parts := []string{fmt.Sprintf("leaving since %s", f.ago(d.Asked.At)), fmt.Sprintf("%d of %s left", left, count(len(d.Members), "member")), grace}
	if at := d.Want.CheckpointAt; at.After(d.Asked.At) {
		parts = append(parts, fmt.Sprintf("saved at step %d", d.Want.CheckpointStep))
	}
	return parts
}

// left is how long it is until a time.
func (f *follower) left(t time.Time) string {
	return duration(max(0, t.Sub(f.Now()).Round(time.Second)))
}

// draw puts the progress line on the terminal, cut to its width.
func (f *follower) draw(parts []string) {
	text := oneLine(strings.Join(parts, " · "))
	if runes := []rune(text); f.Width > 1 && len(runes) >= f.Width {
		text = string(runes[:f.Width-2]) + "…"
	}
	f.clear()
	fmt.Fprint(f.Stderr, text)
	f.progress = len([]rune(text))
}

// clear takes the progress line away.
func (f *follower) clear() {
	if f.progress > 0 {
		fmt.Fprint(f.Stderr, "\r"+strings.Repeat(" ", f.progress)+"\r")
		f.progress = 0
	}
}

// sleep waits; false: the context ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
