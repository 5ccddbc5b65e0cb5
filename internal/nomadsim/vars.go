package nomadsim

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/nomadsim/store"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

const (
	maxVariable = 64 << 10
	minLockTTL  = 10 * time.Second
	maxLockTTL  = 24 * time.Hour
	defaultTTL  = 15 * time.Second
)

var pathRule = regexp.MustCompile(`^[a-zA-Z0-9-_~/]{1,128}$`)

func (q *request) variables(string) (any, error) {
	if err := q.method(http.MethodGet); err != nil {
		return nil, err
	}
	keep, err := q.filter()
	if err != nil {
		return nil, err
	}
	prefix := q.q.Get("prefix")
	return q.query(func(s *store.Snapshot) (any, uint64, error) {
		list := []*wire.Variable{}
		for v := range s.Variables(q.namespace, prefix) {
			shown := *v
			shown.Items, shown.Lock = nil, nil
			if ok, err := keep(&shown); err != nil {
				return nil, 0, err
			} else if ok {
				list = append(list, &shown)
			}
		}
		list, err := page(q, list, func(v *wire.Variable) string { return v.Namespace + "." + v.Path })
		return list, s.TableIndex(store.Variables), err
	}, store.Variables)
}

func (q *request) variable(path string) (any, error) {
	if path == "" {
		return nil, fail(http.StatusBadRequest, "missing variable path")
	}
	switch q.r.Method {
	case http.MethodGet, http.MethodHead:
		return q.query(func(s *store.Snapshot) (any, uint64, error) {
			v := s.Variable(q.namespace, path)
			if v == nil {
				return nil, s.TableIndex(store.Variables), fail(http.StatusNotFound, "variable not found")
			}
			shown := *v
			if shown.Lock != nil { // who holds it is nobody's business
				shown.Lock = &wire.VariableLock{TTL: v.Lock.TTL, LockDelay: v.Lock.LockDelay}
			}
			return &shown, v.ModifyIndex, nil
		}, store.Variables)
	case http.MethodPut, http.MethodPost:
		for _, op := range []string{"lock-acquire", "lock-renew", "lock-release"} {
			if _, ok := q.q[op]; ok {
				return q.lock(path, op)
			}
		}
		return q.variablePut(path)
	case http.MethodDelete:
		return q.variableDelete(path)
	}
	return nil, errMethod
}

func (q *request) cas() (index uint64, given bool, err error) {
	s, given := q.q["cas"]
	if !given {
		return 0, false, nil
	}
	index, err = strconv.ParseUint(s[0], 10, 64)
	if err != nil {
		return 0, false, fail(http.StatusBadRequest, "can not parse cas: %v", err)
	}
	return index, true, nil
}

func (q *request) readVariable(path string) (*wire.Variable, error) {
	var v wire.Variable
	if err := q.decode(&v); err != nil {
		return nil, err
	}
	if v.Namespace == "" {
		v.Namespace = q.namespace
	}
	v.Path = path
	if !pathRule.MatchString(path) {
		return nil, fail(http.StatusBadRequest, "RPC Error:: 400,invalid path %q", path)
	}
	if strings.HasPrefix(path, "nomad/") && path != "nomad/jobs" && path != "nomad/job-templates" && !strings.HasPrefix(path, "nomad/jobs/") && !strings.HasPrefix(path, "nomad/job-templates/") {
		return nil, fail(http.StatusBadRequest, `RPC Error:: 400,only paths at "nomad/jobs" or "nomad/job-templates" and below are valid paths under the top-level "nomad" directory`)
	}
	if path == "nomad" || path == "nomad/jobs/" {
		return nil, fail(http.StatusBadRequest, "%q is a reserved top-level directory path", path)
	}
	size := 0
	for k, x := range v.Items {
		size += len(k) + len(x)
	}
	if size > maxVariable {
		return nil, fail(http.StatusBadRequest, "variables are limited to 64KiB in total size")
	}
	return &v, nil
}

