package notify

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// line is one line of a webhook's file: an event taken, or the id of one that
// is done with.
type line struct {
	Event *cloudEvent `json:"event,omitempty"`
	Done  string      `json:"done,omitempty"`
}

// journal is a webhook's file. Its zero value is none: everything is in memory.
// It is used by one goroutine.
type journal struct {
	path  string
	file  *os.File
	lines int   // in the file
	size  int64 // of what is known to be whole
}

// openJournal reads what a file holds: the events that are not done, in order,
// and the ids that are, oldest first. A torn last line is cut off; a broken line
// before it is an error that names it.
func openJournal(path string) (j journal, pending []*cloudEvent, done []string, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return j, nil, nil, fmt.Errorf("open webhook queue: %w", err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return j, nil, nil, fmt.Errorf("open webhook queue: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	j = journal{path: path, file: f}
	at := map[string]int{}
	r := bufio.NewReader(f)
	for {
		text, rerr := r.ReadBytes('\n')
		if rerr != nil && !errors.Is(rerr, io.EOF) {
			return j, nil, nil, fmt.Errorf("read webhook queue %s: %w", path, rerr)
		}
		if rerr != nil { // no line feed: nothing, or torn
			break
		}
		var l line
		if jerr := json.Unmarshal(text, &l); jerr != nil {
			if _, perr := r.Peek(1); perr != nil {
				break // the last one: torn inside a block that was written partly
			}
			return j, nil, nil, fmt.Errorf("read webhook queue %s: line %d is broken (%w): move the file away to start with an empty queue", path, j.lines+1, jerr)
		}
		j.lines++
		j.size += int64(len(text))
		switch {
		case l.Event != nil:
			at[l.Event.ID] = len(pending)
			pending = append(pending, l.Event)
		case l.Done != "":
			done = append(done, l.Done)
			if i, ok := at[l.Done]; ok {
				pending[i] = nil
			}
		}
	}
	kept := pending[:0]
	for _, e := range pending {
		if e != nil {
			kept = append(kept, e)
		}
	}
	if err = f.Truncate(j.size); err == nil {
		_, err = f.Seek(j.size, io.SeekStart)
	}
	if err != nil {
		return j, nil, nil, fmt.Errorf("cut the torn end of webhook queue %s: %w", path, err)
	}
	return j, kept, done, nil
}

// append writes lines and makes them durable: all or, on an error, none.
func (j *journal) append(lines []line) error {
	if j.file == nil || len(lines) == 0 {
		return nil
	}
	text, err := encode(lines)
	if err == nil {
		_, err = j.file.WriteAt(text, j.size)
	}
	if err == nil {
		err = j.file.Sync()
	}
	if err != nil {
		// What was written of it is cut off; the next try writes over it anyway.
		return errors.Join(fmt.Errorf("write webhook queue %s: %w", j.path, err), j.file.Truncate(j.size))
	}
	j.size += int64(len(text))
	j.lines += len(lines)
	return nil
}

// replace puts a new file with these lines in the old one's place.
func (j *journal) replace(lines []line) error {
	if j.file == nil {
		return nil
	}
	text, err := encode(lines)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(j.path), filepath.Base(j.path)+".new-")
	if err == nil {
		if _, err = f.Write(text); err == nil {
			err = f.Sync()
		}
		if err == nil {
			err = os.Rename(f.Name(), j.path)
		}
		if err != nil {
			f.Close()
			os.Remove(f.Name())
		}
	}
	if err != nil {
		return fmt.Errorf("shorten webhook queue %s: %w", j.path, err)
	}
	if dir, err := os.Open(filepath.Dir(j.path)); err == nil {
		dir.Sync()
		dir.Close()
	}
	j.file.Close()
	j.file, j.lines, j.size = f, len(lines), int64(len(text))
	return nil
}

func (j *journal) close() {
	if j.file != nil {
		j.file.Close()
	}
}

func encode(lines []line) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	for _, l := range lines {
		if err := enc.Encode(l); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}
