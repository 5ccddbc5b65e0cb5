package command

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/httpapi/client"
	"github.com/nomad-muster/muster/planner/view"
)

// jobRunFlags are the flags of job run.
type jobRunFlags struct {
	specFlags
	detach, keepRefused bool
	until               string
	timeout             time.Duration
	checkIndex          checkIndex
	key                 string
}

func jobRun() Command {
	var o jobRunFlags
	return Command{
		Synopsis: "Submit a job and follow its gang to the end",
		Usage:    "job run [options] <file>",
		About: "Submits the job of a file (HCL or JSON as Nomad takes it, - is stdin) as a gang. All that is wrong with it is reported at once, and nothing is submitted then. " +
			"The hold constraint, and restart, reschedule and disconnect blocks, are added where they are missing; nomad job run with these in the file does the same.\n\n" +
			"Then waits and shows the gang's stages until it is complete. A service is waited for until it has started. Ctrl-C ends the waiting, not the gang. Submitting a job that is there already updates its gang.",
		API: true, Data: true, Least: 1, Most: 1,
		Flags: func(f *Flags) {
			o = jobRunFlags{}
			o.declare(f)
			f.BoolVar(&o.detach, "detach", false, "Do not wait.")
			f.BoolVar(&o.keepRefused, "keep-refused", false, "Submit also what the cluster as it is could never run; it waits until nodes or queues change.")
			f.StringVar(&o.until, "until", string(contract.StageComplete), "Wait for this `stage`: "+strings.Join(untils, ", ")+". Default: complete.")
			f.DurationVar(&o.timeout, "timeout", 0, "Wait at most so `long`, such as 30m; the gang goes on. Default: as long as it takes.")
			f.Var(&o.checkIndex, "check-index", "Submit only if the job's modify `index` is still this; 0: only if there is no such job.")
			f.StringVar(&o.key, "idempotency-key", "", "A submission that was sent with this `key` before is not made again.")
		},
		Run: func(c *Call, args []string) error { return runJob(c, o, args[0]) },
	}
}

// checkIndex is an index that was stated or not.
type checkIndex struct {
	stated bool
	index  uint64
}

func (i *checkIndex) String() string { return "" }

func (i *checkIndex) Set(s string) error {
	i.stated = true
	_, err := fmt.Sscanf(s, "%d", &i.index)
	if err != nil || fmt.Sprint(i.index) != s {
		return errors.New("must be a whole number")
	}
	return nil
}

// ran is what job run -json prints.
type ran struct {
	Submitted view.Submitted `json:"submitted"`
	// Result: submitted (-detach), reached, complete, failed, cancelled,
	// refused, timeout, interrupted, no-contact.
	Result   string     `json:"result"`
	ExitCode int        `json:"exit_code"`
	Error    string     `json:"error,omitempty"`
	Gang     *view.Gang `json:"gang,omitempty"`
}

func runJob(c *Call, o jobRunFlags, path string) error {
	if !slices.Contains(untils, o.until) {
		return fmt.Errorf("-until=%s is none of %s", o.until, strings.Join(untils, ", "))
	}
	api, err := c.client()
	if err != nil {
		return err
	}
	spec, err := o.read(c, path)
	if err != nil {
		return err
	}
	done, err := api.Submit(c.Context, view.Submission{Spec: spec.Spec, KeepRefused: o.keepRefused, EnforceIndex: o.checkIndex.stated, ModifyIndex: o.checkIndex.index}, o.key)
	if err != nil {
		return c.submitFailed(spec, err)
	}
	c.warn(done.Warnings)
	human := !c.asJSON && c.template == ""
	lines := func(s string) { fmt.Fprintln(c.Stdout, harmless(s)) }
	if !human {
		lines = func(s string) { fmt.Fprintln(c.Stderr, harmless(s)) }
	}
	for _, a := range done.Added {
		c.say("Added to the job: %s", a)
	}
	verb := "submitted to"
	if done.Update {
		verb = "updated in"
	}
	lines(fmt.Sprintf("%s %s %s queue %s", c.clock(c.Now()), done.ID, verb, done.Queue))
	if done.Starts != "" {
		c.say("The job is %s: it is no gang itself, and each job that it starts is one.", done.Starts)
		o.detach = true
	}
	if o.detach {
		if !human {
			return c.print(ran{Submitted: done, Result: "submitted"}, nil)
		}
		return nil
	}
	f := follower{Call: c, api: api, name: name{namespace: done.Namespace, job: done.Job}, until: contract.Stage(o.until), timeout: o.timeout, patience: 10 * time.Minute, lines: lines}
	if done.Update {
		done.Index = 0 // what is there is the gang itself, not an earlier one
	}
	g, waited := f.follow(done.Index)
	if waited == nil {
		lines(fmt.Sprintf("%s %s %s", c.clock(c.Now()), g.ID, g.Stage))
	}
	if human {
		return waited
	}
	out := ran{Submitted: done, Result: outcome(g, waited), ExitCode: exitCode(waited), Gang: &g}
	if g.ID == "" {
		out.Gang = nil
	}
	if waited != nil {
		out.Error = waited.Error()
	}
	if err := c.print(out, nil); err != nil {
		return err
	}
	return waited
}

