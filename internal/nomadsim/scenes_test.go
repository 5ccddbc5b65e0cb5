package nomadsim_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/nomadsim"
	"github.com/nomad-muster/muster/internal/nomadsim/clock"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// exchange is one call of the API as it was recorded.
type exchange struct {
	Note     string            `json:"note"`
	Method   string            `json:"method"`
	Path     string            `json:"path"`
	Request  any               `json:"request"`
	Status   int               `json:"status"`
	Headers  map[string]string `json:"headers"`
	Response any               `json:"response"`
}

// scene is a recording: the calls, and the lines of the event stream meanwhile.
type scene struct {
	About     string           `json:"about"`
	Exchanges []exchange       `json:"exchanges"`
	Events    []map[string]any `json:"events"`
}

func readScene(t *testing.T, name string) *scene {
	t.Helper()
	b, err := os.ReadFile("testdata/recordings/" + name + ".json")
	must.NoError(t, err)
	var s scene
	must.NoError(t, json.Unmarshal(b, &s))
	return &s
}

// cast is who plays: the nodes in the order of their names, each with its cards.
type cast struct {
	names, ids []string
	cards      map[string][]string // by node id
	device     string              // vendor/type that jobs ask for
	group      nomadsim.DeviceGroup
}

// recordedCast are the nodes of the recordings.
func recordedCast() *cast {
	c := &cast{cards: map[string][]string{}, device: "nomad/file",
		group: nomadsim.DeviceGroup{Vendor: "nomad", Type: "file", Name: "mock", Attributes: map[string]*wire.Attribute{"cool-attribute": nomadsim.StringAttribute("attribute-wearing-sunglasses")},
			Stats: map[string]any{"Stats": map[string]any{"Nested": map[string]any{}, "Attributes": map[string]any{
				"mode":        map[string]any{"Desc": "File mode", "StringVal": "-rw-r--r--"},
				"modify_time": map[string]any{"Desc": "Last modified", "StringVal": "2026-11-29 18:24:13.733882643 +0000 UTC"},
				"size":        map[string]any{"Desc": "Filesize in bytes", "IntNumeratorVal": 0, "Unit": "bytes"},
			}}, "Summary": map[string]any{"Desc": "Filesize in bytes", "IntNumeratorVal": 0, "Unit": "bytes"}}}}
	for i, id := range []string{"17e7f190-c5ef-57a5-8daf-890062ff0486", "79913a6d-a9dc-80c0-9ccf-b60736a6424d", "18f095ed-172e-0569-a9d1-92fe06552502", "f573066b-f1fd-551b-9089-e1ba87e2d675"} {
		name := fmt.Sprintf("n%d", i+1)
		c.names, c.ids = append(c.names, name), append(c.ids, id)
		for _, s := range "abcd" {
			c.cards[id] = append(c.cards[id], fmt.Sprintf("GPU-%s-%c", name, s))
		}
	}
	return c
}

// otherCast are n nodes with other names and other cards.
func otherCast(n int) *cast {
	c := &cast{cards: map[string][]string{}, device: "nvidia/gpu",
		group: nomadsim.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: "H200", Attributes: map[string]*wire.Attribute{"memory": nomadsim.IntAttribute(141, "GiB")},
			Stats: recordedCast().group.Stats}}
	for i := range n {
		id := fmt.Sprintf("%08x-0000-4000-8000-%012d", 0xabc000+i*7919, i)
		name := fmt.Sprintf("gpu-%02d", i)
		c.names, c.ids = append(c.names, name), append(c.ids, id)
		for k := range 4 {
			c.cards[id] = append(c.cards[id], fmt.Sprintf("GPU-%d%d-uuid", i, k))
		}
	}
	return c
}

// stage plays the scenes that were recorded from a real cluster on a simulated one.
//
// Its time stands still unless it waits for something, so that no scene hinges on the speed of the machine.
type stage struct {
	t     *testing.T
	clock *clock.Manual
	sim   *nomadsim.Cluster
	cast  *cast
	mu    sync.Mutex
	cur   *scene
	from  float64 // the index before the scene
	resp  *http.Response
	lines chan struct{} // closed when the stream has ended
}

