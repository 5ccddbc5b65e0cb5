package notify

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"time"
)

// Options make a Sender. What is left out has the value in brackets.
type Options struct {
	Source   string // CloudEvents' source: which planner, "muster/<region>"
	Webhooks []Webhook
	Dir      string // for the queues; "": in memory alone
	Log      *slog.Logger

	MaxPending int           // events kept for a webhook [20,000]
	MaxAge     time.Duration // after which an event is given up [24 h]
	Remembered int           // ids of events that were done with, for each webhook [20,000]
	Parallel   int           // requests at a time to a webhook [8]
	Timeout    time.Duration // of a request [10 s]
	MinPause   time.Duration // after a first failure; it doubles from there [1 s]
	MaxPause   time.Duration // [5 min]
	Client     *http.Client  // its CheckRedirect is not used [the default transport]
}

// Sender tells webhooks. Its methods may be called from any goroutine.
type Sender struct {
	source string
	hooks  []*hook
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// Start opens the queues and begins to send. A queue that cannot be read or
// written is told in Status; its events are in memory alone, and its file is
// left as it is.
func Start(o Options) *Sender {
	def := func(n *int, v int) {
		if *n <= 0 {
			*n = v
		}
	}
	span := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&o.MaxPending, 20_000)
	def(&o.Remembered, 20_000)
	def(&o.Parallel, 8)
	span(&o.MaxAge, 24*time.Hour)
	span(&o.Timeout, 10*time.Second)
	span(&o.MinPause, time.Second)
	span(&o.MaxPause, 5*time.Minute)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	client := http.Client{}
	if o.Client != nil {
		client = *o.Client
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	s := &Sender{source: o.Source}
	for i := range o.Webhooks {
		h := newHook(&o, o.Webhooks[i], &client)
		if o.Dir != "" {
			j, pending, done, err := openJournal(filepath.Join(o.Dir, o.Webhooks[i].Name+".queue"))
			if h.journal, h.unread = j, err; err == nil {
				h.restore(pending, done)
			}
		}
		s.hooks = append(s.hooks, h)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	for _, h := range s.hooks {
		s.wg.Go(func() { h.run(ctx) })
	}
	return s
}

// Post takes an event. It returns at once; what cannot be taken is counted in
// Status and logged.
func (s *Sender) Post(e Event) {
	if s == nil || len(s.hooks) == 0 {
		return
	}
	data, err := json.Marshal(e.Data)
	if err != nil {
		data, _ = json.Marshal(fmt.Sprintf("this event's data cannot be written: %v", err))
	}
	ce := &cloudEvent{SpecVersion: "1.0", ID: e.ID, Source: s.source, Type: e.Type, Subject: e.Subject, Time: e.Time.UTC(),
		DataContentType: "application/json", Queue: e.Queue, Data: data}
	for _, h := range s.hooks {
		if h.webhook.wants(&e) {
			h.take(ce)
		}
	}
}

// Flush returns when all events posted so far are on disk, or ctx ends.
func (s *Sender) Flush(ctx context.Context) error {
	if s == nil {
		return nil
	}
	for _, h := range s.hooks {
		if err := h.flush(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Close stops sending; what waits stays on disk.
func (s *Sender) Close() {
	if s == nil {
		return
	}
	s.cancel()
	s.wg.Wait()
}

// Status of a webhook. Counters are since Start.
type Status struct {
	Name      string    `json:"name"`
	Pending   int       `json:"pending"`   // events that wait
	Delivered int64     `json:"delivered"` // accepted by the webhook
	Failed    int64     `json:"failed"`    // tries that were not
	Dropped   int64     `json:"dropped"`   // events given up: too old, or pushed out
	Oldest    time.Time `json:"oldest,omitzero"`
	Durable   bool      `json:"durable"` // the queue is on disk
	// LastError is of the last try, if it failed; Disk is why the queue is in
	// memory alone although a folder is given.
	LastError string `json:"last_error,omitempty"`
	Disk      string `json:"disk,omitempty"`
}

// Status of all webhooks, in the order of the configuration.
func (s *Sender) Status() []Status {
	if s == nil {
		return nil
	}
	out := make([]Status, 0, len(s.hooks))
	for _, h := range s.hooks {
		out = append(out, h.status())
	}
	return out
}
