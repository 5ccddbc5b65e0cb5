package nomad

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/nomad/picture"
)

// Delta is what changed in the picture. Objects are never changed after they
// were delivered; nil says that one is gone.
type Delta struct {
	Nodes  map[string]*picture.Node
	Allocs map[string]*picture.Alloc
	Jobs   map[picture.Key]*picture.Job
	Evals  []*picture.Eval
	// Fresh are jobs that were read anew on request, whatever came of it.
	Fresh []picture.Key
	// Contact is set when it changes, and with every sign of life.
	Contact *Contact
	// Whole: from here on the picture is complete.
	Whole bool
}

// Contact tells whether the picture can be trusted.
type Contact struct {
	OK    bool
	At    time.Time // of the last line or answer
	Index uint64    // of the last event
	Err   error     // why not OK
}

// Watcher keeps the picture of a cluster.
type Watcher struct {
	client *Client
	levels []core.Level
	log    *slog.Logger
	// Timing: how long the stream may be silent (Nomad sends a sign of life
	// every 30 s or sooner), how often the picture is held against Nomad's own
	// indexes, how long a first line is waited for, and the pause between tries (from
	// a sixteenth of it to four times).
	silence, probe, first, pause time.Duration

	refresh chan picture.Key
	tables  *tables
}

// Timing of a Watcher; zero fields have the defaults.
type Timing struct {
	Silence time.Duration // 75 s
	Probe   time.Duration // 30 s
	First   time.Duration // 10 s
	Pause   time.Duration // 1 s
}

// NewWatcher makes a Watcher; Run starts it.
func NewWatcher(client *Client, levels []core.Level, timing Timing, log *slog.Logger) *Watcher {
	or := func(d, fallback time.Duration) time.Duration {
		if d > 0 {
			return d
		}
		return fallback
	}
	return &Watcher{
		client: client, levels: levels, log: log,
		silence: or(timing.Silence, 75*time.Second), probe: or(timing.Probe, 30*time.Second), first: or(timing.First, 10*time.Second), pause: or(timing.Pause, time.Second),
		refresh: make(chan picture.Key, 1024), tables: newTables(),
	}
}

// Refresh asks for a job to be read anew; a Delta with it in Fresh follows.
func (w *Watcher) Refresh(ctx context.Context, key picture.Key) {
	select {
	case w.refresh <- key:
	case <-ctx.Done():
	}
}

