//go:build linux

package trial

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Kind of a cluster's Nomad.
type Kind string

// The kinds.
const (
	Real      Kind = "real"
	Simulated Kind = "simulated"
	Existing  Kind = "existing" // see Options.NomadAddr
)

// Options say what Start is to bring up.
type Options struct {
	Kind  Kind
	Nodes []Node // empty: four nodes of four cards
	// Dir holds configuration, state and logs; Close leaves it. Empty: a
	// temporary folder that Close removes.
	Dir string
	// Binaries; Nomad is needed for a real cluster only.
	Binaries Binaries
	// Python is the interpreter that ranks run with; empty: the driver looks for
	// one.
	Python string
	// NomadAddr and ConsulAddr (http://host:port) are an existing cluster's, to
	// which only a planner is added. Its nodes must be called and equipped as
	// Nodes says, and it must have no jobs: Close stops all.
	NomadAddr, ConsulAddr string
	// NoPlanner leaves the planner out; NoReports leaves it out of the device
	// plugins' configuration. PlannerConfig is appended to the planner's.
	NoPlanner     bool
	NoReports     bool
	PlannerConfig string
	// Progress is told what is being done, a line each. Nil: nobody is.
	Progress func(string)
}

// Node is a client of the cluster with its simulated cards.
type Node struct {
	Name, Leaf, Spine string
	Cards             int
	CPU               int // MHz
	MemoryMB          int
	// Preset of simulated cards (docs/devices.md) instead of Cards equal ones;
	// Cards is how many whole ones it has.
	Preset string
}

// Nodes gives n nodes named n1, n2, ... with so many cards each, two to a leaf
// and four to a spine.
func Nodes(n, cards int) []Node {
	nodes := make([]Node, n)
	for i := range nodes {
		nodes[i] = Node{Name: fmt.Sprintf("n%d", i+1), Leaf: fmt.Sprintf("leaf%d", i/2+1), Spine: fmt.Sprintf("spine%d", i/4+1), Cards: cards, CPU: 64000, MemoryMB: 262144}
	}
	return nodes
}

// CardMetrics are the addresses (host:port) at which the nodes' device plugins
// serve Prometheus; of an existing cluster they are not known.
func (c *Cluster) CardMetrics() []string {
	var out []string
	for _, n := range c.nodes {
		out = append(out, n.metrics())
	}
	return out
}

// maxKillTimeout bounds the time that a task may ask for to end: checkpoints
// take long.
const maxKillTimeout = 30 * time.Minute

// tempPrefix begins the names of temporary folders.
const tempPrefix = "muster-trial-"

// Cluster is a running trial cluster. Its methods may be called from several
// goroutines.
type Cluster struct {
	Kind       Kind
	Dir        string
	Binaries   Binaries
	NomadAddr  string // http://host:port
	ConsulAddr string
	MusterAddr string // empty without a planner
	Consul     *Process
	Planner    *Process // nil without

	nodes       []*node
	nomad       backend
	plannerPort int
	temporary   bool
	progress    func(string)
	closing     sync.Once
	closed      error
}

// backend is a Nomad cluster, real or simulated.
type backend interface {
	address() string
	startServer(context.Context) error
	startClients(context.Context) error
	// killClient ends a node's agent as a crash does: plugins and tasks stay.
	killClient(node string) error
	startClient(node string) error
	stop()
	// logs is the end of what a node's agent logged.
	logs(node string) string
}

// node is a Node with what this cluster gives it.
type node struct {
	Node
	dir       string
	firstPort int // of portsPerNode: the first half Nomad's, the second the driver's, the last the cards' metrics
	consul    string
	python    string
	programs  string // folder of the example rank
	planner   string // that its device plugin reports to; empty: none
}

func (n *node) plugins() string   { return filepath.Join(n.dir, "plugins") }
func (n *node) cardsFile() string { return filepath.Join(n.dir, "cards.hcl") }
func (n *node) tokenFile() string { return filepath.Join(n.dir, "card-token") }

// Start brings a cluster up and returns when every node is ready with its
// driver and its cards, and the planner answers. On an error everything is
// taken down again; the error carries the end of the log that matters.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if len(o.Nodes) == 0 {
		o.Nodes = Nodes(4, 4)
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	c := &Cluster{Kind: o.Kind, Dir: o.Dir, Binaries: o.Binaries, progress: o.Progress}
	if c.Dir == "" {
		dir, err := os.MkdirTemp("", tempPrefix)
		if err == nil {
			err = errors.Join(claim(dir), removeAbandoned())
		}
		if err != nil {
			return nil, fmt.Errorf("start the trial cluster: %w", err)
		}
		c.Dir, c.temporary = dir, true
	}
	if err := c.bringUp(ctx, o); err != nil {
		c.temporary = false // the logs are wanted
		return nil, errors.Join(fmt.Errorf("start the trial cluster (logs are in %s): %w", c.Dir, err), c.Close())
	}
	return c, nil
}