// outcome is one word for how a wait ended.
func outcome(g view.Gang, err error) string {
	switch code := exitCode(err); {
	case code == ExitDone && g.Stage.Ended():
		return string(g.Stage)
	case code == ExitDone:
		return "reached"
	case code == ExitTimeout:
		return "timeout"
	case code == ExitNoContact:
		return "no-contact"
	case code == ExitInterrupted || code == ExitTerminated:
		return "interrupted"
	case g.Stage == "":
		return "unknown"
	}
	return string(g.Stage)
}

// submitFailed adds what is known after a submission without an answer: it may
// have been taken.
func (c *Call) submitFailed(spec source, err error) error {
	err = spec.named(err)
	if cause := c.Context.Err(); cause != nil {
		return fmt.Errorf("%w; the planner may have taken the job all the same: muster queue shows it", err)
	}
	return err
}

func jobPlan() Command {
	var o specFlags
	return Command{
		Synopsis: "Tell what would happen to a job now",
		Usage:    "job plan [options] <file>",
		About: "Tells what would happen if the job were submitted now: where it would be placed, who would have to leave for it, or what it would wait for and until when. Nothing changes.\n\n" +
			"Exit code 0: it would start now, perhaps once others have left for it; 2: it would wait; 4: it would be refused, or is faulty.",
		API: true, Data: true, Least: 1, Most: 1,
		Flags: func(f *Flags) { o = specFlags{}; o.declare(f) },
		Run: func(c *Call, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			spec, err := o.read(c, args[0])
			if err != nil {
				return err
			}
			p, err := api.Plan(c.Context, spec.Spec)
			if err != nil {
				return spec.named(err)
			}
			c.warn(p.Warnings)
			if err := c.print(p, func(w *screen) { w.plan(p) }); err != nil {
				return err
			}
			switch p.Verdict.Action {
			case core.ActionStart, core.ActionRun:
				return nil
			case core.ActionRefuse, core.ActionFail:
				return &Exit{Code: ExitRejected}
			}
			return &Exit{Code: ExitNotNow}
		},
	}
}

// plan prints what would happen.
func (w *screen) plan(p view.Plan) {
	what := fmt.Sprintf("%s, %s in queue %s", count(p.Members, "member"), count(p.Cards, "card"), p.Queue)
	if p.Update {
		what += ", an update of the gang that is there"
	}
	w.line("%s: %s", p.ID, what)
	for _, a := range p.Added {
		w.line("  adds %s", a)
	}
	w.line("")
	switch {
	case p.Start != nil && len(p.Start.After) > 0:
		w.line("%s", w.c.paint(w.c.Terminal, yellow, "It would start once these have left: "+strings.Join(p.Start.After, ", ")+"."))
	case p.Start != nil:
		w.line("%s", w.c.paint(w.c.Terminal, green, "It would start now."))
	default:
		w.line("%s", w.c.paint(w.c.Terminal, yellow, "It would not start now: "+p.Verdict.Sentence))
	}
	if p.Start != nil {
		if p.Start.Why != "" {
			w.line("%s", p.Start.Why)
		}
		var rows [][]cell
		for _, m := range p.Start.Members {
			rows = append(rows, plain(fmt.Sprint(m.Member), m.Group, m.Node, fmt.Sprint(len(m.Cards)), strings.Join(m.Cards, " ")))
		}
		if len(rows) > 0 {
			w.title("Placement")
			w.table([]string{">Member", "Group", "Node", ">Cards", "Ids"}, rows)
		}
	}
	if len(p.Evictions) > 0 {
		var rows [][]cell
		for _, e := range p.Evictions {
			rows = append(rows, plain(e.Gang, e.Kind, seconds(e.GraceSeconds), duration(time.Duration(e.LostCardSeconds)*time.Second), e.Why))
		}
		w.title("Asked to leave")
		w.table([]string{"Gang", "Kind", ">Grace", ">Card time lost", "Why"}, rows)
	}
	if p.Start == nil {
		w.blockers(p.Verdict)
	}
	if r := p.Reservation; r != nil {
		w.title("Reservation")
		at := "no time can be promised: it gathers cards as they come free"
		if !r.At.IsZero() {
			at = w.c.clock(r.At)
		}
		w.pairs("Promised start", at, "Nodes", strings.Join(r.Nodes, ", "), "Moved because", r.Cause)
	}
}