func newStage(t *testing.T, c *cast) *stage {
	t.Helper()
	s := &stage{t: t, cast: c, clock: clock.NewManual(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))}
	s.sim = nomadsim.New(t, nomadsim.Options{Clock: s.clock, Heartbeat: 10 * time.Second, MaxConns: -1, Script: func(ts nomadsim.TaskStart) nomadsim.Behaviour {
		b := nomadsim.DefaultScript(ts)
		b.StartDelay, b.StopDelay = 300*time.Millisecond, 20*time.Millisecond
		if b.RunFor > 0 && b.RunFor < time.Second {
			b.StartDelay = 50 * time.Millisecond
		}
		if ts.Alloc.JobID == "g1" { // slow enough to be seen while it ends
			b.StopDelay = 1900 * time.Millisecond
		}
		return b
	}})
	for i, id := range c.ids {
		g := c.group
		g.IDs = c.cards[id]
		_, err := s.sim.AddNode(nomadsim.NodeConfig{Name: c.names[i], ID: id, Devices: []nomadsim.DeviceGroup{g}, Drivers: []string{"raw_exec", "exec", "mock_driver", "java"},
			DriverInfo: map[string]map[string]string{"java": {"driver.java.version": "17.0.15", "driver.java.runtime": "OpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)",
				"driver.java.gpu-host": "OpenJDK 64-Bit Server VM (build 17.0.15+6-Debian-1deb12u1, mixed mode, sharing)"}},
			Attributes: map[string]string{"unique.storage.bytestotal": "270553174016"},
			Meta:       map[string]string{"leaf": fmt.Sprintf("leaf%d", i/2+1), "spine": "spine1"}})
		must.NoError(t, err)
	}
	return s
}

func (s *stage) raw(method, path string, body any) (int, http.Header, any) {
	s.t.Helper()
	var r io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		must.NoError(s.t, err)
		r = bytes.NewReader(b)
	}
	req, err := http.NewRequest(method, s.sim.URL()+path, r)
	must.NoError(s.t, err)
	resp, err := http.DefaultClient.Do(req)
	must.NoError(s.t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must.NoError(s.t, err)
	var v any
	if len(b) > 0 {
		if json.Unmarshal(b, &v) != nil {
			v = string(b)
		}
	}
	return resp.StatusCode, resp.Header, v
}

// begin opens the event stream where the recording script opened it.
func (s *stage) begin(about string) {
	s.t.Helper()
	_, h, _ := s.raw("GET", "/v1/jobs", nil)
	index, err := strconv.ParseUint(h.Get("X-Nomad-Index"), 10, 64)
	must.NoError(s.t, err)
	s.cur, s.from = &scene{About: about}, float64(index)
	resp, err := http.Get(fmt.Sprintf("%s/v1/event/stream?topic=Job&topic=Evaluation&topic=Allocation&topic=Node&namespace=default&index=%d", s.sim.URL(), index+1))
	must.NoError(s.t, err)
	s.resp, s.lines = resp, make(chan struct{})
	go func(done chan struct{}, into *scene) {
		defer close(done)
		sc := bufio.NewScanner(resp.Body)
		sc.Buffer(nil, 64<<20)
		for sc.Scan() {
			if line := bytes.TrimSpace(sc.Bytes()); len(line) > 0 && string(line) != "{}" {
				var m map[string]any
				if json.Unmarshal(line, &m) == nil {
					s.mu.Lock()
					into.Events = append(into.Events, m)
					s.mu.Unlock()
				}
			}
		}
	}(s.lines, s.cur)
}

func (s *stage) call(note, method, path string, body any) any {
	s.t.Helper()
	status, h, v := s.raw(method, path, body)
	headers := map[string]string{}
	for k := range h {
		if strings.HasPrefix(k, "X-Nomad") || k == "Content-Type" {
			headers[k] = h.Get(k)
		}
	}
	s.cur.Exchanges = append(s.cur.Exchanges, exchange{note, method, path, body, status, headers, v})
	return v
}

