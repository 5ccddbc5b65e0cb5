package driver

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nomad-muster/muster/driver/isolation"
	"github.com/nomad-muster/muster/driver/rendezvous"
	"github.com/nomad-muster/muster/driver/shim"
	"github.com/nomad-muster/muster/driver/taskdir"
	"github.com/nomad-muster/muster/driver/torchrun"
	"github.com/nomad-muster/muster/internal/buildinfo"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
)

// handleVersion is the version of handleState.
const handleVersion = 1

// handleState is what Nomad keeps for a later process of this plugin.
type handleState struct {
	Dir   taskdir.Dir `json:"dir"`
	Start int         `json:"start"`
}

// shimStart bounds how long a supervisor may take until it serves; one that
// ends before is noticed at once.
const shimStart = time.Minute

// StartTask starts the supervisor of a member and returns at once.
func (p *Plugin) StartTask(cfg *driver.TaskConfig) (*driver.TaskHandle, error) {
	handle, err := p.startTask(cfg)
	if err != nil {
		// The user finds it where the user looks.
		p.events.add(&driver.TaskEvent{TaskID: cfg.ID, AllocID: cfg.AllocID, TaskName: cfg.Name, At: time.Now(), Message: err.Error()})
		return nil, fmt.Errorf("start task %s of job %q: %w", cfg.Name, cfg.JobID, err)
	}
	return handle, nil
}

func (p *Plugin) startTask(cfg *driver.TaskConfig) (*driver.TaskHandle, error) {
	config, _ := p.settings()
	spec, err := p.specOf(config, cfg)
	if err != nil {
		return nil, err
	}
	dir := config.directory(cfg)
	released, err := dir.WasReleased()
	if err != nil {
		return nil, err
	}
	if released != nil {
		return nil, fmt.Errorf("this member was released in attempt %d (start %d) and never starts again in its allocation: the gang is repaired as a whole", released.Attempt, released.Start)
	}
	start, err := dir.NextStart()
	if err != nil {
		return nil, err
	}
	spec.Dir, spec.Self.Start = string(dir), start
	if err := p.launchShim(spec); err != nil {
		return nil, err
	}
	state, err := json.Marshal(handleState{dir, start})
	if err != nil {
		return nil, err
	}
	p.adopt(newTask(p, cfg, dir, start))
	return &driver.TaskHandle{Version: handleVersion, Config: cfg, State: driver.TaskStateRunning, Driver: state}, nil
}

// adopt enters a task and follows its supervisor.
func (p *Plugin) adopt(t *task) {
	p.mu.Lock()
	p.tasks[t.cfg.ID] = t
	p.mu.Unlock()
	go t.follow()
}

