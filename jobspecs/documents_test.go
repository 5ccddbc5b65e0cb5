package jobspecs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/config"
)

// pages are the README and all of docs, by name.
func pages(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	names, err := filepath.Glob("../docs/*.md")
	must.NoError(t, err)
	for _, name := range append(names, "../README.md") {
		text, err := os.ReadFile(name)
		must.NoError(t, err)
		out[name] = string(text)
	}
	must.Greater(t, 15, len(out))
	return out
}

var fence = regexp.MustCompile("(?s)\n *```hcl\n(.*?)\n *```")

// Jobs that the pages show are gangs without a fault.
func TestJobsOfThePages(t *testing.T) {
	t.Parallel()
	found := 0
	for name, text := range pages(t) {
		for _, m := range fence.FindAllStringSubmatch(text, -1) {
			if !strings.HasPrefix(m[1], "job \"") {
				continue
			}
			found++
			gang(t, name, []byte(m[1]), "default")
		}
	}
	must.GreaterEq(t, 2, found)
}

// Links between the pages lead somewhere.
func TestLinksOfThePages(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)
	for name, text := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			_, err := os.Stat(filepath.Join(filepath.Dir(name), m[1]))
			must.NoError(t, err, must.Sprintf("%s: %s", name, m[1]))
		}
	}
	// And the README leads to every page.
	readme := pages(t)["../README.md"]
	for name := range pages(t) {
		if base := filepath.Base(name); base != "README.md" {
			must.StrContains(t, readme, "](docs/"+base+")")
		}
	}
}

// The planner's configurations that install.md and the planner's own job show
// are right.
func TestPlannersOfThePages(t *testing.T) {
	t.Parallel()
	secrets := 0
	secret := func(string) ([]byte, error) { secrets++; return []byte(strings.Repeat("s", 16+secrets)), nil }
	check := func(name, text string) *config.Config {
		t.Helper()
		cfg, err := config.Parse([]config.File{{Name: "muster.hcl", Content: []byte(text)}}, secret)
		must.NoError(t, err, must.Sprint(name))
		return cfg
	}
	found := 0
	for _, m := range fence.FindAllStringSubmatch(pages(t)["../docs/install.md"], -1) {
		if strings.Contains(m[1], "queue \"") {
			found++
			must.Len(t, 3, check("install.md", m[1]).Tokens)
		}
	}
	must.Eq(t, 1, found)

	text, err := os.ReadFile("site/planner.hcl")
	must.NoError(t, err)
	_, rest, _ := strings.Cut(string(text), "<<-HCL\n")
	body, _, ok := strings.Cut(rest, "\n        HCL\n")
	must.True(t, ok)
	body = regexp.MustCompile(`\$\{var\.[a-z_]+\}`).ReplaceAllString(body, "/x")
	must.Eq(t, "/x", check("planner.hcl", body).DataDir)
}

// docs/failures.md names tests and scenarios that exist, for all forty cases.
func TestCasesOfThePage(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{}
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	must.NoError(t, filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range declared.FindAllSubmatch(text, -1) {
			tests[string(m[1])] = true
		}
		return err
	}))
	page := pages(t)["../docs/failures.md"]
	cases := regexp.MustCompile(`(?m)^\| (C\d\d) \|.*\| ([^|]+) \|$`).FindAllStringSubmatch(page, -1)
	must.Len(t, 40, cases)
	for i, c := range cases {
		must.Eq(t, fmt.Sprintf("C%02d", i+1), c[1])
		names := regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(c[2], -1)
		must.SliceNotEmpty(t, names)
		for _, n := range names {
			if strings.HasPrefix(n[1], "Test") {
				must.True(t, tests[n[1]], must.Sprintf("%s: no test is called %s", c[1], n[1]))
				continue
			}
			_, err := os.Stat(filepath.Join("../planner/core/decide/testdata/scenarios", n[1]))
			must.NoError(t, err)
		}
	}
}
