package kernlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Kmsg reads the kernel log of this machine.
type Kmsg struct {
	boot string
	open func() (recordReader, error)
	now  func() (wall time.Time, sinceBoot time.Duration)

	dev  recordReader
	next uint64 // the sequence number that is expected; 0: any
	seen bool   // a record was read
}

// recordReader reads one record at a time, as /dev/kmsg gives them. Where there
// is none, it waits if told to, else it answers EAGAIN. EPIPE says that records
// were overwritten before they were read.
type recordReader interface {
	read(ctx context.Context, buf []byte, wait bool) (int, error)
	io.Closer
}

// DevKmsg is the kernel's log device.
const DevKmsg = "/dev/kmsg"

// NewKmsg makes the reader of a log device; boot is this machine's boot id.
// Nothing is opened before the first Next.
func NewKmsg(path, boot string) *Kmsg {
	return &Kmsg{boot: boot, open: func() (recordReader, error) { return openKmsg(path) }, now: clocks}
}

// BootID is this machine's boot id.
func BootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the boot id: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// Name is "kmsg".
func (k *Kmsg) Name() string { return "kmsg" }

// Next gives all records that are there, and waits for at least one unless it
// is the first call. Records that cannot be read as such are left out.
func (k *Kmsg) Next(ctx context.Context) ([]Record, error) {
	if k.dev == nil {
		dev, err := k.open()
		if err != nil {
			return nil, err
		}
		k.dev = dev
	}
	wait := k.seen
	k.seen = true
	var out []Record
	missed := uint64(0)
	buf := make([]byte, 16<<10)
	for len(out) < 4096 {
		n, err := k.dev.read(ctx, buf, wait && len(out) == 0)
		switch {
		case err == nil:
			r, at, ok := k.record(string(buf[:n]))
			if !ok {
				continue
			}
			if k.next > 0 && r.Seq > k.next {
				missed = r.Seq - k.next
			}
			k.next = r.Seq + 1
			r.At, r.Boot, r.Missed = at, k.boot, missed
			missed = 0
			out = append(out, r)
		case errors.Is(err, syscall.EPIPE): // the next one read is the oldest that is left
		case errors.Is(err, syscall.EAGAIN):
			return out, nil
		case errors.Is(err, syscall.EINVAL): // longer than any record of ours
		case ctx.Err() != nil:
			return out, ctx.Err()
		default:
			k.dev.Close()
			k.dev = nil
			return out, fmt.Errorf("read the kernel log: %w", err)
		}
	}
	return out, nil
}

// record reads one record and dates it: it is as long ago as the machine has
// run since.
func (k *Kmsg) record(raw string) (Record, time.Time, bool) {
	r, sinceBoot, err := ParseRecord(raw)
	if err != nil {
		return r, time.Time{}, false
	}
	wall, running := k.now()
	return r, wall.Add(min(sinceBoot-running, 0)), true
}

// clocks reads the wall clock and the time since boot as the kernel log counts
// it.
func clocks() (time.Time, time.Duration) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return time.Now(), 0
	}
	return time.Now(), time.Duration(ts.Nano())
}

// Readable tells whether this process may read a log device.
func Readable(path string) bool {
	dev, err := openKmsg(path)
	if err != nil {
		return false
	}
	dev.Close()
	return true
}

// kmsgFile is the device itself.
type kmsgFile struct {
	file *os.File
	raw  syscall.RawConn
}

func openKmsg(path string) (recordReader, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		hint := "faults are then seen only through the vendors' libraries"
		if errors.Is(err, os.ErrPermission) {
			hint = "it needs root, or CAP_SYSLOG where kernel.dmesg_restrict is 1; " + hint
		}
		return nil, fmt.Errorf("open the kernel log: %w (%s)", err, hint)
	}
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("open the kernel log: %w", err)
	}
	return &kmsgFile{file, raw}, nil
}

func (f *kmsgFile) Close() error { return f.file.Close() }

func (f *kmsgFile) read(ctx context.Context, buf []byte, wait bool) (n int, err error) {
	if wait {
		if err := f.file.SetReadDeadline(time.Time{}); err != nil {
			return 0, err
		}
		stop := context.AfterFunc(ctx, func() { f.file.SetReadDeadline(time.Now()) })
		defer stop()
	}
	waitErr := f.raw.Read(func(fd uintptr) bool {
		n, err = syscall.Read(int(fd), buf)
		return !wait || !errors.Is(err, syscall.EAGAIN)
	})
	if waitErr != nil {
		return 0, errors.Join(waitErr, ctx.Err())
	}
	return n, err
}
