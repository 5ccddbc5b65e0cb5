// Package sysfstest lays out folders as the kernel does, for tests.
package sysfstest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/device/sysfs"
)

// Tree makes a root with these files. Content that begins with "-> " is a
// symbolic link to a path under the root; an empty file ends in nothing; a name
// that ends in a slash is a folder.
func Tree(t testing.TB, files map[string]string) sysfs.Root {
	t.Helper()
	root := t.TempDir()
	Add(t, sysfs.Root(root), files)
	return sysfs.Root(root)
}

// Add adds files to a tree, replacing those that are there.
func Add(t testing.TB, root sysfs.Root, files map[string]string) {
	t.Helper()
	for name, content := range files {
		path := root.Path(name)
		if strings.HasSuffix(name, "/") {
			must.NoError(t, os.MkdirAll(path, 0o755))
			continue
		}
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		if target, link := strings.CutPrefix(content, "-> "); link {
			os.Remove(path) // a link is not written over
			must.NoError(t, os.Symlink(root.Path(target), path))
			continue
		}
		must.NoError(t, os.WriteFile(path, []byte(content+"\n"), 0o644))
	}
}

// PCI adds a PCI device at a place such as pci0000:3a/0000:3a:01.0/0000:3b:00.0
// with these attribute files, and gives its folder.
func PCI(files map[string]string, place string, attributes map[string]string) string {
	folder := "sys/devices/" + place
	for name, content := range attributes {
		files[folder+"/"+name] = content
	}
	files["sys/bus/pci/devices/"+filepath.Base(place)] = "-> " + folder
	return folder
}
