package nomadsim

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-muster/muster/internal/nomadsim/store"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

func (q *request) jobRevert(id string) (any, error) {
	if err := q.write(); err != nil {
		return nil, err
	}
	var body api.JobRevertRequest
	if err := q.decode(&body); err != nil {
		return nil, err
	}
	if body.JobID != id {
		return nil, fail(http.StatusBadRequest, "Job ID does not match")
	}
	snap := q.c.store.Snapshot()
	cur := snap.Job(q.namespace, id)
	if cur == nil {
		return nil, fmt.Errorf("job %q not found", id)
	}
	if body.JobVersion == cur.Version {
		return nil, fmt.Errorf("can't revert to current version")
	}
	v := snap.Version(q.namespace, id, body.JobVersion)
	if v == nil {
		return nil, fmt.Errorf("job %q in namespace %q at version %d not found", id, q.namespace, body.JobVersion)
	}
	j := *v
	j.VersionTag, j.Stable = nil, false
	r := registration{job: &j}
	if p := body.EnforcePriorVersion; p != nil {
		if cur.Version != *p {
			return nil, fmt.Errorf("Current job has version %d; enforcing version %d", cur.Version, *p)
		}
		r.enforce, r.index = true, cur.JobModifyIndex
	}
	if s := snap.Submission(q.namespace, id, body.JobVersion); s != nil {
		r.sub = s
	}
	out, err := q.c.registerJob(r)
	if err != nil {
		return nil, err
	}
	q.index(out.Index)
	return out, nil
}

func (q *request) jobScale(id string) (any, error) {
	if q.r.Method == http.MethodGet {
		return q.scaleStatus(id)
	}
	if err := q.write(); err != nil {
		return nil, err
	}
	var body struct {
		Count          *int64
		Target         map[string]string
		Message        string
		Error          bool
		Meta           map[string]any
		JobModifyIndex uint64
	}
	if err := q.decode(&body); err != nil {
		return nil, err
	}
	snap := q.c.store.Snapshot()
	cur := snap.Job(q.namespace, id)
	if cur == nil {
		return nil, fail(http.StatusNotFound, "job %q not found", id)
	}
	name := body.Target["Group"]
	if cur.Group(name) == nil {
		return nil, fail(http.StatusBadRequest, "task group %q specified for scaling does not exist in job", name)
	}
	out := &jobWrite{JobModifyIndex: cur.ModifyIndex, KnownLeader: true}
	event := &wire.ScalingEvent{Time: uint64(q.c.clock.Now().UnixNano()), Count: body.Count, PreviousCount: int64(cur.Group(name).Count),
		Message: body.Message, Error: body.Error, Meta: body.Meta}
	note := func() uint64 {
		return q.c.store.Apply(func(tx *store.Txn) { tx.PutScalingEvent(q.namespace, id, name, event) })
	}
	if body.Count == nil {
		out.Index = note()
		q.index(out.Index)
		return out, nil
	}
	if body.Error {
		return nil, fail(http.StatusBadRequest, "scaling action should not contain count if error is true")
	}
	if s := cur.Group(name).Scaling; s != nil {
		if *body.Count < s.Min {
			return nil, fail(http.StatusBadRequest, "group count was less than scaling policy minimum: %d < %d", *body.Count, s.Min)
		}
		if *body.Count > s.Max {
			return nil, fail(http.StatusBadRequest, "group count was greater than scaling policy maximum: %d > %d", *body.Count, s.Max)
		}
	}
	if d := snap.LatestDeployment(q.namespace, id); d.Active() && d.JobCreateIndex == cur.CreateIndex {
		return nil, fail(http.StatusBadRequest, "job scaling blocked due to active deployment")
	}
	if body.JobModifyIndex > 0 && body.JobModifyIndex != cur.JobModifyIndex {
		return nil, fmt.Errorf("Enforcing job modify index %d: job exists with conflicting job modify index: %d", body.JobModifyIndex, cur.JobModifyIndex)
	}
	j := *cur
	j.SubmitTime, j.VersionTag = q.c.clock.Now().UnixNano(), nil
	j.TaskGroups = slices.Clone(cur.TaskGroups)
	for i, g := range j.TaskGroups {
		if g.Name == name {
			c := *g
			c.Count = int(*body.Count)
			j.TaskGroups[i] = &c
		}
	}
	index, err := q.c.store.TryApply(func(tx *store.Txn) error {
		if now := tx.Job(q.namespace, id); now == nil || now.JobModifyIndex != cur.JobModifyIndex {
			return fmt.Errorf("Enforcing job modify index %d: job exists with conflicting job modify index", cur.JobModifyIndex)
		}
		tx.Kind("JobRegistered")
		tx.PutJob(&j, nil)
		return nil
	})
	if err != nil {
		return nil, err
	}
	out.JobModifyIndex = index
	e := q.c.evalFor(&j, wire.TriggerScaling)
	e.JobModifyIndex = index
	out.EvalID = e.ID
	out.EvalCreateIndex = q.c.putEvals(e)
	event.EvalID = &e.ID
	out.Index = note()
	q.index(out.Index)
	return out, nil
}

