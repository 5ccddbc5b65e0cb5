package kernlog

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/pci"
	"github.com/nomad-muster/muster/device/xid"
)

func TestParseRecord(t *testing.T) {
	t.Parallel()
	r, since, err := ParseRecord("6,901,100;NVRM: Xid (PCI:0000:3b:00): 48, pid=1, Ch 00000008\n SUBSYSTEM=pci\n DEVICE=+pci:0000:3b:00.0\n")
	must.NoError(t, err)
	must.Eq(t, Record{Seq: 901, Text: "NVRM: Xid (PCI:0000:3b:00): 48, pid=1, Ch 00000008"}, r)
	must.Eq(t, 100*time.Microsecond, since)
	r, _, err = ParseRecord(`3,7,5000000,-,caller=T1946;NVRM: The NVIDIA GPU 0000:18:00\x0a...fallen off the bus`)
	must.NoError(t, err)
	must.StrContains(t, r.Text, "\n...fallen")
	must.False(t, r.Userspace)
	r, _, err = ParseRecord("11,8,1,-;NVRM: Xid (PCI:0000:3b:00): 79, x") // 8+3: the facility of a user's program
	must.NoError(t, err)
	must.True(t, r.Userspace)
	for _, bad := range []string{"", ";", "6,1;x", "a,1,1;x", "6,-1,1;x", "6,1,x;y", "6,901,100 no semicolon", "6,1,99999999999999999999;x", "6,1,9223372036854775807;x"} {
		_, _, err := ParseRecord(bad)
		must.Error(t, err, must.Sprint(bad))
	}
}

func FuzzParseRecord(f *testing.F) {
	f.Add("6,901,100;NVRM: Xid (PCI:0000:3b:00): 48, pid=1")
	f.Add("11,8,1,-;x\n K=v")
	f.Add(`3,7,5000000,-,caller=T1946;a\x0ab`)
	f.Fuzz(func(t *testing.T, raw string) {
		r, since, err := ParseRecord(raw)
		if err != nil {
			return
		}
		must.True(t, since >= 0)
		find := Finder{From: "kernel log"}
		if r.Userspace {
			must.SliceEmpty(t, find.Find(r))
		}
	})
}

// script is a log device that answers as told.
type script struct {
	answers []any // string: a record; error
	waited  int
}

func (s *script) Close() error { return nil }

func (s *script) read(ctx context.Context, buf []byte, wait bool) (int, error) {
	if len(s.answers) == 0 {
		if wait {
			s.waited++
			<-ctx.Done()
			return 0, ctx.Err()
		}
		return 0, syscall.EAGAIN
	}
	a := s.answers[0]
	s.answers = s.answers[1:]
	if err, bad := a.(error); bad {
		return 0, err
	}
	return copy(buf, a.(string)), nil
}

func kmsg(s *script) *Kmsg {
	return &Kmsg{boot: "b1", open: func() (recordReader, error) { return s, nil },
		now: func() (time.Time, time.Duration) { return time.Unix(1000, 0), 600 * time.Second }}
}

func TestKmsg(t *testing.T) {
	t.Parallel()
	s := &script{answers: []any{"6,10,90000000;a", "6,11,300000000;b", syscall.EPIPE, "6,20,500000000;c", "garbage", syscall.EINVAL, "6,21,700000000;d"}}
	k := kmsg(s)
	got, err := k.Next(context.Background())
	must.NoError(t, err)
	must.Eq(t, []Record{
		{Boot: "b1", Seq: 10, At: time.Unix(490, 0), Text: "a"}, // the record's own time
		{Boot: "b1", Seq: 11, At: time.Unix(700, 0), Text: "b"},
		{Boot: "b1", Seq: 20, At: time.Unix(900, 0), Text: "c", Missed: 8},
		{Boot: "b1", Seq: 21, At: time.Unix(1000, 0), Text: "d"}, // never in the future
	}, got)

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	_, err = k.Next(ctx) // nothing more: it waits
	must.ErrorIs(t, err, context.DeadlineExceeded)
	must.Eq(t, 1, s.waited)

	s.answers = []any{"6,22,1;e", syscall.EIO}
	got, err = k.Next(context.Background())
	must.ErrorIs(t, err, syscall.EIO)
	must.Len(t, 1, got)
	s.answers = []any{"6,23,1;f"} // opened again
	got, err = k.Next(context.Background())
	must.NoError(t, err)
	must.Len(t, 1, got)
}

func TestEmptyLogDoesNotBlockTheStart(t *testing.T) {
	t.Parallel()
	got, err := kmsg(&script{}).Next(context.Background())
	must.NoError(t, err)
	must.SliceEmpty(t, got)
}

