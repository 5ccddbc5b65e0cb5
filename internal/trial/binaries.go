//go:build linux

package trial

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Binaries are the paths of the programs that a cluster is made of.
type Binaries struct {
	Muster, Driver, Device string
	Rank                   string // the example rank; jobs name it without its folder
	Consul                 string
	Nomad                  string // empty: none was found, only a simulated cluster can be had
}

// The names of our programs.
const (
	musterName = "muster"
	driverName = "nomad-driver-torchrun"
	deviceName = "nomad-device-gpu"
	rankName   = "muster-allreduce-rank"
)

// consulModule is built where there is no Consul: the last release whose
// licence is the MPL-2.0.
const consulModule = "github.com/hashicorp/consul@v1.16.2"

// ModuleRoot is the folder of this module's source: the working folder or the
// nearest one above it that has the go.mod.
func ModuleRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find Muster's source: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(text, []byte("module github.com/nomad-muster/muster\n")) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("find Muster's source: no go.mod of it in %s or above: run this in the source tree", start)
		}
	}
}

// Build compiles our programs into a folder.
func Build(ctx context.Context, root, into string) (Binaries, error) {
	if err := os.MkdirAll(into, 0o755); err != nil {
		return Binaries{}, fmt.Errorf("build Muster's programs: %w", err)
	}
	// What runs in images as well needs nothing of the host's.
	inImages := []string{"./cmd/" + driverName, "./cmd/" + rankName}
	for _, b := range []struct {
		packages []string
		env      []string
	}{{[]string{"./cmd/" + musterName, "./cmd/" + deviceName}, nil}, {inImages, []string{"CGO_ENABLED=0"}}} {
		build := exec.CommandContext(ctx, "go", append([]string{"build", "-o", into + string(filepath.Separator)}, b.packages...)...)
		build.Dir, build.Env = root, append(os.Environ(), b.env...)
		if out, err := build.CombinedOutput(); err != nil {
			return Binaries{}, fmt.Errorf("build Muster's programs: go build: %w\n%s", err, out)
		}
	}
	return beside(into)
}

// Beside finds our programs in the folder of the one that runs; an error says
// which is missing.
func Beside() (Binaries, error) {
	self, err := os.Executable()
	if err != nil {
		return Binaries{}, fmt.Errorf("find Muster's programs: %w", err)
	}
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	return beside(filepath.Dir(self))
}

func beside(dir string) (Binaries, error) {
	b := Binaries{Muster: filepath.Join(dir, musterName), Driver: filepath.Join(dir, driverName), Device: filepath.Join(dir, deviceName), Rank: filepath.Join(dir, rankName)}
	var faults []error
	for _, path := range []string{b.Muster, b.Driver, b.Device, b.Rank} {
		if err := executable(path); err != nil {
			faults = append(faults, err)
		}
	}
	if err := errors.Join(faults...); err != nil {
		return Binaries{}, fmt.Errorf("find Muster's programs: %w", err)
	}
	return b, nil
}

func executable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.IsDir() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("%s is not a program", path)
	}
	return nil
}

// FindNomad looks for a real Nomad in NOMAD_BIN, then on the PATH. Without one
// the path is empty; it is an error if NOMAD_BIN names something else.
func FindNomad() (string, error) {
	if path := os.Getenv("NOMAD_BIN"); path != "" {
		if err := executable(path); err != nil {
			return "", fmt.Errorf("find Nomad: NOMAD_BIN: %w", err)
		}
		return filepath.Abs(path)
	}
	path, err := exec.LookPath("nomad")
	if err != nil {
		return "", nil
	}
	return filepath.Abs(path)
}

// FindConsul looks for a Consul agent in CONSUL_BIN, on the PATH and in the
// cache folder, and builds one there if there is none, which takes some
// minutes: progress is told before.
func FindConsul(ctx context.Context, cache string, progress func(string)) (string, error) {
	if path := os.Getenv("CONSUL_BIN"); path != "" {
		if err := executable(path); err != nil {
			return "", fmt.Errorf("find Consul: CONSUL_BIN: %w", err)
		}
		return filepath.Abs(path)
	}
	if path, err := exec.LookPath("consul"); err == nil {
		return filepath.Abs(path)
	}
	built := filepath.Join(cache, "consul")
	if executable(built) == nil {
		return built, nil
	}
	progress(fmt.Sprintf("no Consul in CONSUL_BIN, on the PATH or at %s: building %s there, once; this takes some minutes", built, consulModule))
	if err := buildConsul(ctx, built); err != nil {
		return "", fmt.Errorf("find Consul: not in CONSUL_BIN, not on the PATH (%s), not at %s; and build it: %w", os.Getenv("PATH"), built, err)
	}
	return built, nil
}

func buildConsul(ctx context.Context, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", consulModule)
	download.Dir = os.TempDir() // outside of any module, whose go.mod it would read
	out, err := download.Output()
	var module struct{ Dir, Error string }
	if jsonErr := json.Unmarshal(out, &module); err != nil || jsonErr != nil || module.Dir == "" {
		return fmt.Errorf("go mod download %s: %w", consulModule, errors.Join(err, jsonErr, errors.New(strings.TrimSpace(module.Error))))
	}
	// Built under another name first: an interrupted build leaves no Consul.
	half := path + ".part"
	build := exec.CommandContext(ctx, "go", "-C", module.Dir, "build", "-o", half, ".")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go build in %s: %w\n%s", module.Dir, err, out)
	}
	return os.Rename(half, path)
}

// FindTorch gives a Python interpreter that has torch with its launcher:
// MUSTER_PYTHON, those on the PATH, the system's own. Without one the path is
// empty and looked says where it was looked for.
func FindTorch(ctx context.Context) (python string, looked []string) {
	var candidates []string
	if path := os.Getenv("MUSTER_PYTHON"); path != "" {
		candidates = append(candidates, path)
	}
	for _, name := range []string{"python3", "python"} {
		for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
			candidates = append(candidates, filepath.Join(dir, name))
		}
	}
	candidates = append(candidates, "/usr/bin/python3", "/usr/local/bin/python3")
	seen := map[string]bool{}
	for _, path := range candidates {
		real, err := filepath.EvalSymlinks(path)
		if err != nil || seen[real] {
			continue
		}
		seen[real] = true
		looked = append(looked, path)
		// find_spec does not import: torch takes seconds.
		test := exec.CommandContext(ctx, path, "-c", "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)")
		if test.Run() == nil {
			return path, looked
		}
	}
	return "", looked
}