func (s *stage) eval(v any) {
	s.t.Helper()
	id := str(v, "EvalID")
	must.NotEq(s.t, "", id)
	s.until("evaluation ended", func() bool {
		_, _, e := s.raw("GET", "/v1/evaluation/"+id, nil)
		return slices.Contains([]string{"complete", "failed", "canceled"}, str(e, "Status"))
	})
	s.call("the evaluation, ended", "GET", "/v1/evaluation/"+id, nil)
}

func (s *stage) look(note, job string) {
	for _, what := range []string{"", "/evaluations", "/allocations?all=true", "/summary"} {
		s.call(note+": job"+what, "GET", "/v1/job/"+job+what, nil)
	}
}

func (s *stage) settle(job string, want func([]string) bool) {
	s.t.Helper()
	s.until("allocations of "+job+" settled", func() bool {
		_, _, v := s.raw("GET", "/v1/job/"+job+"/allocations", nil)
		var got []string
		for _, a := range v.([]any) {
			got = append(got, str(a, "ClientStatus"))
		}
		return want(got)
	})
}

func all(n int, of ...string) func([]string) bool {
	return func(got []string) bool {
		if n >= 0 && len(got) != n {
			return false
		}
		for _, g := range got {
			if !slices.Contains(of, g) {
				return false
			}
		}
		return true
	}
}

// settled waits until the cluster has nothing to do at this moment of its time.
func (s *stage) settled() {
	s.t.Helper()
	for end := time.Now().Add(patience); !s.sim.Settled(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			s.t.Fatal("the cluster does not come to rest")
		}
	}
}

// pass lets time go by.
func (s *stage) pass(d time.Duration) {
	s.t.Helper()
	const step = 10 * time.Millisecond
	for ; d > 0; d -= step {
		s.settled()
		s.clock.Advance(step)
	}
	s.settled()
}

func (s *stage) until(what string, ok func() bool) {
	s.t.Helper()
	for range 6000 {
		s.settled()
		if ok() {
			return
		}
		s.clock.Advance(10 * time.Millisecond)
	}
	s.t.Fatalf("never came: %s", what)
}

// quiet lets everything that was set going come to its end, and the stream tell of it.
func (s *stage) quiet() {
	s.t.Helper()
	s.pass(3 * time.Second)
	last := 0.0
	for _, path := range []string{"/v1/jobs", "/v1/evaluations", "/v1/allocations", "/v1/nodes"} {
		_, h, _ := s.raw("GET", path, nil)
		index, err := strconv.ParseFloat(h.Get("X-Nomad-Index"), 64)
		must.NoError(s.t, err)
		last = max(last, index)
	}
	eventually(s.t, "the stream has told all", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		n := len(s.cur.Events)
		return last <= s.from || n > 0 && num(s.cur.Events[n-1], "Index") >= last
	})
}

func (s *stage) end() *scene {
	s.quiet()
	s.resp.Body.Close()
	<-s.lines
	return s.cur
}

// host is the node on which an allocation of a job is.
func (s *stage) host(job, alloc string) string {
	s.t.Helper()
	_, _, v := s.raw("GET", "/v1/job/"+job+"/allocations", nil)
	for _, a := range v.([]any) {
		if str(a, "Name") == alloc {
			return str(a, "NodeID")
		}
	}
	s.t.Fatalf("%s is nowhere", alloc)
	return ""
}

func (s *stage) purge(job string) {
	s.raw("DELETE", "/v1/job/"+job+"?purge=true", nil)
	s.pass(time.Second)
}

func str(v any, key string) string {
	m, _ := v.(map[string]any)
	x, _ := m[key].(string)
	return x
}

func num(v any, key string) float64 {
	m, _ := v.(map[string]any)
	x, _ := m[key].(float64)
	return x
}

type object = map[string]any

// jobOpts are what the recorded jobs differ in.
type jobOpts struct {
	count, devices   int
	hold             bool
	command          string
	args             []string
	group, onDevices []object
}

