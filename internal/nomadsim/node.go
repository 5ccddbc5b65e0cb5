package nomadsim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"

	"github.com/nomad-muster/muster/internal/nomadsim/sched"
	"github.com/nomad-muster/muster/internal/nomadsim/store"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// Version is the version of Nomad that the cluster says it is.
const Version = "2.0.6-dev"

// NodeConfig describes a node. What is zero has the value in brackets.
type NodeConfig struct {
	Name       string
	ID         string                       // [made from the seed]
	Datacenter string                       // ["dc1"]
	Pool       string                       // ["default"]
	Class      string                       // node_class
	Meta       map[string]string            // beside what a client sets itself
	Attributes map[string]string            // over what a client finds
	Links      map[string]string            // to other services of the host, as Nomad names them
	CPU        int                          // MHz in all [64000]
	Cores      int                          // [2]
	MemoryMB   int                          // [262144]
	DiskMB     int                          // [258019]
	MinPort    int                          // dynamic ports [20000]; live nodes of one host need ranges of their own
	MaxPort    int                          // [32000]
	Devices    []DeviceGroup                // of a virtual node; a live one asks its plugins
	Drivers    []string                     // of a virtual node [raw_exec, exec, mock_driver, torchrun]
	DriverInfo map[string]map[string]string // what its drivers tell of themselves beside their presence
	Live       *LiveConfig                  // nil: a virtual node
}

// DeviceGroup is a group of like devices.
type DeviceGroup struct {
	Vendor, Type, Name string
	IDs                []string
	Attributes         map[string]*wire.Attribute
	BusIDs             []string // PCI bus ids, one for each id, or none
	// Stats is what a client's statistics say of each device, in Nomad's own form ("Stats", "Summary"); nil: one made-up
	// figure.
	Stats map[string]any
}

// IntAttribute and the like make attributes of device groups.
func IntAttribute(v int64, unit string) *wire.Attribute { return &wire.Attribute{Int: &v, Unit: unit} }

// StringAttribute is an attribute that is text.
func StringAttribute(v string) *wire.Attribute { return &wire.Attribute{String: &v} }

// BoolAttribute is an attribute that is true or false.
func BoolAttribute(v bool) *wire.Attribute { return &wire.Attribute{Bool: &v} }

func (cfg *NodeConfig) defaults(c *Cluster) {
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	num := func(n *int, v int) {
		if *n == 0 {
			*n = v
		}
	}
	def(&cfg.Datacenter, "dc1")
	def(&cfg.Pool, "default")
	num(&cfg.CPU, 64000)
	num(&cfg.Cores, 2)
	num(&cfg.MemoryMB, 262144)
	num(&cfg.DiskMB, 258019)
	num(&cfg.MinPort, 20000)
	num(&cfg.MaxPort, 32000)
	if cfg.ID == "" {
		cfg.ID = c.newID()
	}
	def(&cfg.Name, "node-"+cfg.ID[:8])
	if cfg.Live == nil && cfg.Drivers == nil {
		cfg.Drivers = []string{"raw_exec", "exec", "mock_driver", "torchrun"}
	}
}

var signals = strings.Split("SIGABRT,SIGALRM,SIGBUS,SIGCONT,SIGFPE,SIGHUP,SIGILL,SIGINT,SIGIO,SIGIOT,SIGKILL,SIGNULL,SIGPIPE,SIGPROF,SIGQUIT,SIGSEGV,"+
	"SIGSTOP,SIGSYS,SIGTERM,SIGTRAP,SIGTSTP,SIGTTIN,SIGTTOU,SIGUSR1,SIGUSR2,SIGWINCH,SIGXCPU,SIGXFSZ", ",")

