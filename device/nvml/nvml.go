// Package nvml is the source of NVIDIA's cards, through the driver's library
// libnvidia-ml.so.1 (go-nvml opens it at run time).
//
// The library's answers are unreliable by nature: every call may give every
// error for one card. So each answer stands alone: what cannot be read stays
// absent (never zero), and the card stays. Only what is needed to name a card
// (its handle and its UUID) can keep it out of a scan, and then the scan says
// which one is lost. The one error that says something of the card itself,
// whichever call gives it, is GPU_IS_LOST: the card is off the bus.
//
// A driver may be older than the library that go-nvml was made from: each
// function is looked up before it is called, and one that is absent answers
// FUNCTION_NOT_FOUND.
//
// Without cgo, and on a machine without the driver, the source lists no card
// and says why.
package nvml

import (
	"github.com/nomad-muster/muster/device/sysfs"
)

// Options of a source.
type Options struct {
	// Library is the file of the driver's library; empty: the usual one.
	Library string
	// Root holds /sys, /proc and /dev.
	Root sysfs.Root
	// LinesElsewhere: the kernel log is read too, so that codes whose line says
	// how grave they are need not be guessed at from the code alone.
	LinesElsewhere bool
}

// name of the source.
const name = "nvml"
