package nomadsim

import (
	"net/http"

	"github.com/nomad-muster/muster/internal/nomadsim/store"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

func (q *request) jobRead(id string) (any, error) {
	return q.query(func(s *store.Snapshot) (any, uint64, error) {
		j := s.Job(q.namespace, id)
		if j == nil {
			return nil, s.TableIndex(store.Jobs), fail(http.StatusNotFound, "job not found")
		}
		return j, j.ModifyIndex, nil
	}, store.Jobs)
}

func (q *request) jobSummary(id string) (any, error) {
	return q.query(func(s *store.Snapshot) (any, uint64, error) {
		sum := s.Summary(q.namespace, id)
		if sum == nil {
			return nil, s.TableIndex(store.JobSummaries), fail(http.StatusNotFound, "job not found")
		}
		return sum, sum.ModifyIndex, nil
	}, store.JobSummaries)
}

func (q *request) jobEvaluations(id string) (any, error) {
	return q.query(func(s *store.Snapshot) (any, uint64, error) {
		list := []*wire.Evaluation{}
		for e := range s.EvalsByJob(q.namespace, id) {
			list = append(list, e)
		}
		return list, s.TableIndex(store.Evals), nil
	}, store.Evals)
}

func (q *request) jobAllocations(id string) (any, error) {
	all, err := q.flag("all")
	if err != nil {
		return nil, err
	}
	return q.query(func(s *store.Snapshot) (any, uint64, error) {
		list := []*wire.AllocStub{}
		index := uint64(0)
		job := s.Job(q.namespace, id)
		for a := range s.AllocsByJob(q.namespace, id) {
			// Without all, only allocations of the job as it is now, not of one of that name before it.
			if !all && job != nil && a.Job.CreateIndex != job.CreateIndex {
				continue
			}
			list = append(list, a.Stub(true, false))
			index = max(index, a.ModifyIndex)
		}
		if len(list) == 0 {
			index = s.TableIndex(store.Allocs)
		}
		return list, index, nil
	}, store.Allocs)
}

func (q *request) jobVersions(id string) (any, error) {
	diffs, err := q.flag("diffs")
	if err != nil {
		return nil, err
	}
	return q.query(func(s *store.Snapshot) (any, uint64, error) {
		list := s.Versions(q.namespace, id)
		if len(list) == 0 {
			return nil, s.TableIndex(store.JobVersions), fail(http.StatusNotFound, "job versions not found")
		}
		out := struct {
			Versions    []*wire.Job
			Diffs       []any
			Index       uint64
			LastContact int64
			KnownLeader bool
			NextToken   string
		}{Versions: list, KnownLeader: true, Index: s.TableIndex(store.JobVersions)}
		if diffs {
			var err error
			if out.Diffs, err = versionDiffs(list, q.q.Get("diff_version"), q.q.Get("diff_tag")); err != nil {
				return nil, 0, fail(http.StatusBadRequest, "%v", err)
			}
		}
		return out, list[0].ModifyIndex, nil
	}, store.JobVersions)
}

func (q *request) jobSubmission(id string) (any, error) {
	v := integer(q.q.Get("version"))
	return q.query(func(s *store.Snapshot) (any, uint64, error) {
		sub := s.Submission(q.namespace, id, uint64(v))
		if sub == nil {
			return nil, s.TableIndex(store.JobSubmissions), fail(http.StatusNotFound, "job source not found")
		}
		return sub, s.TableIndex(store.JobSubmissions), nil
	}, store.JobSubmissions)
}
