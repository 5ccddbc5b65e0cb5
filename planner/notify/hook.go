package notify

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nomad-muster/muster/internal/buildinfo"
)

// hook is one webhook with its queue.
type hook struct {
	o       *Options
	webhook Webhook
	client  *http.Client
	log     *slog.Logger
	journal journal // of run alone
	unread  error   // why the queue's file could not be opened
	rewrite bool    // the file lacks something

	mu      sync.Mutex
	order   []*item // all that wait, oldest first
	known   map[string]bool
	done    []string // ids, oldest first
	unsaved []line   // for the journal
	changed chan struct{}
	saved   *sync.Cond
	seq     uint64 // of lines given to the journal
	written uint64 // of those that are in it, or that it refused
	rounds  uint64 // of run
	counts  Status

	failures int       // in a row, of the webhook as a whole
	pauseTo  time.Time // nothing is sent before
	busy     int
}

// item is an event that waits.
type item struct {
	event  *cloudEvent
	tries  int
	notYet time.Time // next try
	flying bool
}

// result of a try.
type result struct {
	item  *item
	err   error
	whole bool          // the fault is the webhook's, not the event's
	after time.Duration // asked for by the webhook; 0: nothing
}

func newHook(o *Options, w Webhook, client *http.Client) *hook {
	h := &hook{o: o, webhook: w, client: client, log: o.Log.With("webhook", w.Name), known: map[string]bool{}, changed: make(chan struct{}, 1)}
	h.saved = sync.NewCond(&h.mu)
	h.counts.Name = w.Name
	return h
}

func (h *hook) restore(pending []*cloudEvent, done []string) {
	for _, id := range done {
		h.remember(id)
	}
	for _, e := range pending {
		h.known[e.ID] = true
		h.order = append(h.order, &item{event: e})
	}
}

// remember an id that is done with. The lock is held.
func (h *hook) remember(id string) {
	h.known[id] = true
	h.done = append(h.done, id)
	if over := len(h.done) - h.o.Remembered; over > 0 {
		for _, old := range h.done[:over] {
			delete(h.known, old)
		}
		h.done = append(h.done[:0:0], h.done[over:]...)
	}
}

func (h *hook) take(e *cloudEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.known[e.ID] {
		return
	}
	h.known[e.ID] = true
	h.order = append(h.order, &item{event: e})
	h.note(line{Event: e})
	if len(h.order) > h.o.MaxPending {
		for _, it := range h.order {
			if !it.flying {
				h.drop(it, "more than "+strconv.Itoa(h.o.MaxPending)+" events wait")
				break
			}
		}
	}
	h.wake()
}

// note hands a line to the journal. The lock is held.
func (h *hook) note(l line) {
	h.unsaved = append(h.unsaved, l)
	h.seq++
}

// drop gives an event up. The lock is held.
func (h *hook) drop(it *item, why string) {
	h.counts.Dropped++
	if h.counts.Dropped&(h.counts.Dropped-1) == 0 { // the first, second, fourth, ...
		h.log.Warn("an event is given up", "id", it.event.ID, "type", it.event.Type, "subject", it.event.Subject, "why", why, "dropped", h.counts.Dropped)
	}
	h.finish(it)
}

// finish takes an event out of the queue. The lock is held.
func (h *hook) finish(it *item) {
	for i, x := range h.order {
		if x == it {
			h.order = append(h.order[:i], h.order[i+1:]...)
			break
		}
	}
	h.remember(it.event.ID)
	h.note(line{Done: it.event.ID})
}

func (h *hook) wake() {
	select {
	case h.changed <- struct{}{}:
	default:
	}
}

func (h *hook) flush(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.saved.Broadcast()
	})
	defer stop()
	h.mu.Lock()
	defer h.mu.Unlock()
	for want := h.seq; h.written < want; h.saved.Wait() {
		if ctx.Err() != nil {
			return fmt.Errorf("save events for webhook %s: %w", h.webhook.Name, ctx.Err())
		}
	}
	if h.counts.Disk != "" {
		return fmt.Errorf("save events for webhook %s: %s", h.webhook.Name, h.counts.Disk)
	}
	return nil
}

func (h *hook) status() Status {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.counts
	s.Durable = h.o.Dir != "" && s.Disk == ""
	if s.Pending = len(h.order); s.Pending > 0 {
		s.Oldest = h.order[0].event.Time
	}
	return s
}

// run saves, sends and hears of what was sent, until ctx ends.
func (h *hook) run(ctx context.Context) {
	results := make(chan result)
	var sending sync.WaitGroup
	timer := time.NewTimer(0)
	// At the end, requests on their way have a moment to be answered: what was
	// accepted would be sent again otherwise.
	sendCtx, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		defer time.AfterFunc(lastMoment, cut).Stop()
		sending.Wait()
		cut()
		h.save()
		h.journal.close()
	}()
	for {
		h.save()
		ready, next := h.due(time.Now())
		for _, it := range ready {
			sending.Go(func() {
				r := h.send(sendCtx, it)
				select {
				case results <- r:
				case <-ctx.Done():
					h.settle(r, time.Now())
				}
			})
		}
		timer.Reset(next)
		select {
		case <-ctx.Done():
			return
		case <-h.changed:
		case <-timer.C:
		case r := <-results:
			h.settle(r, time.Now())
		}
	}
}

// lastMoment is how long Close waits for answers.
const lastMoment = time.Second

// rewriteAfter is how many lines beyond those needed a file may have.
const rewriteAfter = 4096