func (c *Cluster) bringUp(ctx context.Context, o Options) (err error) {
	if !o.NoPlanner {
		// Known before the nodes start: their device plugins report there.
		if c.plannerPort, err = freePort(); err != nil {
			return fmt.Errorf("prepare the planner: %w", err)
		}
	}
	if o.Kind == Existing {
		err = c.attach(ctx, o)
	} else {
		err = c.startNomad(ctx, o)
	}
	if err != nil || o.NoPlanner {
		return err
	}
	c.progress("starting the planner")
	return c.startPlanner(ctx, o.PlannerConfig)
}

// startNomad starts Consul and Nomad, and waits for the nodes.
func (c *Cluster) startNomad(ctx context.Context, o Options) (err error) {
	if c.Consul, c.ConsulAddr, err = newConsul(o.Binaries.Consul, filepath.Join(c.Dir, "consul")); err != nil {
		return err
	}
	for _, n := range o.Nodes {
		made := &node{Node: n, dir: filepath.Join(c.Dir, n.Name), consul: c.ConsulAddr, python: o.Python, programs: filepath.Dir(o.Binaries.Rank)}
		if c.plannerPort != 0 && !o.NoReports {
			made.planner = plannerAddress(c.plannerPort)
		}
		if err := made.prepare(o.Binaries); err != nil {
			return fmt.Errorf("prepare node %s: %w", n.Name, err)
		}
		c.nodes = append(c.nodes, made)
	}
	switch o.Kind {
	case Real:
		if o.Binaries.Nomad == "" {
			return errors.New("a real Nomad is asked for, but none was found: set NOMAD_BIN or put nomad on the PATH")
		}
		c.nomad, err = newRealNomad(o.Binaries.Nomad, c.Dir, c.nodes)
	case Simulated:
		c.nomad, err = newSimulatedNomad(c.Dir, c.nodes)
	default:
		err = fmt.Errorf("%q is no kind of cluster: %s, %s or %s", o.Kind, Real, Simulated, Existing)
	}
	if err != nil {
		return err
	}
	c.NomadAddr = c.nomad.address()

	c.progress("starting Consul at " + c.ConsulAddr)
	if err := c.Consul.start(); err != nil {
		return err
	}
	c.progress(fmt.Sprintf("starting a %s Nomad with %d nodes at %s", o.Kind, len(c.nodes), c.NomadAddr))
	if err := c.nomad.startServer(ctx); err != nil {
		return err
	}
	// Clients last: their drivers look for Consul when they start.
	if err := c.Consul.wait(ctx, "start Consul", func(ctx context.Context) error { return consulReady(ctx, c.ConsulAddr) }); err != nil {
		return err
	}
	if err := c.nomad.startClients(ctx); err != nil {
		return err
	}
	return c.awaitNodes(ctx)
}

// prepare makes the node's folder: plugins, cards, ports. Each node has its
// own copy of the plugins, so that the kernel's process list tells whose a
// plugin is.
func (n *node) prepare(b Binaries) (err error) {
	if n.firstPort, err = portBlock(); err != nil {
		return err
	}
	if err := os.MkdirAll(n.plugins(), 0o755); err != nil {
		return err
	}
	for name, path := range map[string]string{driverName: b.Driver, deviceName: b.Device} {
		if err := linkOrCopy(path, filepath.Join(n.plugins(), name)); err != nil {
			return err
		}
	}
	if err := os.WriteFile(n.tokenFile(), []byte(reporterSecret+"\n"), 0o600); err != nil {
		return err
	}
	return os.WriteFile(n.cardsFile(), []byte(n.cards()), 0o644)
}

func linkOrCopy(from, to string) error {
	if os.Link(from, to) == nil {
		return nil
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, 0o755)
}

// Close stops all jobs, takes the cluster down and removes what it left:
// processes, mounts and, where it is temporary, its folder. It is an error if
// a task's process was still there when all jobs had ended. Plugins may be: a
// killed agent leaves them, as it does in production.
func (c *Cluster) Close() error {
	c.closing.Do(func() { c.closed = c.takeDown() })
	return c.closed
}

func (c *Cluster) takeDown() error {
	var faults []error
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	stopped := false
	if c.nomad != nil {
		err := c.StopJobs(ctx)
		stopped = err == nil
	}
	if c.Planner != nil {
		c.Planner.stop(5 * time.Second)
	}
	if c.nomad != nil {
		c.nomad.stop()
	}
	if c.Consul != nil {
		c.Consul.stop(5 * time.Second)
	}
	killed, err := sweep(c.Dir)
	faults = append(faults, err)
	if left := slices.DeleteFunc(killed, Running.plugin); stopped && len(left) > 0 {
		faults = append(faults, fmt.Errorf("left behind although all jobs had ended, and killed now: %v", left))
	}
	if c.temporary {
		faults = append(faults, os.RemoveAll(c.Dir))
	}
	if err := errors.Join(faults...); err != nil {
		return fmt.Errorf("take the trial cluster down: %w", err)
	}
	return nil
}