func jobStop() Command {
	var detach, purge, now bool
	var reason string
	var timeout, grace time.Duration
	return Command{
		Synopsis: "Stop gangs, waiting or running",
		Usage:    "job stop [options] <job>...",
		About: "Stops gangs by their exact names: takes them out of the queue, or asks their ranks to save and leave and stops them when the grace is over. Waits until they are over, and shows how long that may take. " +
			"-now asks nobody and stops them at once, also while another stop waits for the grace.\n\n" +
			"A name that is only the start of a job's name is never taken. Of several names each is tried, and the exit code is not 0 if one of them could not be stopped.",
		API: true, Data: true, Least: 1, Most: -1,
		Flags: func(f *Flags) {
			f.BoolVar(&detach, "detach", false, "Do not wait until the gangs are over.")
			f.BoolVar(&purge, "purge", false, "Remove the jobs from Nomad as well.")
			f.BoolVar(&now, "now", false, "Do not ask the ranks first and grant no grace.")
			f.DurationVar(&grace, "grace", 0, "How `long` the ranks get to save and leave. Default: what the job says (muster_grace), or else its queue.")
			f.StringVar(&reason, "reason", "", "`Text` that is recorded with it.")
			f.DurationVar(&timeout, "timeout", 0, "Wait at most so `long` for each; the stop goes on. Default: as long as it takes.")
		},
		Run: func(c *Call, args []string) error {
			switch {
			case grace < 0:
				return fmt.Errorf("-grace=%s: it is a length of time above 0", grace)
			case grace > 0 && now:
				return errors.New("-now grants no grace: leave out -grace or -now")
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			return stopJobs(c, api, args, view.StopRequest{Purge: purge, Now: now, GraceSeconds: grace.Seconds(), Reason: reason}, detach, timeout)
		},
	}
}

// stopResult is one line of what job stop -json prints.
type stopResult struct {
	Argument string        `json:"argument"`
	Stopped  *view.Stopped `json:"stopped,omitempty"`
	Gang     *view.Gang    `json:"gang,omitempty"` // as it ended; absent with -detach
	// Over: it had ended before, so nothing was done.
	Over     contract.Stage `json:"over,omitempty"`
	Error    string         `json:"error,omitempty"`
	ExitCode int            `json:"exit_code"`
}

func stopJobs(c *Call, api *client.Client, args []string, how view.StopRequest, detach bool, timeout time.Duration) error {
	results := make([]stopResult, len(args))
	errs := make([]error, len(args))
	// All are asked first, so that the wait for one does not hold up the others.
	for i, arg := range args {
		results[i].Argument = arg
		n, err := c.exact(api, "stop gang", arg)
		if err == nil && n.stage.Ended() && !how.Purge {
			results[i].Over = n.stage // what was asked for is so
			continue
		}
		if err == nil {
			var stopped view.Stopped
			if stopped, err = api.Stop(c.Context, n.namespace, n.job, how); err == nil {
				results[i].Stopped = &stopped
			}
		}
		errs[i] = err
	}
	for i := range args {
		if errs[i] != nil || detach || results[i].Over != "" {
			continue
		}
		namespace, job, _ := strings.Cut(results[i].Stopped.ID, "/") // namespaces have no slash
		f := follower{Call: c, api: api, name: name{namespace: namespace, job: job}, cancelled: true, timeout: timeout, patience: 10 * time.Minute}
		g, err := f.follow(results[i].Stopped.Index)
		if errs[i] = err; g.ID != "" {
			results[i].Gang = &g
		}
	}
	for i, err := range errs {
		if results[i].ExitCode = exitCode(err); err != nil {
			results[i].Error = err.Error()
		}
	}
	err := c.print(struct {
		Results []stopResult `json:"results"`
	}{results}, func(w *screen) {
		for _, r := range results {
			switch {
			case r.Error != "":
			case r.Over != "":
				w.line("%s is over already: %s", r.Argument, r.Over)
			case r.Gang != nil && r.Gang.Sentence != "":
				w.line("%s %s: %s", r.Gang.ID, r.Gang.Stage, r.Gang.Sentence)
			case r.Gang != nil:
				w.line("%s %s", r.Gang.ID, r.Gang.Stage)
			case detach:
				w.line("%s is being stopped", r.Stopped.ID)
			default:
				w.line("%s stopped", r.Stopped.ID)
			}
		}
	})
	return errors.Join(err, first(c, errs))
}

// first reports all errors and gives the exit code of the first.
func first(c *Call, errs []error) error {
	code := ExitDone
	for _, err := range errs {
		if err != nil {
			c.say("%s%v", c.paint(c.ErrTerminal, red, "Error: "), err)
			if code == ExitDone {
				code = exitCode(err)
			}
		}
	}
	if code == ExitDone {
		return nil
	}
	return &Exit{Code: code}
}

// are writes a number with its noun and the verb that belongs to it.
func are(n int, noun string) string {
	if n == 1 {
		return count(n, noun) + " is"
	}
	return count(n, noun) + " are"
}

// asks is the same with that verb.
func asks(n int, noun string) string {
	if n == 1 {
		return count(n, noun) + " asks"
	}
	return count(n, noun) + " ask"
}

// count writes a number with its noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
