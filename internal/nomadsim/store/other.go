package store

import (
	"maps"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// PutDeployment puts a deployment.
func (tx *Txn) PutDeployment(in *wire.Deployment) {
	d := *in
	d.CreateIndex, d.ModifyIndex = tx.index, tx.index
	if old := as[wire.Deployment](tx.get(Deployments, d.ID)); old != nil {
		d.CreateIndex = old.CreateIndex
	}
	tx.put(Deployments, d.ID, &d)
	tx.put(byDeploymentJob, key(d.Namespace, d.JobID, d.ID), &d)
	tx.event("Deployment", d.Namespace, d.ID, []string{d.JobID}, map[string]any{"Deployment": &d})
}

// Deployment returns a deployment, or nil.
func (tx *Txn) Deployment(id string) *wire.Deployment {
	return as[wire.Deployment](tx.get(Deployments, id))
}

// deploymentForAlloc counts an allocation in its deployment.
func (tx *Txn) deploymentForAlloc(a, was *wire.Allocation) {
	if a.DeploymentID == "" {
		return
	}
	old := tx.Deployment(a.DeploymentID)
	if old == nil || old.TaskGroups[a.TaskGroup] == nil {
		return
	}
	healthy := func(x *wire.Allocation) (known, good bool) {
		if x == nil || x.DeploymentID != a.DeploymentID || x.DeploymentStatus == nil || x.DeploymentStatus.Healthy == nil {
			return false, false
		}
		return true, *x.DeploymentStatus.Healthy
	}
	st := *old.TaskGroups[a.TaskGroup]
	changed := false
	if was == nil || was.DeploymentID != a.DeploymentID {
		st.PlacedAllocs++
		changed = true
		if a.DeploymentStatus != nil && a.DeploymentStatus.Canary {
			st.PlacedCanaries = append(append([]string{}, st.PlacedCanaries...), a.ID)
		}
		if st.ProgressDeadline > 0 && st.RequireProgressBy.IsZero() {
			st.RequireProgressBy = wire.Time{Time: tx.now.Add(st.ProgressDeadline)}
		}
	}
	knownWas, goodWas := healthy(was)
	known, good := healthy(a)
	if known != knownWas || good != goodWas {
		changed = true
		if knownWas {
			if goodWas {
				st.HealthyAllocs--
			} else {
				st.UnhealthyAllocs--
			}
		}
		if known {
			if good {
				st.HealthyAllocs++
				if st.ProgressDeadline > 0 {
					st.RequireProgressBy = wire.Time{Time: tx.now.Add(st.ProgressDeadline)}
				}
			} else {
				st.UnhealthyAllocs++
			}
		}
	}
	if !changed {
		return
	}
	d := *old
	d.TaskGroups = maps.Clone(old.TaskGroups)
	d.TaskGroups[a.TaskGroup] = &st
	tx.PutDeployment(&d)
}

// RefreshJob works a job's status out anew.
func (tx *Txn) RefreshJob(namespace, id string) { tx.refreshJob(namespace, id, "") }

// Variable returns a variable, or nil.
func (tx *Txn) Variable(namespace, path string) *wire.Variable {
	return as[wire.Variable](tx.get(Variables, key(namespace, path)))
}

// PutVariable puts a variable as it is.
func (tx *Txn) PutVariable(v *wire.Variable) {
	tx.put(Variables, key(v.Namespace, v.Path), v)
	shown := *v
	shown.Items = nil
	tx.event("Variable", v.Namespace, v.Path, nil, map[string]any{"Metadata": &shown})
}

// DeleteVariable removes a variable.
func (tx *Txn) DeleteVariable(namespace, path string) {
	v := tx.Variable(namespace, path)
	if v == nil {
		return
	}
	tx.delete(Variables, key(namespace, path))
	shown := *v
	shown.Items = nil
	tx.event("Variable", namespace, path, nil, map[string]any{"Metadata": &shown, "Deleted": true})
}

// PutNamespace puts a namespace.
func (tx *Txn) PutNamespace(in *wire.Namespace) {
	n := *in
	n.CreateIndex, n.ModifyIndex = tx.index, tx.index
	if old := as[wire.Namespace](tx.get(Namespaces, n.Name)); old != nil {
		n.CreateIndex = old.CreateIndex
	}
	tx.put(Namespaces, n.Name, &n)
}

// DeleteNamespace removes a namespace.
func (tx *Txn) DeleteNamespace(name string) { tx.delete(Namespaces, name) }

// PutNodePool puts a node pool.
func (tx *Txn) PutNodePool(in *wire.NodePool) {
	tx.Kind("NodePoolUpserted")
	p := *in
	p.CreateIndex, p.ModifyIndex = tx.index, tx.index
	if old := as[wire.NodePool](tx.get(NodePools, p.Name)); old != nil {
		p.CreateIndex = old.CreateIndex
	}
	tx.put(NodePools, p.Name, &p)
	tx.event("NodePool", "", p.Name, nil, map[string]any{"NodePool": &p})
}

// DeleteNodePool removes a node pool.
func (tx *Txn) DeleteNodePool(name string) {
	tx.Kind("NodePoolDeleted")
	tx.delete(NodePools, name)
}