// errConflict answers with what is there.
func (q *request) conflict(v *wire.Variable) error {
	if v.ModifyIndex > 0 {
		q.index(v.ModifyIndex)
	}
	return &coded{status: http.StatusConflict, text: "conflict", body: v}
}

// hidden is what one that does not hold the lock may see of a locked variable.
func hidden(v *wire.Variable) *wire.Variable {
	return &wire.Variable{Namespace: v.Namespace, Path: v.Path}
}

func (q *request) variablePut(path string) (any, error) {
	v, err := q.readVariable(path)
	if err != nil {
		return nil, err
	}
	if len(v.Items) == 0 {
		return nil, fail(http.StatusBadRequest, "variable missing required Items object")
	}
	cas, checked, err := q.cas()
	if err != nil {
		return nil, err
	}
	var out wire.Variable
	index, err := q.c.store.TryApply(func(tx *store.Txn) error {
		old := tx.Variable(v.Namespace, path)
		if old != nil && old.Lock != nil && (v.Lock == nil || v.Lock.ID != old.Lock.ID) {
			return q.conflict(hidden(old))
		}
		if checked {
			switch {
			case old == nil && cas != 0:
				return q.conflict(&wire.Variable{Namespace: v.Namespace, Path: path})
			case old != nil && old.ModifyIndex != cas:
				return q.conflict(old)
			}
		}
		out = wire.Variable{Namespace: v.Namespace, Path: path, Items: v.Items, CreateIndex: tx.Index(), CreateTime: tx.Now().UnixNano(),
			ModifyIndex: tx.Index(), ModifyTime: tx.Now().UnixNano()}
		if old != nil {
			out.CreateIndex, out.CreateTime, out.Lock = old.CreateIndex, old.CreateTime, old.Lock
		}
		tx.Kind("VariableUpdated")
		tx.PutVariable(&out)
		return nil
	})
	if err != nil {
		return nil, err
	}
	q.index(index)
	return &out, nil
}

func (q *request) variableDelete(path string) (any, error) {
	cas, checked, err := q.cas()
	if err != nil {
		return nil, err
	}
	index, err := q.c.store.TryApply(func(tx *store.Txn) error {
		old := tx.Variable(q.namespace, path)
		switch {
		case old != nil && old.Lock != nil:
			return q.conflict(hidden(old))
		case checked && old == nil && cas != 0:
			return q.conflict(&wire.Variable{Namespace: q.namespace, Path: path})
		case checked && old != nil && old.ModifyIndex != cas:
			return q.conflict(old)
		}
		tx.Kind("VariableUpdated")
		tx.DeleteVariable(q.namespace, path)
		return nil
	})
	if err != nil {
		return nil, err
	}
	q.index(index)
	q.w.WriteHeader(http.StatusNoContent)
	return nil, errHandled
}