// specOf makes the supervisor's spec of what Nomad sent, with all faults of the
// task's config in one error.
func (p *Plugin) specOf(config Config, cfg *driver.TaskConfig) (shim.Spec, error) {
	raw, err := decodeTask(cfg.MsgPackConfig)
	if err != nil {
		return shim.Spec{}, err
	}
	who, home, err := p.rankUser(cfg.User)
	if err != nil {
		return shim.Spec{}, err
	}
	passEnv, _ := raw["pass_env"].([]any)
	input := torchrun.EnvironmentInput{Task: cfg.Env, Device: cfg.DeviceEnv, Agent: p.agent, Strict: os.Getppid() != p.parent, Home: home.HomeDir, User: home.Username, Path: config.Path}
	for _, name := range passEnv {
		if s, ok := name.(string); ok {
			input.Pass = append(input.Pass, s)
		}
	}
	env, cards, err := torchrun.Environment(input)
	if err != nil {
		return shim.Spec{}, err
	}
	// What the task asked for is not told to drivers, only what the device
	// plugin handed over. None, where one rank a card is wanted, means that the
	// device plugin was not ready: the client is to try again.
	wantsCards := raw["nproc_per_node"] == "gpu"
	counted := len(cards)
	if wantsCards && counted == 0 {
		counted = 1
	}
	parsed, faults := contract.ParseTaskConfig("config", raw, counted)
	if _, err := torchrun.Ranks(parsed, counted); err != nil && len(faults) == 0 {
		faults = append(faults, contract.Fault{Field: "config.nproc_per_node", Value: fmt.Sprint(raw["nproc_per_node"]), Want: err.Error()})
	}
	isolate := config.Isolation == contract.IsolationAuto && parsed.Isolation == contract.IsolationAuto
	isolated, jailed := isolate && p.hierarchy.Version > 0, isolate && p.noJail == nil
	mounts, mountFaults := mountsOf(cfg, jailed || parsed.Image != "")
	faults = append(faults, mountFaults...)
	if err := contract.Faults(faults).Err(); err != nil {
		return shim.Spec{}, err
	}
	if wantsCards && len(cards) == 0 {
		return shim.Spec{}, &base.RecoverableError{Err: errors.New(`nproc_per_node = "gpu": the task was handed no card; the device plugin had not answered when it started`)}
	}
	mode, err := p.rendezvousMode(config)
	if err != nil {
		return shim.Spec{}, &base.RecoverableError{Err: err}
	}
	if parsed.Elastic && mode != contract.RendezvousConsul {
		return shim.Spec{}, contract.Faults{{Field: "config.elastic", Value: "true", Want: "Consul on every node (rendezvous = \"consul\" in the driver's block): without it members do not see who comes and goes"}}.Err()
	}

	s := shim.Spec{
		V: shim.SpecVersion, TaskID: cfg.ID, Version: buildinfo.String(), Config: parsed, Env: env, Cards: cards, User: who,
		Self:    rendezvous.Self{Gang: contract.GangID{Region: cfg.Env["NOMAD_REGION"], Namespace: cfg.Namespace, Job: cfg.JobID}, Alloc: cfg.AllocID, Task: cfg.Name},
		TaskDir: filepath.Join(cfg.AllocDir, cfg.Name), Stdout: cfg.StdoutPath, Stderr: cfg.StderrPath, Node: cfg.NodeName, Group: cfg.TaskGroupName, Wrapper: p.binary,
		Rendezvous: mode, Consul: config.Consul, HoldLimit: config.HoldLimit,
		Python: config.Python, Interface: config.Interface, PortLow: config.PortLow, PortHigh: config.PortHigh,
		Isolated: isolated, Hierarchy: p.hierarchy, Cgroup: strings.NewReplacer("/", ".", " ", "_").Replace(cfg.ID),
		Image:  shim.ImageSpec{Engine: config.Images.Engine, Path: config.Path, AuthFile: config.Images.AuthFile, Cache: config.Images.Cache, Mounts: config.Images.Mounts, Home: p.home(), Proxies: p.proxies()},
		Jailed: jailed, AllocDir: cfg.AllocDir, Mounts: mounts,
		// NVIDIA's multi-process service is reached through shared memory.
		SharedIPC: cfg.DeviceEnv["CUDA_MPS_PIPE_DIRECTORY"] != "",
	}
	for _, d := range cfg.Devices {
		s.Devices = append(s.Devices, isolation.Device{Host: d.HostPath, Path: d.TaskPath, Access: d.Permissions})
	}
	if s.Common, err = commonDevices(config, cfg, len(cards)); err != nil {
		return shim.Spec{}, err
	}
	if r := cfg.Resources; r != nil {
		s.MemoryBytes, s.NomadCgroup, s.OOMScore = r.LinuxMemoryLimitBytes, r.CPUSetCgroup, int(r.LinuxOOMScoreAdj)
		if r.MemoryMaxMB > 0 {
			s.MemoryBytes = r.MemoryMaxMB << 20
		}
		s.NomadIP, s.Port = ports(r)
	}
	s.MaxKillTimeout = config.MaxKillTimeout
	s.Grace, _ = time.ParseDuration(cfg.Env["NOMAD_META_"+contract.MetaGrace]) // the planner refuses what is no duration
	return s, nil
}

// home is the agent's user's.
func (p *Plugin) home() string {
	if own, err := user.Current(); err == nil && own.HomeDir != "" {
		return own.HomeDir
	}
	return "/"
}

// proxies are those that the agent was started with.
func (p *Plugin) proxies() (out []string) {
	for _, name := range []string{"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"} {
		if value := p.agent[name]; value != "" {
			out = append(out, name+"="+value)
		}
	}
	return out
}

