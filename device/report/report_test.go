package report

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/device"
	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/internal/contract"
)

// cards stands in for a monitor.
type cards struct {
	mu      sync.Mutex
	level   health.Level
	orders  []device.Order
	breaker bool
	fail    error
	// hang makes measuring take this long.
	hang time.Duration
}

func (c *cards) Status() []device.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.level == "" {
		return nil
	}
	s, v := health.Evolve(health.State{}, []health.Event{{Kind: health.Xid, Code: 48, At: time.Unix(1, 0), Text: "NVRM: Xid (PCI:0000:01:00): 48, x"}}, health.Default())
	v.Level = c.level
	return []device.Status{{Card: card.Card{ID: "a", Group: card.Group{Vendor: "nvidia", Type: "gpu", Model: "X"}}, Verdict: v, Health: s}}
}

func (c *cards) Sample(context.Context) map[string]card.Sample {
	c.mu.Lock()
	hang := c.hang
	c.mu.Unlock()
	time.Sleep(hang)
	used, total := uint64(5), uint64(10)
	return map[string]card.Sample{"a": {MemUsed: &used, MemTotal: &total}}
}

func (c *cards) Carry(_ context.Context, o device.Order, done func(error)) {
	c.mu.Lock()
	c.orders = append(c.orders, o)
	fail := c.fail
	c.mu.Unlock()
	done(fail)
}

func (c *cards) SetBreaker(_ context.Context, open bool, _ time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.breaker = open
}

func (c *cards) set(l health.Level) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.level = l
}

// planner answers reports.
type planner struct {
	mu      sync.Mutex
	down    bool
	status  int
	reply   contract.CardReply
	got     []contract.CardReport
	tokens  []string
	invalid error
}

func (p *planner) RoundTrip(req *http.Request) (*http.Response, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	if p.down {
		return nil, errors.New("connection refused")
	}
	var r contract.CardReport
	if err := json.Unmarshal(body, &r); err != nil {
		p.invalid = err
	} else if err := r.Check(); err != nil {
		p.invalid = err
	}
	status := p.status
	if status == 0 {
		status = http.StatusOK
	}
	p.tokens = append(p.tokens, req.Header.Get("Authorization"))
	if status == http.StatusOK {
		p.got = append(p.got, r)
	}
	answer, err := json.Marshal(p.reply)
	return &http.Response{StatusCode: status, Status: fmt.Sprint(status), Body: io.NopCloser(bytes.NewReader(answer))}, err
}

func (p *planner) change(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
}

func (p *planner) reports() []contract.CardReport {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.got)
}

func (p *planner) auth() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.tokens)
}

func (c *cards) carried() []device.Order {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.orders)
}

func (c *cards) open() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.breaker
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func run(t *testing.T, config device.Report, test func(c *Client, cards *cards, p *planner, log *lockedBuffer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cards, p, log := &cards{level: health.Healthy}, &planner{}, &lockedBuffer{}
		config.Address = "http://planner.example"
		c, err := New(Options{Config: config, Node: "n1", Cards: cards, Log: hclog.New(&hclog.LoggerOptions{Output: log}), Transport: p})
		must.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() { defer close(ended); c.Run(ctx) }()
		synctest.Wait()
		test(c, cards, p, log)
		cancel()
		<-ended
		must.NoError(t, p.invalid)
	})
}

func TestReports(t *testing.T) {
	t.Parallel()
	run(t, device.Report{Token: "secret"}, func(c *Client, cards *cards, p *planner, _ *lockedBuffer) {
		must.Len(t, 1, p.reports()) // at once
		r := p.reports()[0]
		must.Eq(t, "n1", r.Node)
		must.Eq(t, contract.CardHealthy, r.Cards[0].State)
		must.Eq(t, "nvidia/gpu/X", r.Cards[0].Group)
		must.Eq(t, "NVRM: Xid (PCI:0000:01:00): 48, x", r.Cards[0].Evidence[0].Line)
		must.Eq(t, uint64(5), r.Cards[0].Measured.MemoryUsed)
		must.Eq(t, "Bearer secret", p.auth()[0])
		cards.set(health.Quarantined)
		c.Report(nil)
		synctest.Wait()
		must.Len(t, 2, p.reports()) // a change does not wait
		must.Eq(t, contract.CardQuarantined, p.reports()[1].Cards[0].State)
		must.Eq(t, r.Seq+1, p.reports()[1].Seq)
		must.Eq(t, r.Reporter, p.reports()[1].Reporter)
		time.Sleep(time.Minute)
		synctest.Wait()
		must.Between(t, 5, len(p.reports()), 7) // now and then, for orders
		p.change(func() { p.reply.Every = 2 })
		time.Sleep(time.Minute)
		synctest.Wait()
		must.Greater(t, 20, len(p.reports()))
	})
}

