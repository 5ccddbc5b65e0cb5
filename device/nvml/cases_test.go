//go:build cgo && linux

package nvml_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	lib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/kernlog/kernlogtest"
	"github.com/nomad-muster/muster/device/nvml/nvmltest"
	"github.com/nomad-muster/muster/internal/contract"
)

// C01: one lost card leaves its neighbours alone.
func TestC01LostCard(t *testing.T) {
	t.Parallel()
	for name, calls := range map[string][]string{"no handle": {"DeviceGetHandleByIndex"}, "no memory": {"GetMemoryInfo", "GetMemoryInfo_v2"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := nvmltest.New(four()...)
			bubble(t, l, func(r *rig) {
				r.start()
				must.Eq(t, "GPU-a1+ GPU-a2+ GPU-a3+ GPU-a4+", r.cards())
				l.Change(func() {
					l.Fail = func(call, uuid string) lib.Return {
						if uuid == "GPU-a3" && slices.Contains(calls, call) {
							return lib.ERROR_GPU_IS_LOST
						}
						return lib.SUCCESS
					}
				})
				r.pass()
				must.Eq(t, "GPU-a1+ GPU-a2+ GPU-a3- GPU-a4+", r.cards())
				_, d := r.card("GPU-a3")
				must.StrContains(t, d.HealthDescription, "fallen off the bus")
				sent := r.count()
				r.pass() // nothing changed: nothing is sent
				must.Eq(t, sent, r.count())
				l.Change(func() { l.Fail = nil })
				r.pass()
				must.Eq(t, "GPU-a1+ GPU-a2+ GPU-a3+ GPU-a4+", r.cards())
				must.Eq(t, health.Suspect, r.level("GPU-a3"))
			})
		})
	}
	t.Run("lost from the first pass on", func(t *testing.T) {
		t.Parallel()
		l := nvmltest.New(four()...)
		l.Fail = func(call, uuid string) lib.Return {
			if uuid == "GPU-a3" {
				return lib.ERROR_GPU_IS_LOST
			}
			return lib.SUCCESS
		}
		bubble(t, l, func(r *rig) {
			r.start()
			must.Eq(t, "GPU-a1+ GPU-a2+ GPU-a4+", r.cards()) // never seen: left out, and said so
			must.StrContains(t, r.logged(), "a card cannot be asked")
			l.Change(func() { l.Fail = nil })
			r.pass()
			must.Eq(t, "GPU-a1+ GPU-a2+ GPU-a3+ GPU-a4+", r.cards())
		})
	})
	t.Run("still lost after a restart of the plugin", func(t *testing.T) {
		t.Parallel()
		l := nvmltest.New(four()...)
		bubble(t, l, func(r *rig) {
			r.start()
			l.Change(func() {
				l.Fail = func(call, uuid string) lib.Return {
					if uuid == "GPU-a3" {
						return lib.ERROR_GPU_IS_LOST
					}
					return lib.SUCCESS
				}
			})
			r.restart()
			must.Eq(t, "GPU-a1+ GPU-a2+ GPU-a3- GPU-a4+", r.cards()) // known by its slot's place in the list
			g, _ := r.card("GPU-a3")
			must.Eq(t, "NVIDIA A100-SXM4-40GB", g.Name)
		})
	})
}

// C02: bus ids are padded with NULs, or fill their field, in either case.
func TestC02BusId(t *testing.T) {
	t.Parallel()
	full := nvmltest.Bus(strings.Repeat("0", 32)) // no NUL, and no address
	for name, c := range map[string]struct {
		bus  [32]int8
		want string
	}{
		"padded": {nvmltest.Bus("00000000:06:00.0"), "00000000:06:00.0"}, "lower case": {nvmltest.Bus("0000000f:0a:00.0"), "0000000F:0A:00.0"},
		"full": {full, ""}, "garbage after the NUL": {nvmltest.Bus("00000000:06:00.0\x00zzzz"), "00000000:06:00.0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := nvmltest.Card("GPU-a1", "")
			g.BusID, g.Name, g.Serial = c.bus, "NVIDIA A100\x00\x00\x07", "123\x00\x00"
			bubble(t, nvmltest.New(g), func(r *rig) {
				r.start() // the rig refuses control characters anywhere
				group, d := r.card("GPU-a1")
				must.Eq(t, c.want, d.PCIBusID)
				must.Eq(t, "NVIDIA A100", group.Name)
				if c.want == "00000000:06:00.0" {
					r.xid("PCI:0000:06:00", 48)
					must.Eq(t, "GPU-a1-", r.cards())
				}
			})
		})
	}
}

