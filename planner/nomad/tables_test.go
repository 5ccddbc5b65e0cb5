package nomad

import (
	"testing"

	"github.com/nomad-muster/muster/planner/nomad/picture"
	"github.com/shoenig/test/must"
)

// Nomad deletes a purged job's allocations with it, and tells only of the job.
func TestPurgeTakesAllocationsAlong(t *testing.T) {
	t.Parallel()
	gang := map[string]any{"ID": "g", "Type": "batch", "Meta": map[string]string{"muster_queue": "q"}, "ModifyIndex": 10, "JobModifyIndex": 10}
	alloc := func(id, job string, index int) map[string]any {
		return map[string]any{"ID": id, "JobID": job, "ClientStatus": "running", "DesiredStatus": "run", "CreateIndex": index, "ModifyIndex": index}
	}
	tables := newTables()
	take := func(lines ...string) Delta {
		t.Helper()
		var batch [][]byte
		for _, l := range lines {
			batch = append(batch, []byte(l))
		}
		d, err := tables.lines(batch, nil)
		must.NoError(t, err)
		return d
	}
	take(event(10, "Job", "JobRegistered", gang, ""), event(11, "Allocation", "PlanResult", alloc("a", "g", 11), ""), event(12, "Allocation", "PlanResult", alloc("b", "other", 12), ""))
	must.MapLen(t, 2, tables.allocs)
	d := take(event(20, "Job", "JobDeregistered", gang, `,"Deleted":true`))
	must.Eq(t, map[string]*picture.Alloc{"a": nil}, d.Allocs)
	must.MapLen(t, 1, tables.allocs)

	// The next job of the name has allocations of its own.
	gang["ModifyIndex"], gang["JobModifyIndex"] = 30, 30
	d = take(event(30, "Job", "JobRegistered", gang, ""), event(31, "Allocation", "PlanResult", alloc("c", "g", 31), ""))
	must.NotNil(t, d.Allocs["c"])
	must.MapLen(t, 2, tables.allocs)
}

// What Nomad has collected is gone once its job is read anew.
func TestReadAnewWithoutCollectedAllocations(t *testing.T) {
	t.Parallel()
	key := picture.Key{Namespace: "default", Job: "g"}
	tables := newTables()
	old := &picture.Alloc{ID: "old", Namespace: "default", JobID: "g", Index: 5}
	late := &picture.Alloc{ID: "late", Namespace: "default", JobID: "g", Index: 9}
	tables.allocs["old"], tables.allocs["late"] = old, late
	d := tables.refreshed(refreshed{key: key, allocsAt: 7})
	must.Eq(t, map[string]*picture.Alloc{"old": nil}, d.Allocs)
	must.Eq(t, late, tables.allocs["late"])
}
