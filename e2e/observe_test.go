//go:build e2e && linux

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/trial"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// stamp is what a rank wrote when it started.
type stamp struct {
	attempt, rank int
	at            time.Time
	alloc         string
	pid, world    int
	store         string // host:port
	cards         string
}

// stamps reads all that the folder's ranks wrote, by attempt and rank. A rank
// that started twice has two.
func stamps(folder string) ([]stamp, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.start"))
	if err != nil {
		return nil, err
	}
	var all []stamp
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var s stamp
		if _, err := fmt.Sscanf(filepath.Base(file), "%d.%d.start", &s.attempt, &s.rank); err != nil {
			return nil, fmt.Errorf("stamp %s: %w", file, err)
		}
		for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
			f := strings.Fields(line)
			if len(f) != 6 {
				return nil, fmt.Errorf("stamp %s: half written: %q", file, line)
			}
			ns, err := strconv.ParseInt(f[0], 10, 64)
			if err != nil {
				return nil, fmt.Errorf("stamp %s: %w", file, err)
			}
			s.at, s.alloc, s.store, s.cards = time.Unix(0, ns), f[1], f[4], f[5]
			s.pid, _ = strconv.Atoi(f[2])
			s.world, _ = strconv.Atoi(f[3])
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b stamp) int { return (a.attempt-b.attempt)*1000 + a.rank - b.rank })
	return all, nil
}

// awaitStarted returns when exactly so many ranks of an attempt have started.
func awaitStarted(ctx context.Context, t *testing.T, folder string, attempt, ranks int) []stamp {
	t.Helper()
	var of []stamp
	poll(ctx, t, fmt.Sprintf("wait for %d ranks of attempt %d", ranks, attempt), func() error {
		all, err := stamps(folder)
		if err != nil {
			return err
		}
		of = slices.DeleteFunc(all, func(s stamp) bool { return s.attempt != attempt })
		if len(of) < ranks {
			return fmt.Errorf("%d have started", len(of))
		}
		return nil
	})
	must.Len(t, ranks, of, must.Sprintf("%+v", of))
	return of
}

// startedOnce checks that every rank of the attempts started exactly once, and
// that there was no other attempt.
func startedOnce(t *testing.T, folder string, attempts, ranks int) {
	t.Helper()
	all, err := stamps(folder)
	must.NoError(t, err)
	must.Len(t, attempts*ranks, all, must.Sprintf("%+v", all))
	for i, s := range all {
		must.Eq(t, i/ranks+1, s.attempt, must.Sprintf("%+v", all))
		must.Eq(t, i%ranks, s.rank, must.Sprintf("%+v", all))
	}
}

// noneStarted checks that no rank of the folder has ever started.
func noneStarted(t *testing.T, folder string) {
	t.Helper()
	all, err := stamps(folder)
	must.NoError(t, err)
	must.SliceEmpty(t, all)
}

// stage says that a gang is in one of the stages.
func stage(want ...contract.Stage) func(*view.Gang) bool {
	return func(g *view.Gang) bool { return slices.Contains(want, g.Stage) }
}

// awaitStage returns when the gang is in the stage. A gang that is over and in
// another stage fails the scenario at once.
func (l *lab) awaitStage(ctx context.Context, t *testing.T, job string, want contract.Stage) *view.Gang {
	t.Helper()
	g := l.await(ctx, t, job, "stage "+string(want), func(g *view.Gang) bool { return g.Stage == want || g.Stage.Ended() || g.Stage == contract.StageRefused })
	if g.Stage != want {
		t.Fatalf("gang %s: waited for stage %s; it is over: %s", job, want, describe(g))
	}
	return g
}

// allocations of a job that Nomad still knows, of all its versions.
func (l *lab) allocations(ctx context.Context, t *testing.T, job string) []*api.AllocationListStub {
	t.Helper()
	list, _, err := l.nomad.Jobs().Allocations(job, true, (&api.QueryOptions{}).WithContext(ctx))
	must.NoError(t, err)
	return list
}

// alive leaves out the allocations that have ended on their client.
func alive(list []*api.AllocationListStub) []*api.AllocationListStub {
	return slices.DeleteFunc(slices.Clone(list), func(a *api.AllocationListStub) bool {
		switch a.ClientStatus {
		case api.AllocClientStatusComplete, api.AllocClientStatusFailed, api.AllocClientStatusLost:
			return true
		}
		return false
	})
}

