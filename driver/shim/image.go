package shim

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/driver/image"
	"github.com/nomad-muster/muster/driver/isolation"
	"github.com/nomad-muster/muster/internal/contract"
)

// ImageSpec is what a supervisor is told about images.
type ImageSpec struct {
	Engine   string            `json:"engine"` // of image.Names, or image.Auto
	Path     string            `json:"path"`   // where engines are looked for
	AuthFile string            `json:"auth_file,omitempty"`
	Cache    string            `json:"cache"`
	Mounts   []isolation.Mount `json:"mounts,omitempty"`  // of the operator, in every image
	Home     string            `json:"home"`              // of the agent's user, where engines keep files
	Proxies  []string          `json:"proxies,omitempty"` // NAME=value, for pulls
}

// environment of the engine itself.
func (i ImageSpec) environment() []string {
	return append([]string{"PATH=" + i.Path, "HOME=" + i.Home, "LANG=C.UTF-8"}, i.Proxies...)
}

// imageTask is the image that the ranks run in.
type imageTask struct {
	mu     sync.Mutex // held while the image is fetched or entered
	engine image.Engine
	local  string // how the engine names it here; empty: not fetched yet

	state sync.Mutex
	agent *inside
	// remove removes what is left of the container, once there may be one.
	remove []string
}

// starter starts what runs where the ranks run.
func (s *supervisor) starter() starter {
	if a := s.inside(); a != nil {
		return a
	}
	if s.spec.Config.Image != "" {
		return noAgent{}
	}
	return s.spawn
}

// noAgent stands for an image that nothing runs in yet, or any more.
type noAgent struct{}

func (noAgent) start(command) (started, error) {
	return started{}, errors.New("the image is not set up yet: the member is held, or its container ended")
}

// inside gives the agent in the image; nil where there is none.
func (s *supervisor) inside() *inside {
	s.image.state.Lock()
	defer s.image.state.Unlock()
	return s.image.agent
}

// base is the environment that the ranks' variables are added to: the task's,
// over the image's.
func (s *supervisor) base() map[string]string {
	a := s.inside()
	if a == nil {
		return s.spec.Env
	}
	out := map[string]string{}
	for _, entry := range a.env {
		name, value, _ := strings.Cut(entry, "=")
		out[name] = value
	}
	for _, own := range []string{"HOME", "HOSTNAME", "TERM", "PWD", "container"} { // the engine's, not the image's
		delete(out, own)
	}
	for name, value := range s.spec.Env {
		if _, set := out[name]; set && name == "PATH" && value == s.spec.Image.Path {
			continue // the driver's own, where the task sets none
		}
		out[name] = value
	}
	return out
}

// pullTells is when the engine's words are told as events: rarely, since Nomad
// keeps ten.
const pullTells = 30 * time.Second

// fetchImage brings the image to the node, if it is not there.
func (s *supervisor) fetchImage() error {
	t := &s.image
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.local != "" {
		return nil
	}
	name := s.spec.Config.Image
	engine, err := image.Find(s.spec.Image.Engine, s.spec.Image.Path)
	if err != nil {
		return err
	}
	if engine.Name == image.Podman && unix.Geteuid() != 0 {
		return errors.New("podman is used as root only, and the agent is not: run it as root, or install Apptainer")
	}
	engine.AuthFile, engine.Cache = s.spec.Image.AuthFile, s.spec.Image.Cache
	began, told, pause := time.Now(), time.Now(), pullTells
	pulled := false
	t.local, err = engine.Fetch(s.ctx, s.runEngine, name, s.spec.Config.ImagePullTimeout, func() {
		pulled = true
		s.tell(fmt.Sprintf("pulling image %s with %s", name, engine.Name))
	}, func(line string) {
		if time.Since(told) > pause {
			s.tell(fmt.Sprintf("pulling image %s for %v: %s", name, time.Since(began).Round(time.Second), line))
			told, pause = time.Now(), 2*pause
		}
	})
	if err != nil {
		return err
	}
	t.engine = engine
	if pulled {
		s.tell(fmt.Sprintf("pulled image %s in %v", name, time.Since(began).Round(100*time.Millisecond)))
	}
	return nil
}