func (q *request) scaleStatus(id string) (any, error) {
	type group struct{ Desired, Placed, Running, Healthy, Unhealthy int }
	type groupEvents struct {
		group
		Events []*wire.ScalingEvent
	}
	return q.query(func(s *store.Snapshot) (any, uint64, error) {
		j := s.Job(q.namespace, id)
		if j == nil {
			return nil, s.TableIndex(store.Jobs), fail(http.StatusNotFound, "not found")
		}
		groups := map[string]*groupEvents{}
		for _, g := range j.TaskGroups {
			groups[g.Name] = &groupEvents{group{Desired: g.Count}, s.Scaling(q.namespace, id)[g.Name]}
		}
		for a := range s.AllocsByJob(q.namespace, id) {
			g := groups[a.TaskGroup]
			if g == nil || a.Terminal() {
				continue
			}
			g.Placed++
			if a.ClientStatus == wire.ClientRunning {
				g.Running++
			}
			if d := a.DeploymentStatus; d != nil && d.Healthy != nil {
				if *d.Healthy {
					g.Healthy++
				} else {
					g.Unhealthy++
				}
			}
		}
		return struct {
			JobID, Namespace string
			JobCreateIndex   uint64
			JobModifyIndex   uint64
			JobStopped       bool
			TaskGroups       map[string]*groupEvents
		}{j.ID, j.Namespace, j.CreateIndex, j.ModifyIndex, j.Stop, groups}, max(j.ModifyIndex, s.TableIndex(store.Allocs)), nil
	}, store.Jobs, store.Allocs, store.ScalingEvents)
}

func (q *request) jobStable(id string) (any, error) {
	if err := q.write(); err != nil {
		return nil, err
	}
	var body struct {
		JobID      string
		JobVersion uint64
		Stable     bool
	}
	if err := q.decode(&body); err != nil {
		return nil, err
	}
	index, err := q.c.store.TryApply(func(tx *store.Txn) error {
		v := q.c.store.Snapshot().Version(q.namespace, id, body.JobVersion)
		if v == nil {
			return fmt.Errorf("job %q at version %d not found", id, body.JobVersion)
		}
		j := *v
		j.Stable = body.Stable
		tx.PutJobVersion(&j)
		return nil
	})
	if err != nil {
		return nil, err
	}
	q.index(index)
	return struct{ Index uint64 }{index}, nil
}

// versionTag names a version, or takes the name away. The job's modify indexes stay as they are.
func (q *request) versionTag(id, name string) (any, error) {
	var body struct {
		Version     *uint64
		Description string
	}
	remove := q.r.Method == http.MethodDelete
	if !remove {
		if err := q.write(); err != nil {
			return nil, err
		}
		if err := q.decode(&body); err != nil {
			return nil, err
		}
	}
	tag := &wire.JobVersionTag{Name: name, Description: body.Description, TaggedTime: q.c.clock.Now().UnixNano()}
	index, err := q.c.store.TryApply(func(tx *store.Txn) error {
		cur := tx.Job(q.namespace, id)
		if cur == nil {
			return fail(http.StatusNotFound, "job %q not found", id)
		}
		snap := q.c.store.Snapshot()
		var named *wire.Job
		for _, v := range snap.Versions(q.namespace, id) {
			if v.VersionTag != nil && v.VersionTag.Name == name {
				named = v
			}
		}
		if remove {
			if named == nil {
				return fmt.Errorf("tag %q not found on job %q", name, id)
			}
			j := *named
			j.VersionTag = nil
			tx.PutJobVersion(&j)
			return nil
		}
		version := cur.Version
		if body.Version != nil {
			version = *body.Version
		}
		v := snap.Version(q.namespace, id, version)
		switch {
		case v == nil:
			return fmt.Errorf("job %q version %d not found", id, version)
		case named != nil && named.Version != version:
			return fmt.Errorf("tag %q already exists on a different version of job %q", name, id)
		}
		j := *v
		j.VersionTag = tag
		tx.PutJobVersion(&j)
		return nil
	})
	if err != nil {
		return nil, err
	}
	q.index(index)
	out := struct {
		Name        string
		Description string
		TaggedTime  int64
		Index       uint64
		LastContact uint64
		KnownLeader bool
		NextToken   string
	}{Index: index}
	if !remove {
		out.Name, out.Description, out.TaggedTime = tag.Name, tag.Description, tag.TaggedTime
	}
	return out, nil
}