// C03: MIG mode without instances, and instances that come and go.
func TestC03MIGWithoutInstances(t *testing.T) {
	t.Parallel()
	a1, a2, a3 := nvmltest.Card("GPU-a1", "00000000:01:00.0"), nvmltest.Card("GPU-a2", "00000000:02:00.0"), nvmltest.Card("GPU-a3", "00000000:03:00.0")
	a2.MIG, a2.MIGPending, a2.MaxSlices = true, true, 7
	a3.MIGPending = true // a change that waits for a reset
	l := nvmltest.New(a1, a2, a3)
	bubble(t, l, func(r *rig) {
		r.start()
		must.Eq(t, "GPU-a1+ GPU-a3+", r.cards())
		must.StrContains(t, r.logged(), "no instance was made")
		must.StrContains(t, r.logged(), "MIG mode is off now and will be on after a reset")
		must.Eq(t, 1, strings.Count(r.logged(), "no instance was made"))
		sent := r.count()
		r.pass()
		must.Eq(t, sent, r.count())
		must.Eq(t, 1, strings.Count(r.logged(), "no instance was made")) // said once
		l.Change(func() {
			a2.Slices = map[int]*nvmltest.GPU{0: nvmltest.Slice("MIG-m1", 1, 0, 4864), 3: nvmltest.Slice("MIG-m2", 2, 0, 9856)}
		})
		r.pass()
		must.Eq(t, "GPU-a1+ GPU-a3+ MIG-m1+ MIG-m2+", r.cards())
		l.Change(func() { delete(a2.Slices, 0) })
		r.pass()
		must.Eq(t, "GPU-a1+ GPU-a3+ MIG-m2+", r.cards()) // taken away on purpose: not listed as broken
	})
}

// C04: the "count" is a maximum, and the list has holes.
func TestC04Holes(t *testing.T) {
	t.Parallel()
	a1 := nvmltest.Card("GPU-a1", "00000000:01:00.0")
	a1.MIG, a1.MIGPending, a1.MaxSlices = true, true, 7
	a1.Slices = map[int]*nvmltest.GPU{0: nvmltest.Slice("MIG-m1", 1, 0, 4864), 2: nvmltest.Slice("MIG-m2", 2, 0, 9856), 6: nvmltest.Slice("MIG-m3", 7, 0, 4864)}
	a1.SliceErrors = map[int]lib.Return{4: lib.ERROR_INVALID_ARGUMENT, 5: lib.ERROR_UNKNOWN}
	bubble(t, nvmltest.New(a1), func(r *rig) {
		r.start()
		must.Eq(t, "MIG-m1+ MIG-m2+ MIG-m3+", r.cards())
		must.Len(t, 2, r.last())
		for id, want := range map[string]struct {
			name string
			mib  int64
		}{"MIG-m1": {"NVIDIA A100-SXM4-40GB MIG 5gb", 4864}, "MIG-m3": {"NVIDIA A100-SXM4-40GB MIG 5gb", 4864}, "MIG-m2": {"NVIDIA A100-SXM4-40GB MIG 10gb", 9856}} {
			g, _ := r.card(id)
			must.Eq(t, "nvidia/mig/"+want.name, g.ID())
			must.Eq(t, want.mib, *g.Attributes[contract.AttrMemory].Int)
			must.Eq(t, "MiB", g.Attributes[contract.AttrMemory].Unit)
		}
		sent := r.count()
		r.pass()
		r.pass()
		must.Eq(t, sent, r.count())
	})
}

