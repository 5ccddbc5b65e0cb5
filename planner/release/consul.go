package release

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	consul "github.com/hashicorp/consul/api"
	"github.com/nomad-muster/muster/internal/contract"
)

// ConsulOptions says how Consul is reached. Empty fields are taken from the
// environment that Consul's own client reads (CONSUL_HTTP_ADDR, ...).
type ConsulOptions struct {
	Address, Token, Namespace, Partition         string
	CACert, ClientCert, ClientKey, TLSServerName string
	TLSSkipVerify                                bool
	// Called, if set, sees every call's operation, length and error.
	Called func(operation string, took time.Duration, err error)
	// Before, if set, is asked before every call; its error takes the call's
	// place.
	Before func(operation string) error
	Log    *slog.Logger
}

// watchesAtOnce bounds the blocking reads: Consul's agents cut a client
// address off at 200 connections. Further watches look every few seconds.
const (
	watchesAtOnce = 96
	lookEvery     = 3 * time.Second
	watchWait     = 55 * time.Second
)

// Consul is the Channel over Consul's key-value store.
type Consul struct {
	client *consul.Client
	called func(string, time.Duration, error)
	before func(string) error
	log    *slog.Logger
	slots  chan struct{}
	mu     sync.Mutex
	// last is the index at which this process wrote each gang's record, which
	// saves reading it before writing it again.
	last map[contract.GangID]uint64
	// heard is the last good answer, wrong the error of the last call.
	heard time.Time
	wrong error
	addr  string
}

// Address that is called.
func (c *Consul) Address() string { return c.addr }

// Contact tells whether the last call was answered.
func (c *Consul) Contact() (ok bool, last time.Time, err string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wrong != nil {
		return false, c.heard, c.wrong.Error()
	}
	return true, c.heard, ""
}

// NewConsul makes the Channel; it does not call anybody yet.
func NewConsul(o ConsulOptions) (*Consul, error) {
	cfg := consul.DefaultConfig()
	set := func(into *string, value string) {
		if value != "" {
			*into = value
		}
	}
	set(&cfg.Address, o.Address)
	set(&cfg.Token, o.Token)
	set(&cfg.Namespace, o.Namespace)
	set(&cfg.Partition, o.Partition)
	set(&cfg.TLSConfig.CAFile, o.CACert)
	set(&cfg.TLSConfig.CertFile, o.ClientCert)
	set(&cfg.TLSConfig.KeyFile, o.ClientKey)
	set(&cfg.TLSConfig.Address, o.TLSServerName)
	cfg.TLSConfig.InsecureSkipVerify = cfg.TLSConfig.InsecureSkipVerify || o.TLSSkipVerify
	c, err := consul.NewClient(cfg)
	if err != nil {
		return nil, fmt.Errorf("set up client of Consul at %s: %w", cfg.Address, err)
	}
	if o.Called == nil {
		o.Called = func(string, time.Duration, error) {}
	}
	if o.Before == nil {
		o.Before = func(string) error { return nil }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Consul{client: c, called: o.Called, before: o.Before, log: o.Log, slots: make(chan struct{}, watchesAtOnce), last: map[contract.GangID]uint64{}, addr: cfg.Address}, nil
}

// Ping asks for the leader and fails where there is none.
func (c *Consul) Ping(ctx context.Context) error {
	leader, err := c.client.Status().LeaderWithQueryOptions((&consul.QueryOptions{}).WithContext(ctx))
	if err == nil && leader == "" {
		err = fmt.Errorf("Consul has no leader")
	}
	return c.done("ping", time.Now(), err)
}

func (c *Consul) done(operation string, start time.Time, err error) error {
	c.called(operation, time.Since(start), err)
	c.heardOf(err)
	return err
}

// heardOf keeps whether Consul answers, and tells of it once each time that
// changes.
func (c *Consul) heardOf(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil && c.wrong == nil:
		c.log.Warn("Consul does not answer; ranks that run go on, nothing is released until it does", "address", c.addr, "error", err)
	case err == nil && c.wrong != nil:
		c.log.Info("Consul answers again", "address", c.addr)
	}
	if c.wrong = err; err == nil {
		c.heard = time.Now()
	}
}