// save brings what has happened to the disk. Where that fails, all that waits is
// written at the next occasion.
func (h *hook) save() {
	h.mu.Lock()
	lines, upTo := h.unsaved, h.seq
	h.unsaved = nil
	needed := len(h.order) + len(h.done)
	var whole []line
	rewrite := h.rewrite || h.journal.lines+len(lines) > 2*needed+rewriteAfter
	if rewrite {
		for _, id := range h.done {
			whole = append(whole, line{Done: id})
		}
		for _, it := range h.order {
			whole = append(whole, line{Event: it.event})
		}
	}
	h.mu.Unlock()
	var err error
	switch {
	case h.unread != nil:
		err = h.unread
	case rewrite:
		err = h.journal.replace(whole)
	default:
		err = h.journal.append(lines)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.written = upTo
	h.rounds++
	h.rewrite = err != nil // the next time everything is written, these lines with it
	was := h.counts.Disk
	if h.counts.Disk = ""; err != nil {
		h.counts.Disk = err.Error()
	}
	if h.counts.Disk != "" && was == "" {
		h.log.Error("events are kept in memory alone", "error", err)
	}
	if h.counts.Disk == "" && was != "" {
		h.log.Info("events are on disk again")
	}
	h.saved.Broadcast()
}

// due are the events to send now, of each subject at most the oldest, and the
// time until there may be more.
func (h *hook) due(now time.Time) (ready []*item, next time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for len(h.order) > 0 && !h.order[0].flying && now.Sub(h.order[0].event.Time) > h.o.MaxAge {
		h.drop(h.order[0], "older than "+h.o.MaxAge.String())
	}
	next = time.Minute
	if h.counts.Disk != "" {
		next = 5 * time.Second
	}
	parallel := h.o.Parallel
	if h.failures > 0 { // one at a time feels whether it is back
		parallel = 1
		if wait := h.pauseTo.Sub(now); wait > 0 {
			return nil, min(next, wait)
		}
	}
	seen := map[string]bool{}
	for _, it := range h.order {
		if h.busy >= parallel {
			break
		}
		if seen[it.event.Subject] {
			continue
		}
		seen[it.event.Subject] = true
		if it.flying {
			continue
		}
		if wait := it.notYet.Sub(now); wait > 0 {
			next = min(next, wait)
			continue
		}
		it.flying = true
		h.busy++
		ready = append(ready, it)
	}
	return ready, next
}

// settle draws the consequences of a try.
func (h *hook) settle(r result, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.item.flying = false
	h.busy--
	if r.err == nil {
		if h.failures > 0 {
			h.log.Info("the webhook answers again", "waiting", len(h.order)-1)
		}
		h.counts.Delivered++
		h.counts.LastError, h.failures = "", 0
		h.finish(r.item)
		return
	}
	h.counts.Failed++
	h.counts.LastError = r.err.Error()
	r.item.tries++
	r.item.notYet = now.Add(max(h.pause(r.item.tries), r.after))
	if r.whole {
		if h.failures++; h.failures == 1 {
			h.log.Warn("the webhook does not take events", "error", r.err, "waiting", len(h.order))
		}
		h.pauseTo = now.Add(max(h.pause(h.failures), r.after))
	}
}

// pause before try n+1: doubled each time, and a fifth more or less, so that
// many planners do not come at once.
func (h *hook) pause(n int) time.Duration {
	p := h.o.MaxPause
	if n < 30 {
		p = min(p, h.o.MinPause<<(n-1))
	}
	return p*4/5 + time.Duration(rand.Int64N(int64(p)*2/5+1))
}

// send tries one event.
func (h *hook) send(ctx context.Context, it *item) result {
	fail := func(whole bool, err error) result { return result{item: it, err: err, whole: whole} }
	body, err := json.Marshal(it.event)
	if err != nil {
		return fail(false, err)
	}
	ctx, cancel := context.WithTimeout(ctx, h.o.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.webhook.URL, bytes.NewReader(body))
	if err != nil {
		return fail(true, err)
	}
	for k, v := range h.webhook.Header {
		req.Header.Set(k, v)
	}
	stamp := strconv.FormatInt(time.Now().Unix(), 10)
	req.Header.Set("Content-Type", "application/cloudevents+json; charset=utf-8")
	req.Header.Set("User-Agent", "muster/"+buildinfo.Version)
	req.Header.Set("Webhook-Id", it.event.ID)
	req.Header.Set("Webhook-Timestamp", stamp)
	if len(h.webhook.Secret) > 0 {
		req.Header.Set("Webhook-Signature", Sign(h.webhook.Secret, it.event.ID, stamp, body))
	}
	resp, err := h.client.Do(req)
	if err != nil {
		if u := (*url.Error)(nil); errors.As(err, &u) {
			err = u.Err // without the address, which may hold a secret
		}
		return fail(true, fmt.Errorf("post event %s to webhook %s: %w", it.event.ID, h.webhook.Name, err))
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 300))
	io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode/100 == 2 {
		return result{item: it}
	}
	r := fail(resp.StatusCode >= 500 || resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode/100 == 3 || resp.StatusCode == http.StatusUnauthorized ||
		resp.StatusCode == http.StatusForbidden || resp.StatusCode == http.StatusNotFound,
		fmt.Errorf("post event %s to webhook %s: it answers %s: %s", it.event.ID, h.webhook.Name, resp.Status, strings.TrimSpace(string(text))))
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s > 0 {
		r.after = min(time.Duration(s)*time.Second, h.o.MaxPause)
	}
	return r
}

// Sign is the signature of a request, as receivers compute it to compare:
// HMAC-SHA256 over the id, the timestamp and the body.
func Sign(secret []byte, id, timestamp string, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "%s.%s.", id, timestamp)
	mac.Write(body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}