// commonDevices gives what the task may use beside what the device plugins
// granted: what the operator allows every task and, where a device plugin names
// cards by variables alone, which leaves nothing to tell them apart by, all cards.
func commonDevices(config Config, cfg *driver.TaskConfig, cards int) (out []isolation.Device, err error) {
	if cards > 0 && len(cfg.Devices) == 0 {
		if out, err = isolation.CardNodes("/dev"); err != nil {
			return nil, err
		}
	}
	for _, path := range config.Devices {
		if _, err := os.Stat(path); err == nil { // nodes of an estate need not all have it
			out = append(out, isolation.Device{Host: path})
		}
	}
	return out, nil
}

// mountsOf gives the volumes and what device plugins mount. Without a file system
// of its own a task sees the host's paths, at their places, and nothing else.
func mountsOf(cfg *driver.TaskConfig, jailed bool) (out []isolation.Mount, faults contract.Faults) {
	for _, m := range cfg.Mounts {
		if !jailed && m.HostPath != m.TaskPath {
			faults = append(faults, contract.Fault{Field: "volume_mount.destination", Value: m.TaskPath, Want: fmt.Sprintf("%s: this task has no file system of its own to mount it in (no root, or isolation = \"none\"), and sees the volume where the host has it", m.HostPath)})
			continue
		}
		out = append(out, isolation.Mount{Host: m.HostPath, Path: m.TaskPath, ReadOnly: m.ReadOnly})
	}
	return out, faults
}

// ports gives the address that Nomad gave the task's ports, and the one that is
// meant for the rendezvous.
func ports(r *driver.Resources) (ip string, port int) {
	for _, p := range r.Ports {
		if ip == "" || p.Label == contract.RendezvousPortLabel {
			ip = p.HostIP
		}
		if p.Label == contract.RendezvousPortLabel {
			port = int(p.Value)
		}
	}
	for _, n := range r.Networks {
		if ip == "" {
			ip = n.IP
		}
		for _, p := range append(n.ReservedPorts, n.DynamicPorts...) {
			if p.Label == contract.RendezvousPortLabel && port == 0 {
				ip, port = n.IP, int(p.Value)
			}
		}
	}
	return ip, port
}

// rankUser looks up whom ranks run as; nil stands for the agent's own user.
func (p *Plugin) rankUser(name string) (*shim.User, *user.User, error) {
	own, err := user.Current()
	if err != nil {
		return nil, nil, fmt.Errorf("look up the agent's own user: %w", err)
	}
	if name == "" || name == own.Username {
		return nil, own, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, nil, fmt.Errorf("user = %q: %w", name, err)
	}
	if u.Uid == own.Uid {
		return nil, u, nil
	}
	if own.Uid != "0" {
		return nil, nil, fmt.Errorf("user = %q: the agent runs as %s and can start tasks as itself only; as root it could", name, own.Username)
	}
	number := func(s string) uint32 {
		n, e := strconv.ParseUint(s, 10, 32)
		if e != nil && err == nil {
			err = e
		}
		return uint32(n)
	}
	who := &shim.User{Name: u.Username, UID: number(u.Uid), GID: number(u.Gid)}
	if groups, e := u.GroupIds(); e == nil {
		for _, g := range groups {
			who.Groups = append(who.Groups, number(g))
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("user = %q: %w", name, err)
	}
	return who, u, nil
}

// launchShim starts a supervisor and waits until it serves.
func (p *Plugin) launchShim(spec shim.Spec) error {
	text, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("encode the supervisor's spec: %w", err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start the supervisor: %w", err)
	}
	defer read.Close()
	cmd := exec.Command(p.binary, "shim")
	cmd.Args = []string{p.binary, "shim", spec.TaskID} // the id is for people who look at the process list
	cmd.Env = []string{"PATH=" + defaultPath, "LANG=C.UTF-8"}
	cmd.Dir = "/"
	cmd.Stdin, cmd.Stdout = bytes.NewReader(text), write
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	write.Close()
	if err != nil {
		return fmt.Errorf("start the supervisor %s: %w", p.binary, err)
	}
	go func() { _ = cmd.Wait() }()
	_ = read.SetReadDeadline(time.Now().Add(shimStart))
	line, err := bufio.NewReader(io.LimitReader(read, 64<<10)).ReadString('\n')
	if strings.TrimSpace(line) == shim.ReadyLine {
		return nil
	}
	_ = cmd.Process.Kill()
	if line = strings.TrimSpace(line); line != "" {
		return errors.New(line)
	}
	return fmt.Errorf("the supervisor did not start within %v: %w; see %s", shimStart, err, taskdir.Dir(spec.Dir).Start(spec.Self.Start).Log())
}