// lock acquires, renews or releases the lock on a variable. A lock that is not renewed in its time is taken away, and
// cannot be acquired anew before its delay is over.
func (q *request) lock(path, op string) (any, error) {
	v, err := q.readVariable(path)
	if err != nil {
		return nil, err
	}
	ttl, delay := defaultTTL, defaultTTL
	if v.Lock != nil {
		for _, d := range []struct {
			text string
			to   *time.Duration
		}{{v.Lock.TTL, &ttl}, {v.Lock.LockDelay, &delay}} {
			if d.text == "" {
				continue
			}
			if *d.to, err = time.ParseDuration(d.text); err != nil {
				return nil, fail(http.StatusBadRequest, "invalid duration %q: %v", d.text, err)
			}
		}
	}
	if op == "lock-acquire" && (ttl < minLockTTL || ttl > maxLockTTL) {
		return nil, fail(http.StatusBadRequest, "lock TTL must be between %s and %s", minLockTTL, maxLockTTL)
	}
	key := "lock\x00" + v.Namespace + "\x00" + path
	id := ""
	if v.Lock != nil {
		id = v.Lock.ID
	}
	held := func(old *wire.Variable) bool { return old != nil && old.Lock != nil && id != "" && old.Lock.ID == id }
	if op == "lock-renew" {
		old := q.c.store.Snapshot().Variable(v.Namespace, path)
		if old == nil || old.Lock == nil {
			return nil, fail(http.StatusConflict, "lock not found")
		}
		if !held(old) {
			return nil, fail(http.StatusConflict, "lock not held by the caller")
		}
		if ttl, err = time.ParseDuration(old.Lock.TTL); err != nil {
			return nil, fmt.Errorf("lock on %s: %w", path, err)
		}
		q.c.armLock(key, v.Namespace, path, id, ttl)
		shown := *old
		shown.Items = nil
		return &shown, nil
	}
	var out wire.Variable
	newID := q.c.newID()
	index, err := q.c.store.TryApply(func(tx *store.Txn) error {
		old := tx.Variable(v.Namespace, path)
		if op == "lock-release" {
			if !held(old) {
				return fail(http.StatusConflict, "lock not held by the caller")
			}
			out = *old
			out.Lock, out.ModifyIndex = nil, tx.Index()
			if len(v.Items) > 0 {
				out.Items = v.Items
			}
			tx.Kind("VariableUpdated")
			tx.PutVariable(&out)
			return nil
		}
		if old != nil && old.Lock != nil && !held(old) || q.c.lockDelayed(key) {
			c := &coded{status: http.StatusConflict, text: "conflict", body: &wire.Variable{Namespace: v.Namespace, Path: path}}
			return c
		}
		out = wire.Variable{Namespace: v.Namespace, Path: path, Items: v.Items, CreateIndex: tx.Index(), CreateTime: tx.Now().UnixNano(),
			ModifyIndex: tx.Index(), ModifyTime: tx.Now().UnixNano()}
		if old != nil {
			out.CreateIndex, out.CreateTime = old.CreateIndex, old.CreateTime
			if len(v.Items) == 0 {
				out.Items = old.Items
			}
		}
		if !held(old) {
			id = newID
		}
		out.Lock = &wire.VariableLock{ID: id, TTL: ttl.String(), LockDelay: delay.String()}
		tx.Kind("VariableUpdated")
		tx.PutVariable(&out)
		return nil
	})
	if err != nil {
		return nil, err
	}
	q.index(index)
	if op == "lock-release" {
		q.c.disarmLock(key)
	} else {
		q.c.armLock(key, v.Namespace, path, id, ttl)
	}
	return &out, nil
}

// armLock has a lock taken away when its time is over.
func (c *Cluster) armLock(key, namespace, path, id string, ttl time.Duration) {
	c.disarmLock(key)
	stop := c.clock.AfterFunc(ttl, func() {
		c.spawn(func() { c.expireLock(key, namespace, path, id) })
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		stop()
		return
	}
	c.locks[key] = stop
}

func (c *Cluster) disarmLock(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if stop := c.locks[key]; stop != nil {
		stop()
		delete(c.locks, key)
	}
}

func (c *Cluster) expireLock(key, namespace, path, id string) {
	var delay time.Duration
	_, err := c.store.TryApply(func(tx *store.Txn) error {
		old := tx.Variable(namespace, path)
		if old == nil || old.Lock == nil || old.Lock.ID != id {
			return errNothing
		}
		delay, _ = time.ParseDuration(old.Lock.LockDelay)
		v := *old
		v.Lock, v.ModifyIndex = nil, tx.Index()
		tx.Kind("VariableUpdated")
		tx.PutVariable(&v)
		return nil
	})
	if err != nil {
		return
	}
	if delay <= 0 {
		c.disarmLock(key)
		return
	}
	stop := c.clock.AfterFunc(delay, func() { c.disarmLock(delayKey(key)) })
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.locks, key)
	c.locks[delayKey(key)] = stop
}

func delayKey(key string) string { return "delay\x00" + key }

func (c *Cluster) lockDelayed(key string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.locks[delayKey(key)] != nil
}
