package store

import (
	"fmt"
	"iter"

	iradix "github.com/hashicorp/go-immutable-radix"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// Index is the snapshot's index.
func (s *Snapshot) Index() uint64 { return s.index }

// Scaling is a job's scaling history.
func (s *Snapshot) Scaling(namespace, job string) ScalingHistory {
	h, _ := s.get(ScalingEvents, key(namespace, job)).(ScalingHistory)
	return h
}

// TableIndex is the index of the table's last change.
func (s *Snapshot) TableIndex(t Table) uint64 { return s.tables[t].index }

// Watch is closed when the table changes after the snapshot.
func (s *Snapshot) Watch(t Table) <-chan struct{} { return s.tables[t].watch }

func (s *Snapshot) get(t Table, key string) any {
	v, _ := s.tables[t].tree.Get([]byte(key))
	return v
}

func as[T any](v any) *T {
	p, _ := v.(*T)
	return p
}

func scan[T any](root *iradix.Node, prefix string) iter.Seq[*T] {
	return func(yield func(*T) bool) {
		it := root.Iterator()
		it.SeekPrefix([]byte(prefix))
		for {
			_, v, ok := it.Next()
			if !ok || !yield(v.(*T)) {
				return
			}
		}
	}
}

func versionKey(namespace, id string, version uint64) string {
	return key(namespace, id, fmt.Sprintf("%020d", version))
}

// Node returns a node, or nil.
func (s *Snapshot) Node(id string) *wire.Node { return as[wire.Node](s.get(Nodes, id)) }

// Nodes walks the nodes whose ids have the prefix, in order of id.
func (s *Snapshot) Nodes(prefix string) iter.Seq[*wire.Node] {
	return scan[wire.Node](s.tables[Nodes].tree.Root(), prefix)
}

// ReadyNodes are the nodes that take allocations, in order of id; they may be older than the snapshot in nothing but the
// index of what their clients last told. The list must not be changed.
func (s *Snapshot) ReadyNodes() []*wire.Node {
	s.ready.once.Do(func() {
		for n := range s.Nodes("") {
			if n.Ready() {
				s.ready.list = append(s.ready.list, n)
			}
		}
	})
	return s.ready.list
}

// NodeCount is the number of nodes.
func (s *Snapshot) NodeCount() int { return s.tables[Nodes].tree.Len() }

// Job returns a job's current version, or nil.
func (s *Snapshot) Job(namespace, id string) *wire.Job {
	return as[wire.Job](s.get(Jobs, key(namespace, id)))
}

// Jobs walks the jobs of the namespace ("*" for all) whose ids have the prefix, in order of namespace and id.
func (s *Snapshot) Jobs(namespace, prefix string) iter.Seq[*wire.Job] {
	return namespaced[wire.Job](s, Jobs, namespace, prefix)
}

// namespaced walks a table whose keys begin with a namespace, which may be "*".
func namespaced[T any](s *Snapshot, t Table, namespace, prefix string) iter.Seq[*T] {
	root := s.tables[t].tree.Root()
	if namespace != "*" {
		return scan[T](root, key(namespace, prefix))
	}
	return func(yield func(*T) bool) {
		for n := range s.Namespaces("") {
			for v := range scan[T](root, key(n.Name, prefix)) {
				if !yield(v) {
					return
				}
			}
		}
	}
}

// Version returns a version of a job, or nil.
func (s *Snapshot) Version(namespace, id string, version uint64) *wire.Job {
	return as[wire.Job](s.get(JobVersions, versionKey(namespace, id, version)))
}

// Versions are the kept versions of a job, newest first.
func (s *Snapshot) Versions(namespace, id string) []*wire.Job {
	return newestFirst(s.tables[JobVersions].tree.Root(), namespace, id)
}

func newestFirst(root *iradix.Node, namespace, id string) []*wire.Job {
	var all []*wire.Job
	for j := range scan[wire.Job](root, key(namespace, id, "")) {
		all = append(all, j)
	}
	for i, k := 0, len(all)-1; i < k; i, k = i+1, k-1 {
		all[i], all[k] = all[k], all[i]
	}
	return all
}

// Submission returns the text of a version of a job, or nil.
func (s *Snapshot) Submission(namespace, id string, version uint64) *wire.JobSubmission {
	return as[wire.JobSubmission](s.get(JobSubmissions, versionKey(namespace, id, version)))
}

// Summary returns a job's counts, or nil.
func (s *Snapshot) Summary(namespace, id string) *wire.JobSummary {
	return as[wire.JobSummary](s.get(JobSummaries, key(namespace, id)))
}

// Eval returns an evaluation, or nil.
func (s *Snapshot) Eval(id string) *wire.Evaluation { return as[wire.Evaluation](s.get(Evals, id)) }

// Evals walks the evaluations whose ids have the prefix, in order of id.
func (s *Snapshot) Evals(prefix string) iter.Seq[*wire.Evaluation] {
	return scan[wire.Evaluation](s.tables[Evals].tree.Root(), prefix)
}

// EvalsByJob walks a job's evaluations.
func (s *Snapshot) EvalsByJob(namespace, id string) iter.Seq[*wire.Evaluation] {
	return scan[wire.Evaluation](s.tables[byEvalJob].tree.Root(), key(namespace, id, ""))
}

// Alloc returns an allocation, or nil.
func (s *Snapshot) Alloc(id string) *wire.Allocation { return as[wire.Allocation](s.get(Allocs, id)) }

// Allocs walks the allocations whose ids have the prefix, in order of id.
func (s *Snapshot) Allocs(prefix string) iter.Seq[*wire.Allocation] {
	return scan[wire.Allocation](s.tables[Allocs].tree.Root(), prefix)
}

// AllocsByJob walks a job's allocations.
func (s *Snapshot) AllocsByJob(namespace, id string) iter.Seq[*wire.Allocation] {
	return scan[wire.Allocation](s.tables[byAllocJob].tree.Root(), key(namespace, id, ""))
}

// AllocsByNode walks a node's allocations.
func (s *Snapshot) AllocsByNode(id string) iter.Seq[*wire.Allocation] {
	return scan[wire.Allocation](s.tables[byAllocNode].tree.Root(), key(id, ""))
}

// AllocsByEval walks the allocations that an evaluation made.
func (s *Snapshot) AllocsByEval(id string) iter.Seq[*wire.Allocation] {
	return scan[wire.Allocation](s.tables[byAllocEval].tree.Root(), key(id, ""))
}

// Deployment returns a deployment, or nil.
func (s *Snapshot) Deployment(id string) *wire.Deployment {
	return as[wire.Deployment](s.get(Deployments, id))
}

// Deployments walks the deployments whose ids have the prefix.
func (s *Snapshot) Deployments(prefix string) iter.Seq[*wire.Deployment] {
	return scan[wire.Deployment](s.tables[Deployments].tree.Root(), prefix)
}

// DeploymentsByJob walks a job's deployments.
func (s *Snapshot) DeploymentsByJob(namespace, id string) iter.Seq[*wire.Deployment] {
	return scan[wire.Deployment](s.tables[byDeploymentJob].tree.Root(), key(namespace, id, ""))
}

// LatestDeployment is the job's newest deployment, or nil.
func (s *Snapshot) LatestDeployment(namespace, id string) *wire.Deployment {
	var last *wire.Deployment
	for d := range s.DeploymentsByJob(namespace, id) {
		if last == nil || d.CreateIndex > last.CreateIndex {
			last = d
		}
	}
	return last
}

// Variable returns a variable, or nil.
func (s *Snapshot) Variable(namespace, path string) *wire.Variable {
	return as[wire.Variable](s.get(Variables, key(namespace, path)))
}

// Variables walks the variables of the namespace ("*" for all) whose paths have the prefix.
func (s *Snapshot) Variables(namespace, prefix string) iter.Seq[*wire.Variable] {
	return namespaced[wire.Variable](s, Variables, namespace, prefix)
}

// Namespace returns a namespace, or nil.
func (s *Snapshot) Namespace(name string) *wire.Namespace {
	return as[wire.Namespace](s.get(Namespaces, name))
}

// Namespaces walks the namespaces whose names have the prefix.
func (s *Snapshot) Namespaces(prefix string) iter.Seq[*wire.Namespace] {
	return scan[wire.Namespace](s.tables[Namespaces].tree.Root(), prefix)
}

// NodePool returns a node pool, or nil.
func (s *Snapshot) NodePool(name string) *wire.NodePool {
	return as[wire.NodePool](s.get(NodePools, name))
}

// NodePools walks the node pools whose names have the prefix.
func (s *Snapshot) NodePools(prefix string) iter.Seq[*wire.NodePool] {
	return scan[wire.NodePool](s.tables[NodePools].tree.Root(), prefix)
}
