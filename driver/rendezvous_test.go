package driver

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/rendezvous/rendezvoustest"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
)

// C20: the port of the record is taken at the moment of the start; the gang
// meets at another, and nothing counts as failed.
func TestTakenPortIsMoved(t *testing.T) {
	for _, launcher := range []string{contract.LauncherRanks, contract.LauncherTorchrun} {
		t.Run(launcher, func(t *testing.T) {
			t.Parallel()
			var tr *trial
			if launcher == contract.LauncherTorchrun {
				needTorch(t)
				tr = newTrial(t, 2, map[string]any{"script": "local/s.py", "nproc_per_node": 1}, withScript(t, "s.py", "print('every sum right', flush=True)\n"))
			} else {
				tr = newTrial(t, 2, ranksConfig(t, "-steps", "5"))
			}
			tr.start()
			tr.place(1)
			tr.freeze()
			// Somebody listens on another port, and the record names that one: to
			// the members it was taken between check and start.
			l, err := net.Listen("tcp", "127.0.0.1:0")
			must.NoError(t, err)
			defer l.Close()
			tr.record.Worlds[0].Port = l.Addr().(*net.TCPAddr).Port
			tr.planner.Write(tr.record)
			for i, m := range tr.members {
				must.Eq(t, 0, tr.wait(i).ExitCode)
				m.log.await(t, tr.ctx, "every sum right")
			}
			tr.awaitEvent(tr.members[0], "is taken; another one is chosen")
		})
	}
}

// C20 a: gangs without any port settings share a host, and C19: never a world.
func TestGangsOnOneHostNeverMeet(t *testing.T) {
	t.Parallel()
	var trials []*trial
	for range 3 {
		tr := newTrial(t, 2, ranksConfig(t, "-steps", "5"))
		tr.start()
		tr.place(1)
		tr.freeze()
		trials = append(trials, tr)
	}
	ports := map[int]bool{}
	for _, tr := range trials {
		ports[tr.record.Worlds[0].Port] = true
		tr.planner.Write(tr.record)
	}
	must.Eq(t, 3, len(ports))
	for _, tr := range trials {
		for i, m := range tr.members {
			must.Eq(t, 0, tr.wait(i).ExitCode)
			m.log.await(t, tr.ctx, "over 4 ranks")
		}
	}
}

// C19: even at the same store, two gangs' torchruns do not become one world.
func TestTorchrunsAtOneStoreStayApart(t *testing.T) {
	needTorch(t)
	t.Parallel()
	const script = "import os, time\nprint('world', os.environ['WORLD_SIZE'], 'run', os.environ['TORCHELASTIC_RUN_ID'], flush=True)\ntime.sleep(1)\n"
	first := newTrial(t, 1, map[string]any{"script": "local/s.py", "nproc_per_node": 1}, withScript(t, "s.py", script))
	second := newTrial(t, 1, map[string]any{"script": "local/s.py", "nproc_per_node": 1}, withScript(t, "s.py", script))
	first.start()
	second.start()
	first.place(1)
	second.place(1)
	first.freeze()
	second.freeze()
	second.record.Worlds[0].Port = first.record.Worlds[0].Port
	first.planner.Write(first.record)
	second.planner.Write(second.record)
	for _, tr := range []*trial{first, second} {
		must.Eq(t, 0, tr.wait(0).ExitCode)
		tr.members[0].log.await(t, tr.ctx, "world 1 run "+tr.gang.RunID(1, "rank"))
	}
}

// C21: the store's host is whom the record names, by address, and nothing is
// looked up by name: two members at two loopback addresses.
func TestHostIsDecidedByTheRecord(t *testing.T) {
	needTorch(t)
	t.Parallel()
	const script = "import os\nprint('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'], 'store', os.environ['MASTER_ADDR'], flush=True)\n"
	tr := newTrial(t, 2, map[string]any{"script": "local/s.py", "nproc_per_node": 1}, withScript(t, "s.py", script))
	tr.start()
	tr.place(1)
	tr.freeze()
	// The second member hosts, at another address of the machine than the one
	// that names give.
	port := tr.planner.Reports(1)[tr.members[1].cfg.AllocID+".train"].Port
	tr.record.Worlds[0] = contract.World{Name: "rank", Members: []int{0, 1}, Host: "127.0.0.2", Port: port, HostMember: 1}
	tr.planner.Write(tr.record)
	for i, m := range tr.members {
		must.Eq(t, 0, tr.wait(i).ExitCode)
		m.log.await(t, tr.ctx, fmt.Sprintf("rank %d of 2 store 127.0.0.2", 1-i)) // counted from the host on
	}
}