// fingerprint is the node as its client describes it after a start: its list of signals comes in a new order each time,
// so that the node's class changes with every start of the agent, unless classes are to be shared.
func (c *Cluster) fingerprint(cfg NodeConfig, addr string) *wire.Node {
	sig := append([]string{}, signals...)
	if !c.opts.SharedClasses {
		c.mu.Lock()
		r := rand.New(rand.NewPCG(c.rng.Uint64(), c.rng.Uint64()))
		c.mu.Unlock()
		r.Shuffle(len(sig), func(i, j int) { sig[i], sig[j] = sig[j], sig[i] })
	}
	now := wire.Time{Time: c.clock.Now()}
	cores := strconv.Itoa(cfg.Cores)
	attrs := map[string]string{
		"cpu.arch": "amd64", "cpu.frequency": "2445", "cpu.modelname": "AMD EPYC", "cpu.numcores": cores, "cpu.reservablecores": cores,
		"cpu.totalcompute": strconv.Itoa(cfg.CPU), "cpu.usablecompute": strconv.Itoa(cfg.CPU),
		"kernel.arch": "x86_64", "kernel.landlock": "v7", "kernel.name": "linux", "kernel.version": "6.18.44",
		"memory.totalbytes": strconv.FormatInt(int64(cfg.MemoryMB)<<20, 10), "nomad.service_discovery": "true", "nomad.version": Version,
		"numa.node.count": "1", "numa.node0.cores": "0-" + strconv.Itoa(cfg.Cores-1), "os.cgroups.version": "1", "os.name": "debian",
		"os.signals": strings.Join(sig, ","), "os.version": "12.11", "plugins.host_volume.mkdir.version": "0.0.1",
		"plugins.secrets.nomad.version": "1.0.0", "plugins.secrets.vault.version": "1.0.0",
		"unique.advertise.address": addr, "unique.host_id": "3d1219c7-c4c5-404a-aa1f-6d2a48adfda4", "unique.hostname": "gpu-host",
		"unique.network.ip-address": "127.0.0.1", "unique.storage.bytestotal": strconv.FormatInt(int64(cfg.DiskMB)<<20, 10),
		"unique.storage.volume": "/dev/vda",
	}
	meta := map[string]string{
		"connect.gateway_image": "docker.io/envoyproxy/envoy:v${NOMAD_envoy_version}", "connect.log_level": "info",
		"connect.proxy_concurrency": "1", "connect.sidecar_image": "docker.io/envoyproxy/envoy:v${NOMAD_envoy_version}",
		"connect.transparent_proxy.default_outbound_port": "15001", "connect.transparent_proxy.default_uid": "101",
	}
	maps.Copy(meta, cfg.Meta)
	n := &wire.Node{
		ID: cfg.ID, Datacenter: cfg.Datacenter, Name: cfg.Name, CgroupParent: "nomad.slice", HTTPAddr: addr, Attributes: attrs, Meta: meta,
		Links: map[string]string{}, NodeClass: cfg.Class, NodePool: cfg.Pool, Status: wire.NodeInit, IdentitySigningKeyID: c.signingKey,
		Drivers: map[string]*wire.DriverInfo{}, CSIControllerPlugins: map[string]any{}, CSINodePlugins: map[string]any{},
		HostVolumes: map[string]*wire.HostVolume{}, ReservedResources: &wire.ReservedResources{}, StatusUpdatedAt: now.Unix(),
	}
	topology := &wire.Topology{Nodes: []int{0}, OverrideTotalCompute: int64(cfg.CPU)}
	var reservable []uint16
	for i := range cfg.Cores {
		reservable = append(reservable, uint16(i))
		topology.Cores = append(topology.Cores, wire.Core{ID: i, Grade: true, BaseSpeed: 2445})
	}
	n.NodeResources = &wire.NodeResources{
		Cpu:        wire.NodeCPU{CpuShares: int64(cfg.CPU), TotalCpuCores: uint16(cfg.Cores), ReservableCpuCores: reservable},
		Processors: wire.NodeProcessors{Topology: topology}, Memory: wire.NodeMemory{MemoryMB: int64(cfg.MemoryMB)}, Disk: wire.NodeDisk{DiskMB: int64(cfg.DiskMB)},
		NodeNetworks: []*wire.NodeNetwork{{Mode: "host", Device: "lo", Speed: 1000, Addresses: []wire.NodeAddress{
			{Family: "ipv4", Alias: "default", Address: "127.0.0.1"}, {Family: "ipv6", Alias: "default", Address: "::1"}}}},
		Networks: []*wire.NetworkResource{{Mode: "host", Device: "lo", CIDR: "127.0.0.1/32", IP: "127.0.0.1", MBits: 1000},
			{Mode: "host", Device: "lo", CIDR: "::1/128", IP: "::1", MBits: 1000}},
		MinDynamicPort: cfg.MinPort, MaxDynamicPort: cfg.MaxPort,
	}
	for _, d := range cfg.Devices {
		g := &wire.NodeDevice{Vendor: d.Vendor, Type: d.Type, Name: d.Name, Attributes: d.Attributes}
		for i, id := range d.IDs {
			in := &wire.DeviceInstance{ID: id, Healthy: true}
			if i < len(d.BusIDs) {
				in.Locality = &wire.DeviceLocality{PciBusID: d.BusIDs[i]}
			}
			g.Instances = append(g.Instances, in)
		}
		n.NodeResources.Devices = append(n.NodeResources.Devices, g)
	}
	for _, d := range cfg.Drivers {
		told := map[string]string{"driver." + d: "true"}
		maps.Copy(told, cfg.DriverInfo[d])
		setDriver(n, d, &wire.DriverInfo{Attributes: told, Detected: true, Healthy: true, HealthDescription: "Healthy", UpdateTime: now})
	}
	for _, d := range []string{"docker", "qemu"} {
		info := &wire.DriverInfo{Attributes: map[string]string{}, UpdateTime: now}
		if d == "docker" {
			info.HealthDescription = "Failed to connect to docker daemon"
		}
		n.Drivers[d] = info
	}
	maps.Copy(n.Attributes, cfg.Attributes)
	maps.Copy(n.Links, cfg.Links)
	n.ComputedClass = sched.ComputedClass(n)
	return n
}

