// Package selftest tests a card before a person's clear is carried out. First
// what can be known without running on it: the card answers, nothing that its
// source looks at is wrong with it, no uncorrected memory error since the driver
// started. Then the site's own command, if there is one, with the card's
// variables in its environment.
package selftest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/nomad-muster/muster/device"
	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
)

// Tester is a device.Tester.
type Tester struct{ config device.SelfTest }

// New makes a tester.
func New(c device.SelfTest) *Tester { return &Tester{c} }

// harmless conditions do not keep a card from being cleared.
var harmless = map[string]bool{health.ForeignProcess: true, health.BadRecord: true, health.HotSlowdown: true, health.PowerBrake: true}

// Known lists what is wrong with a card as its source sees it now.
func Known(c card.Card) error {
	var faults []error
	for _, cond := range c.Conditions {
		if !harmless[cond.Name] {
			faults = append(faults, errors.New(strings.TrimSpace(cond.Name+" "+cond.Part)+": "+cond.Text))
		}
	}
	if n := c.Counters[health.ECCUncorrected]; n > 0 {
		faults = append(faults, fmt.Errorf("%d uncorrected memory errors since the driver started: reset the card first", n))
	}
	return errors.Join(faults...)
}

// Test tests one card.
func (t *Tester) Test(ctx context.Context, c card.Card) error {
	if err := Known(c); err != nil {
		return err
	}
	if len(t.config.Command) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, t.config.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, t.config.Command[0], t.config.Command[1:]...)
	cmd.Env = append(os.Environ(), "MUSTER_CARD="+c.ID, "MUSTER_CARD_SLOT="+c.Bus.String(), "MUSTER_CARD_MODEL="+c.Group.Model)
	for name, value := range c.Grant.Lists {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	for name, value := range c.Grant.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	var output tail
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.WaitDelay = 5 * time.Second // children that keep the pipe open do not hold it up
	err := cmd.Run()
	if ctx.Err() != nil {
		err = fmt.Errorf("no end within %s", t.config.Timeout)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", t.config.Command[0], err, output.String())
	}
	return nil
}

// tail keeps the end of an output.
type tail struct{ buf bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	const most = 400
	t.buf.Write(p)
	if over := t.buf.Len() - most; over > 0 {
		t.buf.Next(over)
	}
	return len(p), nil
}

func (t *tail) String() string {
	return strings.TrimSpace(strings.ToValidUTF8(t.buf.String(), ""))
}