func TestOpenSaysWhatIsMissing(t *testing.T) {
	t.Parallel()
	_, err := NewKmsg(filepath.Join(t.TempDir(), "kmsg"), "b").Next(context.Background())
	must.ErrorContains(t, err, "vendors' libraries")
	must.ErrorIs(t, err, os.ErrNotExist)
}

// A named pipe stands in for the device: reads wait, and a cancelled context
// ends them.
func TestDeviceReadsWaitAndEnd(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "kmsg")
	must.NoError(t, syscall.Mkfifo(path, 0o600))
	w, err := os.OpenFile(path, os.O_RDWR, 0)
	must.NoError(t, err)
	defer w.Close()
	k := NewKmsg(path, "b")
	got, err := k.Next(context.Background())
	must.NoError(t, err)
	must.SliceEmpty(t, got)
	_, err = w.WriteString("6,1,1;NVRM: x")
	must.NoError(t, err)
	got, err = k.Next(context.Background())
	must.NoError(t, err)
	must.Len(t, 1, got)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { _, err := k.Next(ctx); done <- err }()
	cancel()
	must.ErrorIs(t, <-done, context.Canceled)
}

// The real device, where this user may read and write it: what a program wrote
// is seen, and believed only when trusted.
func TestRealDevice(t *testing.T) {
	w, err := os.OpenFile(DevKmsg, os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("no kernel log to write to: %v", err)
	}
	defer w.Close()
	boot, err := BootID()
	must.NoError(t, err)
	k := NewKmsg(DevKmsg, boot)
	if _, err := k.Next(t.Context()); err != nil {
		t.Skipf("no kernel log to read: %v", err)
	}
	mark := fmt.Sprintf("muster-test-%d", time.Now().UnixNano())
	_, err = w.WriteString("<3>NVRM: Xid (PCI:fff0:1f:00): 13, pid=1, name=" + mark + ", x\n")
	must.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		got, err := k.Next(ctx)
		must.NoError(t, err)
		for _, r := range got {
			if !strings.Contains(r.Text, mark) {
				continue
			}
			must.True(t, r.Userspace)
			must.SliceEmpty(t, (&Finder{}).Find(r))
			must.Len(t, 1, (&Finder{TrustUserspace: true}).Find(r))
			must.Less(t, time.Minute, time.Since(r.At).Abs())
			return
		}
	}
}

func TestFinder(t *testing.T) {
	t.Parallel()
	at := time.Unix(5, 0)
	other := func(text string) (card.Target, health.Event, bool) {
		return card.Target{ID: "n"}, health.Event{Kind: health.Fault, Name: "other"}, strings.HasPrefix(text, "other:")
	}
	f := &Finder{From: "kernel log", Parsers: []LineParser{other}}
	var got []card.Sighting
	for i, text := range []string{"NVRM: Xid (PCI:0008:06:00 GPU-I:02 GPU-CI:01): 94, pid=1, x", "NVRM: GPU 0000:29:00.0: GPU has fallen off the bus.", "other: x", "usb 1-1: new device",
		"nvidia-nvswitch0: SXid (PCI:0000:0a:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"} {
		got = append(got, f.Find(Record{Boot: "b", Seq: uint64(i + 1), At: at, Text: text})...)
	}
	must.Len(t, 4, got)
	must.Eq(t, card.Target{Bus: pci.Address{Domain: 8, Bus: 6}, GI: 2, CI: 1}, got[0].Target)
	must.Eq(t, "gi 2 ci 1", got[0].Event.Instance)
	must.Eq(t, xid.Contained, got[0].Event.Class)
	must.Eq(t, "kernel log", got[0].Event.From)
	must.Eq(t, 79, got[1].Event.Code)
	must.Eq(t, "kernel log, in words", got[1].Event.From)
	must.Eq(t, "n", got[2].Target.ID)
	must.Eq(t, "0000:0a:00.0", strings.ToLower(got[3].Target.Switch[4:]))
	must.Eq(t, xid.Reset, got[3].Event.Class)
	for _, s := range got {
		must.Eq(t, at, s.Event.At)
	}
	must.SliceEmpty(t, f.Find(Record{Userspace: true, Text: "NVRM: Xid (PCI:0008:06:00): 79, x"}))
}

func TestNVRMLineIsReadBack(t *testing.T) {
	t.Parallel()
	for _, code := range append(xid.Codes(), 999) {
		bus := pci.Address{Domain: 3, Bus: 0x3b}
		e, ok := xid.Parse(NVRMLine(bus, code, ""))
		must.True(t, ok)
		must.Eq(t, code, e.Code)
		must.Eq(t, bus, e.Bus)
		must.Eq(t, xid.ClassOf(code), e.Class())
	}
}