// C05: an event names the whole card and a slice's numbers.
func TestC05EventsOnSlices(t *testing.T) {
	t.Parallel()
	const none = 0xFFFFFFFF
	orders := [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}}
	for name, c := range map[string]struct {
		uuid   string
		gi, ci uint32
		want   string
	}{
		"one slice":           {"GPU-a1", 1, 0, "MIG-m1- MIG-m2+ MIG-m3+"},
		"the whole card":      {"GPU-a1", none, none, "MIG-m1- MIG-m2- MIG-m3-"},
		"one GPU instance":    {"GPU-a1", 2, none, "MIG-m1+ MIG-m2- MIG-m3-"},
		"a slice that is not": {"GPU-a1", 9, 0, "MIG-m1- MIG-m2- MIG-m3-"},
		"a card that is not":  {"GPU-zz", none, none, "MIG-m1+ MIG-m2+ MIG-m3+"},
	} {
		for _, order := range orders {
			t.Run(fmt.Sprint(name, order), func(t *testing.T) {
				t.Parallel()
				a1 := nvmltest.Card("GPU-a1", "00000000:01:00.0")
				a1.MIG, a1.MIGPending, a1.MaxSlices, a1.Slices = true, true, 7, map[int]*nvmltest.GPU{}
				made := []*nvmltest.GPU{nvmltest.Slice("MIG-m1", 1, 0, 4864), nvmltest.Slice("MIG-m2", 2, 0, 4864), nvmltest.Slice("MIG-m3", 2, 1, 4864)}
				for place, which := range order {
					a1.Slices[place] = made[which]
				}
				l := nvmltest.New(a1)
				bubble(t, l, func(r *rig) {
					r.start()
					must.Eq(t, "MIG-m1+ MIG-m2+ MIG-m3+", r.cards())
					dev := lib.Device(a1)
					if c.uuid != "GPU-a1" {
						stranger := nvmltest.Card(c.uuid, "00000000:77:00.0")
						nvmltest.New(stranger).DeviceGetHandleByIndex(0)
						dev = stranger
					}
					l.Change(func() {
						l.Events = append(l.Events, lib.EventData{Device: dev, EventType: lib.EventTypeXidCriticalError, EventData: 48, GpuInstanceId: c.gi, ComputeInstanceId: c.ci})
					})
					time.Sleep(2 * time.Second)
					synctest.Wait()
					must.Eq(t, c.want, r.cards())
					if name == "a card that is not" {
						must.StrContains(t, r.logged(), "not known here")
					}
				})
			})
		}
	}
}

