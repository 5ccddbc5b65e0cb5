package logpipe

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

func fifo(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "log.fifo")
	must.NoError(t, unix.Mkfifo(path, 0o600))
	return path
}

// C16 a: no reader at the start, and one that comes later gets it all.
func TestNoReaderAtStart(t *testing.T) {
	path := fifo(t)
	s, err := Open(path)
	must.NoError(t, err)
	s.Write([]byte("first\n"))
	s.Write([]byte("second\n"))
	r, err := os.Open(path)
	must.NoError(t, err)
	defer r.Close()
	line, err := bufio.NewReader(r).ReadString('\n')
	must.NoError(t, err)
	must.Eq(t, "first\n", line)
	must.NoError(t, s.Close(time.Minute))
}

// C16 b: nobody reads any more; who writes goes on, the stall is told, and what
// was lost is named when a reader is back.
func TestReaderGone(t *testing.T) {
	path := fifo(t)
	s, err := Open(path)
	must.NoError(t, err)
	start := time.Now()
	s.mu.Lock()
	s.now = func() time.Time { return start }
	s.mu.Unlock()

	pr, pw, err := os.Pipe()
	must.NoError(t, err)
	source := &Source{Sink: s, Tail: &Tail{}}
	copied := make(chan struct{})
	go func() { source.Copy(pr); close(copied) }()
	written := 0
	for i := range 400 { // 1.6 MB: far more than pipe and buffer hold
		must.NoError(t, pw.SetWriteDeadline(time.Now().Add(2*time.Minute)))
		n, err := fmt.Fprintf(pw, "%d %s\n", i, strings.Repeat("x", 4000))
		must.NoError(t, err, must.Sprint("a rank had to wait"))
		written += n
	}
	must.NoError(t, pw.Close())
	<-copied
	must.StrHasPrefix(t, "399 ", source.Tail.Lines()[19])
	must.True(t, s.Stalled().IsZero())
	s.mu.Lock()
	s.now = func() time.Time { return start.Add(StallAfter) }
	must.Positive(t, s.dropped)
	s.mu.Unlock()
	must.Eq(t, start, s.Stalled())

	r, err := os.Open(path)
	must.NoError(t, err)
	defer r.Close()
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		s.mu.Lock()
		room := s.pending.Len() < Buffer/2
		s.mu.Unlock()
		if room {
			break
		}
	}
	s.Write([]byte("again\n"))
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "[muster] ") {
			must.StrContains(t, lines.Text(), "bytes of output were dropped")
			break
		}
	}
	must.True(t, lines.Scan())
	must.Eq(t, "again", lines.Text())
	must.NoError(t, s.Close(time.Minute))
}

func TestCloseDoesNotWaitForAReader(t *testing.T) {
	s, err := Open(fifo(t))
	must.NoError(t, err)
	s.Write(bytes.Repeat([]byte("x"), 200<<10))
	_ = s.Close(50 * time.Millisecond) // it would wait for ever
}

// C16 d.
func TestPipeOfAnotherUser(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may open every pipe")
	}
	path := fifo(t)
	must.NoError(t, os.Chmod(path, 0))
	_, err := Open(path)
	must.ErrorContains(t, err, "belongs to another")
}

func TestOpenOfNothing(t *testing.T) {
	_, err := Open(filepath.Join(t.TempDir(), "absent"))
	must.ErrorContains(t, err, "open the task's log")
	s, err := Open("/dev/null")
	must.NoError(t, err)
	s.Write([]byte("x"))
	must.NoError(t, s.Close(time.Minute))
}

func TestLinesAndPrefix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	must.NoError(t, os.WriteFile(path, nil, 0o600))
	s, err := Open(path)
	must.NoError(t, err)
	pr, pw, err := os.Pipe()
	must.NoError(t, err)
	var seen []string
	source := &Source{Sink: s, Prefix: "[3] ", Each: func(line []byte) { seen = append(seen, string(line)) }}
	copied := make(chan struct{})
	go func() { source.Copy(pr); close(copied) }()
	must.True(t, source.Last().IsZero())
	for _, piece := range []string{"one\ntw", "o\n", "50%"} {
		_, err = pw.WriteString(piece)
		must.NoError(t, err)
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) { // an unfinished line shows after a moment
		if text, _ := os.ReadFile(path); strings.HasSuffix(string(text), "[3] 50%\n") {
			break
		}
		must.True(t, time.Now().Before(deadline))
	}
	_, err = pw.WriteString(strings.Repeat("y", lineLimit+10) + "\nend")
	must.NoError(t, err)
	must.NoError(t, pw.Close())
	<-copied
	must.NoError(t, s.Close(time.Minute))
	text, err := os.ReadFile(path)
	must.NoError(t, err)
	must.Eq(t, "[3] one\n[3] two\n[3] 50%\n[3] "+strings.Repeat("y", lineLimit)+"\n[3] yyyyyyyyyy\n[3] end\n", string(text))
	must.Eq(t, "one", seen[0])
	must.False(t, source.Last().IsZero())
}