// Publish writes the record's key, each write enforced by the key's index.
func (c *Consul) Publish(ctx context.Context, record *contract.Record) error {
	body, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("encode record of gang %s: %w", record.Gang, err)
	}
	key := record.Gang.RecordKey()
	c.mu.Lock()
	index := c.last[record.Gang] // 0: the key must not exist, since the last attempt's was removed
	c.mu.Unlock()
	for range 6 {
		if err := c.before("publish"); err != nil {
			return err
		}
		start := time.Now()
		ok, answer, _, err := c.client.KV().Txn(consul.KVTxnOps{{Verb: consul.KVCAS, Key: key, Value: body, Index: index}}, (&consul.QueryOptions{}).WithContext(ctx))
		if c.done("publish", start, err) != nil {
			return fmt.Errorf("write record of gang %s, attempt %d (%s), to Consul: %w", record.Gang, record.Attempt, record.Phase, err)
		}
		if ok && len(answer.Results) == 1 {
			c.remember(record.Gang, answer.Results[0].ModifyIndex)
			return nil
		}
		pair, err := c.read(ctx, key)
		if err != nil {
			return fmt.Errorf("read record of gang %s from Consul: %w", record.Gang, err)
		}
		if pair == nil {
			index = 0
			continue
		}
		if bytes.Equal(pair.Value, body) {
			c.remember(record.Gang, pair.ModifyIndex)
			return nil
		}
		var there contract.Record
		if err := json.Unmarshal(pair.Value, &there); err == nil && there.Attempt > record.Attempt {
			return fmt.Errorf("write record of gang %s, attempt %d: %w: attempt %d", record.Gang, record.Attempt, ErrNewer, there.Attempt)
		}
		index = pair.ModifyIndex
	}
	return fmt.Errorf("write record of gang %s, attempt %d, to Consul: the key %s keeps changing: does a second planner run?", record.Gang, record.Attempt, key)
}

func (c *Consul) remember(gang contract.GangID, index uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last[gang] = index
}

func (c *Consul) read(ctx context.Context, key string) (*consul.KVPair, error) {
	if err := c.before("read"); err != nil {
		return nil, err
	}
	start := time.Now()
	pair, _, err := c.client.KV().Get(key, (&consul.QueryOptions{RequireConsistent: true}).WithContext(ctx))
	return pair, c.done("read", start, err)
}

// Reports implements Channel. A report that cannot be read is left out, and
// logged.
func (c *Consul) Reports(ctx context.Context, gang contract.GangID, attempt int) ([]contract.Report, error) {
	reports, _, err := c.list(ctx, gang, attempt, 0, nil)
	return reports, err
}

// list reads the reports, waiting for a change since index where that is not
// 0. Those that are as in seen (modify indexes by key) are left out.
func (c *Consul) list(ctx context.Context, gang contract.GangID, attempt int, index uint64, seen map[string]uint64) ([]contract.Report, uint64, error) {
	if err := c.before("reports"); err != nil {
		return nil, 0, err
	}
	start := time.Now()
	q := &consul.QueryOptions{WaitIndex: index, WaitTime: watchWait}
	prefix := gang.AttemptPrefix(attempt) + "members/"
	pairs, meta, err := c.client.KV().List(prefix, q.WithContext(ctx))
	if index == 0 {
		err = c.done("reports", start, err)
	} else if ctx.Err() == nil {
		c.heardOf(err)
	}
	if err != nil {
		return nil, 0, fmt.Errorf("read reports of gang %s, attempt %d, from Consul: %w", gang, attempt, err)
	}
	reports := make([]contract.Report, 0, len(pairs))
	for _, p := range pairs {
		if seen != nil {
			if seen[p.Key] == p.ModifyIndex {
				continue
			}
			seen[p.Key] = p.ModifyIndex
		}
		var r contract.Report
		if err := json.Unmarshal(p.Value, &r); err != nil || r.V < 1 || r.V > contract.RecordVersion {
			c.log.Warn("leaving out a member's report that cannot be read", "key", p.Key, "version", r.V, "error", err)
			continue
		}
		reports = append(reports, r)
	}
	return reports, meta.LastIndex, nil
}

