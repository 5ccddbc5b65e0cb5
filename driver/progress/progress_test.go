package progress

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"
)

func TestParse(t *testing.T) {
	for line, want := range map[string]Mark{
		"step 1200":              {Step, 1200},
		"step 7 loss=0.3":        {Step, 7},
		"step -1":                {Alive, -1},
		"step":                   {Alive, -1},
		"checkpoint begin":       {Begin, -1},
		"checkpoint end 12 /a b": {End, 12},
		"checkpoint failed":      {Failed, -1},
		"checkpoint":             {Alive, -1},
		"may-stop":               {MayStop, -1},
		"complete":               {Complete, -1},
		"completed":              {Alive, -1},
		"":                       {Alive, -1},
	} {
		must.Eq(t, want, Parse(line), must.Sprint(line))
	}
}

func TestFileGrows(t *testing.T) {
	f := File{Path: filepath.Join(t.TempDir(), "progress.0")}
	read := func(want ...Mark) {
		t.Helper()
		got, err := f.Read()
		must.NoError(t, err)
		must.Eq(t, want, got)
	}
	write := func(flag int, text string) {
		file, err := os.OpenFile(f.Path, os.O_CREATE|os.O_WRONLY|flag, 0o600)
		must.NoError(t, err)
		_, err = file.WriteString(text)
		must.NoError(t, err)
		must.NoError(t, file.Close())
	}
	read()
	write(os.O_APPEND, "step 1\nste")
	read(Mark{Step, 1})
	read()
	write(os.O_APPEND, "p 2\n\ncheckpoint end 2\n")
	read(Mark{Step, 2}, Mark{End, 2})
	write(os.O_TRUNC, "step 3\n")
	read(Mark{Step, 3})
	write(os.O_APPEND, strings.Repeat("x", 10000))
	read(Mark{Alive, -1})
	must.NoError(t, os.Remove(f.Path))
	must.NoError(t, os.Mkdir(f.Path, 0o700))
	_, err := f.Read()
	must.ErrorContains(t, err, "no plain file")
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"step 1", "checkpoint end 99999999999999999999", "\x00", "step \u0661"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		m := Parse(line)
		must.True(t, m.Step >= -1)
		must.True(t, m.Kind != Step || m.Step >= 0)
	})
}
