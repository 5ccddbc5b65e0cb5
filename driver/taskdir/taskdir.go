// Package taskdir is what a member keeps on disk, so that it survives the
// plugin, the agent and the machine's restart:
//
//	<root>/                 one per allocation and task
//	  starts                how often the task was started in its allocation
//	  released.json         there once the member was released; no later start runs
//	  start-<n>/            of one start
//	    shim.json           the supervisor's process
//	    shim.sock           where it listens
//	    shim.log            what it logged
//	    exit.json           how the member ended
//	    rank/               what ranks may write: preempt and progress files
//
// Whatever later decisions rest on is written to a temporary file, synced and
// renamed, and the folder is synced. Room for the exit record is reserved at the
// start, so that a disk that fills up later does not lose it.
package taskdir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
)

// Dir is the folder of one allocation's task.
type Dir string

// Of gives the folder of a task: below stateDir where the operator set one,
// else in the task's own folder, which Nomad removes with the allocation.
func Of(stateDir, allocDir, alloc, task string) Dir {
	if stateDir != "" {
		return Dir(filepath.Join(stateDir, alloc+"."+strings.ReplaceAll(task, "/", "_")))
	}
	return Dir(filepath.Join(allocDir, task, "muster"))
}

// Released marks a member that was released: it is written before anything is
// launched, and no later start of the allocation ever launches anything.
type Released struct {
	Attempt int       `json:"attempt"`
	Start   int       `json:"start"`
	At      time.Time `json:"at"`
}

// NextStart counts a start of the task and makes its folder.
func (d Dir) NextStart() (int, error) {
	// Ranks of another user pass through to their own folder, no further.
	if err := os.MkdirAll(string(d), 0o711); err != nil {
		return 0, fmt.Errorf("make the member's folder: %w", err)
	}
	n, err := d.Starts()
	if err != nil {
		return 0, err
	}
	n++
	start := d.Start(n)
	if err := os.MkdirAll(string(start), 0o711); err != nil {
		return 0, fmt.Errorf("make the folder of start %d: %w", n, err)
	}
	if err := start.reserve(); err != nil {
		return 0, err
	}
	if err := WriteFile(filepath.Join(string(d), "starts"), []byte(strconv.Itoa(n)+"\n")); err != nil {
		return 0, fmt.Errorf("count start %d: %w", n, err)
	}
	return n, nil
}

// Starts is how often the task was started so far.
func (d Dir) Starts() (int, error) {
	data, err := os.ReadFile(filepath.Join(string(d), "starts"))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read how often the task was started: %w", err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || n < 0 {
		return 0, fmt.Errorf("read how often the task was started: %s holds %q; the allocation must be replaced", filepath.Join(string(d), "starts"), data)
	}
	return n, nil
}

// MarkReleased writes the marker. Nothing may be launched where it fails.
func (d Dir) MarkReleased(r Released) error {
	if err := writeJSON(filepath.Join(string(d), "released.json"), r); err != nil {
		return fmt.Errorf("mark the member released: %w", err)
	}
	return nil
}

// WasReleased gives the marker, nil where the member never was. A marker that
// cannot be read is an error: it must count as released.
func (d Dir) WasReleased() (*Released, error) {
	var r Released
	err := readJSON(filepath.Join(string(d), "released.json"), &r)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read whether the member was released: %w", err)
	}
	return &r, nil
}

// StartDir is the folder of one start.
type StartDir string

// Start gives the folder of start n.
func (d Dir) Start(n int) StartDir {
	return StartDir(filepath.Join(string(d), "start-"+strconv.Itoa(n)))
}

// Socket is where the supervisor listens. The path may be longer than a socket
// address allows: see Dial and Listen of package shim.
func (s StartDir) Socket() string { return filepath.Join(string(s), "shim.sock") }

// Log is the supervisor's own log.
func (s StartDir) Log() string { return filepath.Join(string(s), "shim.log") }

