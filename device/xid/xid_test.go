package xid

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/nomad-muster/muster/device/pci"
	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/shoenig/test/must"
	"pgregory.net/rapid"
)

func bus(text string) pci.Address {
	a, err := pci.Parse(text)
	if err != nil {
		panic(err)
	}
	return a.Slot()
}

// lines gives the lines of the collection without their source notes.
func lines(t testing.TB) []string {
	file, err := os.Open("testdata/xid_lines.txt")
	must.NoError(t, err)
	defer file.Close()
	var out []string
	for scan := bufio.NewScanner(file); scan.Scan(); {
		text, _, _ := strings.Cut(scan.Text(), "\t#")
		if !strings.HasPrefix(text, "#") && text != "" {
			out = append(out, text)
		}
	}
	return out
}

func TestCatalogue(t *testing.T) {
	t.Parallel()
	must.Len(t, 172, Codes())
	for _, code := range Codes() {
		e, ok := Lookup(code)
		must.True(t, ok)
		must.NotEq(t, Unknown, e.Class, must.Sprintf("Xid %d has action %q and no override", code, e.Action))
		_, plain := byAction[e.Action]
		must.True(t, plain || e.Why != "", must.Sprintf("Xid %d: no reason for its class", code))
	}
	must.Eq(t, Unknown, ClassOf(999))
	must.Eq(t, Unknown, ClassOf(0))
	for code, want := range map[int]Class{13: Application, 31: Application, 43: Informational, 45: Application, 94: Contained, 48: Reset, 64: Reset,
		95: Reset, 109: Reset, 119: Reset, 120: Reset, 140: Reset, 79: Machine, 1: Support, 54: Support, 142: Support} {
		must.Eq(t, want, ClassOf(code), must.Sprint(code))
	}
	for class, hardware := range map[Class]bool{Informational: false, Application: false, Degraded: false, Contained: true, Reset: true, Machine: true, Support: true, Unknown: true} {
		must.Eq(t, hardware, class.Hardware(), must.Sprint(class))
	}
}

// Every line of the collection is classified as listed here; what is not an
// event of an NVIDIA card says so with kind "".
func TestLines(t *testing.T) {
	t.Parallel()
	type want struct {
		kind  Kind
		code  int
		bus   string
		class Class
	}
	x := func(code int, bus string, class Class) want { return want{KindXid, code, bus, class} }
	not := want{}
	table := []want{
		x(13, "cb:00", Application), x(13, "01:00", Application), x(14, "03:00", Informational),
		x(31, "01:00", Application), x(31, "08:00", Application), x(31, "2b:00", Application),
		x(32, "01:00", Application), x(38, "01:00", Informational), x(43, "01:00", Informational), x(44, "05:00", Informational), x(45, "dc:00", Application),
		x(48, "8a:00", Reset), x(48, "52:00", Reset), x(63, "52:00", Degraded), x(94, "52:00", Contained), x(63, "10:1c", Degraded), x(64, "02:00", Reset), x(63, "00:1e", Degraded),
		x(74, "b9:00", Reset), x(74, "0003:00:00", Reset), x(74, "c1:00", Reset),
		x(79, "06:00", Machine), x(79, "0004:01:00", Machine), {KindOffBus, 79, "29:00", Machine}, {KindOffBus, 79, "18:00", Machine},
		x(94, "01:00", Contained), x(94, "01:00", Contained), x(95, "01:00", Reset), x(13, "3b:00", Application),
		x(109, "26:00", Reset), x(109, "02:00", Reset), x(109, "cb:00", Reset),
		x(119, "9b:00", Reset), x(119, "9b:00", Reset), x(119, "0004:01:00", Reset),
		x(137, "", Informational), x(144, "01:00", Degraded), x(145, "0018:01:00", Degraded), x(145, "5f:00", Degraded), x(149, "0009:01:00", Reset), x(149, "0018:01:00", Reset), x(150, "04:00", Reset),
		x(154, "0009:01:00", Reset), x(154, "0019:01:00", Reset),
		{KindSXid, 12028, "05:00", Informational}, {KindSXid, 20034, "0000:00:00", Reset}, not, // the last is a payload line
		not, not, not, not, not, not, // NIC lines, peermem, a segfault, a core dump's trace: other parsers' or nobody's
		x(48, "3b:00", Reset),
		not, not, // malformed
		not, not, not, not, not, not, not, not, // AMD: see device/amd
		not, not, // Ascend
	}
	all := lines(t)
	must.Len(t, len(table), all)
	must.Len(t, 66, all)
	for i, line := range all {
		w := table[i]
		e, ok := ParseLine(line)
		must.Eq(t, w.kind != "", ok, must.Sprint(line))
		if !ok {
			continue
		}
		must.Eq(t, w.kind, e.Kind, must.Sprint(line))
		must.Eq(t, w.code, e.Code, must.Sprint(line))
		must.Eq(t, w.class, e.Class(), must.Sprint(line))
		if w.bus == "" {
			must.True(t, e.Bus.IsZero(), must.Sprint(line))
		} else {
			must.Eq(t, bus(w.bus), e.Bus.Slot(), must.Sprint(line))
		}
	}
}

