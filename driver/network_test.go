package driver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/rendezvous/rendezvoustest"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
)

// lab is two hosts of our own, network namespaces on one bridge, each with an
// interface named data0; Consul is on the bridge's own address.
type lab struct {
	t      *testing.T
	prefix string
	net    string // first three bytes of its IPv4 addresses
	agent  *rendezvoustest.Agent
}

func (l *lab) ip(args ...string) error {
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// labs counts, so that no two share addresses.
var labs atomic.Int32

func newLab(t *testing.T) *lab {
	if os.Getuid() != 0 {
		t.Skip("only root can make network namespaces")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("no ip command (Debian: iproute2)")
	}
	number := (os.Getpid() + int(labs.Add(1))) % 250
	l := &lab{t: t, prefix: "mu" + randomID()[:4], net: fmt.Sprintf("198.18.%d", number)}
	bridge := l.prefix + "b"
	if err := l.ip("link", "add", bridge, "type", "bridge"); err != nil {
		t.Skip("no bridge may be made here: ", err)
	}
	t.Cleanup(func() { _ = l.ip("link", "del", bridge) })
	must.NoError(t, l.ip("addr", "add", l.net+".1/24", "dev", bridge))
	must.NoError(t, l.ip("link", "set", bridge, "up"))
	for i := 1; i <= 2; i++ {
		host, outside := l.host(i), fmt.Sprintf("%sv%d", l.prefix, i)
		must.NoError(t, l.ip("netns", "add", host))
		t.Cleanup(func() { _ = l.ip("netns", "del", host) })
		must.NoError(t, l.ip("link", "add", outside, "type", "veth", "peer", "name", "data0", "netns", host))
		must.NoError(t, l.ip("link", "set", outside, "master", bridge, "up"))
		must.NoError(t, l.ip("-n", host, "addr", "add", fmt.Sprintf("%s.%d/24", l.net, i+10), "dev", "data0"))
		must.NoError(t, l.ip("-n", host, "addr", "add", fmt.Sprintf("fd77:%d::%d/64", number, i+10), "dev", "data0", "nodad"))
		must.NoError(t, l.ip("-n", host, "link", "set", "data0", "up"))
		must.NoError(t, l.ip("-n", host, "link", "set", "lo", "up"))
	}
	l.agent = rendezvoustest.StartOn(t, l.net+".1")
	return l
}

func (l *lab) host(i int) string { return fmt.Sprintf("%sh%d", l.prefix, i) }

// cut and join the link of a host.
func (l *lab) link(i int, state string) {
	must.NoError(l.t, l.ip("link", "set", fmt.Sprintf("%sv%d", l.prefix, i), state))
}

// trial makes a gang with a member on each host, each under a plugin whose
// supervisors live in the host's namespace.
func (l *lab) trial(config map[string]any, change ...func(*driver.TaskConfig)) []*trial {
	base := newTrial(l.t, 0, nil)
	base.planner = l.agent.Planner(l.t, base.gang)
	self, err := os.Executable()
	must.NoError(l.t, err)
	var out []*trial
	for i := 1; i <= 2; i++ {
		tr := *base
		script := filepath.Join(l.t.TempDir(), "plugin")
		own := script + ".driver" // ranks see it beside the script
		must.NoError(l.t, os.Link(self, own))
		must.NoError(l.t, os.WriteFile(script, []byte("#!/bin/sh\n[ \"$1\" = shim ] || exec "+own+" \"$@\"\nexec nsenter --net=/run/netns/"+l.host(i)+" "+self+" \"$@\"\n"), 0o755))
		tr.plugin = newPlugin(l.t, map[string]any{"rendezvous": "consul", "interface": "data0", "consul": map[string]any{"address": l.agent.Address}})
		tr.plugin.binary = script
		tr.followEvents(tr.plugin)
		tr.members = []*trialMember{newMember(l.t, taskConfig(l.t, tr.gang, fmt.Sprintf("n%d", i), config))}
		for _, c := range change {
			c(tr.members[0].cfg)
		}
		l.t.Cleanup(tr.destroy)
		tr.start()
		out = append(out, &tr)
	}
	return out
}

// joined is the planner's view of the two.
func joined(hosts []*trial) *trial {
	all := *hosts[0]
	all.members = []*trialMember{hosts[0].members[0], hosts[1].members[0]}
	return &all
}

// refusal waits until a member was refused, and gives its first problem.
func (tr *trial) refusal(m *trialMember) contract.Problem {
	tr.t.Helper()
	key := m.cfg.AllocID + ".train"
	all := tr.planner.Await(tr.ctx, 1, "refused", func(all map[string]contract.Report) bool { return all[key].State == contract.StateRefused })
	return all[key].Problems[0]
}

// mgmt gives the hosts a second interface, with the default route, and leaves
// data0 IPv6 alone, as a fabric apart from the rest has it.
func (l *lab) mgmt() {
	for i := 1; i <= 2; i++ {
		host, outside := l.host(i), fmt.Sprintf("%sw%d", l.prefix, i)
		must.NoError(l.t, l.ip("-n", host, "addr", "del", fmt.Sprintf("%s.%d/24", l.net, i+10), "dev", "data0"))
		must.NoError(l.t, l.ip("link", "add", outside, "type", "veth", "peer", "name", "mgmt0", "netns", host))
		must.NoError(l.t, l.ip("link", "set", outside, "master", l.prefix+"b", "up"))
		must.NoError(l.t, l.ip("-n", host, "addr", "add", fmt.Sprintf("%s.%d/24", l.net, i+20), "dev", "mgmt0"))
		must.NoError(l.t, l.ip("-n", host, "link", "set", "mgmt0", "up"))
		must.NoError(l.t, l.ip("-n", host, "route", "add", "default", "via", l.net+".1"))
	}
}

// Hosts with several interfaces: ranks meet on the one that is named, over
// IPv6, with torchrun's store and gloo's connections, although the default
// route and all of IPv4 are on another.
func TestGangOverIPv6OnOneOfSeveralInterfaces(t *testing.T) {
	needTorch(t)
	l := newLab(t)
	t.Parallel()
	l.mgmt()
	hosts := l.trial(map[string]any{"script": "local/allreduce.py", "nproc_per_node": 1}, withExample(t, "allreduce.py"))
	gang := joined(hosts)
	gang.place(1)
	gang.freeze()
	for i, m := range gang.record.Members {
		must.StrHasPrefix(t, "fd77:", m.Address)
		must.StrHasSuffix(t, fmt.Sprintf("::%d", i+11), m.Address)
	}
	gang.planner.Write(gang.record)
	for _, h := range hosts {
		must.Eq(t, 0, h.wait(0).ExitCode)
		h.members[0].log.await(t, h.ctx, "over 2 ranks, every sum right")
	}
}

// A way between hosts that is slower than the gang asks for is refused by name,
// from the side that sends; the same gang meets where it is fast enough.
func TestSlowLinkIsRefusedByName(t *testing.T) {
	if _, err := exec.LookPath("tc"); err != nil {
		t.Skip("no tc command (Debian: iproute2)")
	}
	l := newLab(t)
	t.Parallel()
	out, err := exec.Command("tc", "-n", l.host(2), "qdisc", "add", "dev", "data0", "root", "tbf", "rate", "20mbit", "burst", "32kb", "latency", "50ms").CombinedOutput()
	if err != nil {
		t.Skipf("no link can be made slow here: %v: %s", err, out)
	}
	hosts := l.trial(ranksConfig(t, "-steps", "5"))
	gang := joined(hosts)
	gang.want = 0.1
	gang.place(1)
	p := gang.refusal(gang.members[1])
	must.Eq(t, "bandwidth", p.What)
	must.Eq(t, "n1", p.Peer)
	must.True(t, p.Site)
	must.StrContains(t, p.Text, "interface data0) to member 0 on n1")
	must.StrContains(t, p.Text, "muster_min_bandwidth asks for 0.1")
	must.RegexMatch(t, regexp.MustCompile(`carries 0\.0(1|2)\d* Gbit/s`), p.Text)
	// n1 sends to n2 as fast as ever: only the slow way is to blame.
	key := gang.members[0].cfg.AllocID + ".train"
	gang.planner.Await(gang.ctx, 1, "the other is ready", func(all map[string]contract.Report) bool { return all[key].State == contract.StateReady })
}

func TestBandwidthThatIsThere(t *testing.T) {
	l := newLab(t)
	t.Parallel()
	hosts := l.trial(ranksConfig(t, "-steps", "3"))
	gang := joined(hosts)
	gang.want = 0.1
	gang.place(1)
	gang.release()
	for _, h := range hosts {
		must.Eq(t, 0, h.wait(0).ExitCode)
	}
}

func TestGangAcrossHosts(t *testing.T) {
	l := newLab(t)
	t.Parallel()
	hosts := l.trial(ranksConfig(t, "-steps", "5"))
	gang := joined(hosts)
	gang.place(1)
	gang.freeze()
	for i, m := range gang.record.Members {
		must.Eq(t, fmt.Sprintf("%s.%d", l.net, i+11), m.Address)
	}
	gang.planner.Write(gang.record)
	for _, h := range hosts {
		must.Eq(t, 0, h.wait(0).ExitCode)
		h.members[0].log.await(t, h.ctx, "over 4 ranks, every sum right")
	}
}

// A link that is cut before the release is found by the preflight, from both
// sides where both can still tell.
func TestCutLinkIsFoundBeforeRelease(t *testing.T) {
	l := newLab(t)
	t.Parallel()
	l.cutBetween()
	hosts := l.trial(ranksConfig(t, "-steps", "5"))
	gang := joined(hosts)
	gang.place(1)
	all := gang.planner.Await(gang.ctx, 1, "both refused", func(all map[string]contract.Report) bool {
		n := 0
		for _, r := range all {
			if r.State == contract.StateRefused {
				n++
			}
		}
		return n == 2
	})
	for i, m := range gang.members {
		p := all[m.cfg.AllocID+".train"].Problems[0]
		must.Eq(t, "peer", p.What)
		must.Eq(t, fmt.Sprintf("n%d", 2-i), p.Peer)
	}
}

// cutBetween cuts the way between the two hosts; both still reach everybody else.
func (l *lab) cutBetween() {
	for i := 1; i <= 2; i++ {
		must.NoError(l.t, l.ip("-n", l.host(i), "route", "add", "blackhole", fmt.Sprintf("%s.%d/32", l.net, 13-i)))
	}
}

// A link between hosts that is cut while they train, and neither is away: no
// session ends and no rank fails for minutes, since TCP tries again. It is a
// hang, and found as one.
func TestCutLinkWhileTrainingIsAHang(t *testing.T) {
	l := newLab(t)
	t.Parallel()
	config := ranksConfig(t, "-steps", "1000000", "-step-time", "20ms")
	config["hang_timeout"] = "2s"
	hosts := l.trial(config)
	gang := joined(hosts)
	gang.place(1)
	gang.release()
	gang.planner.Await(gang.ctx, 1, "training", func(all map[string]contract.Report) bool {
		for _, r := range all {
			if r.State != contract.StateTraining {
				return false
			}
		}
		return len(all) == 2
	})
	l.cutBetween()
	var outcomes []contract.Outcome
	for _, h := range hosts {
		outcomes = append(outcomes, h.exit(0).Outcome)
	}
	must.SliceContains(t, outcomes, contract.OutcomeHung)
	for i, o := range outcomes {
		must.SliceContains(t, []contract.Outcome{contract.OutcomeHung, contract.OutcomePeer}, o, must.Sprint(hosts[i].exit(0).Text))
	}
}

// A host that vanishes: the other is ended within the session's time and a few
// seconds, with its name; and when it returns, it stops what it still runs.
func TestHostVanishesAndReturns(t *testing.T) {
	l := newLab(t)
	t.Parallel()
	// Ranks that do not talk, so that nothing but the driver notices.
	hosts := l.trial(map[string]any{"launcher": "ranks", "command": []any{"/bin/sh", "-c", "echo up; sleep 300"}, "nproc_per_node": 1})
	gang := joined(hosts)
	gang.place(1)
	gang.release()
	for _, h := range hosts {
		h.members[0].log.await(t, h.ctx, "up")
	}
	l.link(2, "down")
	x := hosts[0].exit(0)
	must.Eq(t, contract.OutcomePeer, x.Outcome)
	must.StrContains(t, x.Text, "member 1 on n2 vanished")
	select {
	case <-hosts[1].task(0).done:
		t.Fatal("a host that is cut off by itself stops nothing")
	default:
	}
	gang.record.Phase, gang.record.Reason = contract.PhaseEnded, "node-lost"
	gang.planner.Write(gang.record)
	l.link(2, "up")
	y := hosts[1].exit(0)
	// It hears the planner's verdict or of its peer's end, whichever of the two
	// watches answers first.
	switch y.Outcome {
	case contract.OutcomeKilled:
		must.StrContains(t, y.Text, "node-lost")
	case contract.OutcomePeer:
		must.StrContains(t, y.Text, "member 0 on n1 ended")
	default:
		t.Fatalf("a returning host ended its ranks as %q: %s", y.Outcome, y.Text)
	}
}
