package preflight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// Runner runs a program to its end and gives what it wrote to its standard
// output. The supervisor, which waits for all of its children in one place, has
// one of its own.
type Runner func(ctx context.Context, argv, env []string, dir string) ([]byte, error)

// Python is an interpreter that was looked at.
type Python struct {
	Path  string
	Torch string // version of torch; empty: it has none
}

// FindPython gives the interpreter that ranks use: the one that was named, else
// the first python3 on the search path that has torch, else the first one.
func FindPython(ctx context.Context, run Runner, named, searchPath string) (Python, error) {
	if named != "" {
		path := named
		if !strings.Contains(named, "/") {
			var err error
			if path, err = lookPath(named, searchPath); err != nil {
				return Python{}, err
			}
		}
		torch, err := torchOf(ctx, run, path)
		return Python{path, torch}, err
	}
	var first *Python
	var looked []string
	var faults []error
	for _, dir := range filepath.SplitList(searchPath) {
		path := filepath.Join(dir, "python3")
		looked = append(looked, path)
		if !executable(path) {
			continue
		}
		torch, err := torchOf(ctx, run, path)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		if torch != "" {
			return Python{path, torch}, nil
		}
		if first == nil {
			first = &Python{Path: path}
		}
	}
	if first != nil {
		return *first, nil
	}
	if len(faults) > 0 {
		return Python{}, errors.Join(faults...)
	}
	return Python{}, fmt.Errorf("no Python: looked at %s", strings.Join(looked, ", "))
}

func executable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

func lookPath(name, searchPath string) (string, error) {
	for _, dir := range filepath.SplitList(searchPath) {
		if path := filepath.Join(dir, name); executable(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("no program %q: looked in %s", name, searchPath)
}

// where asks Python for the place of torch without importing it, which would
// take seconds.
const where = `import importlib.util as u
s = u.find_spec("torch")
print(s.origin if s and s.origin else "")`

var versionLine = regexp.MustCompile(`(?m)^__version__\s*(?::[^=]*)?=\s*(?:\w+\()?['"]([^'"]+)['"]`)

func torchOf(ctx context.Context, run Runner, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := run(ctx, []string{path, "-c", where}, []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"}, "/")
	if err != nil {
		return "", fmt.Errorf("ask %s for torch: %w", path, err)
	}
	origin := strings.TrimSpace(string(out))
	if origin == "" {
		return "", nil
	}
	text, err := os.ReadFile(filepath.Join(filepath.Dir(origin), "version.py"))
	if err != nil {
		return "unknown", nil
	}
	if m := versionLine.FindSubmatch(text); m != nil {
		return string(m[1]), nil
	}
	return "unknown", nil
}