func TestParts(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]Event{
		"NVRM: Xid (PCI:0000:3b:00 GPU-I:01 GPU-CI:02): 13, pid=9, name=a, Graphics Exception": {Kind: KindXid, Code: 13, Bus: bus("3b:00"), GI: 1, CI: 2, PID: 9, Process: "a", Link: -1, Detail: "Graphics Exception"},
		"NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No": {Kind: KindXid, Code: 94, Bus: bus("01:00"), GI: 5, CI: -1, PID: 7194, Link: -1,
			Detail: "Contained: CE User Channel (0x9). RST: No, D-RST: No"},
		"NVRM: Xid (PCI:0003:00:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 14(0x0)": {Kind: KindXid, Code: 74, Bus: bus("0003:00:00"), GI: -1, CI: -1, Link: 14,
			Detail: "NVLink: fatal error detected on link 14(0x0)"},
		"NVRM: Xid (PCI:0018:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x0)": {Kind: KindXid, Code: 149, Bus: bus("0018:01:00"), GI: -1, CI: -1, Link: -1, Severity: "Fatal", Detail: "NETIR Fatal XC0 i0 Link -1 (0x0)"},
		"NVRM: Xid (PCI:0000:01:00): 38, pid=1659,":                         {Kind: KindXid, Code: 38, Bus: bus("01:00"), GI: -1, CI: -1, PID: 1659, Link: -1},
		"nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress (First)": {Kind: KindSXid, Code: 12028, Bus: bus("05:00"), GI: -1, CI: -1, Link: 32, Severity: "Nonfatal",
			Detail: "Non-fatal, Link 32 egress (First)"},
	} {
		got, ok := Parse(line)
		must.True(t, ok, must.Sprint(line))
		must.Eq(t, want, got, must.Sprint(line))
	}
}

// Text that only looks like a fault of a card is none.
func TestNegatives(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "NVRM:", "NVRM: Xid", "NVRM: Xid (", "NVRM: Xid (PCI:0000:01:00", "NVRM: Xid (PCI:0000:01:00):", "NVRM: Xid (PCI:0000:01:00): x",
		"NVRM: Xid (PCI:0000:01:00): 79x", "NVRM: Xid (PCI:0000:01:00): 7999999999, y", "NVRM: Xid (PCI:0000:01:00): -79, y",
		`audit: name="/tmp/NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."`,
		"EXT4-fs (loop0): label NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.",
		"NVRM: fallen off the bus and is not responding to commands.", // only an assembler can tell whose
		"NVRM: GPU at PCI:0000:3b:00: GPU-5b3a1c",
		"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Severity 1 Engine instance 30 Sub-engine instance 00",
		"nvidia-nvswitch0: SXid (nonsense): 20034, Fatal",
	} {
		_, ok := Parse(text)
		must.False(t, ok, must.Sprint(text))
	}
	// A process cannot make its own fault look milder by its name.
	e, ok := Parse("NVRM: Xid (PCI:0018:01:00): 145, pid=8, name=a, Nonfatal, RLW_RXPIPE Fatal XC0 i0 Link 13 (0x0)")
	must.True(t, ok)
	must.Eq(t, Reset, e.Class())
}

// Every code of the catalogue is found in every shape of line with the class
// that the catalogue gives it.
func TestEveryCodeInEveryShape(t *testing.T) {
	t.Parallel()
	for _, prefix := range []string{"", "[31609.615230] ", "[ 130.456250] [ T1946] ", "Feb 01 14:25:31 nodeA kernel: ", "[Fri Aug 30 11:43:09 2024] ", "kernel: ", "6,901,100;",
		"kern  :warn  : 2025-01-21T04:41:44,285060+00:00 ", "192.168.0.1: kern: warning: [2026-04-22T21:27:51.291660856Z]: "} {
		for _, where := range []string{"PCI:0000:3b:00", "0000:3b:00", "PCI:0000:3B:00", "PCI:0000:3b:00 GPU-I:05", "PCI:0000:3b:00 GPU-I:05 GPU-CI:00"} {
			for _, body := range []string{"", ", pid='<unknown>', name=<unknown>, Ch 00000046", ", pid=8494,   name=Render:Thread, channel 0x0000000d", ", pid=<unknown>, name=<unknown>, x", ", Ch 00000020, engmask 00000101"} {
				for _, code := range append(Codes(), 999) {
					line := fmt.Sprintf("%sNVRM: Xid (%s): %d%s", prefix, where, code, body)
					e, ok := ParseLine(line)
					if !ok || e.Code != code || e.Bus != bus("3b:00") || e.Class() != ClassOf(code) {
						t.Fatalf("%q: %v %+v class %s, want %s", line, ok, e, e.Class(), ClassOf(code))
					}
				}
			}
		}
	}
}