func (q *request) jobDispatch(id string) (any, error) {
	if err := q.write(); err != nil {
		return nil, err
	}
	var body struct {
		JobID            string
		Payload          []byte
		Meta             map[string]string
		IdPrefixTemplate string
		Priority         int
	}
	if err := q.decode(&body); err != nil {
		return nil, err
	}
	snap := q.c.store.Snapshot()
	parent := snap.Job(q.namespace, id)
	switch {
	case parent == nil:
		return nil, fmt.Errorf("parameterized job not found")
	case !parent.IsParameterized():
		return nil, fmt.Errorf("Specified job %q is not a parameterized job", id)
	case parent.Stop:
		return nil, fmt.Errorf("Specified job %q is stopped", id)
	}
	p := parent.ParameterizedJob
	if len(body.Payload) > 0 && p.Payload == "forbidden" {
		return nil, fmt.Errorf("Payload is not allowed")
	}
	if len(body.Payload) == 0 && p.Payload == "required" {
		return nil, fmt.Errorf("Payload is not provided but required by parameterized job")
	}
	for k := range body.Meta {
		if !slices.Contains(p.MetaRequired, k) && !slices.Contains(p.MetaOptional, k) {
			return nil, fmt.Errorf("Dispatch request included unpermitted metadata keys: [%s]", k)
		}
	}
	for _, k := range p.MetaRequired {
		if _, ok := body.Meta[k]; !ok {
			return nil, fmt.Errorf("Dispatch did not provide required meta keys: [%s]", k)
		}
	}
	token := body.IdPrefixTemplate
	if token != "" {
		token += "-"
	}
	child := *parent
	child.ID = fmt.Sprintf("%s/dispatch-%s%d-%s", id, token, q.c.clock.Now().Unix(), q.c.newID()[:8])
	child.Name, child.ParentID, child.Dispatched = child.ID, parent.ID, true
	child.Status, child.Version, child.VersionTag = "", 0, nil
	child.Payload = snapped(body.Payload)
	if body.Priority > 0 {
		child.Priority = body.Priority
	}
	if len(body.Meta) > 0 {
		child.Meta = maps.Clone(parent.Meta)
		if child.Meta == nil {
			child.Meta = map[string]string{}
		}
		maps.Copy(child.Meta, body.Meta)
	}
	out := struct {
		DispatchedJobID string
		EvalID          string
		EvalCreateIndex uint64
		JobCreateIndex  uint64
		Index           uint64
	}{DispatchedJobID: child.ID}
	out.EvalID, out.Index = q.c.launchChild(&child)
	out.EvalCreateIndex, out.JobCreateIndex = out.Index, out.Index
	q.index(out.Index)
	return out, nil
}

// snapped is a payload as a server keeps it: in snappy's block format, here of literals alone.
func snapped(payload []byte) []byte {
	if payload == nil {
		return nil
	}
	out := binary.AppendUvarint(nil, uint64(len(payload)))
	for len(payload) > 0 {
		n := min(len(payload), 60)
		out = append(append(out, byte(n-1)<<2), payload[:n]...)
		payload = payload[n:]
	}
	return out
}

// unsnapped is the payload that was given to snapped.
func unsnapped(kept []byte) []byte {
	_, n := binary.Uvarint(kept)
	var out []byte
	for kept = kept[max(n, 0):]; len(kept) > 0; {
		size := int(kept[0]>>2) + 1
		out, kept = append(out, kept[1:1+size]...), kept[1+size:]
	}
	return out
}

// launchChild registers a child of a parameterized or periodic job.
func (c *Cluster) launchChild(child *wire.Job) (eval string, index uint64) {
	child.SubmitTime = c.clock.Now().UnixNano()
	e := c.evalFor(child, wire.TriggerJobRegister)
	if !child.Dispatched {
		e.TriggeredBy = wire.TriggerPeriodicJob
	}
	index = c.store.Apply(func(tx *store.Txn) {
		tx.Kind("JobRegistered")
		tx.PutJob(child, nil)
	}, func(tx *store.Txn) {
		tx.Kind("JobRegistered")
		e.JobModifyIndex = tx.Index()
		tx.PutEvals(e)
	})
	return e.ID, index
}

