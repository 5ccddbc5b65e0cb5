package logpipe

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"
)

// A rank's file holds at least the last 16 MiB, and never more than twice that.
func TestFileBeginsAnew(t *testing.T) {
	t.Parallel()
	f := &File{Path: filepath.Join(t.TempDir(), "rank")}
	line := append(bytes.Repeat([]byte("x"), 64<<10-1), '\n')
	for range 3 * FileLimit / len(line) {
		must.NoError(t, f.Write(line))
	}
	must.NoError(t, f.Write([]byte("last\n")))
	f.Close()
	size := func(path string) int64 {
		info, err := os.Stat(path)
		must.NoError(t, err)
		return info.Size()
	}
	must.Eq(t, FileLimit, size(f.Path+".1"))
	must.Eq(t, 5, size(f.Path))
	again := &File{Path: f.Path} // another launch goes on
	must.NoError(t, again.Write([]byte("more\n")))
	again.Close()
	text, err := os.ReadFile(f.Path)
	must.NoError(t, err)
	must.Eq(t, "last\nmore\n", string(text))
}

func TestFileThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	f := &File{Path: filepath.Join(t.TempDir(), "absent", "rank")}
	must.ErrorContains(t, f.Write([]byte("x")), "keep a rank's output")
	must.NoError(t, f.Write([]byte("y")), must.Sprint("told once"))
	f.Close()
}
