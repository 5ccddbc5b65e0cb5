package ledger

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/shoenig/test/must"
)

func content(ids ...string) Content {
	c := New()
	c.Node.Logs = map[string]Cursor{"kmsg": {Boot: "boot-1", Seq: 7}}
	for i, id := range ids {
		s, _ := health.Evolve(health.State{}, []health.Event{{Kind: health.Xid, Code: 48, At: time.Unix(int64(i), 0).UTC(), Text: "line\nof " + id}}, health.Default())
		c.Cards[id] = &Card{Card: card.Card{ID: id, Index: i, NUMA: -1}, First: time.Unix(1, 0).UTC(), Health: s}
	}
	return c
}

func TestSaveAndLoad(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "cards")
	l, err := Load(path)
	must.NoError(t, err) // no file at all: a new node
	must.False(t, l.Damaged)
	must.MapEmpty(t, l.Cards)

	want := content("a", "b")
	must.NoError(t, Save(path, want))
	l, err = Load(path)
	must.NoError(t, err)
	must.False(t, l.Damaged)
	a, err := Encode(want)
	must.NoError(t, err)
	b, err := Encode(l.Content)
	must.NoError(t, err)
	must.Eq(t, string(a), string(b))
	must.NoError(t, Save(path, l.Content))
	entries, err := os.ReadDir(filepath.Dir(path))
	must.NoError(t, err)
	must.Len(t, 2, entries) // the file and the older one; nothing is left behind
}

// Whatever byte is lost or changed, what is read is a record that was written,
// and the fault is named with its line.
func TestDamage(t *testing.T) {
	t.Parallel()
	text, err := Encode(content("a", "b", "c"))
	must.NoError(t, err)
	starts := []int{0}
	for i, b := range text {
		if b == '\n' {
			starts = append(starts, i+1)
		}
	}
	lineOf := func(at int) int {
		n := 0
		for n < len(starts) && starts[n] <= at {
			n++
		}
		return n
	}
	path := filepath.Join(t.TempDir(), "cards")
	for at := 0; at < len(text); at += 3 {
		changed := append([]byte(nil), text...)
		changed[at] ^= 4
		must.NoError(t, os.WriteFile(path, changed, 0o600))
		l, err := Load(path)
		must.Error(t, err)
		must.True(t, l.Damaged)
		must.StrContains(t, err.Error(), path+":"+string(rune('0'+lineOf(at))))
		if lineOf(at) > 1 && changed[at] != '\n' && text[at] != '\n' {
			must.MapLen(t, 2, l.Cards)
		}
		must.NoError(t, os.WriteFile(path, text[:at], 0o600)) // torn off
		l, err = Load(path)
		must.Error(t, err)
		must.True(t, l.Damaged)
		must.Less(t, 4, len(l.Cards))
	}
	for _, bad := range []string{"", "\n", "garbage", "00000000 {}\n", strings.Repeat("x", 1<<20)} {
		must.NoError(t, os.WriteFile(path, []byte(bad), 0o600))
		l, err := Load(path)
		must.Error(t, err)
		must.True(t, l.Damaged)
		must.MapEmpty(t, l.Cards)
	}
}

func TestOlderFileHelps(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "cards")
	must.NoError(t, Save(path, content("a", "b")))
	must.NoError(t, Save(path, content("a", "b")))
	must.NoError(t, os.WriteFile(path, nil, 0o600)) // torn to nothing
	l, err := Load(path)
	must.ErrorContains(t, err, "empty")
	must.MapLen(t, 2, l.Cards)
	must.False(t, l.Damaged) // nobody's record is missing
	must.NoError(t, os.Remove(path))
	l, err = Load(path)
	must.ErrorContains(t, err, "missing")
	must.MapLen(t, 2, l.Cards)
}

func TestNewerVersionIsNotGuessedAt(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "cards")
	body := `{"version":99,"cards":0}`
	must.NoError(t, os.WriteFile(path, []byte(sum(body)), 0o600))
	l, err := Load(path)
	must.ErrorContains(t, err, "version 99")
	must.True(t, l.Damaged)
}

// A folder that takes no file leaves what is there.
func TestFailedWriteLeavesTheOldFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "cards")
	must.NoError(t, Save(path, content("a")))
	must.Error(t, Save(filepath.Join(dir, "absent", "cards"), content("a")))
	must.NoError(t, os.Mkdir(filepath.Join(dir, "d"), 0o700))
	must.Error(t, Save(filepath.Join(dir, "d"), content("b"))) // a folder stands there
	l, err := Load(path)
	must.NoError(t, err)
	must.MapContainsKey(t, l.Cards, "a")
	entries, err := os.ReadDir(dir)
	must.NoError(t, err)
	for _, e := range entries {
		must.StrNotContains(t, e.Name(), ".new-")
	}
}

func TestLock(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "deep", "er")
	unlock, err := Lock(dir) // which is made
	must.NoError(t, err)
	_, err = Lock(dir)
	must.ErrorIs(t, err, ErrLocked)
	unlock()
	unlock, err = Lock(dir)
	must.NoError(t, err)
	unlock()
	file := filepath.Join(t.TempDir(), "file")
	must.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = Lock(file)
	must.Error(t, err)
}

func FuzzLoad(f *testing.F) {
	text, err := Encode(content("a", "b"))
	must.NoError(f, err)
	f.Add(text)
	f.Add([]byte("00000000 {}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := decode(bytes.NewReader(data), "cards")
		must.Eq(t, err != nil, l.Damaged)
		for id, c := range l.Cards {
			must.Eq(t, id, c.Card.ID)
		}
	})
}

func sum(body string) string {
	return fmt.Sprintf("%08x %s\n", crc32.Checksum([]byte(body), castagnoli), body)
}
