package cards

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// nodes makes device nodes of a card's names that stand for memory devices,
// which anybody can open.
func nodes(t *testing.T, names map[string]uint32) string {
	dir := t.TempDir()
	for name, minor := range names {
		path := filepath.Join(dir, name)
		must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		if err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, minor))); err != nil {
			t.Skip("no device node may be made here: ", err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Skip("device nodes in the temporary folder cannot be opened: ", err)
		}
		f.Close()
	}
	return dir
}

// hold starts a process that holds files open.
func hold(t *testing.T, paths ...string) int {
	cmd := exec.Command("/bin/sh", append([]string{"-c", `n=3; for p in "$@"; do eval "exec $n<\"\$p\""; n=$((n+1)); done; echo held; exec sleep 60`, "hold"}, paths...)...)
	out, err := cmd.StdoutPipe()
	must.NoError(t, err)
	must.NoError(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	must.NoError(t, err)
	must.Eq(t, "held\n", line)
	return cmd.Process.Pid
}

func nobody(int) bool { return false }

const full, zero = 7, 5 // /dev/full is held by hardly anybody

// Who computes on a card is named; who only watches it is not.
func TestHolders(t *testing.T) {
	dir := nodes(t, map[string]uint32{"nvidia0": full, "nvidia-uvm": zero, "nvidiactl": 3})
	card, uvm := filepath.Join(dir, "nvidia0"), filepath.Join(dir, "nvidia-uvm")
	hold(t, card) // as monitoring does
	hold(t, uvm)
	found, err := Holders([]string{card, uvm, filepath.Join(dir, "nvidiactl")}, nobody)
	must.NoError(t, err)
	must.SliceEmpty(t, found)

	pid := hold(t, card, uvm)
	found, err = Holders([]string{card}, nobody)
	must.NoError(t, err)
	must.SliceLen(t, 1, found)
	must.Eq(t, pid, found[0].PID)
	must.RegexMatch(t, regexp.MustCompile(`\((sh|sleep), user 0\) holds `+card+`$`), found[0].String()) // it has held before it became sleep
	found, err = Holders([]string{card}, func(p int) bool { return p == pid })
	must.NoError(t, err)
	must.SliceEmpty(t, found, must.Sprint("the task's own"))
}

// The slices of a card have users of their own.
func TestHoldersOfASlice(t *testing.T) {
	dir := nodes(t, map[string]uint32{"nvidia0": zero, "nvidia-uvm": zero, "nvidia-caps/nvidia-cap3": full, "dri/renderD128": full})
	card, slice := filepath.Join(dir, "nvidia0"), filepath.Join(dir, "nvidia-caps", "nvidia-cap3")
	hold(t, card, filepath.Join(dir, "nvidia-uvm"))
	found, err := Holders([]string{card, slice}, nobody)
	must.NoError(t, err)
	must.SliceEmpty(t, found)
	hold(t, slice)
	found, err = Holders([]string{card, slice}, nobody)
	must.NoError(t, err)
	must.SliceLen(t, 1, found)
	// Without the node that computing takes there is nobody.
	found, err = Holders([]string{filepath.Join(dir, "dri", "renderD128")}, nobody)
	must.NoError(t, err)
	must.SliceEmpty(t, found)
}

func TestHoldersOfNothing(t *testing.T) {
	_, err := Holders([]string{filepath.Join(t.TempDir(), "nvidia0")}, nobody)
	must.ErrorContains(t, err, "look at device")
	plain := filepath.Join(t.TempDir(), "nvidia0")
	must.NoError(t, os.WriteFile(plain, nil, 0o600))
	_, err = Holders([]string{plain}, nobody)
	must.ErrorContains(t, err, "no character device")
	found, err := Holders([]string{"/dev/null", "/dev/infiniband/uverbs0"}, nobody)
	must.NoError(t, err)
	must.SliceEmpty(t, found, must.Sprint("no node of a card alone"))
}
