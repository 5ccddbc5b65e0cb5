package pci

import (
	"fmt"
	"strings"
	"testing"

	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Address{
		"00000000:06:00.0": {0, 6, 0, 0}, "PCI:0000:06:00": {0, 6, 0, 0}, "06:00.0": {0, 6, 0, 0},
		"00000008:06:00.0": {8, 6, 0, 0}, "PCI:0008:06:00": {8, 6, 0, 0}, "PCI:0008:06:00.0": {8, 6, 0, 0},
		"0000000F:01:00.0": {15, 1, 0, 0}, "PCI:000f:01:00": {15, 1, 0, 0}, "pci:000F:01:00": {15, 1, 0, 0},
		"0000:00:1e": {0, 0, 30, 0}, "0000:10:1c.7": {0, 16, 28, 7},
		"00000000:06:00.0" + strings.Repeat("\x00", 16): {0, 6, 0, 0},
	} {
		got, err := Parse(text)
		must.NoError(t, err, must.Sprint(text))
		must.Eq(t, want, got, must.Sprint(text))
	}
	for _, text := range []string{"", "\x00", "...", "PCI:", "invalid", "0000:06", "0000:06:00.9", "0000:06:40.0", "0000:6:0.0", "00000:0g:00.0",
		"0000:06:00.0.0", "0000:06:00:00", "+000:06:00", "1234567890:06:00.0", "0000:06:00.", "é:06:00"} {
		_, err := Parse(text)
		must.Error(t, err, must.Sprintf("%q", text))
	}
}

// C09: whatever the domain, each tool's spelling names the same card.
func TestSpellingsRoundTrip(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a := Address{rapid.Uint32Max(0xffff).Draw(t, "domain"), rapid.Uint8().Draw(t, "bus"), rapid.Uint8Max(31).Draw(t, "device"), rapid.Uint8Max(7).Draw(t, "function")}
		if a.IsZero() {
			a.Bus = 1
		}
		for _, text := range []string{a.String(), strings.ToLower(a.String()), a.Sysfs(), strings.ToUpper(a.Sysfs()), "PCI:" + a.Sysfs()} {
			got, err := Parse(text)
			must.NoError(t, err)
			must.Eq(t, a, got)
		}
		for _, text := range []string{a.Log(), "PCI:" + a.Log(), fmt.Sprintf("PCI:%08X:%02X:%02X", a.Domain, a.Bus, a.Device)} {
			got, err := Parse(text)
			must.NoError(t, err)
			must.Eq(t, a.Slot(), got)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"00000000:06:00.0", "PCI:0008:06:00", "06:00.0", "\x00", "PCI:...", "ffffffff:ff:1f.7"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		a, err := Parse(text)
		if err != nil {
			return
		}
		if a.IsZero() {
			must.Eq(t, "", a.String())
			return
		}
		again, err := Parse(a.String())
		must.NoError(t, err)
		must.Eq(t, a, again)
	})
}
