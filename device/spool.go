package device

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nomad-muster/muster/device/health"
)

// Orders also come through the state folder, for a site without a planner and
// for the time when it is away: a file NAME.order is taken, and its outcome is
// left as NAME.done. The folder belongs to the plugin's user, so whoever may
// write there may give orders.
const (
	spoolFolder = "orders"
	spoolEvery  = time.Second
)

type spooled struct {
	Kind  health.Kind `json:"kind"`
	Card  string      `json:"card"`
	Who   string      `json:"who"`
	Text  string      `json:"text,omitempty"`
	Force bool        `json:"force,omitempty"`
}

type outcome struct {
	Error string `json:"error,omitempty"`
}

// SendOrder gives an order to the plugin that works on a state folder, and
// waits for its outcome until ctx ends.
func SendOrder(ctx context.Context, stateDir string, o Order) error {
	switch o.Kind {
	case health.Confirm, health.Clear, health.Note:
	default:
		return fmt.Errorf("order %q: confirm, clear or note", o.Kind)
	}
	if o.Card == "" || o.Who == "" {
		return errors.New("an order names a card and who gives it")
	}
	var b [8]byte
	rand.Read(b[:]) // never fails
	dir := filepath.Join(stateDir, spoolFolder)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("give the order: %w", err)
	}
	name := filepath.Join(dir, hex.EncodeToString(b[:]))
	body, err := json.Marshal(spooled{o.Kind, o.Card, o.Who, o.Text, o.Force})
	if err != nil {
		return fmt.Errorf("give the order: %w", err)
	}
	if err := os.WriteFile(name+".new", body, 0o600); err != nil {
		return fmt.Errorf("give the order: %w", err)
	}
	if err := os.Rename(name+".new", name+".order"); err != nil {
		return fmt.Errorf("give the order: %w", err)
	}
	for {
		if body, err := os.ReadFile(name + ".done"); err == nil {
			os.Remove(name + ".done")
			var out outcome
			if err := json.Unmarshal(body, &out); err != nil {
				return fmt.Errorf("read the order's outcome: %w", err)
			}
			if out.Error != "" {
				return errors.New(out.Error)
			}
			return nil
		}
		select {
		case <-ctx.Done():
			if os.Remove(name+".order") == nil {
				return fmt.Errorf("nobody takes orders in %s: is the Nomad agent running, and is this the plugin's state_dir?", dir)
			}
			return errors.New("the order was taken, but there is no outcome yet (a self-test may take long): look at the card's record")
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// spool takes orders from the state folder until ctx ends.
func (m *Monitor) spool(ctx context.Context) {
	dir := filepath.Join(m.config.StateDir, spoolFolder)
	tick := time.NewTicker(spoolEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			continue // nobody gave an order yet
		}
		for _, e := range entries {
			if id, is := strings.CutSuffix(e.Name(), ".order"); is {
				m.takeSpooled(ctx, dir, id)
			}
		}
	}
}

// takeSpooled carries out one order. It is taken before it is carried out: an
// order is lost rather than carried out twice.
func (m *Monitor) takeSpooled(ctx context.Context, dir, id string) {
	path := filepath.Join(dir, id+".order")
	body, err := os.ReadFile(path)
	if err = errors.Join(err, os.Remove(path)); err != nil {
		m.log.Error("an order cannot be taken", "file", path, "error", err)
		return
	}
	done := func(err error) {
		var out outcome
		if err != nil {
			out.Error = err.Error()
		}
		body, _ := json.Marshal(out) // a struct of one text
		name := filepath.Join(dir, id)
		if err := errors.Join(os.WriteFile(name+".new", body, 0o600), os.Rename(name+".new", name+".done")); err != nil {
			m.log.Error("an order's outcome cannot be told", "error", err)
		}
	}
	var s spooled
	if err := json.Unmarshal(body, &s); err != nil {
		done(fmt.Errorf("read the order: %w", err))
		return
	}
	switch s.Kind {
	case health.Confirm, health.Clear, health.Note:
	default:
		done(fmt.Errorf("order %q: confirm, clear or note", s.Kind))
		return
	}
	m.log.Info("order", "kind", s.Kind, "card", s.Card, "who", s.Who, "why", s.Text, "force", s.Force)
	m.Carry(ctx, Order{ID: "local-" + id, Kind: s.Kind, Card: s.Card, Who: s.Who, Text: s.Text, Force: s.Force}, done)
}