// C06: waiting for events fails at once, for ever.
func TestC06WaitFails(t *testing.T) {
	t.Parallel()
	t.Run("a card is lost", func(t *testing.T) {
		t.Parallel()
		gpus := four()
		l := nvmltest.New(gpus...)
		bubble(t, l, func(r *rig) {
			r.start()
			must.MapLen(t, 4, l.Watched())
			time.Sleep(3 * time.Second)
			waits := l.Count("EventSetWait")
			l.Change(func() {
				l.WaitEnds = lib.ERROR_GPU_IS_LOST
				l.Fail = func(call, uuid string) lib.Return {
					if uuid == "GPU-a3" {
						return lib.ERROR_GPU_IS_LOST
					}
					return lib.SUCCESS
				}
			})
			before := strings.Count(r.logged(), "\n")
			time.Sleep(10 * time.Second)
			synctest.Wait()
			must.LessEq(t, 15, l.Count("EventSetWait")-waits)
			must.LessEq(t, 20, strings.Count(r.logged(), "\n")-before)
			must.Eq(t, "GPU-a1+ GPU-a2+ GPU-a3- GPU-a4+", r.cards())
			must.MapLen(t, 3, l.Watched()) // the others are watched on
			must.MapNotContainsKey(t, l.Watched(), "GPU-a3")
			l.Change(func() {
				l.WaitEnds = lib.ERROR_TIMEOUT
				l.Events = []lib.EventData{{Device: gpus[0], EventType: lib.EventTypeXidCriticalError, EventData: 48, GpuInstanceId: 0xFFFFFFFF, ComputeInstanceId: 0xFFFFFFFF}}
			})
			time.Sleep(10 * time.Second)
			synctest.Wait()
			must.Eq(t, "GPU-a1- GPU-a2+ GPU-a3- GPU-a4+", r.cards())
		})
	})
	t.Run("the library is gone", func(t *testing.T) {
		t.Parallel()
		l := nvmltest.New(four()...)
		bubble(t, l, func(r *rig) {
			r.start()
			waits, inits := l.Count("EventSetWait"), l.Count("Init")
			l.Change(func() {
				l.WaitEnds = lib.ERROR_UNINITIALIZED
				l.Fail = func(call, uuid string) lib.Return {
					if call == "Shutdown" {
						return lib.SUCCESS
					}
					return lib.ERROR_UNINITIALIZED
				}
			})
			r.pass()
			r.pass()
			must.Eq(t, "GPU-a1- GPU-a2- GPU-a3- GPU-a4-", r.cards())
			_, d := r.card("GPU-a1")
			must.StrContains(t, d.HealthDescription, "not initialised")
			must.LessEq(t, 30, l.Count("EventSetWait")-waits)
			must.Greater(t, inits, l.Count("Init")) // it keeps trying
			l.Change(func() { l.WaitEnds, l.Fail = lib.ERROR_TIMEOUT, nil })
			r.pass()
			r.pass()
			must.Eq(t, "GPU-a1+ GPU-a2+ GPU-a3+ GPU-a4+", r.cards())
			must.Eq(t, health.Healthy, r.level("GPU-a1"))
		})
	})
	t.Run("a passing error", func(t *testing.T) {
		t.Parallel()
		l := nvmltest.New(four()...)
		bubble(t, l, func(r *rig) {
			r.start()
			l.Change(func() { l.WaitEnds = lib.ERROR_UNKNOWN })
			time.Sleep(4 * time.Second)
			l.Change(func() { l.WaitEnds = lib.ERROR_TIMEOUT })
			r.pass()
			must.Eq(t, "GPU-a1+ GPU-a2+ GPU-a3+ GPU-a4+", r.cards())
			must.Eq(t, health.Healthy, r.level("GPU-a1"))
			must.Eq(t, 1, r.count())
		})
	})
}

// C07, over a restart of the plugin, through the kernel log.
func TestC07FatalIsNotForgotten(t *testing.T) {
	t.Parallel()
	l := nvmltest.New(four()...)
	bubble(t, l, func(r *rig) {
		r.start()
		r.xid("PCI:0000:01:00", 79)
		time.Sleep(2 * time.Second)
		r.xid("PCI:0000:01:00", 31)
		must.Eq(t, "GPU-a1- GPU-a2+ GPU-a3+ GPU-a4+", r.cards())
		time.Sleep(8 * time.Second)
		r.restart()
		_, d := r.card("GPU-a1")
		must.False(t, d.Healthy)
		must.StrContains(t, d.HealthDescription, "Xid 79")
		must.Eq(t, map[int]uint64{79: 1, 31: 1}, r.status("GPU-a1").Health.Xids)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		must.False(t, r.level("GPU-a1").Usable())
		l.Change(func() { l.GPUs[0].Energy = 5 }) // its counters begin anew: it was reset
		r.pass()
		must.Eq(t, "GPU-a1+ GPU-a2+ GPU-a3+ GPU-a4+", r.cards())

		r.xid("PCI:0000:02:00", 31)
		must.Eq(t, "GPU-a1+ GPU-a2+ GPU-a3+ GPU-a4+", r.cards())
		must.Eq(t, 1, r.status("GPU-a2").Health.Xids[31])

		r.xid("PCI:0000:03:00", 48)
		r.xid("PCI:0000:03:00", 63)
		r.pass()
		r.pass() // it answers every probe, and stays out
		must.Eq(t, "GPU-a1+ GPU-a2+ GPU-a3- GPU-a4+", r.cards())
	})
}

