// Package ledger keeps on disk what must outlive the plugin: each card's health,
// its last known shape, and how far the kernel log was read.
//
// The file is lines of "<crc32c> <json>", the first for the node, one for each
// card, so that a damaged line costs one card's record and is named by its
// number. It is written whole, beside the old one, synced and renamed over it;
// the old one stays as <file>.old. A write that fails (a full disk) leaves both
// as they were.
//
// Nothing is healthy by default: where lines cannot be read, cards whose record
// may have been among them are told apart (Loaded.Damaged) from cards that are
// simply new.
package ledger

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
)

// Version is the version that this build writes and the newest that it reads.
const Version = 1

// Node is what is kept of the node as a whole.
type Node struct {
	Version int `json:"version"`
	Cards   int `json:"cards"` // how many lines follow
	// Logs tells, by kernel log, how far it was folded.
	Logs map[string]Cursor `json:"logs,omitempty"`
	// Drivers names, by source, the driver's life that was last seen.
	Drivers map[string]string `json:"drivers,omitempty"`
	// Unattributed counts faults that no card here could be blamed for.
	Unattributed uint64 `json:"unattributed,omitempty"`
	// BreakerSince is set while the cluster's circuit breaker is open.
	BreakerSince time.Time `json:"breaker_since,omitzero"`
	// Orders are the operator's orders that were carried out lately, by id.
	Orders []string `json:"orders,omitempty"`
}

// Cursor is a place in a kernel log.
type Cursor struct {
	Boot string `json:"boot"`
	Seq  uint64 `json:"seq"`
}

// Card is what is kept of a card, by its id.
type Card struct {
	// Card is its last known shape.
	Card card.Card `json:"card"`
	// First is when the plugin first saw it.
	First time.Time `json:"first"`
	// Retired: another card took its slot. Its health is kept for its return.
	Retired time.Time `json:"retired,omitzero"`
	// Boot is the boot in which it was last seen.
	Boot string `json:"boot,omitempty"`
	// LinksSeen are the numbers of links that were ever live.
	LinksSeen []int `json:"links_seen,omitempty"`
	// Open are the conditions that hold, by name and part.
	Open []string `json:"open,omitempty"`
	// Odometer is the last reading (card.Card.Odometer).
	Odometer uint64 `json:"odometer,omitempty"`
	// Busy is when the processes that run on it were first seen; zero: none do.
	Busy time.Time `json:"busy,omitzero"`
	// Health is the fold's state.
	Health health.State `json:"health"`
}

// Content is the whole of it.
type Content struct {
	Node  Node
	Cards map[string]*Card
}

// New is the content of a node that was never seen.
func New() Content { return Content{Cards: map[string]*Card{}} }

// Loaded is what Load found.
type Loaded struct {
	Content
	// Damaged: lines could not be read, so a card that is not in Content may
	// have had a record.
	Damaged bool
}

// ErrLocked says that another process works on the state.
var ErrLocked = errors.New("another plugin works on this state_dir: each needs its own")

// Lock makes the folder of the state and keeps other processes off it, until
// unlock or the end of this process.
func Lock(dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make state_dir: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock state_dir: %w", err)
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		file.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock state_dir %s: %w", dir, ErrLocked)
		}
		return nil, fmt.Errorf("lock state_dir %s: %w", dir, err)
	}
	return func() { file.Close() }, nil
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Load reads the file; where it is missing or damaged, what is missing of it is
// taken from the old one. The error lists every fault with its line; the
// content is usable all the same. No file at all is no fault.
func Load(path string) (Loaded, error) {
	l, err := read(path)
	if err == nil {
		return l, nil
	}
	old, oldErr := read(path + ".old")
	if errors.Is(err, os.ErrNotExist) {
		if errors.Is(oldErr, os.ErrNotExist) {
			return Loaded{Content: New()}, nil
		}
		return old, errors.Join(fmt.Errorf("card state %s is missing: the older %s.old is used", path, path), oldErr)
	}
	if oldErr != nil && len(old.Cards) == 0 {
		return l, err
	}
	// The old file is one generation behind: its record of a card is better
	// than none, and the damage still stands.
	for id, c := range old.Cards {
		if _, have := l.Cards[id]; !have {
			l.Cards[id] = c
		}
	}
	if l.Node.Version == 0 {
		l.Node = old.Node
	}
	l.Damaged = len(l.Cards) < max(l.Node.Cards, old.Node.Cards) || l.Node.Version == 0
	return l, err
}

