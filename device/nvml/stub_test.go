//go:build !cgo || !linux

package nvml

import (
	"testing"

	"github.com/shoenig/test/must"
)

// A build without cgo finds no card, which is no fault, and says so. (The tests
// of a build with cgo run this one, see TestBuildWithoutCgo.)
func TestStub(t *testing.T) {
	s := New(Options{})
	must.Eq(t, "nvml", s.Name())
	for range 2 {
		scan, err := s.Scan(t.Context())
		must.NoError(t, err)
		must.SliceEmpty(t, scan.Cards)
		must.SliceEmpty(t, scan.Lost)
		must.StrContains(t, scan.Absent, "without cgo")
	}
	samples, err := s.Sample(t.Context())
	must.NoError(t, err)
	must.MapEmpty(t, samples)
}
