package preflight

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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

// Place is where ranks run: the host, or an image.
type Place struct {
	Run Runner
	// Stat gives the mode of what is at a path; nil: the host's.
	Stat func(path string) (fs.FileMode, error)
}

func (p Place) stat(path string) (fs.FileMode, error) {
	if p.Stat != nil {
		return p.Stat(path)
	}
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Mode(), nil
}

// Python is an interpreter that was looked at.
type Python struct {
	Path  string
	Torch string // version of torch; empty: it has none
}

// FindPython gives the interpreter that ranks use: the one that was named, else
// the first python3 on the search path that has torch, else the first one.
func FindPython(ctx context.Context, place Place, named, searchPath string) (Python, error) {
	if named != "" {
		path := named
		if !strings.Contains(named, "/") {
			var err error
			if path, err = place.lookPath(named, searchPath); err != nil {
				return Python{}, err
			}
		}
		torch, err := torchOf(ctx, place.Run, path)
		return Python{path, torch}, err
	}
	var first *Python
	var looked []string
	var faults []error
	for _, dir := range filepath.SplitList(searchPath) {
		path := filepath.Join(dir, "python3")
		looked = append(looked, path)
		if !place.executable(path) {
			continue
		}
		torch, err := torchOf(ctx, place.Run, path)
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

func (p Place) executable(path string) bool {
	mode, err := p.stat(path)
	return err == nil && mode.IsRegular() && mode&0o111 != 0
}

func (p Place) lookPath(name, searchPath string) (string, error) {
	for _, dir := range filepath.SplitList(searchPath) {
		if path := filepath.Join(dir, name); p.executable(path) {
			return path, nil
		}
	}
	return "", fmt.Errorf("no program %q: looked in %s", name, searchPath)
}

// where asks Python for the place of torch without importing it, which would
// take seconds, and for the file that has its version.
const where = `import importlib.util as u, os
s = u.find_spec("torch")
if s and s.origin:
    print(s.origin)
    try: print(open(os.path.join(os.path.dirname(s.origin), "version.py")).read())
    except OSError: pass`

var versionLine = regexp.MustCompile(`(?m)^__version__\s*(?::[^=]*)?=\s*(?:\w+\()?['"]([^'"]+)['"]`)

func torchOf(ctx context.Context, run Runner, path string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := run(ctx, []string{path, "-c", where}, []string{"PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8"}, "/")
	if err != nil {
		return "", fmt.Errorf("ask %s for torch: %w", path, err)
	}
	if len(strings.TrimSpace(string(out))) == 0 {
		return "", nil
	}
	if m := versionLine.FindSubmatch(out); m != nil {
		return string(m[1]), nil
	}
	return "unknown", nil
}
