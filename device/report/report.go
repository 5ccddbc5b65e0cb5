// Package report tells the planner of the node's cards directly: an HTTP POST
// within a second of a fault, while Nomad takes 6 to 10 seconds.
//
// A report is the whole truth of the node at one time (contract.CardReport), so
// only the newest state waits to be sent: memory is bounded however long the
// planner is away, and nothing arrives out of order. A report that fails is
// tried again, with a growing pause; a change does not wait for the end of the
// pause. When nothing changes, a report still goes out now and then, since its
// answer carries the planner's orders.
package report

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mrand "math/rand/v2"
	"net/http"
	"os"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/nomad-muster/muster/device"
	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/internal/contract"
)

const (
	every      = 15 * time.Second // between two reports when nothing changes
	firstPause = 200 * time.Millisecond
	maxPause   = 10 * time.Second
	timeout    = 5 * time.Second
	maxReply   = 1 << 20
)

// Cards is what the reports are of and what orders go to: a device.Monitor.
type Cards interface {
	Status() []device.Status
	Sample(ctx context.Context) map[string]card.Sample
	Carry(ctx context.Context, o device.Order, done func(error))
	SetBreaker(ctx context.Context, open bool, since time.Time)
}

// Options of a Client.
type Options struct {
	Config device.Report
	Node   string // the node's name, for people
	Boot   string
	Cards  Cards
	Log    hclog.Logger
	// Transport is http's; nil: the usual one with the configured CA.
	Transport http.RoundTripper
}

// Client sends reports. It is a device.Reporter.
type Client struct {
	o        Options
	http     *http.Client
	reporter string

	wake chan struct{}

	mu      sync.Mutex
	orders  map[string]*progress // by id
	holders map[string]contract.CardHolder
}

// progress of an order: under way until it has an outcome, and remembered until
// the planner no longer repeats it.
type progress struct {
	done *contract.CardOrderDone
	told bool
}

// New makes a client; Run sends.
func New(o Options) (*Client, error) {
	c := &Client{o: o, wake: make(chan struct{}, 1), orders: map[string]*progress{}, reporter: randomName()}
	transport := o.Transport
	if transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		if o.Config.CAFile != "" {
			pem, err := os.ReadFile(o.Config.CAFile)
			if err != nil {
				return nil, fmt.Errorf("read report.ca_file: %w", err)
			}
			pool := x509.NewCertPool()
			if !pool.AppendCertsFromPEM(pem) {
				return nil, fmt.Errorf("read report.ca_file %s: it holds no certificate", o.Config.CAFile)
			}
			t.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
		}
		transport = t
	}
	c.http = &http.Client{Transport: transport, Timeout: timeout}
	return c, nil
}

func randomName() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Report takes the news that the cards changed. The cards themselves are read
// when the report goes out.
func (c *Client) Report([]device.Status) {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Holders gives who holds which card, as the planner last said.
func (c *Client) Holders() map[string]contract.CardHolder {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.holders
}

// Run sends reports until ctx ends. Cards are measured only for the reports
// that go out now and then, and beside the loop: news of a fault waits for no
// measurement, which may hang on the very card that the news are of.
func (c *Client) Run(ctx context.Context) {
	seq := uint64(0)
	pause, failing := firstPause, ""
	measured := make(chan map[string]card.Sample, 1)
	var samples map[string]card.Sample // the last ones
	measuring := false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-timer.C:
			if c.o.Cards.Status() == nil { // nothing was seen yet
				timer.Reset(firstPause)
				continue
			}
			if !measuring {
				measuring = true
				go func() { measured <- c.o.Cards.Sample(ctx) }()
			}
			timer.Reset(every) // should it never come back
			continue
		case samples = <-measured:
			measuring = false
		}
		cards := c.o.Cards.Status()
		if cards == nil {
			timer.Reset(firstPause)
			continue
		}
		seq++
		report := Build(cards, samples)
		report.Reporter, report.Seq, report.Node, report.Boot, report.At = c.reporter, seq, c.o.Node, c.o.Boot, time.Now()
		report.Done = c.outcomes()
		reply, err := c.post(ctx, report)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			if failing != err.Error() {
				failing = err.Error()
				c.o.Log.Warn("the planner cannot be told of cards: Nomad tells it, later; this is tried on", "address", c.o.Config.Address, "error", err)
			}
			timer.Reset(pause/2 + mrand.N(pause)) // many nodes must not come all at once
			pause = min(2*pause, maxPause)
			continue
		}
		if failing != "" {
			failing = ""
			c.o.Log.Info("the planner is told of cards again", "address", c.o.Config.Address)
		}
		pause = firstPause
		c.take(ctx, reply, report.Done)
		next := every
		if reply.Every > 0 {
			next = min(max(time.Duration(reply.Every)*time.Second, time.Second), 10*time.Minute)
		}
		timer.Reset(next - next/10 + mrand.N(next/5))
	}
}