func TestRecoveryAction(t *testing.T) {
	t.Parallel()
	for detail, want := range map[string]Class{
		"GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)":               Reset,
		"GPU recovery action changed from 0x4 (Drain and Reset) to 0x1 (GPU Reset Required)": Reset,
		"GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)":          Machine,
		"GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)":                     Degraded,
		"GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)":            Informational,
		"GPU recovery action changed from 0x0 (None) to 0x9 (Something New)":                 Unknown,
		"": Informational,
	} {
		e, ok := Parse("NVRM: Xid (PCI:0009:01:00): 154, " + detail)
		must.True(t, ok)
		must.Eq(t, want, e.Class(), must.Sprint(detail))
	}
}

// C08: off the bus without a code, told over three records.
func TestAssembler(t *testing.T) {
	t.Parallel()
	const middle, end = "NVRM: (PCI ID: 10de:26b5) installed in this system has", "NVRM: fallen off the bus and is not responding to commands."
	first := func(bus string) string { return "NVRM: The NVIDIA GPU " + bus }
	type record struct {
		ms   int
		text string
	}
	for name, c := range map[string]struct {
		records []record
		want    []string // addresses in order; "" is an event that names none
	}{
		"plain":                  {[]record{{0, first("0000:b3:00.0")}, {0, middle}, {0, end}}, []string{"b3:00"}},
		"another record between": {[]record{{0, first("0000:b3:00.0")}, {1, "igb 0000:01:00.0 eth0: link is down"}, {1, middle}, {2, end}}, []string{"b3:00"}},
		"two interleaved":        {[]record{{0, first("0000:b3:00.0")}, {0, first("0000:c4:00.0")}, {1, middle}, {1, middle}, {2, end}, {2, end}}, []string{"b3:00", "c4:00"}},
		"one inside another":     {[]record{{0, first("0000:b3:00.0")}, {0, first("0000:c4:00.0")}, {1, middle}, {1, end}, {2, middle}, {2, end}}, []string{"c4:00", "b3:00"}},
		"only the first":         {[]record{{0, first("0000:b3:00.0")}, {3000, "igb 0000:01:00.0 eth0: link is up"}}, nil},
		"the end much later":     {[]record{{0, first("0000:b3:00.0")}, {5000, end}}, []string{""}},
		"an unfinished one, then another": {[]record{{0, first("0000:b3:00.0")}, {10, first("0000:c4:00.0")}, {10, middle}, {10, end}, {3000, "x"}},
			[]string{"c4:00"}},
		"two begun, one phrase, mixed": {[]record{{0, first("0000:b3:00.0")}, {0, first("0000:c4:00.0")}, {1, middle}, {1, "x"}, {1, end}, {3000, "x"}}, []string{""}},
		"a lone end":                   {[]record{{0, end}}, []string{""}},
		"in one record":                {[]record{{0, "NVRM: The NVIDIA GPU 0000:18:00\n...fallen off the bus and is not responding to commands."}}, []string{"18:00"}},
		"in one line":                  {[]record{{0, "NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:26b5) installed in this system has fallen off the bus"}}, []string{"18:00"}},
	} {
		var a Assembler
		var got []string
		start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		for i, r := range c.records {
			for _, e := range a.Feed(uint64(100+i), start.Add(time.Duration(r.ms)*time.Millisecond), r.text) {
				must.Eq(t, KindOffBus, e.Kind, must.Sprint(name))
				must.Eq(t, OffTheBus, e.Code, must.Sprint(name))
				if e.Bus.IsZero() {
					got = append(got, "")
				} else {
					got = append(got, e.Bus.Log()[5:])
				}
			}
		}
		must.Eq(t, c.want, got, must.Sprint(name))
	}
}

// Whatever records come in whatever order, a loss names only a card that a
// first part named, and no more losses than phrases.
func TestAssemblerNeverInvents(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var a Assembler
		named, phrases, found := map[pci.Address]bool{{}: true}, 0, 0
		at := time.Unix(0, 0)
		for seq := range rapid.IntRange(1, 40).Draw(t, "records") {
			at = at.Add(time.Duration(rapid.IntRange(0, 700).Draw(t, "ms")) * time.Millisecond)
			text := rapid.SampledFrom([]string{"NVRM: The NVIDIA GPU 0000:b3:00.0", "NVRM: The NVIDIA GPU 0000:c4:00.0", "NVRM: (PCI ID: 10de:26b5) installed in this system has", "NVRM: fallen off the bus and", "x"}).Draw(t, "text")
			if strings.Contains(text, "The") {
				named[bus(text[21:])] = true
			}
			if strings.Contains(text, "fallen") {
				phrases++
			}
			for _, e := range a.Feed(uint64(seq), at, text) {
				must.True(t, named[e.Bus])
				found++
			}
		}
		must.LessEq(t, phrases, found)
	})
}

func FuzzParse(f *testing.F) {
	for _, line := range lines(f) {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		e, ok := ParseLine(line)
		if !ok {
			return
		}
		must.True(t, e.Class().Known())
		must.Positive(t, e.Code+1)
		must.True(t, e.GI >= -1 && e.CI >= -1 && e.Link >= -1)
		must.Eq(t, uint8(0), e.Bus.Function)
		if e.Kind == KindXid {
			must.StrContains(t, line, fmt.Sprintf("%d", e.Code))
		}
	})
}
