package rendezvous

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/nomad-muster/muster/internal/contract"
)

const (
	renewEvery  = SessionTTL / 3
	checkTTL    = 3 * SessionTTL  // of the service's check
	forgetAfter = 1 * time.Minute // Consul's least: a critical service is removed
	queryWait   = time.Minute     // one blocking query
	callTimeout = 10 * time.Second
	// registerTimeout bounds what nobody depends on, and the member's end waits
	// for.
	registerTimeout = 2 * time.Second
	backoffLeast    = 250 * time.Millisecond
	backoffMost     = 10 * time.Second
	// pacePerMember bounds what a gang's members ask of Consul while all of
	// them report: each reads all reports at most so often, times the members.
	pacePerMember = 10 * time.Millisecond
	paceLeast     = 100 * time.Millisecond
)

// Consul is the board on Consul's key-value store.
type Consul struct {
	self   Self
	client *api.Client
	hangUp func() // gives idle connections back
	stop   context.CancelFunc
	done   sync.WaitGroup
	ctx    context.Context // ends at Close

	mu        sync.Mutex // serialises what is written
	session   string     // holds the report and the endpoints; empty: none yet
	keeping   bool       // the loop that renews runs
	report    *contract.Report
	key       string // under which report stands
	moved     map[string]contract.Endpoint
	ended     bool
	serviceOf int // attempt that the service is registered for
	// again is closed and replaced when contact was lost and is there again: what
	// is being asked then may hang on a dead connection, and is asked anew.
	again chan struct{}
	// registered says that the service was put there, or tried to.
	registered bool
}

// NewConsul makes a board on Consul. Nothing is asked of Consul yet.
func NewConsul(cfg ConsulConfig, self Self) (*Consul, error) {
	client, hangUp, err := cfg.client()
	if err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	return &Consul{self: self, client: client, hangUp: hangUp, ctx: ctx, stop: stop, moved: map[string]contract.Endpoint{}, again: make(chan struct{})}, nil
}

func (c *Consul) interrupted() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.again
}

// Follow is described at Board.
func (c *Consul) Follow(ctx context.Context, see func(Sight), warn func(error)) {
	var mu sync.Mutex // calls of see and warn do not overlap
	var sight Sight
	troubled := false
	trouble := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		if err != nil || troubled {
			warn(err)
		}
		troubled = err != nil
	}

	following := 0 // the attempt whose folder is watched
	var wg sync.WaitGroup
	cancelAttempt := context.CancelFunc(func() {})
	defer func() { cancelAttempt(); wg.Wait() }()

	watch(ctx, c.interrupted, trouble, func(q *api.QueryOptions) (*api.QueryMeta, error) {
		pair, meta, err := c.client.KV().Get(c.self.Gang.RecordKey(), q)
		if err != nil {
			return nil, fmt.Errorf("read gang record of %s in Consul: %w", c.self.Gang, err)
		}
		if pair == nil {
			mu.Lock()
			defer mu.Unlock()
			sight.Record = nil
			see(sight)
			return meta, nil
		}
		record, err := contract.DecodeRecord(pair.Value)
		if err != nil {
			return meta, err
		}
		_, listed := record.Joins(c.self.Alloc, c.self.Task)
		for _, m := range record.Members {
			listed = listed || m.Alloc == c.self.Alloc && m.Task == c.self.Task
		}
		if listed && record.Attempt != following {
			cancelAttempt()
			wg.Wait()
			following = record.Attempt
			sight.Reports, sight.Endpoints = nil, nil
			var attemptCtx context.Context
			attemptCtx, cancelAttempt = context.WithCancel(ctx)
			pace := max(paceLeast, time.Duration(len(record.Members))*pacePerMember)
			wg.Go(func() {
				c.followAttempt(attemptCtx, record.Attempt, pace, trouble, func(reports map[string]contract.Report, endpoints map[string]contract.Endpoint) {
					mu.Lock()
					defer mu.Unlock()
					if attemptCtx.Err() == nil {
						sight.Reports, sight.Endpoints = reports, endpoints
						see(sight)
					}
				})
			})
			if m, _ := record.Lists(c.self.Alloc, c.self.Task, c.self.Start); m.Index == 0 {
				wg.Go(func() { c.sweep(attemptCtx, record.Attempt) })
			}
		}
		mu.Lock()
		defer mu.Unlock()
		sight.Record = record
		see(sight)
		return meta, nil
	})
}

