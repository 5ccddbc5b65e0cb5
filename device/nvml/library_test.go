//go:build cgo && linux

package nvml_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/nvml"
	"github.com/nomad-muster/muster/internal/contract"
)

// A process opens the library once and for all, so each library has its own.
func TestMain(m *testing.M) {
	if path := os.Getenv("TEST_NVML"); path != "" {
		answer(path)
		return
	}
	os.Exit(m.Run())
}

type answered struct {
	Scan     card.Scan
	Samples  map[string]card.Sample
	Sighting *card.Sighting
}

// answer asks a library everything and prints what it said.
func answer(path string) {
	s := nvml.New(nvml.Options{Library: path, LinesElsewhere: true})
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	var out answered
	var err error
	if out.Scan, err = s.Scan(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	out.Samples, _ = s.Sample(ctx) // absent without a driver
	if len(out.Scan.Cards) > 0 {
		patience := 2 * time.Minute
		if os.Getenv("TEST_NVML_EVENTS") == "none" {
			patience = 1500 * time.Millisecond // it is seen that none comes
		}
		watching, stop := context.WithTimeout(ctx, patience)
		s.Watch(watching, func(seen card.Sighting) { out.Sighting = &seen; stop() }, func() {})
		stop()
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// compile builds the C library and asks it in a process of its own.
func compile(t *testing.T, flags ...string) answered {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler (cc) on the PATH: the library cannot be built")
	}
	library := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
	args := append([]string{"-shared", "-fPIC", "-Wall", "-o", library, "testdata/fakenvml.c"}, flags...)
	built, err := exec.Command(cc, args...).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(built)))
	return ask(t, library, !slices.Contains(flags, "-DOLD"))
}

func ask(t *testing.T, library string, events bool) answered {
	t.Helper()
	self, err := os.Executable()
	must.NoError(t, err)
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "TEST_NVML="+library)
	if !events {
		cmd.Env = append(cmd.Env, "TEST_NVML_EVENTS=none")
	}
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	must.NoError(t, err, must.Sprint("a missing function ends the process"))
	var out answered
	must.NoError(t, json.Unmarshal(text, &out), must.Sprint(string(text)))
	return out
}

// The library is really opened, and its structures are read as C lays them out.
func TestRealLibrary(t *testing.T) {
	t.Parallel()
	out := compile(t)
	must.Len(t, 2, out.Scan.Cards)
	a, b := out.Scan.Cards[0], out.Scan.Cards[1]
	must.Eq(t, "GPU-c0ffee00-0000-0000-0000-000000000001", a.ID)
	must.Eq(t, "NVIDIA Fixture", a.Group.Model)
	must.Eq(t, "00000000:3B:00.0", a.Bus.String())
	must.Eq(t, "0000000F:01:00.0", b.Bus.String())
	must.Eq(t, map[string]int{b.ID: 2}, a.Links)
	must.Eq(t, int64(16384), *a.Attributes[contract.AttrMemory].Int)
	must.Eq(t, "12.8", *a.Attributes[contract.AttrCUDA].String)
	must.Eq(t, uint64(2048), *out.Samples[a.ID].MemUsed)
	must.NotNil(t, out.Sighting)
	must.Eq(t, b.ID, out.Sighting.Target.ID)
	must.Eq(t, 48, out.Sighting.Event.Code)
	must.Eq(t, -1, out.Sighting.Target.GI)
}

// The driver of years ago lacks most functions. Calling one that is not there
// would end the process.
func TestOldLibrary(t *testing.T) {
	t.Parallel()
	out := compile(t, "-DOLD")
	must.Len(t, 2, out.Scan.Cards)
	a := out.Scan.Cards[0]
	must.Eq(t, int64(16384), *a.Attributes[contract.AttrMemory].Int)
	must.MapNotContainsKey(t, a.Attributes, contract.AttrCUDA)
	must.MapEmpty(t, a.Links)
	must.Nil(t, out.Sighting)
	must.Eq(t, uint64(1024), *out.Samples[a.ID].MemUsed)
}

func TestLibraryWithoutDriver(t *testing.T) {
	t.Parallel()
	out := compile(t, "-DBROKEN")
	must.SliceEmpty(t, out.Scan.Cards)
	must.StrContains(t, out.Scan.Notes[0], "modprobe nvidia")
}

func TestNoLibrary(t *testing.T) {
	t.Parallel()
	out := ask(t, filepath.Join(t.TempDir(), "libnvidia-ml.so.1"), false)
	must.SliceEmpty(t, out.Scan.Cards)
	must.StrContains(t, out.Scan.Absent, "cannot be opened")
}

// A build without cgo compiles, finds no NVIDIA card and says why: its own test,
// run from here since a test binary has cgo or has not.
func TestBuildWithoutCgo(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("go", "test", "-count=1", "-v", "-run", "TestStub", ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	must.StrContains(t, string(out), "--- PASS: TestStub")
}