// runEngine is an image.Runner.
func (s *supervisor) runEngine(ctx context.Context, argv []string, line func(string)) ([]byte, error) {
	return run(ctx, s.spawn, command{argv: argv, env: s.spec.Image.environment(), dir: "/", outside: true, line: line})
}

// containerName is the task's container; one a start.
func (s Spec) containerName() string {
	return "muster-" + strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '_'
	}, s.TaskID)
}

// enterImage starts the agent in the image, if none runs.
func (s *supervisor) enterImage() error {
	t := &s.image
	t.mu.Lock()
	defer t.mu.Unlock()
	if a := s.inside(); a != nil && a.alive() {
		return nil
	}
	if err := static(s.spec.Wrapper); err != nil {
		return err
	}
	container, err := s.container()
	if err != nil {
		return err
	}
	// What is left of it is removed by whoever outlives the others.
	t.state.Lock()
	t.remove = t.engine.Remove(container.Name)
	t.state.Unlock()
	if written, err := s.start.ReadShim(); err == nil {
		written.Remove = t.remove
		if err := s.start.WriteShim(written); err != nil {
			return err
		}
	}
	socket := s.insideSocket()
	_ = os.Remove(socket)
	ctx, cancel := context.WithTimeout(s.ctx, insideWait)
	defer cancel()
	failed := make(chan error, 1)
	s.launching.Lock() // nothing is started once the clearing has begun
	if s.ctx.Err() != nil {
		s.launching.Unlock()
		return s.ctx.Err()
	}
	life := ctx
	if !t.engine.Detaches() {
		life = s.ctx
	}
	go func() {
		_, err := run(life, s.spawn, command{argv: t.engine.Run(container), env: s.spec.Image.environment(), dir: "/", cgroup: s.cgroup})
		if err != nil || !t.engine.Detaches() {
			failed <- err
		}
	}()
	s.launching.Unlock()
	for {
		a, err := meetInside(socket, s.spec.OOMScore)
		if err == nil {
			t.state.Lock()
			t.agent = a
			t.state.Unlock()
			s.log.Info("runs in the image", "image", s.spec.Config.Image, "engine", t.engine.Name, "container", container.Name, "agent", a.pid)
			return nil
		}
		select {
		case err := <-failed:
			if err == nil {
				err = errors.New("it ended at once")
			}
			return fmt.Errorf("run it: %w", err)
		case <-ctx.Done():
			return fmt.Errorf("the agent in it did not answer within %v", insideWait)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (s *supervisor) insideSocket() string { return filepath.Join(string(s.start), "inside.sock") }

// container is what the engine is asked to run.
func (s *supervisor) container() (image.Container, error) {
	spec := s.spec
	c := image.Container{Name: spec.containerName(), Task: spec.TaskID, Image: s.image.local, Argv: []string{spec.Wrapper, "inside", s.insideSocket()},
		Devices: spec.devices(), SharedIPC: spec.SharedIPC, Limits: limits()}
	for _, same := range []string{spec.AllocDir, spec.Dir} {
		c.Mounts = append(c.Mounts, isolation.Mount{Host: same, Path: same})
	}
	c.Mounts = append(c.Mounts, isolation.Mount{Host: spec.Wrapper, Path: spec.Wrapper, ReadOnly: true})
	for path, host := range map[string]string{"/tmp": spec.temporary(), "/var/tmp": spec.temporary() + ".var"} {
		if err := os.Mkdir(host, 0o1777); err != nil && !errors.Is(err, fs.ErrExist) {
			return c, fmt.Errorf("make the task's %s: %w", path, err)
		}
		if err := os.Chmod(host, 0o777|fs.ModeSticky); err != nil {
			return c, fmt.Errorf("make the task's %s: %w", path, err)
		}
		if s.image.engine.Name != image.Apptainer || !spec.Jailed { // Apptainer takes the task's own
			c.Mounts = append(c.Mounts, isolation.Mount{Host: host, Path: path})
		}
	}
	if folder := spec.Config.Checkpoint; folder != "" {
		if err := os.MkdirAll(folder, 0o777); err != nil {
			return c, fmt.Errorf("the checkpoint folder: %w", err)
		}
		c.Mounts = append(c.Mounts, isolation.Mount{Host: folder, Path: folder})
	}
	c.Mounts = append(append(c.Mounts, spec.Image.Mounts...), spec.Mounts...)
	cards := strings.Split(spec.Env["NVIDIA_VISIBLE_DEVICES"], ",")
	c.Injected = image.Injected([]string{"/etc/cdi", "/var/run/cdi"}, cards)
	switch {
	case spec.Env["NVIDIA_VISIBLE_DEVICES"] != "":
		c.Libraries = "nv"
	case spec.Env["ROCR_VISIBLE_DEVICES"] != "":
		c.Libraries = "rocm"
	}
	return c, nil
}

// limits are the supervisor's own, since engines have other ideas. More
// processes than the kernel has numbers for podman does not grant itself, and so
// cannot grant others.
func limits() map[string][2]string {
	numbers := uint64(unix.RLIM_INFINITY)
	if text, err := os.ReadFile("/proc/sys/kernel/pid_max"); err == nil {
		if n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64); err == nil {
			numbers = n
		}
	}
	out := map[string][2]string{}
	for name, which := range map[string]int{"nofile": unix.RLIMIT_NOFILE, "nproc": unix.RLIMIT_NPROC, "memlock": unix.RLIMIT_MEMLOCK} {
		var l unix.Rlimit
		if unix.Getrlimit(which, &l) != nil {
			continue
		}
		if name == "nproc" {
			l.Cur, l.Max = min(l.Cur, numbers), min(l.Max, numbers)
		}
		text := func(n uint64) string {
			if n == unix.RLIM_INFINITY {
				return "-1"
			}
			return strconv.FormatUint(n, 10)
		}
		out[name] = [2]string{text(l.Cur), text(l.Max)}
	}
	return out
}

// static tells where the driver cannot run in an image, which need not have the
// libraries that it was linked with.
func static(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("look at the driver's program: %w", err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("this build of the driver (%s) needs the host's libraries, which an image need not have: build it with CGO_ENABLED=0", path)
		}
	}
	return nil
}

// checkImage brings the image and enters it, before all that is checked inside.
func (s *supervisor) checkImage() *contract.Problem {
	name := s.spec.Config.Image
	if name == "" {
		return nil
	}
	err := s.fetchImage()
	if err == nil {
		if err = s.enterImage(); err != nil && s.ctx.Err() == nil {
			s.removeContainer()
		}
	}
	if err == nil {
		return nil
	}
	return &contract.Problem{What: "image", Site: true, Text: fmt.Sprintf("image = %q on %s: %v", name, s.spec.Node, err)}
}

// removeContainer removes what is left of the task's container; its processes
// are gone by then.
func (s *supervisor) removeContainer() {
	s.image.state.Lock()
	argv := s.image.remove
	s.image.state.Unlock()
	if argv == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := image.Clear(ctx, s.runEngine, argv); err != nil {
		s.log.Error("cannot remove the container", "container", s.spec.containerName(), "error", err)
		s.tell(fmt.Sprintf("the task's container %s is left: %v", s.spec.containerName(), err))
	}
}

// below finds the processes of the task's launches; what holds up the container
// is not among them.
func (s *supervisor) below() isolation.Finder {
	if a := s.inside(); a != nil {
		return isolation.Below(a.pid)
	}
	return isolation.Below(os.Getpid())
}
