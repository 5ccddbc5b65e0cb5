package isolation

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// On version 2 there is no devices controller: the kernel asks a program, whose
// answer 0 denies. Its context is three words, struct bpf_cgroup_dev_ctx:
//
//	access_type  the device's type, and what is wanted of it shifted by 16
//	major, minor
const (
	deviceBlock, deviceChar = 1, 2 // BPF_DEVCG_DEV_*
	wantMake, wantRead      = 1, 2 // BPF_DEVCG_ACC_*
	wantWrite               = 4
)

// deviceProgram lets through what one of the rules lets through.
func deviceProgram(rules []Rule) asm.Instructions {
	p := asm.Instructions{
		asm.LoadMem(asm.R2, asm.R1, 0, asm.Word), // R2: type, R3: what is wanted, R4: major, R5: minor
		asm.Mov.Reg(asm.R3, asm.R2),
		asm.And.Imm(asm.R2, 0xffff),
		asm.RSh.Imm(asm.R3, 16),
		asm.LoadMem(asm.R4, asm.R1, 4, asm.Word),
		asm.LoadMem(asm.R5, asm.R1, 8, asm.Word),
	}
	for i, r := range rules {
		next := fmt.Sprintf("rule %d", i+1)
		begin := len(p)
		kind, allowed := int32(deviceChar), int32(0)
		if r.Block {
			kind = deviceBlock
		}
		for _, access := range r.Access {
			allowed |= map[rune]int32{'r': wantRead, 'w': wantWrite, 'm': wantMake}[access]
		}
		p = append(p, asm.JNE.Imm(asm.R2, kind, next))
		if denied := (wantMake | wantRead | wantWrite) &^ allowed; denied != 0 {
			p = append(p, asm.JSet.Imm(asm.R3, denied, next))
		}
		if r.Major >= 0 {
			p = append(p, asm.JNE.Imm(asm.R4, int32(r.Major), next))
		}
		if r.Minor >= 0 {
			p = append(p, asm.JNE.Imm(asm.R5, int32(r.Minor), next))
		}
		p = append(p, asm.Mov.Imm(asm.R0, 1), asm.Return())
		if i > 0 {
			p[begin] = p[begin].WithSymbol(fmt.Sprintf("rule %d", i))
		}
	}
	last := len(p)
	p = append(p, asm.Mov.Imm(asm.R0, 0), asm.Return())
	if len(rules) > 0 {
		p[last] = p[last].WithSymbol(fmt.Sprintf("rule %d", len(rules)))
	}
	return p
}

// limitByProgram attaches the program of rules to a cgroup, beside what others
// have attached above it. It goes with the cgroup.
func limitByProgram(cgroup string, rules []Rule) error {
	program, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "muster_devices", Type: ebpf.CGroupDevice, Instructions: deviceProgram(rules), License: "MPL-2.0"})
	if err != nil {
		return fmt.Errorf("limit devices: load the cgroup's device program: %w", shorten(err))
	}
	defer program.Close() // the cgroup keeps it
	dir, err := os.OpenFile(cgroup, unix.O_DIRECTORY|unix.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("limit devices: %w", err)
	}
	defer dir.Close()
	err = link.RawAttachProgram(link.RawAttachProgramOptions{Target: int(dir.Fd()), Program: program, Attach: ebpf.AttachCGroupDevice, Flags: unix.BPF_F_ALLOW_MULTI})
	if err != nil {
		return fmt.Errorf("limit devices: attach the device program to %s: %w", cgroup, err)
	}
	return nil
}

// shorten leaves the kernel's log of its verifier out of an error's text.
func shorten(err error) error {
	var verifier *ebpf.VerifierError
	if errors.As(err, &verifier) {
		return verifier.Cause
	}
	return errors.New(strings.SplitN(err.Error(), "\n", 2)[0])
}