// Rank is the folder that ranks may write to.
func (s StartDir) Rank() string { return filepath.Join(string(s), "rank") }

// Preempt is the file that appears when the member is asked to leave.
func (s StartDir) Preempt() string { return filepath.Join(s.Rank(), "preempt") }

// Progress is the file that a rank appends its marks to.
func (s StartDir) Progress(rank int) string {
	return filepath.Join(s.Rank(), "progress."+strconv.Itoa(rank))
}

// Shim is the supervisor's process, as it wrote itself down.
type Shim struct {
	V       int     `json:"v"`
	Process Process `json:"process"`
	TaskID  string  `json:"task_id"`
	Version string  `json:"version"` // of the binary, for messages only
	Start   int     `json:"start"`
	// Cgroups that the ranks were put into, to look for what is left of them
	// when the supervisor itself is gone.
	Cgroups []string `json:"cgroups,omitempty"`
	// Memory is the cgroup that the ranks' memory is counted in.
	Memory string `json:"memory,omitempty"`
	// Remove is a command that removes what is left of the ranks' container.
	Remove []string `json:"remove,omitempty"`
}

// WriteShim writes the supervisor down.
func (s StartDir) WriteShim(v Shim) error {
	if err := writeJSON(filepath.Join(string(s), "shim.json"), v); err != nil {
		return fmt.Errorf("write down the supervisor: %w", err)
	}
	return nil
}

// ReadShim reads what WriteShim wrote.
func (s StartDir) ReadShim() (Shim, error) {
	var v Shim
	if err := readJSON(filepath.Join(string(s), "shim.json"), &v); err != nil {
		return Shim{}, fmt.Errorf("read the supervisor's process: %w", err)
	}
	return v, nil
}

// exitRoom is more than an exit record takes.
const exitRoom = 8 << 10

func (s StartDir) exitPath() string { return filepath.Join(string(s), "exit.json") }

func (s StartDir) reserve() error {
	blank := make([]byte, exitRoom)
	for i := range blank {
		blank[i] = '\n'
	}
	path := s.exitPath() + ".room"
	if err := os.WriteFile(path, blank, 0o600); err != nil {
		return fmt.Errorf("reserve room for the exit record: %w", err)
	}
	return nil
}

// WriteExit writes how the member ended, into the room that was reserved. The
// first record stays: an exit that was told once is not changed.
func (s StartDir) WriteExit(e contract.Exit) error {
	if old, err := s.ReadExit(); err == nil && old != nil {
		return nil
	}
	text, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode exit record: %w", err)
	}
	if len(text) > exitRoom {
		e.Text = e.Text[:min(len(e.Text), 256)]
		if text, err = json.Marshal(e); err != nil {
			return fmt.Errorf("encode exit record: %w", err)
		}
	}
	room := s.exitPath() + ".room"
	if err := overwrite(room, text); err == nil {
		if err = os.Rename(room, s.exitPath()); err == nil {
			return syncDir(string(s))
		}
	}
	if err := WriteFile(s.exitPath(), text); err != nil {
		return fmt.Errorf("write exit record: %w", err)
	}
	return nil
}

// overwrite puts text at the start of a file of blanks, without a new block.
func overwrite(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(text, 0)
	return errors.Join(err, f.Sync(), f.Close())
}

// ReadExit gives how the member ended; nil where nobody wrote it.
func (s StartDir) ReadExit() (*contract.Exit, error) {
	var e contract.Exit
	err := readJSON(s.exitPath(), &e)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read exit record: %w", err)
	}
	if e.Outcome == "" {
		return nil, fmt.Errorf("read exit record: %s names no outcome", s.exitPath())
	}
	return &e, nil
}

func writeJSON(path string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return WriteFile(path, text)
}

func readJSON(path string, v any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// WriteFile replaces a file, whole or not at all, and returns when it is on
// the disk.
func WriteFile(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	err = d.Sync()
	return errors.Join(err, d.Close())
}