// followAttempt watches one attempt's folder: the members' reports and the
// stores that moved.
func (c *Consul) followAttempt(ctx context.Context, attempt int, pace time.Duration, trouble func(error), see func(map[string]contract.Report, map[string]contract.Endpoint)) {
	prefix := c.self.Gang.AttemptPrefix(attempt)
	var last time.Time
	watch(ctx, c.interrupted, trouble, func(q *api.QueryOptions) (*api.QueryMeta, error) {
		if !sleep(ctx, time.Until(last.Add(pace))) {
			return nil, ctx.Err()
		}
		pairs, meta, err := c.client.KV().List(prefix, q)
		last = time.Now()
		if err != nil {
			return nil, fmt.Errorf("read reports of %s, attempt %d, in Consul: %w", c.self.Gang, attempt, err)
		}
		reports, endpoints := map[string]contract.Report{}, map[string]contract.Endpoint{}
		var faults []error
		for _, pair := range pairs {
			kind, _ := splitKey(pair.Key, prefix)
			switch kind {
			case "members":
				var r contract.Report
				if err := json.Unmarshal(pair.Value, &r); err != nil {
					faults = append(faults, fmt.Errorf("read report %s: %w", pair.Key, err))
				} else if r.Attempt == attempt && c.self.Gang.ReportKey(attempt, r.Alloc, r.Task) == pair.Key {
					reports[MemberKey(r.Alloc, r.Task)] = r
				}
			case "endpoints":
				var e namedEndpoint
				if err := json.Unmarshal(pair.Value, &e); err != nil {
					faults = append(faults, fmt.Errorf("read endpoint %s: %w", pair.Key, err))
				} else if c.self.Gang.EndpointKey(attempt, e.World) == pair.Key {
					endpoints[e.World] = e.Endpoint
				}
			}
		}
		see(reports, endpoints)
		return meta, errors.Join(faults...)
	})
}

// namedEndpoint is an endpoint as it stands in Consul: with its world's name,
// which the key has only in escaped form.
type namedEndpoint struct {
	World string `json:"world"`
	contract.Endpoint
}

// watch repeats a blocking query until ctx ends, the way Consul wants it: an
// index that goes back starts over, failures are repeated with growing pauses.
func watch(ctx context.Context, interrupted func() <-chan struct{}, trouble func(error), query func(*api.QueryOptions) (*api.QueryMeta, error)) {
	var index uint64
	pause := backoffLeast
	for ctx.Err() == nil {
		// A connection that died silently must not hold the query for ever;
		// Consul adds up to a sixteenth to the wait.
		callCtx, cancel := context.WithTimeout(ctx, queryWait+queryWait/16+callTimeout)
		stop := make(chan struct{})
		go func(interrupt <-chan struct{}) {
			select {
			case <-interrupt:
				cancel()
			case <-stop:
			}
		}(interrupted())
		q := (&api.QueryOptions{WaitIndex: index, WaitTime: queryWait}).WithContext(callCtx)
		meta, err := query(q)
		close(stop)
		cancel()
		if ctx.Err() != nil {
			return
		}
		trouble(err)
		if meta == nil {
			sleep(ctx, pause+time.Duration(rand.Int64N(int64(pause))))
			pause = min(2*pause, backoffMost)
			index = 0
			continue
		}
		pause = backoffLeast
		if meta.LastIndex < index || meta.LastIndex == 0 {
			index = 0
			sleep(ctx, backoffLeast)
			continue
		}
		index = meta.LastIndex
	}
}

// sleep is false where ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// Publish is described at Board.
func (c *Consul) Publish(ctx context.Context, r contract.Report) error {
	if err := checkReport(c.self, r); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	key := c.self.Gang.ReportKey(r.Attempt, r.Alloc, r.Task)
	if c.key != "" && c.key != key { // another attempt: the old report goes
		if _, err := c.client.KV().Delete(c.key, write(ctx)); err != nil {
			return fmt.Errorf("remove report of an earlier attempt of %s from Consul: %w", c.self.Gang, err)
		}
		c.moved = map[string]contract.Endpoint{}
	}
	c.key, c.report = key, &r
	if r.State == contract.StateEnded {
		if err := c.putEnded(ctx); err != nil {
			return err
		}
		c.ended = true
		return nil
	}
	if err := c.hold(ctx); err != nil {
		return err
	}
	if !c.keeping {
		c.keeping = true
		c.done.Go(c.keep)
	}
	c.register(ctx) // the service is for people to look at; nothing depends on it
	return nil
}