func read(path string) (Loaded, error) {
	l := Loaded{Content: New()}
	file, err := os.Open(path)
	if err != nil {
		return l, fmt.Errorf("open card state: %w", err)
	}
	defer file.Close()
	return decode(io.LimitReader(file, 64<<20), path)
}

// decode reads a file's text; path is for the words of faults.
func decode(text io.Reader, path string) (Loaded, error) {
	l := Loaded{Content: New()}
	var faults []error
	fault := func(line int, format string, args ...any) {
		faults = append(faults, fmt.Errorf("card state %s:%d: %w", path, line, fmt.Errorf(format, args...)))
	}
	in := bufio.NewReader(text)
	number := 0
	for {
		raw, err := in.ReadBytes('\n')
		if len(raw) == 0 && err != nil {
			break
		}
		number++
		body, lineErr := check(raw)
		if lineErr != nil {
			fault(number, "%w", lineErr)
			continue
		}
		if number == 1 {
			if err := json.Unmarshal(body, &l.Node); err != nil {
				fault(1, "%w", err)
			} else if l.Node.Version < 1 || l.Node.Version > Version {
				fault(1, "version %d is not known here (this build reads up to %d)", l.Node.Version, Version)
				l.Node = Node{}
			}
			continue
		}
		var c Card
		if err := json.Unmarshal(body, &c); err != nil {
			fault(number, "%w", err)
			continue
		}
		if c.Card.ID == "" {
			fault(number, "a card without an id")
			continue
		}
		l.Cards[c.Card.ID] = &c
	}
	switch {
	case number == 0:
		fault(1, "the file is empty")
	case l.Node.Version != 0 && len(l.Cards) < l.Node.Cards && len(faults) == 0:
		fault(number+1, "the file ends after %d of %d cards", len(l.Cards), l.Node.Cards)
	}
	l.Damaged = len(faults) > 0
	return l, errors.Join(faults...)
}

// check takes the sum off a line and compares it.
func check(raw []byte) ([]byte, error) {
	text, whole := strings.CutSuffix(string(raw), "\n")
	sum, body, found := strings.Cut(text, " ")
	want, err := strconv.ParseUint(sum, 16, 32)
	switch {
	case !found || err != nil || len(sum) != 8:
		return nil, errors.New("the line does not begin with its check sum")
	case !whole:
		return nil, errors.New("the line is torn off")
	case crc32.Checksum([]byte(body), castagnoli) != uint32(want):
		return nil, errors.New("the line's check sum is wrong")
	}
	return []byte(body), nil
}

// Encode gives the file's text, the same for the same content.
func Encode(c Content) ([]byte, error) {
	var out bytes.Buffer
	line := func(v any) error {
		body, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("encode card state: %w", err)
		}
		fmt.Fprintf(&out, "%08x %s\n", crc32.Checksum(body, castagnoli), body)
		return nil
	}
	c.Node.Version, c.Node.Cards = Version, len(c.Cards)
	if err := line(c.Node); err != nil {
		return nil, err
	}
	ids := make([]string, 0, len(c.Cards))
	for id := range c.Cards {
		ids = append(ids, id)
	}
	sort.Strings(ids)
	for _, id := range ids {
		if err := line(c.Cards[id]); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), nil
}

// Save writes the file.
func Save(path string, c Content) error {
	text, err := Encode(c)
	if err != nil {
		return err
	}
	dir := filepath.Dir(path)
	temp, err := os.CreateTemp(dir, filepath.Base(path)+".new-*")
	if err != nil {
		return fmt.Errorf("save card state: %w", err)
	}
	defer os.Remove(temp.Name()) // it is gone by then unless something failed
	_, err = temp.Write(text)
	if err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err != nil {
		return fmt.Errorf("save card state %s: %w", path, err)
	}
	// The old one becomes <file>.old by a hard link, so that at no moment there
	// is no file at all.
	if _, err := os.Stat(path); err == nil {
		os.Remove(path + ".old")
		if err := os.Link(path, path+".old"); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("keep the older card state: %w", err)
		}
	}
	if err := os.Rename(temp.Name(), path); err != nil {
		return fmt.Errorf("save card state: %w", err)
	}
	if d, err := os.Open(dir); err == nil {
		err = d.Sync()
		d.Close()
		if err != nil {
			return fmt.Errorf("sync folder of card state: %w", err)
		}
	}
	return nil
}