// awaitAllocations waits, by blocking queries, until the job's allocations are
// as the condition wants them.
func (l *lab) awaitAllocations(ctx context.Context, t *testing.T, job, what string, ok func([]*api.AllocationListStub) bool) []*api.AllocationListStub {
	t.Helper()
	q := (&api.QueryOptions{WaitTime: 10 * time.Second}).WithContext(ctx)
	for {
		list, meta, err := l.nomad.Jobs().Allocations(job, true, q)
		if err != nil {
			t.Fatalf("job %s: waited for: %s: %v", job, what, err)
		}
		if ok(list) {
			return list
		}
		q.WaitIndex = meta.LastIndex
	}
}

// awaitHeld returns when a gang's members are all on their nodes and their tasks
// run: held by the driver, in their preflight or past it.
func (l *lab) awaitHeld(ctx context.Context, t *testing.T, job string, members int) []*api.AllocationListStub {
	t.Helper()
	return l.awaitUp(ctx, t, job, members, members)
}

// awaitUp returns when so many of all allocations of a job run.
func (l *lab) awaitUp(ctx context.Context, t *testing.T, job string, running, all int) []*api.AllocationListStub {
	t.Helper()
	return l.awaitAllocations(ctx, t, job, fmt.Sprintf("%d of %d members run", running, all), func(list []*api.AllocationListStub) bool {
		up := 0
		for _, a := range list {
			if a.ClientStatus == api.AllocClientStatusRunning {
				up++
			}
		}
		return up == running && len(list) == all
	})
}

// tasks are the processes of this cluster's tasks: supervisors and ranks. Of an
// existing cluster, all that are on this host.
func (l *lab) tasks() ([]trial.Running, error) {
	if l.Kind == trial.Existing {
		return trial.Processes(contract.EnvTask + "=")
	}
	ranks, err := trial.Processes(l.Dir, "NOMAD_ALLOC_ID=")
	if err != nil {
		return nil, err
	}
	all, err := trial.Processes(l.Dir, trial.DriverPlugin)
	for _, p := range all {
		if len(p.Args) > 1 && strings.HasSuffix(p.Args[0], trial.DriverPlugin) && !slices.ContainsFunc(ranks, func(r trial.Running) bool { return r.Pid == p.Pid }) {
			ranks = append(ranks, p)
		}
	}
	return ranks, err
}

// awaitEmpty returns when the cluster holds nothing: no allocation, no process
// of a task, no entry of Muster's in Consul. Cards follow allocations.
func (l *lab) awaitEmpty(ctx context.Context) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := l.empty(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("wait for the cluster to be empty: %w", last)
		}
	}
}

func (l *lab) empty(ctx context.Context) error {
	list, _, err := l.nomad.Allocations().List((&api.QueryOptions{Namespace: "*"}).WithContext(ctx))
	if err != nil {
		return err
	}
	for _, a := range alive(list) {
		return fmt.Errorf("allocation %s of job %s is %s", a.ID, a.JobID, a.ClientStatus)
	}
	running, err := l.tasks()
	if err != nil {
		return err
	}
	if len(running) > 0 {
		return fmt.Errorf("processes of tasks still run: %v", running)
	}
	entries, err := l.consulEntries(ctx)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("consul still has %s", strings.Join(entries, ", "))
	}
	return err
}

// consulEntries are all keys, services and sessions that Muster has in Consul.
func (l *lab) consulEntries(ctx context.Context) ([]string, error) {
	var keys []string
	var services map[string]struct{ ID, Service string }
	var sessions []struct{ ID, Name string }
	if err := getJSON(ctx, l.ConsulAddr+"/v1/kv/"+contract.ConsulPrefix+"/?keys=true", &keys); err != nil {
		return nil, err
	}
	err := errors.Join(getJSON(ctx, l.ConsulAddr+"/v1/agent/services", &services), getJSON(ctx, l.ConsulAddr+"/v1/session/list", &sessions))
	for _, s := range services {
		if s.Service == contract.ConsulService {
			keys = append(keys, "service "+s.ID)
		}
	}
	for _, s := range sessions {
		keys = append(keys, "session "+s.Name+" "+s.ID)
	}
	return keys, err
}

func getJSON(ctx context.Context, url string, into any) error {
	data, err := get(ctx, url)
	if err != nil || data == nil {
		return err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("GET %s: %w", url, err)
	}
	return nil
}