// Run keeps the picture until ctx ends. Deliver is called from one goroutine
// at a time, in order.
func (w *Watcher) Run(ctx context.Context, deliver func(Delta)) {
	take := deliver
	deliver = func(d Delta) {
		for key, j := range d.Jobs {
			if j != nil && j.Unread != nil {
				w.log.Warn("a job cannot be read: it is left alone", "job", key.String(), "reason", j.Unread)
			}
		}
		take(d)
	}
	pause := w.pause / 16
	for ctx.Err() == nil {
		began := time.Now()
		err := w.session(ctx, deliver)
		if ctx.Err() != nil {
			return
		}
		// A stream that ends now and then is opened again at once, one that cannot
		// be opened with a growing pause.
		if pause = min(2*pause, 4*w.pause); time.Since(began) > 4*w.pause {
			pause = w.pause / 16
		}
		w.log.Warn("following Nomad's events again from a new list", "reason", err)
		deliver(Delta{Contact: &Contact{Err: err, At: time.Now()}})
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// errDenied: Nomad answers 200 and sends nothing where the subscription is not
// allowed or failed.
var errDenied = errors.New("the event stream was opened and says nothing: the token lacks read-job in a namespace or node read, or the server failed to subscribe")

// session is one life of the stream: open, list, reconcile, follow. It returns
// why it ended.
func (w *Watcher) session(ctx context.Context, deliver func(Delta)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	namespaces, err := w.client.namespaces(ctx)
	if err != nil {
		return err
	}
	body, err := w.client.stream(ctx, 0)
	if err != nil {
		return err
	}
	defer body.Close()
	lines := newLineQueue()
	go lines.fill(body)

	select {
	case <-lines.ready:
	case <-time.After(w.first):
		return errDenied
	case <-ctx.Done():
		return ctx.Err()
	}
	if lines.endedEmpty() {
		return errDenied
	}
	list, err := w.list(ctx, true)
	if err != nil {
		return err
	}
	delta := w.tables.replace(list, true)
	delta.Whole = true
	delta.Contact = &Contact{OK: true, At: time.Now(), Index: list.index}
	deliver(delta)
	return w.follow(ctx, lines, namespaces, deliver)
}

func (w *Watcher) follow(ctx context.Context, lines *lineQueue, namespaces string, deliver func(Delta)) error {
	silent := time.NewTimer(w.silence)
	defer silent.Stop()
	probe := time.NewTicker(w.probe)
	defer probe.Stop()
	lists := make(chan listed, 1)      // a list that ran beside the stream
	reads := make(chan refreshed, 128) // jobs read anew
	probing := false
	lastWhole := time.Now()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-silent.C:
			return fmt.Errorf("no sign of life on the event stream for %s", w.silence)
		case <-lines.ready:
			batch, err := lines.take()
			delta, bad := w.tables.lines(batch, w.levels)
			if len(batch) > 0 {
				silent.Reset(w.silence)
				delta.Contact = &Contact{OK: true, At: time.Now(), Index: w.tables.seen}
				deliver(delta)
			}
			if bad != nil {
				return bad
			}
			if err != nil {
				return fmt.Errorf("event stream ended: %w", err)
			}
		case <-probe.C:
			if probing {
				continue
			}
			probing = true
			seen, small := w.tables.seen, w.tables.size() < 5000
			full := small || time.Since(lastWhole) > 10*w.probe
			go func() { lists <- w.check(ctx, namespaces, seen, full) }()
		case l := <-lists:
			probing = false
			if l.err != nil {
				return l.err
			}
			if l.list != nil {
				lastWhole = time.Now()
				deliver(w.tables.replace(l.list, false))
			}
		case key := <-w.refresh:
			go func() {
				r := w.client.refreshed(ctx, key)
				select {
				case reads <- r:
				case <-ctx.Done():
				}
			}()
		case r := <-reads:
			deliver(w.tables.refreshed(r))
		}
	}
}

type listed struct {
	list *list
	err  error
}

// check holds what the stream has delivered against Nomad's own indexes, and
// lists everything where they differ or full says so.
func (w *Watcher) check(ctx context.Context, namespaces string, seen uint64, full bool) listed {
	now, err := w.client.namespaces(ctx)
	if err != nil {
		return listed{err: err}
	}
	if now != namespaces {
		return listed{err: errors.New("the set of namespaces changed: a subscription to all of them holds only those that were there when it began")}
	}
	if !full {
		index, err := w.client.tableIndex(ctx)
		if err != nil {
			return listed{err: err}
		}
		if full = index > seen; full {
			// Lines that are on their way are no difference: the list is merged by
			// modify index either way.
			w.log.Debug("listing everything: Nomad's tables are ahead of the event stream", "index", index, "seen", seen)
		}
	}
	if !full {
		return listed{}
	}
	l, err := w.list(ctx, false)
	return listed{l, err}
}

// lineQueue takes lines off the stream as fast as they come, so that a slow
// reader is never cut off by the server, and hands them over in batches.
type lineQueue struct {
	mu    sync.Mutex
	lines [][]byte
	err   error
	any   bool
	ready chan struct{} // holds a token while there is something to take
}

func newLineQueue() *lineQueue { return &lineQueue{ready: make(chan struct{}, 1)} }

func (q *lineQueue) fill(body io.Reader) {
	r := bufio.NewReaderSize(body, 64<<10)
	for {
		line, err := r.ReadBytes('\n')
		q.mu.Lock()
		if err == nil {
			// Half a line before the end is not an event.
			q.lines, q.any = append(q.lines, line), true
		} else {
			q.err = err
		}
		q.mu.Unlock()
		select {
		case q.ready <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

func (q *lineQueue) take() ([][]byte, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	lines := q.lines
	q.lines = nil
	return lines, q.err
}

// endedEmpty tells whether the stream is over without a single line. It leaves
// the token for take where there is something.
func (q *lineQueue) endedEmpty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case q.ready <- struct{}{}:
	default:
	}
	return q.err != nil && !q.any
}
