// Package image runs a member's processes in an OCI image, through a container
// engine that the node has: podman, Apptainer or Enroot.
//
// An engine is asked for three things only, and each answer is an argument list:
// bring the image here (Pull), run one program in it (Run), and remove what is
// left (Remove). The program that is run is the driver's own agent, which starts
// ranks, checks and commands inside (package shim). So output, signals, users,
// exits and limits are the same with an image as without, whatever the engine.
// The image's own entry point is not run, as with `apptainer exec`.
//
// Images are named as the engine names them: "registry.example/team/train:1.4",
// podman's transports ("oci-archive:/shared/train.tar"), or the path of a file
// that Apptainer or Enroot made (".sif", ".sqsh"). What is here already is not
// pulled again: name a digest, or a new tag, where the image changes.
package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/csv"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/driver/isolation"
)

// Engines by name, in the order in which they are looked for.
const (
	Podman    = "podman"
	Apptainer = "apptainer"
	Enroot    = "enroot"
)

// Auto takes the first engine that the node has.
const Auto = "auto"

// Names are all engines.
var Names = []string{Podman, Apptainer, Enroot}

// Engine of this node.
type Engine struct {
	Name string `json:"name"`
	Path string `json:"path"`
	// Cache is the folder that Apptainer's and Enroot's files are kept in.
	Cache string `json:"cache,omitempty"`
	// AuthFile has the registries' credentials, in podman's format; empty: where
	// the engine looks by itself.
	AuthFile string `json:"auth_file,omitempty"`
}

// Find looks for an engine by its name, or Auto, on a search path.
func Find(name, searchPath string) (Engine, error) {
	names := []string{name}
	if name == Auto || name == "" {
		names = Names
	}
	for _, n := range names {
		for _, dir := range filepath.SplitList(searchPath) {
			path := filepath.Join(dir, n)
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
				return Engine{Name: n, Path: path}, nil
			}
		}
	}
	return Engine{}, fmt.Errorf("this node has no %s on %s: install one (on Debian: apt-get install podman crun)", strings.Join(names, ", no "), searchPath)
}

// Runner runs a program on the host to its end and gives what it wrote to its
// standard output; each line of its error output goes to line, which may be nil.
type Runner func(ctx context.Context, argv []string, line func(string)) ([]byte, error)

// Fetch sees to it that the image is on this node, and gives how the engine
// names it here. pull is told once, before anything is pulled, which is bounded
// by limit; progress gets the engine's own words.
func (e Engine) Fetch(ctx context.Context, run Runner, name string, limit time.Duration, pull func(), progress func(string)) (local string, err error) {
	local, here, err := e.here(ctx, run, name)
	if here || err != nil {
		return local, err
	}
	pull()
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	part := ""
	if e.Name != Podman {
		if err := os.MkdirAll(e.Cache, 0o755); err != nil {
			return "", fmt.Errorf("make the folder of images: %w", err)
		}
		part = fmt.Sprintf("%s.%d.part", local, time.Now().UnixNano())
		defer os.Remove(part)
	}
	last := ""
	out, err := run(bounded, e.Pull(name, part), func(line string) {
		last = line
		progress(line)
	})
	switch {
	case err != nil && ctx.Err() == nil && bounded.Err() != nil:
		return "", fmt.Errorf("it was not here within %v (image_pull_timeout); the last that %s said: %q", limit, e.Name, last)
	case err != nil:
		return "", fmt.Errorf("pull it: %w", err)
	case part != "":
		return local, os.Rename(part, local)
	}
	lines := strings.Fields(string(out)) // podman tells the image's id
	if len(lines) == 0 {
		return "", fmt.Errorf("pull it: %s named no image", e.Name)
	}
	return lines[len(lines)-1], nil
}