func write(ctx context.Context) *api.WriteOptions { return (&api.WriteOptions{}).WithContext(ctx) }

// hold makes sure of a session and puts everything under it; a session that
// turns out to be lost is replaced once. c.mu is held.
func (c *Consul) hold(ctx context.Context) error {
	had := c.session != ""
	err := c.holdOnce(ctx)
	if err != nil && had && c.session == "" {
		err = c.holdOnce(ctx)
	}
	return err
}

func (c *Consul) holdOnce(ctx context.Context) error {
	if c.session == "" {
		id, err := c.newSession(ctx, SessionTTL, "")
		if err != nil {
			return err
		}
		c.session = id
	}
	if err := c.acquire(ctx, c.key, c.report); err != nil {
		return err
	}
	for world, e := range c.moved {
		if err := c.acquire(ctx, c.self.Gang.EndpointKey(c.report.Attempt, world), namedEndpoint{world, e}); err != nil {
			return err
		}
	}
	return nil
}

// newSession makes a session that deletes what it holds when it ends. The delay
// before somebody else may take the lock is set to the least that Consul does
// not read as "unset": names carry the attempt, so nobody else ever wants it
// but this member after its session was lost.
func (c *Consul) newSession(ctx context.Context, ttl time.Duration, suffix string) (string, error) {
	id, _, err := c.client.Session().Create(&api.SessionEntry{
		Name: contract.ConsulService + " " + c.self.Key() + suffix, TTL: ttl.String(), Behavior: api.SessionBehaviorDelete, LockDelay: time.Millisecond,
	}, write(ctx))
	if err != nil {
		return "", fmt.Errorf("create session of %s in Consul: %w", c.self.Key(), err)
	}
	return id, nil
}

// acquire writes a key under the session. Whoever else holds it is an earlier
// start of this member, since nobody else writes these keys: its session ends.
func (c *Consul) acquire(ctx context.Context, key string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode %s: %w", key, err)
	}
	for range 3 {
		ok, _, err := c.client.KV().Acquire(&api.KVPair{Key: key, Value: text, Session: c.session}, write(ctx))
		if err != nil {
			if isLostSession(err) {
				c.session = ""
			}
			return fmt.Errorf("write %s to Consul: %w", key, err)
		}
		if ok {
			return nil
		}
		pair, _, err := c.client.KV().Get(key, (&api.QueryOptions{}).WithContext(ctx))
		if err != nil {
			return fmt.Errorf("see who holds %s in Consul: %w", key, err)
		}
		if pair != nil && pair.Session != "" && pair.Session != c.session {
			if _, err := c.client.Session().Destroy(pair.Session, write(ctx)); err != nil {
				return fmt.Errorf("end the session of an earlier start that holds %s: %w", key, err)
			}
		}
		if !sleep(ctx, 50*time.Millisecond) { // the lock delay
			break
		}
	}
	return fmt.Errorf("write %s to Consul: somebody else holds it", key)
}

// isLostSession tells Consul's refusal of a session that is gone.
func isLostSession(err error) bool {
	var status api.StatusError
	return errors.As(err, &status) && (status.Code == http.StatusInternalServerError || status.Code == http.StatusNotFound) && strings.Contains(strings.ToLower(status.Body), "session")
}

// putEnded hands the report over from the member's session to one that nobody
// renews, in one step where the key is still held. c.mu is held.
func (c *Consul) putEnded(ctx context.Context) error {
	text, err := json.Marshal(c.report)
	if err != nil {
		return fmt.Errorf("encode %s: %w", c.key, err)
	}
	id, err := c.newSession(ctx, EndedTTL, " ended")
	if err != nil {
		return err
	}
	if c.session != "" {
		ok, _, _, err := c.client.KV().Txn(api.KVTxnOps{
			{Verb: api.KVUnlock, Key: c.key, Value: text, Session: c.session},
			{Verb: api.KVLock, Key: c.key, Value: text, Session: id},
		}, (&api.QueryOptions{}).WithContext(ctx))
		if err == nil && ok {
			return nil
		}
	}
	own := c.session
	c.session = id
	err = c.acquire(ctx, c.key, c.report)
	c.session = own
	return err
}

