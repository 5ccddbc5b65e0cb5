// Package progress reads the marks that a training script leaves.
//
// Every rank has a file of its own, named by MUSTER_PROGRESS_FILE, and appends
// lines of plain words to it:
//
//	step 1200            reached a step; a sign of life
//	checkpoint begin     a save has begun: the grace is extended while it lasts
//	checkpoint end 1200  the save is complete and may be relied on
//	checkpoint failed    the save was given up
//	may-stop             all is saved; stop me when you like
//	complete             the work is done, even though I was asked to leave
//
// A number after begin and end is the step. Words after those are the script's
// own business. An unknown line counts as a sign of life and nothing else. A
// line counts once its end is written.
package progress

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// Kind of a mark.
type Kind string

// The kinds of marks.
const (
	Step     Kind = "step"
	Begin    Kind = "checkpoint begin"
	End      Kind = "checkpoint end"
	Failed   Kind = "checkpoint failed"
	MayStop  Kind = "may-stop"
	Complete Kind = "complete"
	Alive    Kind = "alive" // a line that says nothing else
)

// Mark is one line.
type Mark struct {
	Kind Kind
	Step int64 // -1: not stated
}

// LineLimit is the length in bytes beyond which a line is cut.
const LineLimit = 4096

// Parse reads a line.
func Parse(line string) Mark {
	words := strings.Fields(line)
	word := func(i int) string {
		if i < len(words) {
			return words[i]
		}
		return ""
	}
	number := func(i int) int64 {
		n, err := strconv.ParseInt(word(i), 10, 64)
		if err != nil || n < 0 {
			return -1
		}
		return n
	}
	switch word(0) {
	case "step":
		if n := number(1); n >= 0 {
			return Mark{Step, n}
		}
	case "checkpoint":
		switch word(1) {
		case "begin":
			return Mark{Begin, number(2)}
		case "end":
			return Mark{End, number(2)}
		case "failed":
			return Mark{Failed, number(2)}
		}
	case "may-stop":
		return Mark{MayStop, -1}
	case "complete":
		return Mark{Complete, -1}
	}
	return Mark{Alive, -1}
}

// File is one rank's file, read as it grows. The zero value with a Path is
// ready; the file need not exist yet.
type File struct {
	Path   string
	offset int64
}

// readLimit bounds what one call takes in, should a script write without end.
const readLimit = 1 << 20

// Read gives the marks that came since the last call. A file that became
// shorter is read from its start.
func (f *File) Read() ([]Mark, error) {
	file, err := os.Open(f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		f.offset = 0
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read progress: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("read progress: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read progress: %s is no plain file", f.Path)
	}
	if info.Size() < f.offset {
		f.offset = 0
	}
	if info.Size() == f.offset {
		return nil, nil
	}
	data := make([]byte, min(info.Size()-f.offset, readLimit))
	n, err := file.ReadAt(data, f.offset)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("read progress: %w", err)
	}
	data = data[:n]
	end := bytes.LastIndexByte(data, '\n')
	if end < 0 {
		if len(data) < LineLimit {
			return nil, nil // not ended yet
		}
		f.offset += int64(len(data)) // a line without end counts as what it begins with
		return []Mark{Parse(string(data[:LineLimit]))}, nil
	}
	f.offset += int64(end) + 1
	var marks []Mark
	for line := range bytes.Lines(data[:end+1]) {
		if line = bytes.TrimSpace(line[:min(len(line), LineLimit)]); len(line) > 0 {
			marks = append(marks, Parse(string(line)))
		}
	}
	return marks, nil
}