func (s *stage) job(name string, o jobOpts) object {
	if o.command == "" {
		o.command, o.args = "sleep", []string{"3600"}
	}
	task := object{"Name": "train", "Driver": "raw_exec", "Config": object{"command": o.command, "args": o.args}, "KillTimeout": 2000000000,
		"Resources": object{"CPU": 100, "MemoryMB": 64, "Devices": []object{{"Name": s.cast.device, "Count": o.devices, "Constraints": objects(o.onDevices)}}},
		"LogConfig": object{"MaxFiles": 1, "MaxFileSizeMB": 1}}
	var constraints []object
	if o.hold {
		constraints = []object{{"LTarget": "${meta.muster}", "RTarget": "admits-this-job", "Operand": "="}}
	}
	return object{"ID": name, "Name": name, "Type": "batch", "Datacenters": []string{"*"}, "AllAtOnce": true, "Constraints": objects(constraints), "Meta": object{"muster_queue": "research"},
		"TaskGroups": []object{{"Name": "rank", "Count": o.count, "Constraints": objects(o.group),
			"RestartPolicy":    object{"Attempts": 0, "Mode": "fail", "Interval": 60000000000, "Delay": 1000000000},
			"ReschedulePolicy": object{"Attempts": 0, "Unlimited": false}, "Disconnect": object{"LostAfter": 86400000000000, "Replace": false},
			"EphemeralDisk": object{"SizeMB": 10}, "Tasks": []object{task}}}}
}

func objects(l []object) []object {
	if l == nil {
		return []object{}
	}
	return l
}

func pin(ids []string) []object {
	return []object{{"LTarget": "${node.unique.id}", "RTarget": strings.Join(ids, ","), "Operand": "set_contains_any"}, {"Operand": "distinct_hosts", "RTarget": "true"}}
}