// C08: off the bus without an Xid, told over three records.
func TestC08OffTheBusInWords(t *testing.T) {
	t.Parallel()
	const middle, end = "NVRM: (PCI ID: 10de:26b5) installed in this system has", "NVRM: fallen off the bus and is not responding to commands."
	first := func(bus string) string { return "NVRM: The NVIDIA GPU 0000:" + bus + ":00.0" }
	for name, c := range map[string]struct {
		before  bool // an Xid 79 two seconds earlier
		records []string
		want    string
		strikes int
	}{
		"plain":              {false, []string{first("01"), middle, end}, "GPU-a1- GPU-a2+ GPU-a3+ GPU-a4+", 1},
		"another between":    {false, []string{first("01"), "igb 0000:05:00.0 eth0: link is up", middle, end}, "GPU-a1- GPU-a2+ GPU-a3+ GPU-a4+", 1},
		"after its Xid":      {true, []string{first("01"), middle, end}, "GPU-a1- GPU-a2+ GPU-a3+ GPU-a4+", 1},
		"two at once":        {false, []string{first("01"), first("02"), middle, middle, end, end}, "GPU-a1- GPU-a2- GPU-a3+ GPU-a4+", 1},
		"only the beginning": {false, []string{first("01")}, "GPU-a1+ GPU-a2+ GPU-a3+ GPU-a4+", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, nvmltest.New(four()...), func(r *rig) {
				r.start()
				if c.before {
					r.xid("PCI:0000:01:00", 79)
					time.Sleep(2 * time.Second)
				}
				for _, text := range c.records {
					r.log.Write(time.Now(), text)
				}
				r.pass()
				must.Eq(t, c.want, r.cards())
				must.Len(t, c.strikes, r.status("GPU-a1").Health.Strikes)
				if c.strikes > 0 {
					must.Eq(t, 1, r.status("GPU-a1").Health.Xids[79])
				}
			})
		})
	}
}

// C09: the PCI domain counts.
func TestC09Domains(t *testing.T) {
	t.Parallel()
	gpus := []*nvmltest.GPU{nvmltest.Card("GPU-a1", "00000000:06:00.0"), nvmltest.Card("GPU-a2", "00000008:06:00.0"), nvmltest.Card("GPU-a3", "0000000F:01:00.0")}
	for line, want := range map[string]string{
		"PCI:0000:06:00":   "GPU-a1- GPU-a2+ GPU-a3+",
		"PCI:0008:06:00":   "GPU-a1+ GPU-a2- GPU-a3+",
		"PCI:0008:06:00.0": "GPU-a1+ GPU-a2- GPU-a3+",
		"PCI:000f:01:00":   "GPU-a1+ GPU-a2+ GPU-a3-",
		"PCI:0010:06:00":   "GPU-a1+ GPU-a2+ GPU-a3+",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			copies := []*nvmltest.GPU{}
			for _, g := range gpus {
				c := *g
				copies = append(copies, &c)
			}
			bubble(t, nvmltest.New(copies...), func(r *rig) {
				r.start()
				r.xid(line, 48)
				must.Eq(t, want, r.cards())
				must.Eq(t, line == "PCI:0010:06:00", strings.Contains(r.logged(), "not known here"))
			})
		})
	}
}

