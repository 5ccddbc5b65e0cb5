package preflight

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/contract"
)

func run(ctx context.Context, argv, env []string, dir string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = env, dir
	return cmd.Output()
}

func addr(s ...string) (out []netip.Addr) {
	for _, a := range s {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func TestChooseAddress(t *testing.T) {
	n := network{nics: []nic{
		{"lo", true, true, addr("127.0.0.1", "::1")},
		{"eth0", true, false, addr("fe80::1", "fd00::2", "192.0.2.2")},
		{"ib0", true, false, addr("fe80::9", "fd01::2")},
		{"eth1", false, false, addr("198.51.100.1")},
		{"ib1", true, false, addr("fe80::7")},
	}, route: map[bool]string{false: "eth0"}}
	for _, c := range []struct{ iface, nomads, want, fault string }{
		{"", "", "eth0 192.0.2.2", ""},
		{"ib0", "192.0.2.2", "ib0 fd01::2", ""},
		{"lo", "", "lo 127.0.0.1", ""},
		{"", "fd01::2", "ib0 fd01::2", ""},
		{"", "127.0.0.1", "lo 127.0.0.1", ""},
		{"eth1", "", "", `"eth1" is down`},
		{"ib1", "", "", "no address that others could reach"},
		{"eth7", "", "", "there are lo, eth0, ib0, eth1, ib1"},
		{"", "203.0.113.9", "", "no interface has the address"},
		{"", "n1.example", "", "is none"},
	} {
		got, err := n.choose(c.iface, c.nomads)
		if c.fault != "" {
			must.ErrorContains(t, err, c.fault)
			continue
		}
		must.NoError(t, err)
		must.Eq(t, c.want, got.Interface+" "+got.IP.String())
	}
	// Loopback is never chosen by accident.
	_, err := network{nics: n.nics[:1], route: map[bool]string{}}.choose("", "")
	must.ErrorContains(t, err, `interface = "..."`)
	only6 := network{nics: n.nics[:3], route: map[bool]string{true: "ib0"}}
	got, err := only6.choose("", "")
	must.NoError(t, err)
	must.Eq(t, "fd01::2", got.IP.String())
	_, err = ChooseAddress("lo", "")
	must.NoError(t, err)
}

// A kept port can be taken by nobody else, and refuses who comes too early.
func TestKeepPort(t *testing.T) {
	p, err := KeepPort(0, 18000, 18999, 0)
	must.NoError(t, err)
	_, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p.Number))
	must.Error(t, err)
	_, err = net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", p.Number))
	must.Error(t, err)
	_, err = KeepPort(p.Number, 0, 0, 0)
	must.Error(t, err)
	_, err = KeepPort(0, p.Number, p.Number, 0)
	must.ErrorContains(t, err, "is free")
	p.Release()
	p.Release()
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", p.Number))
	must.NoError(t, err)
	defer l.Close()
	must.True(t, Busy(p.Number))
	_, err = KeepPort(p.Number, 0, 0, 0)
	must.ErrorContains(t, err, "address already in use")
	_, err = KeepPort(0, 5, 4, 0)
	must.ErrorContains(t, err, "holds no port")
	_, err = KeepPort(0, p.Number+1, p.Number+1, p.Number+1)
	must.Error(t, err)
}

// A port that is shared with its store is nobody else's, also when the store is
// gone again.
func TestSharePort(t *testing.T) {
	t.Parallel()
	p, err := KeepPort(0, 17000, 17999, 0)
	must.NoError(t, err)
	must.NoError(t, p.Share())
	must.NoError(t, p.Share())
	taken := func() {
		t.Helper()
		_, err := KeepPort(0, p.Number, p.Number, 0)
		must.ErrorContains(t, err, "is free")
	}
	taken()
	must.False(t, Busy(p.Number), must.Sprint("a store could not listen"))
	for range 2 { // Go listens with SO_REUSEADDR, as torch does
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", p.Number))
		must.NoError(t, err)
		taken()
		must.True(t, Busy(p.Number))
		must.NoError(t, l.Close())
		taken()
	}
	p.Release()
	next, err := KeepPort(0, p.Number, p.Number, 0)
	must.NoError(t, err)
	next.Release()
}

func script(t *testing.T, dir, name, text string, mode os.FileMode) string {
	path := filepath.Join(dir, name)
	must.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.NoError(t, os.WriteFile(path, []byte(text), mode))
	return path
}