// play runs all scenes in the order of the recording and returns them by name.
func (s *stage) play() map[string]*scene {
	s.t.Helper()
	out := map[string]*scene{}
	n, ids := len(s.cast.ids), s.cast.ids
	reg := func(note string, j object) any { return s.call(note, "POST", "/v1/jobs", object{"Job": j}) }

	s.begin("nodes")
	s.call("list", "GET", "/v1/nodes?resources=true", nil)
	s.call("read", "GET", "/v1/node/"+ids[0], nil)
	s.call("stats", "GET", "/v1/client/stats?node_id="+ids[0], nil)
	s.call("short id", "GET", "/v1/nodes?prefix="+ids[0][:4], nil)
	s.call("unknown node", "GET", "/v1/node/00000000-0000-0000-0000-000000000000", nil)
	s.call("unknown job", "GET", "/v1/job/nope", nil)
	s.call("unknown allocation", "GET", "/v1/allocation/00000000-0000-0000-0000-000000000000", nil)
	s.call("leader", "GET", "/v1/status/leader", nil)
	s.call("agent", "GET", "/v1/agent/health", nil)
	out["nodes"] = s.end()

	s.begin("hold_pin_release")
	held := s.job("g1", jobOpts{count: n, devices: 2, hold: true})
	s.eval(reg("register, held", held))
	s.look("held", "g1")
	s.call("list", "GET", "/v1/jobs?meta=true", nil)
	var union []string
	for _, id := range ids {
		union = append(union, s.cast.cards[id][:2]...)
	}
	pinned := s.job("g1", jobOpts{count: n, devices: 2, group: pin(ids), onDevices: []object{{"LTarget": "${device.ids}", "RTarget": strings.Join(union, ","), "Operand": "set_contains_any"}}})
	s.call("plan, pinned", "POST", "/v1/job/g1/plan", object{"Job": pinned, "Diff": true})
	_, _, g1 := s.raw("GET", "/v1/job/g1", nil)
	index := num(g1, "JobModifyIndex")
	s.call("register with a stale index", "POST", "/v1/jobs", object{"Job": pinned, "EnforceIndex": true, "JobModifyIndex": index - 1})
	s.eval(s.call("register, pinned", "POST", "/v1/jobs", object{"Job": pinned, "EnforceIndex": true, "JobModifyIndex": index}))
	s.settle("g1", all(n, "running"))
	s.look("running", "g1")
	_, _, allocs := s.raw("GET", "/v1/job/g1/allocations", nil)
	ranks := allocs.([]any)
	first := str(ranks[slices.IndexFunc(ranks, func(a any) bool { return str(a, "Name") == "g1.rank[3]" })], "ID")
	s.call("allocation", "GET", "/v1/allocation/"+first, nil)
	s.call("signal", "POST", "/v1/client/allocation/"+first+"/signal", object{"Signal": "SIGCONT", "Task": "train"})
	s.eval(reg("register the same again", pinned))
	out["hold_pin_release"] = s.end()

	s.begin("stop_requeue")
	s.eval(s.call("deregister", "DELETE", "/v1/job/g1", nil))
	s.eval(reg("register, held", held))
	s.look("held again", "g1")
	s.settle("g1", all(-1, "complete", "failed"))
	s.look("old allocations gone", "g1")
	out["stop_requeue"] = s.end()
	s.purge("g1")

	s.begin("partial")
	s.eval(reg("register", s.job("g2", jobOpts{count: n + 1, devices: 2, group: []object{{"Operand": "distinct_hosts", "RTarget": "true"}}})))
	s.settle("g2", all(n, "running"))
	s.look("partly placed", "g2")
	s.eval(reg("a second job asking 3 cards a node", s.job("g3", jobOpts{count: 1, devices: 3})))
	s.look("blocked on devices", "g3")
	s.eval(s.call("deregister the first", "DELETE", "/v1/job/g2?purge=true", nil))
	s.settle("g3", all(1, "running"))
	s.look("unblocked", "g3")
	out["partial"] = s.end()
	s.purge("g3")

	s.begin("exits")
	sh := func(script string) jobOpts {
		return jobOpts{count: 1, devices: 1, command: "/bin/sh", args: []string{"-c", script}}
	}
	for _, x := range [][2]string{{"e0", "exit 0"}, {"e42", "exit 42"}, {"esig", "kill -9 $$"}} {
		s.eval(reg("register "+x[0], s.job(x[0], sh(x[1]))))
		s.settle(x[0], all(1, "complete", "failed"))
		s.look("ended", x[0])
	}
	again := s.job("e0", sh("exit 0"))
	again["Priority"] = 60
	s.eval(reg("register e0 with another priority", again))
	s.settle("e0", all(2, "complete", "failed"))
	s.look("run again", "e0")
	s.eval(reg("register for alloc stop", s.job("estop", jobOpts{count: 1, devices: 1})))
	s.settle("estop", all(1, "running"))
	_, _, allocs = s.raw("GET", "/v1/job/estop/allocations", nil)
	s.call("alloc stop", "POST", "/v1/allocation/"+str(allocs.([]any)[0], "ID")+"/stop", nil)
	s.settle("estop", func(got []string) bool {
		return len(got) == 2 && slices.Contains(got, "running") && !all(2, "running")(got)
	})
	s.look("replaced at once", "estop")
	out["exits"] = s.end()
	for _, j := range []string{"e0", "e42", "esig", "estop"} {
		s.purge(j)
	}

	s.begin("variables")
	v := func(items object) object {
		return object{"Namespace": "default", "Path": "muster/state", "Items": items}
	}
	got := s.call("create", "PUT", "/v1/var/muster/state?cas=0", v(object{"a": "1"}))
	s.call("create again", "PUT", "/v1/var/muster/state?cas=0", v(object{"a": "1"}))
	s.call("update", "PUT", fmt.Sprintf("/v1/var/muster/state?cas=%.0f", num(got, "ModifyIndex")), v(object{"a": "2"}))
	lock := object{"Namespace": "default", "Path": "muster/leader", "Items": object{}, "Lock": object{"TTL": "15s", "LockDelay": "15s"}}
	got = s.call("lock", "PUT", "/v1/var/muster/leader?lock-acquire", lock)
	s.call("second holder", "PUT", "/v1/var/muster/leader?lock-acquire", lock)
	mine := object{"Namespace": "default", "Path": "muster/leader", "Lock": object{"ID": str(got.(map[string]any)["Lock"], "ID")}}
	s.call("renew", "PUT", "/v1/var/muster/leader?lock-renew", mine)
	s.call("release", "PUT", "/v1/var/muster/leader?lock-release", mine)
	s.call("list", "GET", "/v1/vars?prefix=muster", nil)
	s.call("read unknown", "GET", "/v1/var/muster/none", nil)
	out["variables"] = s.end()

	s.begin("parse")
	hcl, err := os.ReadFile("jobspec/testdata/finetune.hcl")
	must.NoError(s.t, err)
	s.call("parse", "POST", "/v1/jobs/parse", object{"JobHCL": string(hcl), "Canonicalize": true})
	s.call("parse, plain", "POST", "/v1/jobs/parse", object{"JobHCL": string(hcl)})
	s.call("broken", "POST", "/v1/jobs/parse", object{"JobHCL": `job "x" { group "a" { bogus = 1 } }`})
	s.call("validate", "POST", "/v1/validate/job", object{"Job": s.job("v", jobOpts{count: n, devices: 2, hold: true})})
	wrong := s.job("v2", jobOpts{count: n, devices: 2, hold: true})
	wrong["Priority"] = 5000
	s.call("validate, wrong", "POST", "/v1/validate/job", object{"Job": wrong})
	out["parse"] = s.end()

	s.begin("drain")
	s.eval(reg("register", s.job("d1", jobOpts{count: 2, devices: 2, group: pin(ids[:2])})))
	s.settle("d1", all(2, "running"))
	drained := s.host("d1", "d1.rank[1]")
	s.call("drain with a deadline", "POST", "/v1/node/"+drained+"/drain", object{"DrainSpec": object{"Deadline": 4000000000}, "MarkEligible": false})
	s.settle("d1", func(got []string) bool { return slices.Contains(got, "complete") || slices.Contains(got, "failed") })
	s.look("after the deadline", "d1")
	s.call("node", "GET", "/v1/nodes", nil)
	s.call("drain off", "POST", "/v1/node/"+drained+"/drain", object{"DrainSpec": nil, "MarkEligible": true})
	out["drain"] = s.end()
	s.purge("d1")

	s.begin("card_fault")
	s.eval(reg("register", s.job("f1", jobOpts{count: 1, devices: 4, group: pin([]string{drained})})))
	s.settle("f1", all(1, "running"))
	must.NoError(s.t, s.sim.SetDeviceHealth(drained, s.cast.cards[drained][0], false, "Device has bad permissions \"-rwxrwxrwx\""))
	s.quiet()
	s.call("node with an unhealthy card", "GET", "/v1/node/"+drained, nil)
	s.look("the rank stays", "f1")
	must.NoError(s.t, s.sim.SetDeviceHealth(drained, s.cast.cards[drained][0], true, ""))
	s.quiet()
	out["card_fault"] = s.end()
	s.purge("f1")

	s.begin("node_loss")
	s.eval(reg("register", s.job("l1", jobOpts{count: n, devices: 2, group: pin(ids)})))
	s.settle("l1", all(n, "running"))
	lost := s.host("l1", "l1.rank[2]")
	must.NoError(s.t, s.sim.KillAgent(lost))
	s.settle("l1", func(got []string) bool { return slices.Contains(got, "unknown") || slices.Contains(got, "lost") })
	s.look("node gone", "l1")
	s.call("nodes", "GET", "/v1/nodes", nil)
	// The recorded cluster got its Consul while the node was away.
	must.NoError(s.t, s.sim.Reconfigure(lost, func(cfg *nomadsim.NodeConfig) {
		cfg.Links = map[string]string{"consul": "dc1.gpu-host"}
		cfg.Attributes = maps.Clone(cfg.Attributes)
		maps.Copy(cfg.Attributes, map[string]string{"consul.connect": "true", "consul.datacenter": "dc1", "consul.dns.port": "-1", "consul.ft.namespaces": "false",
			"consul.grpc": "-1", "consul.server": "true", "consul.sku": "oss", "consul.version": "1.16.2", "unique.consul.name": "gpu-host"})
	}))
	must.NoError(s.t, s.sim.StartAgent(lost))
	s.settle("l1", all(n, "running"))
	s.quiet()
	s.look("node back", "l1")
	out["node_loss"] = s.end()
	return out
}