// setDriver gives a node a driver and the attributes that come with it.
func setDriver(n *wire.Node, name string, info *wire.DriverInfo) {
	n.Drivers[name] = info
	if info.Detected {
		for k, v := range info.Attributes {
			if v == "true" {
				v = "1"
			}
			n.Attributes[k] = v
		}
	}
}

// AddNode adds a node and starts its agent. It returns the node's id.
func (c *Cluster) AddNode(cfg NodeConfig) (string, error) {
	cfg.defaults(c)
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return "", fmt.Errorf("add node %s: the cluster is closed", cfg.Name)
	}
	if c.agents[cfg.ID] != nil {
		c.mu.Unlock()
		return "", fmt.Errorf("add node %s: its id %s is taken", cfg.Name, cfg.ID)
	}
	a := &agent{c: c, cfg: cfg, addr: c.listener.Addr().String()}
	c.agents[cfg.ID] = a
	c.mu.Unlock()
	if err := a.start(); err != nil {
		return "", fmt.Errorf("start the agent of node %s: %w", cfg.Name, err)
	}
	return cfg.ID, nil
}

func (c *Cluster) agent(id string) *agent {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.agents[id]
}

// Node finds a node's id by its name; empty if there is none.
func (c *Cluster) Node(name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, a := range c.agents {
		if a.cfg.Name == name {
			return id
		}
	}
	return ""
}

// register writes a node as its client describes it, and has jobs on it looked at again if what matters has changed.
func (c *Cluster) register(n *wire.Node) {
	old := c.store.Snapshot().Node(n.ID)
	reg := *n
	if old != nil {
		reg.Status = old.Status
	}
	reg.StatusUpdatedAt = c.clock.Now().Unix()
	index := c.store.Apply(func(tx *store.Txn) { tx.RegisterNode(&reg) })
	if old == nil || describedAlike(old, &reg) {
		return
	}
	c.nodeEvals(n.ID, index)
}

