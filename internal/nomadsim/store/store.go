// Package store holds the state of a simulated Nomad cluster the way a Nomad server does: tables of immutable objects
// under one ever growing index, snapshots that cost nothing, watches for blocking queries, and a ring of the last events.
//
// Every change is an Apply: one index, one transaction or several, and one line of events for each transaction.
// Readers take a Snapshot and may keep it. Objects in a snapshot must not be changed.
package store

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"

	iradix "github.com/hashicorp/go-immutable-radix"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// Table is one kind of object.
type Table int

// The tables. Those that start with by are indexes into another.
const (
	Nodes Table = iota
	Jobs
	JobVersions
	JobSubmissions
	ScalingEvents
	JobSummaries
	Evals
	Allocs
	Deployments
	Variables
	Namespaces
	NodePools
	byEvalJob
	byAllocJob
	byAllocNode
	byAllocEval
	byDeploymentJob
	tables
)

// TrackedVersions is how many untagged versions of a job are kept.
const TrackedVersions = 6

type table struct {
	tree  *iradix.Tree
	index uint64
	watch chan struct{} // closed when the table changes
}

// Snapshot is the state at one index.
type Snapshot struct {
	index  uint64
	tables [tables]table
	ready  *readyNodes
}

// readyNodes are the nodes that take allocations, listed when they are first asked for. Snapshots between which no node
// changed have one list, since it costs a walk through all nodes.
type readyNodes struct {
	once sync.Once
	list []*wire.Node
}

// Store is the state of a cluster. Its methods may be called from any goroutine.
type Store struct {
	mu      sync.Mutex // serialises Apply
	current atomic.Pointer[Snapshot]
	events  *Ring
	now     func() time.Time
	hooks   []func(*Changes)
	commits commits
}

// Changes tells what an Apply did.
type Changes struct {
	Index  uint64
	Evals  []*wire.Evaluation // put, in order
	Allocs []AllocChange
	Nodes  []*wire.Node
	Jobs   []*wire.Job        // put; a purged job is not among them
	Gone   []*wire.Allocation // deleted
}

// AllocChange is an allocation before (nil: new) and after.
type AllocChange struct{ Before, After *wire.Allocation }

// New makes a store with the namespace "default" and the node pools "all" and "default".
func New(now func() time.Time, eventBuffer int) *Store {
	s := &Store{events: NewRing(eventBuffer), now: now}
	snap := &Snapshot{ready: &readyNodes{}}
	for i := range snap.tables {
		snap.tables[i] = table{tree: iradix.New(), watch: make(chan struct{})}
	}
	s.current.Store(snap)
	s.Apply(func(tx *Txn) {
		tx.put(Namespaces, "default", &wire.Namespace{Name: "default", Description: "Default shared namespace", CreateIndex: 1, ModifyIndex: 1})
		tx.put(NodePools, "all", &wire.NodePool{Name: "all", Description: "Node pool with all nodes in the cluster.", CreateIndex: 1, ModifyIndex: 1})
		tx.put(NodePools, "default", &wire.NodePool{Name: "default", Description: "Default node pool.", CreateIndex: 1, ModifyIndex: 1})
	})
	return s
}

// OnChange has f called after each Apply, in order, still under the store's lock: f must be quick and must not write.
func (s *Store) OnChange(f func(*Changes)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks = append(s.hooks, f)
}

// Snapshot is the state now.
func (s *Store) Snapshot() *Snapshot { return s.current.Load() }

// Events is the ring of the last events.
func (s *Store) Events() *Ring { return s.events }

// Apply runs the transactions under one new index, and returns it. Each transaction with events makes a line of the stream.
func (s *Store) Apply(txns ...func(*Txn)) uint64 {
	index, _ := s.TryApply(func(tx *Txn) error { txns[0](tx); return nil }, txns[1:]...)
	return index
}

// TryApply is Apply with a first transaction that may refuse: on an error nothing is changed, and the index is the old one.
func (s *Store) TryApply(first func(*Txn) error, more ...func(*Txn)) (uint64, error) {
	s.commits.wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	index := s.current.Load().index + 1
	changes := &Changes{Index: index}
	begin := func() *Txn {
		return &Txn{base: s.current.Load(), index: index, now: s.now(), changes: changes, at: map[eventKey]int{}}
	}
	tx := begin()
	if err := first(tx); err != nil {
		return index - 1, err
	}
	s.commit(tx)
	for _, f := range more {
		tx := begin()
		f(tx)
		s.commit(tx)
	}
	for _, h := range s.hooks {
		h(changes)
	}
	return index, nil
}

type eventKey struct{ topic, namespace, key string }

// Txn is one transaction. It reads its own writes.
type Txn struct {
	base    *Snapshot
	index   uint64
	now     time.Time
	txns    [tables]*iradix.Txn
	events  []*wire.Event
	at      map[eventKey]int
	changes *Changes
	kind    string
	nodes   bool // a node changed, came or went
}

// Index is the index of the change.
func (tx *Txn) Index() uint64 { return tx.index }

// Now is the time of the change.
func (tx *Txn) Now() time.Time { return tx.now }

// Kind sets the type that the transaction's events carry, such as "JobRegistered"; without it there are no events.
func (tx *Txn) Kind(kind string) { tx.kind = kind }

func (tx *Txn) txn(t Table) *iradix.Txn {
	if tx.txns[t] == nil {
		tx.txns[t] = tx.base.tables[t].tree.Txn()
	}
	return tx.txns[t]
}

func (tx *Txn) put(t Table, key string, v any) { tx.txn(t).Insert([]byte(key), v) }

func (tx *Txn) delete(t Table, key string) { tx.txn(t).Delete([]byte(key)) }

func (tx *Txn) get(t Table, key string) any {
	if tx.txns[t] != nil {
		v, _ := tx.txns[t].Get([]byte(key))
		return v
	}
	v, _ := tx.base.tables[t].tree.Get([]byte(key))
	return v
}

func (tx *Txn) root(t Table) *iradix.Node {
	if tx.txns[t] != nil {
		return tx.txns[t].Root()
	}
	return tx.base.tables[t].tree.Root()
}

// commit makes the transaction the store's state and wakes who waits for the tables it changed.
func (s *Store) commit(tx *Txn) {
	next := *tx.base
	next.index = tx.index
	if tx.nodes {
		next.ready = &readyNodes{}
	}
	var wake []chan struct{}
	for t := range tx.txns {
		if tx.txns[t] == nil {
			continue
		}
		wake = append(wake, next.tables[t].watch)
		next.tables[t] = table{tree: tx.txns[t].Commit(), index: tx.index, watch: make(chan struct{})}
	}
	s.current.Store(&next)
	for _, c := range wake {
		close(c)
	}
	s.events.append(tx.index, tx.events)
}

// event notes an event; a second one for the same object takes the place of the first.
func (tx *Txn) event(topic, namespace, key string, filter []string, payload any) {
	if tx.kind == "" {
		return
	}
	e := &wire.Event{Topic: topic, Type: tx.kind, Key: key, Namespace: namespace, FilterKeys: filter, Index: tx.index, Payload: payload}
	k := eventKey{topic, namespace, key}
	if i, ok := tx.at[k]; ok {
		tx.events[i] = e
		return
	}
	tx.at[k] = len(tx.events)
	tx.events = append(tx.events, e)
}

func key(parts ...string) string { return strings.Join(parts, "\x00") }