func TestFindPython(t *testing.T) {
	dir := t.TempDir()
	plain, with := filepath.Join(dir, "plain"), filepath.Join(dir, "with")
	script(t, plain, "python3", "#!/bin/sh\necho\n", 0o755)
	script(t, with, "torch/version.py", "from x import y\n__version__ = '2.9.1+cu128'\n", 0o644)
	script(t, with, "python3", "#!/bin/sh\necho "+with+"/torch/__init__.py; cat "+with+"/torch/version.py\n", 0o755)
	script(t, filepath.Join(dir, "off"), "python3", "", 0o644)

	got, err := FindPython(t.Context(), Place{Run: run}, "", dir+"/off:"+plain+":"+with)
	must.NoError(t, err)
	must.Eq(t, Python{with + "/python3", "2.9.1+cu128"}, got)
	got, err = FindPython(t.Context(), Place{Run: run}, "", plain)
	must.NoError(t, err)
	must.Eq(t, Python{plain + "/python3", ""}, got)
	got, err = FindPython(t.Context(), Place{Run: run}, "python3", with)
	must.NoError(t, err)
	must.Eq(t, "2.9.1+cu128", got.Torch)
	_, err = FindPython(t.Context(), Place{Run: run}, "", dir+"/none:"+dir+"/off")
	must.ErrorContains(t, err, "looked at "+dir+"/none/python3, "+dir+"/off/python3")
	_, err = FindPython(t.Context(), Place{Run: run}, "/absent/python", "")
	must.ErrorContains(t, err, "/absent/python")
	_, err = FindPython(t.Context(), Place{Run: run}, "python9", plain)
	must.ErrorContains(t, err, "looked in "+plain)
}

func TestVersionLine(t *testing.T) {
	for text, want := range map[string]string{
		"__version__ = '1.13.0a0'\n":                           "1.13.0a0",
		"from typing import Optional\n__version__ = \"2.9.0\"": "2.9.0",
		"__version__: str = '2.10.0'":                          "2.10.0",
		"__version__ = TorchVersion('2.1.2')":                  "2.1.2",
		"#__version__ = '0'\n__all__ = ['__version__']\nx = 1": "",
		"internal = 'x'\n__version__ = '3.0'\ngit_version='a'": "3.0",
	} {
		got := ""
		if m := versionLine.FindStringSubmatch(text); m != nil {
			got = m[1]
		}
		must.Eq(t, want, got, must.Sprint(text))
	}
}

func TestCheckListsEverything(t *testing.T) {
	dir := t.TempDir()
	c, faults := contract.ParseTaskConfig("", map[string]any{"script": "local/train.py", "nproc_per_node": 8, "interface": "nowhere0"}, 4)
	must.SliceEmpty(t, faults)
	r := Check(t.Context(), Input{Config: c, TaskDir: dir, Cards: []string{"GPU-1", "GPU-2", "GPU-3", "GPU-4"}, WantCards: 8, SearchPath: dir, PortLow: 2, PortHigh: 1, StateDir: dir + "/no", Place: Place{Run: run}})
	var what []string
	for _, p := range r.Problems {
		what = append(what, fmt.Sprint(p.What, " ", p.Site))
		must.NotEq(t, "", p.Text)
	}
	must.Eq(t, []string{"config false", "cards true", "python true", "script false", "address true", "port true", "disk true"}, what)
}

func TestCheckGreen(t *testing.T) {
	dir := t.TempDir()
	script(t, dir, "local/rank", "#!/bin/sh\n", 0o755)
	c, faults := contract.ParseTaskConfig("", map[string]any{"launcher": "ranks", "command": []any{"local/rank"}, "nproc_per_node": 2, "interface": "lo", "checkpoint": dir + "/ckpt"}, 0)
	must.SliceEmpty(t, faults)
	r := Check(t.Context(), Input{Config: c, TaskDir: dir, PortLow: 18000, PortHigh: 18999, StateDir: dir, Place: Place{Run: run}})
	must.SliceEmpty(t, r.Problems)
	must.Eq(t, 2, r.Ranks)
	must.Eq(t, "127.0.0.1", r.Address.IP.String())
	r.Port.Release()
	must.DirExists(t, dir+"/ckpt")

	script(t, dir, "local/rank", "#!/bin/sh\n", 0o644)
	must.NoError(t, os.Chmod(dir+"/local/rank", 0o644))
	r = Check(t.Context(), Input{Config: c, TaskDir: dir, PortLow: 18000, PortHigh: 18999, StateDir: dir, Place: Place{Run: run}})
	must.Eq(t, 1, len(r.Problems))
	must.StrContains(t, r.Problems[0].Text, "chmod +x")
	r.Port.Release()
}