// nodeEvals has the jobs of a node looked at again. It returns the ids of the evaluations and their index, zero if the
// node had none.
func (c *Cluster) nodeEvals(id string, index uint64) (ids []string, at uint64) {
	snap := c.store.Snapshot()
	node := snap.Node(id)
	if node == nil {
		return nil, 0
	}
	any := false
	seen := map[jobKey]bool{}
	var evals []*wire.Evaluation
	add := func(namespace, job, kind string, priority int) {
		k := jobKey{namespace, job}
		if seen[k] {
			return
		}
		seen[k] = true
		now := c.clock.Now().UnixNano()
		evals = append(evals, &wire.Evaluation{ID: c.newID(), Namespace: namespace, Priority: priority, Type: kind, TriggeredBy: wire.TriggerNodeUpdate,
			JobID: job, NodeID: id, NodeModifyIndex: index, Status: wire.EvalPending, CreateTime: now, ModifyTime: now})
	}
	for a := range snap.AllocsByNode(id) {
		any = true
		switch {
		case a.Job.Type == wire.TypeService && !(a.ServerTerminal() && a.ClientTerminal()),
			a.Job.Type == wire.TypeBatch && !a.ClientTerminal():
			add(a.Namespace, a.JobID, a.Job.Type, a.Job.Priority)
		}
	}
	for j := range snap.Jobs("*", "") {
		if j.Type == wire.TypeSystem && !j.Stopped() && sched.NodeSuits(node, j) {
			any = true
			add(j.Namespace, j.ID, j.Type, j.Priority)
		}
	}
	if !any {
		return nil, 0
	}
	for _, e := range evals {
		ids = append(ids, e.ID)
	}
	return ids, c.putEvals(evals...)
}

// describedAlike says whether a new description of a node has nothing that would matter to its jobs.
func describedAlike(a, b *wire.Node) bool {
	return a.Datacenter == b.Datacenter && a.Name == b.Name && a.NodeClass == b.NodeClass && maps.Equal(a.Attributes, b.Attributes) &&
		maps.Equal(a.Meta, b.Meta) && reflect.DeepEqual(a.Drivers, b.Drivers) && reflect.DeepEqual(a.HostVolumes, b.HostVolumes) &&
		reflect.DeepEqual(a.NodeResources.Devices, b.NodeResources.Devices)
}

// setNodeStatus changes a node's status, with an event if message is given.
func (c *Cluster) setNodeStatus(id, status, message string) {
	old := c.store.Snapshot().Node(id)
	if old == nil || old.Status == status && message == "" {
		return
	}
	index := c.store.Apply(func(tx *store.Txn) { tx.SetNodeStatus(id, status, message) })
	was := old.Status
	if status == wire.NodeDown || was == wire.NodeInit && status == wire.NodeReady || was == wire.NodeDown && status == wire.NodeReady ||
		(was == wire.NodeDisconnected) != (status == wire.NodeDisconnected) {
		c.nodeEvals(id, index)
	}
}

// heartbeatMissed gives a node up: it is disconnected if any of its allocations may come back, else down.
func (c *Cluster) heartbeatMissed(id string) {
	snap := c.store.Snapshot()
	n := snap.Node(id)
	if n == nil {
		return
	}
	status := wire.NodeDown
	if n.Status != wire.NodeDown && n.Status != wire.NodeInit {
		for a := range snap.AllocsByNode(id) {
			if a.DesiredStatus == wire.DesiredRun && a.Group() != nil && a.Group().LostAfter() > 0 && !sched.Expired(a, c.clock.Now()) {
				status = wire.NodeDisconnected
				break
			}
		}
	}
	c.setNodeStatus(id, status, "Node heartbeat missed")
	if status == wire.NodeDisconnected {
		c.watchDisconnect(id)
	}
}

// watchDisconnect has a disconnected node go down once none of its allocations may come back any more.
func (c *Cluster) watchDisconnect(id string) {
	c.clock.AfterFunc(c.opts.Heartbeat, func() {
		n := c.store.Snapshot().Node(id)
		if n == nil || n.Status != wire.NodeDisconnected || c.ctx.Err() != nil {
			return
		}
		c.spawn(func() { c.heartbeatMissed(id) })
	})
}