// Watch implements Watcher.
func (c *Consul) Watch(ctx context.Context, gang contract.GangID, attempt int, deliver func([]contract.Report)) {
	index, pause := uint64(0), time.Duration(0)
	seen := map[string]uint64{}
	for ctx.Err() == nil {
		next, err := c.look(ctx, gang, attempt, index, seen, deliver)
		switch {
		case err == nil && next > 0:
			index, pause = next, 0
		case err == nil:
			index, pause = 0, lookEvery
		case ctx.Err() == nil:
			c.log.Debug("watching a gang's reports", "gang", gang.String(), "attempt", attempt, "error", err)
			index, pause = 0, min(max(2*pause, 250*time.Millisecond), 15*time.Second)
		}
		if pause > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	}
}

// look reads the reports once, waiting for a change since index where one of
// the blocking reads is free. It gives the index to wait on next; 0: none is
// free, or Consul was restored and its index starts over.
func (c *Consul) look(ctx context.Context, gang contract.GangID, attempt int, index uint64, seen map[string]uint64, deliver func([]contract.Report)) (uint64, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
		reports, next, err := c.list(ctx, gang, attempt, index, seen)
		if err != nil || next < index {
			clear(seen)
			return 0, err
		}
		if next > index {
			deliver(reports)
		}
		return next, nil
	default:
		reports, _, err := c.list(ctx, gang, attempt, 0, seen)
		if err == nil {
			deliver(reports)
		}
		return 0, err
	}
}

// Remove deletes the attempt's folder with the sessions that hold keys in it,
// and the record where it is still the attempt's.
func (c *Consul) Remove(ctx context.Context, gang contract.GangID, attempt int) error {
	if err := c.endSessions(ctx, gang, attempt); err != nil {
		return fmt.Errorf("end the members' sessions of attempt %d of gang %s in Consul: %w", attempt, gang, err)
	}
	if err := c.before("remove"); err != nil {
		return err
	}
	start := time.Now()
	_, err := c.client.KV().DeleteTree(gang.AttemptPrefix(attempt), (&consul.WriteOptions{}).WithContext(ctx))
	if c.done("remove", start, err) != nil {
		return fmt.Errorf("remove attempt %d of gang %s from Consul: %w", attempt, gang, err)
	}
	for range 5 {
		pair, err := c.read(ctx, gang.RecordKey())
		if err != nil {
			return fmt.Errorf("read record of gang %s from Consul: %w", gang, err)
		}
		if pair == nil {
			break
		}
		var there contract.Record
		if err := json.Unmarshal(pair.Value, &there); err == nil && there.Attempt > attempt {
			break
		}
		if err := c.before("remove"); err != nil {
			return err
		}
		start := time.Now()
		ok, _, err := c.client.KV().DeleteCAS(pair, (&consul.WriteOptions{}).WithContext(ctx))
		if c.done("remove", start, err) != nil {
			return fmt.Errorf("remove record of gang %s from Consul: %w", gang, err)
		}
		if ok {
			break
		}
	}
	c.mu.Lock()
	delete(c.last, gang)
	c.mu.Unlock()
	return nil
}

// endSessions destroys the sessions that ended members left their reports
// under; a session that is gone is no error.
func (c *Consul) endSessions(ctx context.Context, gang contract.GangID, attempt int) error {
	if err := c.before("reports"); err != nil {
		return err
	}
	start := time.Now()
	pairs, _, err := c.client.KV().List(gang.AttemptPrefix(attempt), (&consul.QueryOptions{}).WithContext(ctx))
	if c.done("reports", start, err) != nil {
		return err
	}
	sessions := map[string]bool{}
	for _, p := range pairs {
		if p.Session != "" {
			sessions[p.Session] = true
		}
	}
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		first error
		slots = make(chan struct{}, signalsAtOnce)
	)
	for id := range sessions {
		slots <- struct{}{}
		wg.Add(1)
		go func() {
			defer func() { <-slots; wg.Done() }()
			start := time.Now()
			_, err := c.client.Session().Destroy(id, (&consul.WriteOptions{}).WithContext(ctx))
			if c.done("session", start, err) != nil {
				mu.Lock()
				first = err
				mu.Unlock()
			}
		}()
	}
	wg.Wait()
	return first
}