// C10: peers over NVLink, through switches, with dead and missing links.
func TestC10Links(t *testing.T) {
	t.Parallel()
	peers := func(r *rig, id string) map[string]int {
		return r.status(id).Card.Links
	}
	t.Run("through switches", func(t *testing.T) {
		t.Parallel()
		gpus := four()
		for _, g := range gpus {
			g.Links = map[int]nvmltest.Link{}
			for n := range 6 {
				g.Links[n] = nvmltest.Link{Switch: true, Bus: fmt.Sprintf("00000000:C%d:00.0", n%3)}
			}
		}
		l := nvmltest.New(gpus...)
		bubble(t, l, func(r *rig) {
			r.start()
			must.Eq(t, map[string]int{"GPU-a2": 6, "GPU-a3": 6, "GPU-a4": 6}, peers(r, "GPU-a1"))
			g, _ := r.card("GPU-a1")
			must.Eq(t, int64(6), *g.Attributes[contract.AttrNVLinkCount].Int)
			cards, err := contract.DecodeCards(*g.Attributes[contract.AttrCards].String)
			must.NoError(t, err)
			must.Len(t, 6, cards.Links)
			must.Eq(t, cards.Cards[0].Domain, cards.Cards[3].Domain)
			l.Change(func() { gpus[0].Links[4] = nvmltest.Link{Down: true} })
			r.pass()
			must.Eq(t, map[string]int{"GPU-a2": 5, "GPU-a3": 5, "GPU-a4": 5}, peers(r, "GPU-a1"))
			must.Eq(t, "GPU-a1- GPU-a2+ GPU-a3+ GPU-a4+", r.cards())
			_, d := r.card("GPU-a1")
			must.StrContains(t, d.HealthDescription, "link 4 is down: 5 of 6 links are live")
			l.Change(func() { gpus[0].Links[4] = gpus[1].Links[4] })
			r.pass()
			must.Eq(t, health.Suspect, r.level("GPU-a1"))
		})
	})
	t.Run("bridges", func(t *testing.T) {
		t.Parallel()
		gpus := four()
		to := func(bus string) nvmltest.Link { return nvmltest.Link{Bus: "00000000:" + bus + ":00.0"} }
		gpus[0].Links = map[int]nvmltest.Link{0: to("02"), 1: to("02"), 2: to("03"), 3: {Down: true}, 4: {Error: lib.ERROR_NOT_SUPPORTED}, 5: {Error: lib.ERROR_NOT_SUPPORTED}}
		gpus[1].Links = map[int]nvmltest.Link{0: to("01"), 1: to("01")}
		gpus[2].Links = map[int]nvmltest.Link{0: to("01")}
		bubble(t, nvmltest.New(gpus...), func(r *rig) {
			r.start()
			must.Eq(t, map[string]int{"GPU-a2": 2, "GPU-a3": 1}, peers(r, "GPU-a1"))
			must.Eq(t, map[string]int{"GPU-a1": 2}, peers(r, "GPU-a2"))
			must.MapEmpty(t, peers(r, "GPU-a4"))
			must.Eq(t, "GPU-a1+ GPU-a2+ GPU-a3+ GPU-a4+", r.cards()) // a link that never was live is no fault
		})
	})
	t.Run("slices have no peers", func(t *testing.T) {
		t.Parallel()
		gpus := four()
		for _, g := range gpus {
			g.Links = map[int]nvmltest.Link{0: {Switch: true, Bus: "00000000:C0:00.0"}}
		}
		gpus[0].MIG, gpus[0].MIGPending, gpus[0].MaxSlices = true, true, 7
		gpus[0].Slices = map[int]*nvmltest.GPU{0: nvmltest.Slice("MIG-m1", 1, 0, 4864)}
		bubble(t, nvmltest.New(gpus...), func(r *rig) {
			r.start()
			must.MapEmpty(t, peers(r, "MIG-m1"))
			must.Eq(t, map[string]int{"GPU-a3": 1, "GPU-a4": 1}, peers(r, "GPU-a2"))
		})
	})
	t.Run("a rack-wide fabric", func(t *testing.T) {
		t.Parallel()
		gpus := four()
		for i, g := range gpus {
			g.Links = map[int]nvmltest.Link{0: {Switch: true}}
			g.Fabric = lib.GpuFabricInfo{State: lib.GPU_FABRIC_STATE_COMPLETED, ClusterUuid: [16]uint8{1, 2, 3}, CliqueId: 7}
			if i == 3 {
				g.Fabric = lib.GpuFabricInfo{State: lib.GPU_FABRIC_STATE_IN_PROGRESS}
			}
		}
		l := nvmltest.New(gpus...)
		bubble(t, l, func(r *rig) {
			r.start()
			must.Eq(t, "01020300-0000-0000-0000-000000000000/7", r.status("GPU-a1").Card.Domain)
			must.Eq(t, "GPU-a1+ GPU-a2+ GPU-a3+ GPU-a4-", r.cards())
			l.Change(func() { gpus[3].Fabric = gpus[0].Fabric })
			r.pass()
			must.Eq(t, "GPU-a1+ GPU-a2+ GPU-a3+ GPU-a4+", r.cards())
			g, _ := r.card("GPU-a1")
			must.Eq(t, "7", *g.Attributes[contract.AttrFabricClique].String)
		})
	})
}

