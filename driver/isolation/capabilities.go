package isolation

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Capabilities are what root keeps inside an isolated task: what container
// engines leave, less making device nodes, and with locking memory (RDMA) and
// scheduling. What could lead out of the task is not among them: mounting,
// tracing, loading modules, raw hardware.
var Capabilities = map[string]uintptr{
	"CHOWN": unix.CAP_CHOWN, "DAC_OVERRIDE": unix.CAP_DAC_OVERRIDE, "FOWNER": unix.CAP_FOWNER, "FSETID": unix.CAP_FSETID, "KILL": unix.CAP_KILL,
	"NET_BIND_SERVICE": unix.CAP_NET_BIND_SERVICE, "NET_RAW": unix.CAP_NET_RAW, "SETFCAP": unix.CAP_SETFCAP, "SETGID": unix.CAP_SETGID, "SETPCAP": unix.CAP_SETPCAP,
	"SETUID": unix.CAP_SETUID, "SYS_CHROOT": unix.CAP_SYS_CHROOT, "IPC_LOCK": unix.CAP_IPC_LOCK, "SYS_NICE": unix.CAP_SYS_NICE,
}

// Confine bounds what processes started from the calling thread, which must be
// locked, can ever get: no privileges through set-uid programs and, as root, no
// capabilities but Capabilities. The thread itself keeps its own.
func Confine() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	if unix.Geteuid() != 0 {
		return nil
	}
	kept := map[uintptr]bool{}
	for _, c := range Capabilities {
		kept[c] = true
	}
	for c := uintptr(0); ; c++ {
		there, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0)
		if err != nil { // beyond the last that this kernel knows
			return nil
		}
		if there == 0 || kept[c] {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
}