// keep renews the session and passes the service's check until Close. A session
// that was lost is made anew, with all that stood under it.
func (c *Consul) keep() {
	out := false // the last renewal failed
	for sleep(c.ctx, renewEvery) {
		c.mu.Lock()
		if c.ended {
			c.mu.Unlock()
			continue
		}
		ctx, cancel := context.WithTimeout(c.ctx, callTimeout)
		entry, _, err := (*api.SessionEntry)(nil), (*api.WriteMeta)(nil), error(nil)
		if c.session != "" {
			entry, _, err = c.client.Session().Renew(c.session, write(ctx))
		}
		if err == nil && (entry == nil || out) {
			close(c.again)
			c.again = make(chan struct{})
		}
		out = err != nil
		if err == nil && entry == nil {
			c.session = ""
			_ = c.hold(ctx) // tried again at the next turn
		}
		if err := c.client.Agent().UpdateTTLOpts(c.serviceID(), "the supervisor runs", api.HealthPassing, (&api.QueryOptions{}).WithContext(ctx)); err != nil {
			c.serviceOf = 0
			c.register(ctx)
		}
		cancel()
		c.mu.Unlock()
	}
}

func (c *Consul) serviceID() string {
	return fmt.Sprintf("%s-%s-%d", contract.ConsulService, c.self.Key(), c.self.Start)
}

// register makes the member known as a service. c.mu is held. It is not broken
// off: what was on its way would arrive after the removal, and stay.
func (c *Consul) register(ctx context.Context) {
	if c.serviceOf == c.report.Attempt || ctx.Err() != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), registerTimeout)
	defer cancel()
	port := c.report.Supervisor
	c.registered = true
	err := c.client.Agent().ServiceRegisterOpts(&api.AgentServiceRegistration{
		ID: c.serviceID(), Name: contract.ConsulService, Address: c.report.Address, Port: port,
		Meta: map[string]string{
			"gang": c.self.Gang.String(), "attempt": strconv.Itoa(c.report.Attempt), "alloc": c.self.Alloc, "task": c.self.Task, "world": c.report.World,
		},
		Check: &api.AgentServiceCheck{TTL: checkTTL.String(), Status: api.HealthPassing, DeregisterCriticalServiceAfter: forgetAfter.String()},
	}, api.ServiceRegisterOpts{}.WithContext(ctx))
	if err == nil {
		c.serviceOf = c.report.Attempt
	}
}

// Move is described at Board.
func (c *Consul) Move(ctx context.Context, attempt int, world string, e contract.Endpoint) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.report == nil || c.report.Attempt != attempt {
		return fmt.Errorf("publish the moved store of %s, attempt %d: the member has not reported for this attempt", c.self.Gang, attempt)
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c.moved[world] = e
	return c.hold(ctx)
}

// Close is described at Board.
func (c *Consul) Close(ctx context.Context) error {
	c.stop()
	c.done.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var faults []error
	if c.session != "" {
		if _, err := c.client.Session().Destroy(c.session, write(ctx)); err != nil {
			faults = append(faults, fmt.Errorf("end the session of %s in Consul: %w", c.self.Key(), err))
		}
		c.session = ""
	}
	if c.registered { // perhaps: an attempt that was broken off may have arrived
		if err := c.Forget(ctx); err != nil {
			faults = append(faults, fmt.Errorf("deregister service %s: %w", c.serviceID(), err))
		}
		c.registered = false
	}
	c.hangUp()
	return errors.Join(faults...)
}

// Forget removes the service that a member registered whose supervisor died;
// its session, and what that held, ends by itself.
func (c *Consul) Forget(ctx context.Context) error {
	err := c.client.Agent().ServiceDeregisterOpts(c.serviceID(), (&api.QueryOptions{}).WithContext(ctx))
	var status api.StatusError
	if errors.As(err, &status) && status.Code == http.StatusNotFound {
		return nil // it was gone already
	}
	return err
}

// sweep removes what earlier attempts left, should their planner have died.
func (c *Consul) sweep(ctx context.Context, attempt int) {
	folder := strings.TrimSuffix(c.self.Gang.AttemptPrefix(0), "0/")
	keys, _, err := c.client.KV().Keys(folder, "/", (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return // its keys expire with their sessions
	}
	for _, key := range keys {
		n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(key, folder), "/"))
		if err == nil && n < attempt {
			_, _ = c.client.KV().DeleteTree(c.self.Gang.AttemptPrefix(n), write(ctx))
		}
	}
}