// post sends one report.
func (c *Client) post(ctx context.Context, report contract.CardReport) (contract.CardReply, error) {
	var reply contract.CardReply
	body, err := json.Marshal(report)
	if err != nil {
		return reply, fmt.Errorf("encode report: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(c.o.Config.Address, "/")+contract.PathCardReports, bytes.NewReader(body))
	if err != nil {
		return reply, fmt.Errorf("make report: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	token := c.o.Config.Token
	if c.o.Config.TokenFile != "" {
		text, err := os.ReadFile(c.o.Config.TokenFile)
		if err != nil {
			return reply, fmt.Errorf("read report.token_file: %w", err)
		}
		token = strings.TrimSpace(string(text))
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return reply, err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxReply))
	if err != nil {
		return reply, fmt.Errorf("read the planner's answer: %w", err)
	}
	switch {
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden:
		return reply, fmt.Errorf("the planner refuses the token (%s): set report.token or report.token_file to one that may report cards", resp.Status)
	case resp.StatusCode == http.StatusNotFound:
		return reply, errors.New("there is no planner that takes card reports at this address (404)")
	case resp.StatusCode/100 != 2:
		return reply, fmt.Errorf("the planner answers %s: %s", resp.Status, short(string(answer)))
	}
	if len(bytes.TrimSpace(answer)) == 0 {
		return reply, nil
	}
	if err := json.Unmarshal(answer, &reply); err != nil {
		return reply, fmt.Errorf("read the planner's answer: %w", err)
	}
	return reply, nil
}

func short(text string) string {
	text = strings.TrimSpace(text)
	if len(text) > 200 {
		return text[:200] + "..."
	}
	return text
}

// outcomes lists the orders that are done and not yet told.
func (c *Client) outcomes() []contract.CardOrderDone {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []contract.CardOrderDone
	for _, p := range c.orders {
		if p.done != nil && !p.told {
			out = append(out, *p.done)
		}
	}
	sort.Slice(out, func(i, j int) bool { return out[i].ID < out[j].ID })
	return out
}

// take carries out what an answer asks for; told are the outcomes that it has
// taken note of.
func (c *Client) take(ctx context.Context, reply contract.CardReply, told []contract.CardOrderDone) {
	repeated := map[string]bool{}
	for _, o := range reply.Orders {
		repeated[o.ID] = true
	}
	c.mu.Lock()
	for id, p := range c.orders {
		switch {
		case p.told && !repeated[id]:
			delete(c.orders, id)
		case p.told: // it did not take note: told again with the next report
			p.told = false
		}
	}
	for _, d := range told {
		if p := c.orders[d.ID]; p != nil {
			p.told = true
		}
	}
	if reply.Holders != nil {
		c.holders = reply.Holders
	}
	c.mu.Unlock()
	c.o.Cards.SetBreaker(ctx, reply.Breaker, reply.BreakerSince)
	for _, o := range reply.Orders {
		c.mu.Lock()
		p := c.orders[o.ID]
		known := p != nil
		if !known && o.ID != "" {
			p = &progress{}
			c.orders[o.ID] = p
		}
		c.mu.Unlock()
		if known || o.ID == "" {
			continue
		}
		finish := func(err error) {
			d := contract.CardOrderDone{ID: o.ID}
			if err != nil {
				d.Error = err.Error()
			}
			c.mu.Lock()
			p.done = &d
			c.mu.Unlock()
			c.Report(nil)
		}
		order, err := orderOf(o)
		if err != nil {
			finish(err)
			continue
		}
		c.o.Log.Info("order", "kind", o.Kind, "card", o.Card, "who", o.Who, "why", o.Why, "force", o.Force)
		c.o.Cards.Carry(ctx, order, finish)
	}
}

func orderOf(o contract.CardOrder) (device.Order, error) {
	if err := o.Check(); err != nil {
		return device.Order{}, err
	}
	kinds := map[string]health.Kind{contract.OrderConfirm: health.Confirm, contract.OrderClear: health.Clear, contract.OrderNote: health.Note, contract.OrderSuspect: health.Suspicion}
	return device.Order{ID: o.ID, Kind: kinds[o.Kind], Card: o.Card, Who: o.Who, Text: o.Why, Level: health.Level(o.State), Force: o.Force}, nil
}

// Bounds of one card in a report.
const (
	maxEvidence = 4
	maxRecord   = 8
)

// Build makes a report's cards.
func Build(cards []device.Status, samples map[string]card.Sample) contract.CardReport {
	report := contract.CardReport{V: contract.CardReportVersion, Cards: []contract.CardStatus{}}
	for _, s := range cards {
		out := contract.CardStatus{ID: s.Card.ID, Group: s.Card.Group.Vendor + "/" + s.Card.Group.Type + "/" + s.Card.Group.Model, Index: s.Card.Index, Slot: s.Card.Bus.String(), Serial: s.Card.Serial,
			Parent: s.Card.Parent, Hidden: s.Card.Hidden, State: string(s.Verdict.Level), Why: s.Verdict.Sentence, Clears: s.Verdict.Clears, Since: s.Verdict.Since, Accepted: s.Health.Accepted,
			Xids: s.Health.Xids, Strikes: len(s.Health.Strikes)}
		for _, c := range s.Verdict.Causes[:min(len(s.Verdict.Causes), maxEvidence)] {
			out.Evidence = append(out.Evidence, contract.CardEvidence{State: string(c.Level), What: c.Text, Line: c.Line, Since: c.Since, Last: c.Last, Times: c.Times})
		}
		for _, e := range s.Health.Log[max(0, len(s.Health.Log)-maxRecord):] {
			out.Record = append(out.Record, contract.CardNote{At: e.At, Kind: string(e.Kind), Who: e.Who, Text: e.Text})
		}
		if m, ok := samples[s.Card.ID]; ok && m.MemTotal != nil && m.MemUsed != nil {
			out.Measured = &contract.CardMeasured{MemoryUsed: *m.MemUsed, MemoryTotal: *m.MemTotal}
			if m.GPUUtil != nil {
				out.Measured.Utilization = *m.GPUUtil
			}
			if m.SMActive != nil {
				activity := *m.SMActive * 100
				out.Measured.Activity = &activity
			}
			if m.Power != nil {
				out.Measured.Power = *m.Power
			}
			if m.Processes != nil {
				out.Measured.Processes = int(*m.Processes)
			}
		}
		report.Cards = append(report.Cards, out)
	}
	return report
}