// C24: whatever another attempt left in Consul, this one meets at its own store.
func TestStaleAddressesAreIgnored(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, 2, ranksConfig(t, "-steps", "3"))
	consul := rendezvoustest.Shared(t)
	put := func(key, text string) { consul.Put(t, key, text) }
	put(tr.gang.EndpointKey(1, "rank"), `{"v":1,"world":"rank","host":"192.0.2.11","port":20100,"move":9}`)
	consul.Register(t, "stale-"+tr.gang.Job, "192.0.2.11", 20100, map[string]string{"gang": tr.gang.String(), "attempt": "1"})
	ended := contract.Record{V: 1, Gang: tr.gang, Attempt: 1, Phase: contract.PhaseEnded, Members: []contract.Member{{Alloc: "old", Task: "train", Node: "n9"}}}
	tr.planner.Write(ended)
	tr.start()
	tr.place(2)
	tr.release()
	put(tr.gang.EndpointKey(1, "rank"), `{"v":1,"world":"rank","host":"192.0.2.11","port":20100,"move":10}`) // its client came back
	for i := range tr.members {
		must.Eq(t, 0, tr.wait(i).ExitCode)
	}
}

// Without Consul the record comes by signals and reports leave as events.
func TestGangBySignals(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, 2, ranksConfig(t, "-steps", "100000", "-step-time", "10ms"))
	tr.plugin = newPlugin(t, map[string]any{"rendezvous": "signal", "interface": "lo"})
	reports := make(chan contract.Report, 100)
	go func() {
		_ = tr.plugin.TaskEvents(tr.ctx, func(e *driver.TaskEvent) error {
			if text := e.Annotations[contract.AnnotationReport]; text != "" {
				var r contract.Report
				must.NoError(t, json.Unmarshal([]byte(text), &r))
				reports <- r
			}
			return nil
		})
	}()
	tr.start()
	send := func(kind string, v any) {
		text, err := json.Marshal(v)
		must.NoError(t, err)
		for _, m := range tr.members {
			must.NoError(t, tr.plugin.SignalTask(m.cfg.ID, kind+" "+string(text)))
		}
	}
	await := func(state contract.State) map[string]contract.Report {
		out := map[string]contract.Report{}
		for len(out) < len(tr.members) {
			select {
			case r := <-reports:
				if r.State == state {
					out[r.Alloc] = r
				}
			case <-tr.ctx.Done():
				t.Fatalf("no %s from all: %v", state, out)
			}
		}
		return out
	}
	must.ErrorContains(t, tr.plugin.SignalTask(tr.members[0].cfg.ID, "SIGHUP"), "held")
	must.ErrorContains(t, tr.plugin.SignalTask(tr.members[0].cfg.ID, contract.SignalRecord+" {"), "read gang record")
	must.ErrorContains(t, tr.plugin.SignalTask(tr.members[0].cfg.ID, strings.Repeat("x", 5000)), "no signal is named")

	record := contract.Record{V: 1, Gang: tr.gang, Attempt: 1, Phase: contract.PhasePlaced}
	for i, m := range tr.members {
		record.Members = append(record.Members, contract.Member{Index: i, Alloc: m.cfg.AllocID, Task: "train", Group: "rank", Node: m.cfg.NodeName})
	}
	send(contract.SignalRecord, record)
	ready := await(contract.StateReady)
	record.Phase = contract.PhaseReleased
	for i := range record.Members {
		r := ready[record.Members[i].Alloc]
		record.Members[i].Start, record.Members[i].Address, record.Members[i].Ranks = r.Start, r.Address, r.Ranks
	}
	record.Worlds = []contract.World{{Name: "rank", Members: []int{0, 1}, Host: ready[record.Members[0].Alloc].Address, Port: ready[record.Members[0].Alloc].Port}}
	send(contract.SignalRecord, record)
	await(contract.StateTraining)
	send(contract.SignalAsk, contract.Ask{Kind: "drain", Grace: time.Minute})
	// The ranks leave together, perhaps before the second member's ask arrives:
	// the first to be asked says what it was.
	must.Eq(t, contract.OutcomeYielded, await(contract.StateEnded)[tr.members[0].cfg.AllocID].Exit.Outcome)
	must.Eq(t, contract.CodeAsked, tr.wait(0).ExitCode)
}
