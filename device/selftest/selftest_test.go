package selftest

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/device"
	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
)

func TestKnown(t *testing.T) {
	t.Parallel()
	must.NoError(t, Known(card.Card{}))
	must.NoError(t, Known(card.Card{Conditions: []card.Condition{{Name: health.ForeignProcess}, {Name: health.BadRecord}}}))
	err := Known(card.Card{Conditions: []card.Condition{{Name: health.LinkDown, Part: "3", Text: "link 3 is down"}, {Name: health.RemapPending, Text: "a row waits"}}, Counters: map[string]uint64{health.ECCUncorrected: 2}})
	for _, want := range []string{"link down 3: link 3 is down", "remap pending: a row waits", "2 uncorrected memory errors"} {
		must.ErrorContains(t, err, want)
	}
}

func script(t *testing.T, text string) []string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "test")
	must.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o700))
	return []string{path, "arg"}
}

func TestCommand(t *testing.T) {
	t.Parallel()
	c := card.Card{ID: "GPU-a", Grant: card.NVIDIA("GPU-a")}
	run := func(text string, timeout time.Duration) error {
		return New(device.SelfTest{Command: script(t, text), Timeout: timeout}).Test(context.Background(), c)
	}
	must.NoError(t, run(`[ "$1" = arg ] && [ "$CUDA_VISIBLE_DEVICES" = GPU-a ] && [ "$MUSTER_CARD" = GPU-a ] && [ "$CUDA_DEVICE_ORDER" = PCI_BUS_ID ]`, time.Minute))
	must.ErrorContains(t, run("echo too slow; exit 4", time.Minute), "exit status 4: too slow")
	must.ErrorContains(t, run("exec sleep 60", 50*time.Millisecond), "no end within 50ms")
	err := run("yes | head -c 100000; exit 1", time.Minute)
	must.Less(t, 700, len(err.Error()))
	must.Error(t, New(device.SelfTest{Command: []string{"/absent"}, Timeout: time.Minute}).Test(context.Background(), c))
	must.NoError(t, New(device.SelfTest{}).Test(context.Background(), c)) // no command: what is known is all
}