// C11: "not supported" for one call on a good card.
func TestC11NotSupported(t *testing.T) {
	t.Parallel()
	a1, a2, a3 := nvmltest.Card("GPU-a1", "0000000F:01:00.0"), nvmltest.Card("GPU-a2", "00000000:02:00.0"), nvmltest.Card("GPU-a3", "00000000:03:00.0")
	a1.Name = "NVIDIA GB10"
	l := nvmltest.New(a1, a2, a3)
	l.Fail = func(call, uuid string) lib.Return {
		switch {
		case uuid == "GPU-a1" && strings.HasPrefix(call, "GetMemoryInfo"):
			return lib.ERROR_NOT_SUPPORTED
		case uuid == "GPU-a2" && call == "RegisterEvents":
			return lib.ERROR_NOT_SUPPORTED
		case uuid == "GPU-a3" && call == "GetName":
			return lib.ERROR_FUNCTION_NOT_FOUND
		}
		return lib.SUCCESS
	}
	bubble(t, l, func(r *rig) {
		r.start()
		must.Eq(t, "GPU-a1+ GPU-a2+ GPU-a3+", r.cards())
		g, _ := r.card("GPU-a1")
		_, have := g.Attributes[contract.AttrMemory]
		must.False(t, have) // absent, not 0
		must.MapNotContainsKey(t, l.Watched(), "GPU-a2")
		g, _ = r.card("GPU-a3")
		must.Eq(t, "nvidia/gpu/unknown model", g.ID())
		r.xid("PCI:0000:02:00", 48) // its health comes from the kernel log
		must.Eq(t, "GPU-a1+ GPU-a2- GPU-a3+", r.cards())
	})
}

// C12: old kernel records are read again at each start, and not counted again.
func TestC12HistoryIsNotCountedTwice(t *testing.T) {
	t.Parallel()
	l := nvmltest.New(four()...)
	l.Fail = func(call, uuid string) lib.Return {
		if uuid == "GPU-a2" && strings.HasPrefix(call, "GetMemoryInfo") {
			return lib.ERROR_GPU_IS_LOST // nobody reset it; a3 was, and answers
		}
		return lib.SUCCESS
	}
	bubble(t, l, func(r *rig) {
		booted := time.Now().Add(-5000 * time.Second)
		write := func(seq uint64, at int, bus string, code int) {
			r.log.WriteSeq(seq, booted.Add(time.Duration(at)*time.Second), fmt.Sprintf("NVRM: Xid (PCI:0000:%s:00): %d, x", bus, code))
		}
		write(100, 90, "01", 31)
		write(200, 300, "02", 79)
		write(300, 900, "03", 79)
		check := func() {
			t.Helper()
			must.Eq(t, "GPU-a1+ GPU-a2- GPU-a3+ GPU-a4+", r.cards())
			must.Eq(t, map[int]uint64{31: 1}, r.status("GPU-a1").Health.Xids)
			must.Eq(t, map[int]uint64{79: 1}, r.status("GPU-a2").Health.Xids)
			must.Eq(t, map[int]uint64{79: 1}, r.status("GPU-a3").Health.Xids)
			must.True(t, r.status("GPU-a2").Verdict.Since.Equal(booted.Add(300*time.Second))) // the record's own time
		}
		r.start()
		check()
		time.Sleep(time.Minute)
		r.restart()
		check()

		// A reboot: new boot id, empty log, sequence numbers from 0.
		r.stop()
		r.log, r.boot = kernlogtest.New("boot-2"), "boot-2"
		l.Change(func() { l.Fail = nil })
		r.start()
		must.Eq(t, "GPU-a1+ GPU-a2+ GPU-a3+ GPU-a4+", r.cards())
		r.log.WriteSeq(5, time.Now(), "NVRM: Xid (PCI:0000:04:00): 48, x") // a number below the old ones is news
		r.settle()
		must.Eq(t, "GPU-a1+ GPU-a2+ GPU-a3+ GPU-a4-", r.cards())
	})
}