func (q *request) jobDeployments(id string) (any, error) {
	return q.query(func(s *store.Snapshot) (any, uint64, error) {
		list := []*wire.Deployment{}
		for d := range s.DeploymentsByJob(q.namespace, id) {
			list = append(list, d)
		}
		return list, s.TableIndex(store.Deployments), nil
	}, store.Deployments)
}

func (q *request) jobDeployment(id string) (any, error) {
	return q.query(func(s *store.Snapshot) (any, uint64, error) {
		d := s.LatestDeployment(q.namespace, id)
		if d == nil {
			return []byte("null"), s.TableIndex(store.Deployments), nil
		}
		return d, d.ModifyIndex, nil
	}, store.Deployments)
}

func (q *request) jobServices(string) (any, error) {
	q.meta(q.c.store.Snapshot().Index())
	return []any{}, nil
}

func (q *request) jobActions(string) (any, error) {
	q.meta(q.c.store.Snapshot().Index())
	return []any{}, nil
}

func (q *request) deployments(string) (any, error) {
	prefix := q.q.Get("prefix")
	keep, err := q.filter()
	if err != nil {
		return nil, err
	}
	return q.query(func(s *store.Snapshot) (any, uint64, error) {
		list := []*wire.Deployment{}
		for d := range s.Deployments(prefix) {
			if q.namespace != "*" && d.Namespace != q.namespace {
				continue
			}
			if ok, err := keep(d); err != nil {
				return nil, 0, err
			} else if ok {
				list = append(list, d)
			}
		}
		list, err := page(q, list, func(d *wire.Deployment) string { return d.ID })
		return list, s.TableIndex(store.Deployments), err
	}, store.Deployments)
}

func (q *request) deployment(rest string) (any, error) {
	if id, ok := strings.CutPrefix(rest, "allocations/"); ok {
		return q.query(func(s *store.Snapshot) (any, uint64, error) {
			list := []*wire.AllocStub{}
			for a := range s.Allocs("") {
				if a.DeploymentID == id {
					list = append(list, a.Stub(true, false))
				}
			}
			return list, s.TableIndex(store.Allocs), nil
		}, store.Allocs)
	}
	action := ""
	for _, a := range []string{"fail", "pause", "promote"} {
		if id, ok := strings.CutPrefix(rest, a+"/"); ok {
			action, rest = a, id
		}
	}
	if action == "" {
		if strings.Contains(rest, "/") {
			return nil, errUnmodelled
		}
		return q.query(func(s *store.Snapshot) (any, uint64, error) {
			d := s.Deployment(rest)
			if d == nil {
				return nil, s.TableIndex(store.Deployments), fail(http.StatusNotFound, "deployment not found")
			}
			return d, d.ModifyIndex, nil
		}, store.Deployments)
	}
	if err := q.write(); err != nil {
		return nil, err
	}
	snap := q.c.store.Snapshot()
	d := snap.Deployment(rest)
	if d == nil {
		return nil, fail(http.StatusNotFound, "deployment not found")
	}
	if !d.Active() {
		return nil, fmt.Errorf("can't %s terminal deployment", action)
	}
	out := struct {
		EvalID                string
		EvalCreateIndex       uint64
		DeploymentModifyIndex uint64
		RevertedJobVersion    *uint64
		Index                 uint64
	}{}
	switch action {
	case "fail":
		job := snap.Version(d.Namespace, d.JobID, d.JobVersion)
		if job == nil {
			return nil, fail(http.StatusNotFound, "job not found")
		}
		out.Index = q.c.failDeployment(d, job, "Deployment marked as failed")
	case "promote":
		out.Index, out.EvalID = q.c.promote(d)
	case "pause":
		var body struct{ Pause bool }
		if err := q.decode(&body); err != nil {
			return nil, err
		}
		out.Index = q.c.store.Apply(func(tx *store.Txn) {
			tx.Kind("DeploymentStatusUpdate")
			u := *tx.Deployment(d.ID)
			u.Status, u.StatusDescription = wire.DeploymentRunning, "Deployment is running"
			if body.Pause {
				u.Status, u.StatusDescription = wire.DeploymentPaused, "Deployment is paused"
			}
			tx.PutDeployment(&u)
		})
	}
	out.DeploymentModifyIndex, out.EvalCreateIndex = out.Index, out.Index
	q.index(out.Index)
	return out, nil
}

// uintParam reads a number of the query; 0 if it is not there.
func (q *request) uintParam(name string) uint64 {
	n, _ := strconv.ParseUint(q.q.Get(name), 10, 64)
	return n
}