// here tells how the image is named on this node, and whether it is here.
func (e Engine) here(ctx context.Context, run Runner, name string) (local string, here bool, err error) {
	if e.Name == Podman {
		if transport(name) {
			return "", false, nil
		}
		_, err := run(ctx, []string{e.Path, "image", "exists", name}, nil)
		if err != nil && ctx.Err() != nil {
			return "", false, err
		}
		return name, err == nil, nil
	}
	local = name
	if !filepath.IsAbs(name) {
		suffix := map[string]string{Apptainer: ".sif", Enroot: ".sqsh"}[e.Name]
		local = filepath.Join(e.Cache, fmt.Sprintf("%x%s", sha256.Sum256([]byte(name)), suffix))
	}
	_, err = os.Stat(local)
	switch {
	case err == nil:
		return local, true, nil
	case !errors.Is(err, os.ErrNotExist):
		return "", false, err
	case filepath.IsAbs(name):
		return "", false, fmt.Errorf("there is no file %s on this node", name)
	}
	return local, false, nil
}

// transport tells whether a name says where the image comes from.
func transport(name string) bool {
	prefix, _, found := strings.Cut(name, ":")
	return found && slices.Contains([]string{"docker", "oci", "oci-archive", "docker-archive", "dir", "containers-storage", "docker-daemon"}, prefix)
}

// Pull brings an image here; into a file, with Apptainer and Enroot.
func (e Engine) Pull(name, file string) []string {
	switch e.Name {
	case Apptainer:
		if !strings.Contains(name, "://") {
			name = "docker://" + name
		}
		return []string{e.Path, "pull", "--force", file, name}
	case Enroot:
		return []string{e.Path, "import", "--output", file, enrootName(name)}
	}
	argv := []string{e.Path, "pull"}
	if e.AuthFile != "" {
		argv = append(argv, "--authfile", e.AuthFile)
	}
	return append(argv, name)
}

// enrootName writes a name the way Enroot does, with "#" after the registry.
func enrootName(name string) string {
	if strings.Contains(name, "://") {
		return name
	}
	registry, rest, found := strings.Cut(name, "/")
	if found && (strings.ContainsAny(registry, ".:") || registry == "localhost") {
		return "docker://" + registry + "#" + rest
	}
	return "docker://" + name
}

// Container is one program that runs in an image.
type Container struct {
	Name    string // unique on the node
	Task    string // the task's id, for people who look at what runs
	Image   string // as Fetch named it
	Argv    []string
	Mounts  []isolation.Mount
	Devices []isolation.Device
	// Injected are further devices, of the Container Device Interface, such as
	// "nvidia.com/gpu=GPU-...": the engine brings the card's libraries along.
	Injected []string
	// Libraries lets Apptainer bring the host's libraries of a vendor, "nv" or
	// "rocm".
	Libraries string
	SharedIPC bool
	Limits    map[string][2]string // name as in prlimit(1) -> soft, hard
}

// Detaches tells whether Run's program ends once the container runs; else it
// stays as long as the container.
func (e Engine) Detaches() bool { return e.Name == Podman }

// Run runs a container.
func (e Engine) Run(c Container) []string {
	switch e.Name {
	case Apptainer:
		return e.apptainer(c)
	case Enroot:
		return e.enroot(c)
	}
	argv := []string{e.Path, "run", "--detach", "--rm", "--name", c.Name, "--label", "muster.task=" + c.Task, "--pull=never",
		// The task's own cgroup holds and bounds all of it.
		"--cgroups=disabled", "--runtime=crun", "--log-driver=none",
		"--network=host", "--uts=host", "--user=0:0", "--workdir=/", "--stop-signal=SIGKILL",
		"--security-opt=no-new-privileges", "--security-opt=label=disable", "--cap-drop=all"}
	for _, name := range slices.Sorted(maps.Keys(isolation.Capabilities)) {
		argv = append(argv, "--cap-add="+name)
	}
	if c.SharedIPC {
		argv = append(argv, "--ipc=host")
	} else {
		argv = append(argv, "--ipc=private", "--shm-size=0") // as large as the task's memory allows
	}
	for _, name := range slices.Sorted(maps.Keys(c.Limits)) {
		argv = append(argv, fmt.Sprintf("--ulimit=%s=%s:%s", name, c.Limits[name][0], c.Limits[name][1]))
	}
	for _, m := range c.Mounts {
		argv = append(argv, "--mount="+options("type=bind", "src="+m.Host, "dst="+m.Path, "bind-propagation=rslave", readOnly(m, "ro=true")))
	}
	if len(c.Injected) == 0 {
		for _, d := range c.Devices {
			access := d.Access
			if access == "" {
				access = "rw"
			}
			argv = append(argv, fmt.Sprintf("--device=%s:%s:%s", d.Host, d.Seen(), access))
		}
	}
	for _, name := range c.Injected {
		argv = append(argv, "--device="+name)
	}
	argv = append(argv, "--entrypoint", c.Argv[0], c.Image)
	return append(argv, c.Argv[1:]...)
}

