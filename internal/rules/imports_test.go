package rules

import (
	"encoding/json"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

const module = "github.com/nomad-muster/muster/"

// listed is what `go list -json` tells of a package; paths of our own packages
// are given without the module's name.
type listed struct {
	ImportPath   string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

// packages of the module, with the imports of code and of tests apart.
func packages(t *testing.T) (code, tests map[string][]string) {
	t.Helper()
	cmd := exec.Command("go", "list", "-tags", "e2e", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = "../.."
	out, err := cmd.Output()
	must.NoError(t, err)
	code, tests = map[string][]string{}, map[string][]string{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else {
			must.NoError(t, err)
		}
		name := strings.TrimPrefix(p.ImportPath, module)
		code[name] = p.Imports
		tests[name] = append(p.TestImports, p.XTestImports...)
	}
	must.MapNotEmpty(t, code)
	return code, tests
}

func in(pkg string, rooms ...string) bool {
	return slices.ContainsFunc(rooms, func(room string) bool { return pkg == room || strings.HasPrefix(pkg, room+"/") })
}

// Libraries that only certain rooms may import, tests included.
var reserved = []struct {
	library string
	rooms   []string
	why     string
}{
	{"github.com/hashicorp/nomad/api", []string{"planner/nomad", "planner/leader", "internal/nomadsim", "internal/trial", "e2e"}, "the rest of the planner speaks of gangs and nodes, not of Nomad's types"},
	{"github.com/hashicorp/consul/api", []string{"driver/rendezvous", "planner/release", "planner/leader", "internal/trial", "e2e"}, "everybody else speaks to the rendezvous port"},
	{"github.com/NVIDIA/go-nvml", []string{"device/nvml"}, "the other vendors' cards come through the same port"},
	{"google.golang.org/grpc", []string{"internal/nomadplugin"}, "a plugin's author never sees the wire"},
	{"google.golang.org/protobuf", []string{"internal/nomadplugin"}, "a plugin's author never sees the wire"},
	{"modernc.org/sqlite", []string{"planner/accounting"}, "the ledger is the only store"},
	{"database/sql", []string{"planner/accounting"}, "the ledger is the only store"},
}

func TestLibrariesStayInTheirRooms(t *testing.T) {
	code, tests := packages(t)
	for pkg := range code {
		for _, imported := range append(slices.Clone(code[pkg]), tests[pkg]...) {
			for _, r := range reserved {
				if in(imported, r.library) && !in(pkg, r.rooms...) {
					t.Errorf("%s imports %s, which only %s may: %s", pkg, imported, strings.Join(r.rooms, ", "), r.why)
				}
			}
		}
	}
}

// What draws takes its seed from the environment where there is one.
func TestPropertiesTakeTheirSeed(t *testing.T) {
	_, tests := packages(t)
	for pkg, imported := range tests {
		if slices.Contains(imported, "pgregory.net/rapid") && !slices.Contains(imported, module+"internal/draws") {
			t.Errorf("the tests of %s draw without importing internal/draws", pkg)
		}
	}
}

func TestPartsDoNotImportEachOther(t *testing.T) {
	parts := []string{"planner", "driver", "device"}
	code, tests := packages(t)
	for pkg := range code {
		for _, imported := range append(slices.Clone(code[pkg]), tests[pkg]...) {
			imported, ours := strings.CutPrefix(imported, module)
			if !ours {
				continue
			}
			for _, part := range parts {
				other := slices.ContainsFunc(parts, func(p string) bool { return p != part && in(imported, p) })
				if in(pkg, part) && other {
					t.Errorf("%s imports %s: planner, driver and device meet in internal/contract", pkg, imported)
				}
			}
			if in(pkg, "internal/contract") && !in(imported, "internal/contract", "internal/draws") {
				t.Errorf("%s imports %s: the contract stands on nothing of the project", pkg, imported)
			}
			if in(imported, "e2e") && !in(pkg, "e2e") {
				t.Errorf("%s imports %s", pkg, imported)
			}
		}
	}
}

// corePackages is all of the standard library that the decision core may use.
// time is there for its types: internal/rules/clock_test.go bans its clock.
var corePackages = []string{"bytes", "cmp", "container/heap", "container/list", "errors", "fmt", "hash/fnv", "hash/maphash", "iter", "maps", "math", "math/big", "math/bits",
	"regexp", "regexp/syntax", "slices", "sort", "strconv", "strings", "time", "unicode", "unicode/utf8", "unique"}

func TestCoreIsPure(t *testing.T) {
	code, _ := packages(t)
	for pkg, imports := range code {
		if !in(pkg, "planner/core") {
			continue
		}
		for _, imported := range imports {
			own, ours := strings.CutPrefix(imported, module)
			if ours && in(own, "planner/core") || slices.Contains(corePackages, imported) {
				continue
			}
			if pkg == "planner/core" && imported == "encoding/json" {
				continue // snapshots are captured and replayed
			}
			t.Errorf("%s imports %s: the decision core is pure; it may use %s", pkg, imported, strings.Join(corePackages, ", "))
		}
	}
}

func TestNoPackageIsNamedForNothing(t *testing.T) {
	code, _ := packages(t)
	for pkg := range code {
		last := pkg[strings.LastIndex(pkg, "/")+1:]
		if slices.Contains([]string{"util", "utils", "common", "helper", "helpers", "pkg", "types", "misc"}, last) {
			t.Errorf("%s: a package is named for what it holds", pkg)
		}
	}
}
