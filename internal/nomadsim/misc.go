package nomadsim

import (
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strings"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-muster/muster/internal/nomadsim/store"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

const rpcAddr = "127.0.0.1:4647"

func (q *request) leader(string) (any, error)  { return rpcAddr, nil }
func (q *request) peers(string) (any, error)   { return []string{rpcAddr}, nil }
func (q *request) regions(string) (any, error) { return []string{q.c.opts.Region}, nil }

func (q *request) agentHealth(string) (any, error) {
	return map[string]any{"server": map[string]any{"message": "ok", "ok": true}}, nil
}

func (q *request) agentServers(string) (any, error) { return []string{rpcAddr}, nil }

// version is the build that the server calls itself.
func (c *Cluster) version() string {
	if c.opts.Before19 {
		return "1.8.4"
	}
	return Version
}

func (q *request) member() map[string]any {
	return map[string]any{"Name": "server." + q.c.opts.Region, "Addr": "127.0.0.1", "Port": 4648, "Status": "alive", "ProtocolMin": 1, "ProtocolMax": 5,
		"ProtocolCur": 2, "DelegateMin": 2, "DelegateMax": 5, "DelegateCur": 4, "Tags": map[string]string{"role": "nomad", "region": q.c.opts.Region,
			"dc": "dc1", "build": q.c.version(), "port": "4647", "id": q.c.signingKey, "raft_vsn": "3", "vsn": "1"}}
}

func (q *request) agentSelf(string) (any, error) {
	return map[string]any{
		"config": map[string]any{"Region": q.c.opts.Region, "Datacenter": "dc1", "NodeName": "server", "DataDir": q.c.opts.DataDir, "BindAddr": "127.0.0.1",
			"Version": map[string]any{"Version": "2.0.6", "VersionPrerelease": "dev", "VersionMetadata": "", "Revision": ""},
			"Server":  map[string]any{"Enabled": true, "BootstrapExpect": 1, "JobMaxPriority": maxPriority, "JobDefaultPriority": 50},
			"Client":  map[string]any{"Enabled": false}, "ACL": map[string]any{"Enabled": false}, "UI": map[string]any{"Enabled": true}},
		"member": q.member(),
		"stats":  map[string]any{"nomad": map[string]string{"server": "true", "leader": "true", "leader_addr": rpcAddr, "bootstrap": "false", "known_regions": "1"}},
	}, nil
}

func (q *request) agentMembers(string) (any, error) {
	return map[string]any{"ServerName": "server", "ServerRegion": q.c.opts.Region, "ServerDC": "dc1", "Members": []any{q.member()}}, nil
}

func (q *request) license(string) (any, error) {
	return nil, fail(http.StatusNoContent, "")
}

func (q *request) raft(string) (any, error) {
	type server struct {
		ID, Node, Address string
		Leader, Voter     bool
		RaftProtocol      string
	}
	return struct {
		Servers []server
		Index   uint64
	}{[]server{{q.c.signingKey, "server.global", rpcAddr, true, true, "3"}}, q.c.store.Snapshot().Index()}, nil
}

func (q *request) metrics(string) (any, error) {
	return map[string]any{"Counters": []any{}, "Gauges": []any{}, "Points": []any{}, "Samples": []any{}, "Timestamp": q.c.clock.Now().UTC().String()}, nil
}

func (q *request) services(string) (any, error) {
	q.meta(q.c.store.Snapshot().Index())
	return []any{}, nil
}

func (q *request) scalingPolicies(string) (any, error) {
	return q.query(func(s *store.Snapshot) (any, uint64, error) {
		list := []any{}
		for j := range s.Jobs(q.namespace, "") {
			for _, g := range j.TaskGroups {
				if p := g.Scaling; p != nil {
					list = append(list, map[string]any{"ID": p.ID, "Enabled": p.Enabled, "Type": p.Type, "Target": p.Target, "CreateIndex": p.CreateIndex, "ModifyIndex": p.ModifyIndex})
				}
			}
		}
		return list, s.TableIndex(store.Jobs), nil
	}, store.Jobs)
}

func (q *request) systemGC(string) (any, error) {
	if err := q.write(); err != nil {
		return nil, err
	}
	q.c.collect(true)
	return nil, nil
}

func (q *request) reconcileSummaries(string) (any, error) {
	if err := q.write(); err != nil {
		return nil, err
	}
	return nil, nil
}

func (q *request) schedulerConfiguration(string) (any, error) {
	switch q.r.Method {
	case http.MethodGet:
		q.c.mu.Lock()
		cfg := *q.c.schedulerConfig
		q.c.mu.Unlock()
		index := max(cfg.ModifyIndex, 1)
		q.meta(index)
		return map[string]any{"SchedulerConfig": cfg, "Index": index, "LastContact": 0, "KnownLeader": true, "NextToken": ""}, nil
	case http.MethodPut, http.MethodPost:
		var cfg api.SchedulerConfiguration
		if err := q.decode(&cfg); err != nil {
			return nil, err
		}
		index := q.c.store.Apply(func(*store.Txn) {})
		q.c.mu.Lock()
		cfg.CreateIndex, cfg.ModifyIndex = max(q.c.schedulerConfig.CreateIndex, 1), index
		q.c.schedulerConfig = &cfg
		q.c.mu.Unlock()
		q.c.broker.pause(cfg.PauseEvalBroker)
		q.index(index)
		return map[string]any{"Updated": true, "Index": index}, nil
	}
	return nil, errMethod
}

func (q *request) namespaces(string) (any, error) {
	if err := q.method(http.MethodGet); err != nil {
		return nil, err
	}
	prefix := q.q.Get("prefix")
	return q.query(func(s *store.Snapshot) (any, uint64, error) {
		list := []*wire.Namespace{}
		for n := range s.Namespaces(prefix) {
			list = append(list, n)
		}
		return list, s.TableIndex(store.Namespaces), nil
	}, store.Namespaces)
}

func (q *request) namespaceCreate(string) (any, error) {
	if err := q.write(); err != nil {
		return nil, err
	}
	return q.namespaceWrite("")
}

func (q *request) namespaceWrite(name string) (any, error) {
	var n wire.Namespace
	if err := q.decode(&n); err != nil {
		return nil, err
	}
	if name != "" && n.Name != name {
		return nil, fail(http.StatusBadRequest, "Namespace name does not match request path")
	}
	if n.Name == "" || strings.ContainsAny(n.Name, " /*") || len(n.Name) > 128 {
		return nil, fmt.Errorf("invalid name %q. Must match regex ^[a-zA-Z0-9-]{1,128}$", n.Name)
	}
	index := q.c.store.Apply(func(tx *store.Txn) { tx.PutNamespace(&n) })
	q.index(index)
	return nil, nil
}

func (q *request) namespaceOne(name string) (any, error) {
	switch q.r.Method {
	case http.MethodGet, http.MethodHead:
		return q.query(func(s *store.Snapshot) (any, uint64, error) {
			n := s.Namespace(name)
			if n == nil {
				return nil, s.TableIndex(store.Namespaces), fail(http.StatusNotFound, "Namespace not found")
			}
			return n, n.ModifyIndex, nil
		}, store.Namespaces)
	case http.MethodPut, http.MethodPost:
		return q.namespaceWrite(name)
	case http.MethodDelete:
		s := q.c.store.Snapshot()
		if s.Namespace(name) == nil {
			return nil, fmt.Errorf("namespace %q does not exist", name)
		}
		if name == "default" {
			return nil, fmt.Errorf("default namespace can not be deleted")
		}
		for j := range s.Jobs(name, "") {
			if j.Status != wire.JobDead {
				return nil, fmt.Errorf("namespace %q has non-terminal jobs in regions: [%s]", name, q.c.opts.Region)
			}
		}
		index := q.c.store.Apply(func(tx *store.Txn) { tx.DeleteNamespace(name) })
		q.index(index)
		return nil, nil
	}
	return nil, errMethod
}

// searchLimit is how many matches of a kind a search gives.
const searchLimit = 20

// searchContexts are what can be searched, in the order in which a server names them.
var searchContexts = []string{"allocs", "jobs", "nodes", "node_pools", "evals", "deployment", "plugins", "volumes", "scaling_policy", "vars", "namespaces", "host_volumes"}

// search finds ids by prefix.
func (q *request) search(string) (any, error) {
	if err := q.write(); err != nil {
		return nil, err
	}
	var body struct{ Prefix, Context string }
	if err := q.decode(&body); err != nil {
		return nil, err
	}
	all := body.Context == "" || body.Context == "all"
	if !all && !slices.Contains(searchContexts, body.Context) {
		return nil, fmt.Errorf("context must be one of %v or 'all' for all contexts; got %q", searchContexts, body.Context)
	}
	s, p, uuid := q.c.store.Snapshot(), body.Prefix, isIDPrefix(body.Prefix)
	matches, cut := map[string][]string{}, map[string]bool{}
	index := uint64(0)
	mine := func(namespace string) bool { return q.namespace == "*" || q.namespace == namespace }
	for _, context := range searchContexts {
		if !all && body.Context != context {
			continue
		}
		var ids iter.Seq[string]
		table := store.Jobs
		switch context {
		case "jobs":
			ids = seqOf(s.Jobs(q.namespace, p), func(j *wire.Job) (string, bool) { return j.ID, true })
		case "evals":
			ids, table = seqOf(s.Evals(p), func(e *wire.Evaluation) (string, bool) { return e.ID, mine(e.Namespace) }), store.Evals
		case "allocs":
			ids, table = seqOf(s.Allocs(p), func(a *wire.Allocation) (string, bool) { return a.ID, mine(a.Namespace) }), store.Allocs
		case "nodes":
			ids, table = seqOf(s.Nodes(p), func(n *wire.Node) (string, bool) { return n.ID, true }), store.Nodes
		case "deployment":
			ids, table = seqOf(s.Deployments(p), func(d *wire.Deployment) (string, bool) { return d.ID, mine(d.Namespace) }), store.Deployments
		case "node_pools":
			ids, table = seqOf(s.NodePools(p), func(n *wire.NodePool) (string, bool) { return n.Name, true }), store.NodePools
		case "namespaces":
			ids, table = seqOf(s.Namespaces(p), func(n *wire.Namespace) (string, bool) { return n.Name, true }), store.Namespaces
		case "vars":
			ids, table = seqOf(s.Variables(q.namespace, p), func(v *wire.Variable) (string, bool) { return v.Path, true }), store.Variables
		default: // there are none of them
			ids = func(func(string) bool) {}
		}
		if byID := slices.Contains([]string{"evals", "allocs", "nodes", "deployment"}, context); byID && !uuid {
			if all {
				continue // nothing has such an id
			}
			ids = func(func(string) bool) {}
		}
		var list []string
		cut[context] = false
		for id := range ids {
			if len(list) == searchLimit {
				cut[context] = true
				break
			}
			list = append(list, id)
		}
		matches[context] = list
		index = max(index, s.TableIndex(table))
	}
	q.meta(index)
	return map[string]any{"Matches": matches, "Truncations": cut, "Index": index, "LastContact": 0, "KnownLeader": true, "NextToken": ""}, nil
}

func seqOf[T any](in iter.Seq[*T], id func(*T) (string, bool)) iter.Seq[string] {
	return func(yield func(string) bool) {
		for v := range in {
			if s, ok := id(v); ok && !yield(s) {
				return
			}
		}
	}
}