// However long the planner is away, it gets the newest state first, and soon.
func TestPlannerIsAway(t *testing.T) {
	t.Parallel()
	run(t, device.Report{}, func(c *Client, cards *cards, p *planner, log *lockedBuffer) {
		p.change(func() { p.down = true })
		for i := range 1000 {
			cards.set([]health.Level{health.Suspect, health.Draining}[i%2])
			c.Report(nil)
			time.Sleep(time.Second)
		}
		synctest.Wait()
		cards.set(health.Quarantined)
		p.change(func() { p.down = false })
		time.Sleep(16 * time.Second)
		synctest.Wait()
		must.Len(t, 2, p.reports())
		must.Eq(t, contract.CardQuarantined, p.reports()[1].Cards[0].State)
		must.Eq(t, 1, strings.Count(log.String(), "cannot be told"))
		must.Eq(t, 1, strings.Count(log.String(), "told of cards again"))
	})
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]string{401: "refuses the token", 403: "refuses the token", 404: "no planner that takes card reports", 500: "answers 500"} {
		run(t, device.Report{}, func(c *Client, _ *cards, p *planner, log *lockedBuffer) {
			p.change(func() { p.status = status })
			c.Report(nil)
			time.Sleep(time.Minute)
			synctest.Wait()
			must.StrContains(t, log.String(), want)
			must.Less(t, 30, len(p.auth())) // paced
			p.change(func() { p.status = 0 })
			time.Sleep(20 * time.Second)
			synctest.Wait()
			must.Greater(t, 1, len(p.reports()))
		})
	}
}

func TestTokenFileIsReadEachTime(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	must.NoError(t, os.WriteFile(file, []byte("one\n"), 0o600))
	run(t, device.Report{TokenFile: file}, func(c *Client, _ *cards, p *planner, _ *lockedBuffer) {
		must.NoError(t, os.WriteFile(file, []byte("two\n"), 0o600))
		c.Report(nil)
		synctest.Wait()
		must.Eq(t, []string{"Bearer one", "Bearer two"}, p.auth())
	})
}

func TestOrders(t *testing.T) {
	t.Parallel()
	run(t, device.Report{}, func(c *Client, cards *cards, p *planner, _ *lockedBuffer) {
		p.change(func() {
			p.reply = contract.CardReply{Breaker: true, Holders: map[string]contract.CardHolder{"a": {Gang: "default/x", Queue: "q", Attempt: 2}}, Orders: []contract.CardOrder{
				{ID: "1", Kind: contract.OrderClear, Card: "a", Who: "ann", Why: "replaced", Force: true},
				{ID: "2", Kind: contract.OrderSuspect, Card: "a", State: contract.CardQuarantined, Why: "3 gangs failed"},
				{ID: "3", Kind: "explode", Card: "a"}}}
		})
		c.Report(nil)
		time.Sleep(time.Second)
		synctest.Wait()
		must.Eq(t, []device.Order{{ID: "1", Kind: health.Clear, Card: "a", Who: "ann", Text: "replaced", Force: true},
			{ID: "2", Kind: health.Suspicion, Card: "a", Text: "3 gangs failed", Level: health.Quarantined}}, cards.carried())
		must.True(t, cards.open())
		must.Eq(t, "default/x", c.Holders()["a"].Gang)
		last := p.reports()[len(p.reports())-1]
		must.Len(t, 3, last.Done)
		must.StrContains(t, last.Done[0].Error+last.Done[1].Error+last.Done[2].Error, "kind")

		// Told once, and not carried out again while the planner repeats it.
		p.change(func() { p.reply = contract.CardReply{} })
		time.Sleep(time.Minute)
		synctest.Wait()
		must.SliceEmpty(t, p.reports()[len(p.reports())-1].Done)
		must.Len(t, 2, cards.carried())
		must.False(t, cards.open())
	})
}

// A card that hangs its driver is one that faults: the news of it do not wait
// for the measurements that hang with it.
func TestNewsDoNotWaitForMeasurements(t *testing.T) {
	t.Parallel()
	run(t, device.Report{}, func(c *Client, cards *cards, p *planner, _ *lockedBuffer) {
		cards.mu.Lock()
		cards.hang = 5 * time.Second
		cards.mu.Unlock()
		time.Sleep(every + every/2) // one of the usual reports hangs
		before := len(p.reports())
		began := time.Now()
		cards.set(health.Quarantined)
		c.Report(nil)
		synctest.Wait()
		must.Len(t, before+1, p.reports())
		last := p.reports()[before]
		must.Eq(t, contract.CardQuarantined, last.Cards[0].State)
		must.Eq(t, uint64(5), last.Cards[0].Measured.MemoryUsed, must.Sprint("the last measurements are told"))
		must.Eq(t, 0, time.Since(began))
	})
}

func TestNothingIsToldBeforeTheFirstLook(t *testing.T) {
	t.Parallel()
	run(t, device.Report{}, func(c *Client, cards *cards, p *planner, _ *lockedBuffer) {
		before := len(p.reports())
		cards.set("")
		c.Report(nil)
		time.Sleep(time.Second)
		synctest.Wait()
		must.Len(t, before, p.reports())
		cards.set(health.Healthy)
		time.Sleep(time.Second)
		synctest.Wait()
		must.Len(t, before+1, p.reports())
	})
}

func TestBadCA(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ca.pem")
	must.NoError(t, os.WriteFile(file, []byte("nonsense"), 0o600))
	_, err := New(Options{Config: device.Report{CAFile: file}})
	must.ErrorContains(t, err, "no certificate")
	_, err = New(Options{Config: device.Report{CAFile: file + "x"}})
	must.ErrorContains(t, err, "ca_file")
}