// apptainer finds devices, /tmp and shared memory in the namespace that it is
// started in, which is the task's own.
func (e Engine) apptainer(c Container) []string {
	argv := []string{e.Path, "exec", "--no-home", "--pid", "--writable-tmpfs", "--pwd", "/"}
	if c.Libraries != "" {
		argv = append(argv, "--"+c.Libraries)
	}
	for _, m := range c.Mounts {
		argv = append(argv, "--mount", options("type=bind", "source="+m.Host, "destination="+m.Path, readOnly(m, "ro")))
	}
	argv = append(argv, c.Image)
	return append(argv, c.Argv...)
}

// enroot likewise; its own hooks mount the cards' libraries by the task's
// NVIDIA_VISIBLE_DEVICES.
func (e Engine) enroot(c Container) []string {
	argv := []string{e.Path, "start", "--root", "--rw"}
	for _, m := range c.Mounts {
		mode := "rw"
		if m.ReadOnly {
			mode = "ro"
		}
		argv = append(argv, "--mount", m.Host+":"+m.Path+":none:x-create=auto,rbind,"+mode)
	}
	argv = append(argv, c.Image)
	return append(argv, c.Argv...)
}

func readOnly(m isolation.Mount, option string) string {
	if m.ReadOnly {
		return option
	}
	return ""
}

// options joins options that may hold any character, as CSV does.
func options(list ...string) string {
	list = slices.DeleteFunc(list, func(s string) bool { return s == "" })
	var b bytes.Buffer
	w := csv.NewWriter(&b)
	_ = w.Write(list) // to a buffer
	w.Flush()
	return strings.TrimSuffix(b.String(), "\n")
}

// Remove removes what is left of a container, whatever state it is in; nil
// where nothing can be.
func (e Engine) Remove(name string) []string {
	if e.Name != Podman {
		return nil
	}
	return []string{e.Path, "rm", "--force", "--ignore", "--time=0", name}
}

// Clear runs what Remove gave until it succeeds or ctx ends: an engine whose own
// clearing was cut short needs a second try.
func Clear(ctx context.Context, run Runner, argv []string) error {
	for pause := 50 * time.Millisecond; ; pause *= 2 {
		_, err := run(ctx, argv, nil)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// Injected gives the names of cards in the Container Device Interface, of which
// a folder must have the specification of every one: else none.
func Injected(folders []string, ids []string) []string {
	var texts []string
	for _, folder := range folders {
		paths, _ := filepath.Glob(filepath.Join(folder, "*"))
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if ext := filepath.Ext(path); err == nil && (ext == ".json" || ext == ".yaml" || ext == ".yml") && bytes.Contains(text, []byte("nvidia.com/gpu")) {
				texts = append(texts, string(text))
			}
		}
	}
	var out []string
	for _, id := range ids {
		if id == "" || !slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(t, id) }) {
			return nil
		}
		out = append(out, "nvidia.com/gpu="+id)
	}
	return out
}
