//go:build !cgo || !linux

package nvml

import (
	"context"

	"github.com/nomad-muster/muster/device/card"
)

// Source lists no card: this build has no NVML.
type Source struct{}

// New makes the source.
func New(Options) *Source { return &Source{} }

// Name is "nvml".
func (*Source) Name() string { return name }

// Scan says why there is no card.
func (*Source) Scan(context.Context) (card.Scan, error) {
	return card.Scan{Absent: "NVML is absent from this build, which was made without cgo: NVIDIA cards are not seen"}, nil
}

// Sample measures nothing.
func (*Source) Sample(context.Context) (map[string]card.Sample, error) { return nil, nil }
