package agent_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadsim"
	"github.com/nomad-muster/muster/internal/nomadsim/taskstate"
	"github.com/nomad-muster/muster/planner/release/releasetest"
)

// members are virtual supervisors of ranks: they hold, report, launch and end
// as the driver's do, over signals and task events.
type members struct {
	mu sync.Mutex
	// started counts every rank that was launched, by gang and attempt.
	started map[string]int
	// plain counts the starts of tasks of other drivers, by job.
	plain map[string]int
	// launched is when each allocation's rank was.
	launched map[string]time.Time
	// act says what a member's ranks do, by the arguments of its task:
	// run=100ms, exit=42, signal=9, refuse=port, hold.
	problems []string
	// channel, where set, takes the place of signals and task events.
	channel *releasetest.Memory
	// saved lets members leave that were asked to and save=slowly.
	saved chan struct{}
	// ended counts the members that ended.
	ended int
	// running are all members that were launched, by job and allocation.
	running map[string]*virtualMember
}

func newMembers() *members {
	return &members{started: map[string]int{}, plain: map[string]int{}, launched: map[string]time.Time{}, saved: make(chan struct{}), running: map[string]*virtualMember{}}
}

func (m *members) launches(gang string, attempt int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.started[fmt.Sprintf("%s/%d", gang, attempt)]
}

func (m *members) plainStarts(job string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.plain[job]
}

// ends counts the members that ended.
func (m *members) ends() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ended
}

// script is what tasks under Muster's driver do on virtual nodes.
func (m *members) script(s nomadsim.TaskStart) nomadsim.Behaviour {
	if s.Task.Driver != contract.DriverName {
		b := nomadsim.DefaultScript(s)
		b.OnStart = func(*nomadsim.Task) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.plain[s.Alloc.JobID]++
		}
		return b
	}
	v := &virtualMember{members: m, start: s, act: map[string]string{}, seen: -1}
	if args, ok := s.Task.Config["args"].([]any); ok {
		for _, a := range args {
			key, value, _ := strings.Cut(fmt.Sprint(a), "=")
			v.act[key] = value
		}
	}
	b := nomadsim.Behaviour{OnSignal: v.signal, OnStop: v.stop}
	if m.channel != nil {
		b.OnStart = func(t *nomadsim.Task) { go v.follow(t) }
	}
	return b
}

type virtualMember struct {
	*members
	start   nomadsim.TaskStart
	act     map[string]string
	mu      sync.Mutex
	gang    contract.GangID
	attempt int
	state   contract.State
	asked   bool
	asks    int // how many asks and withdrawals came
	ended   bool
	seen    int // records of the channel
	task    *nomadsim.Task
	killed  int // the signal that ended its rank
}

// completes ends the member as one whose ranks are done.
func (v *virtualMember) completes() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.asked = false
	v.end(v.task, v.gang, contract.OutcomeComplete, 0)
}

func (v *virtualMember) report(t *nomadsim.Task, gang contract.GangID, state contract.State, more func(*contract.Report)) {
	r := contract.Report{V: contract.RecordVersion, Gang: gang, Attempt: v.attempt, Alloc: v.start.Alloc.ID, Task: v.start.Task.Name, Start: v.start.Start, State: state,
		Address: "192.0.2.1", Port: 29500, Ranks: 1, World: v.start.Alloc.TaskGroup, At: time.Now()}
	if more != nil {
		more(&r)
	}
	if v.channel != nil {
		if gang.Job != "" { // else it was stopped before it had seen a record
			v.channel.Report(r)
		}
		return
	}
	text, _ := json.Marshal(r)
	t.Event("member is "+string(state), map[string]string{contract.AnnotationReport: string(text)})
}

// follow watches the gang's record, as a supervisor with Consul does.
func (v *virtualMember) follow(t *nomadsim.Task) {
	for {
		v.mu.Lock()
		changed, ended := v.catchUp(t), v.ended
		v.mu.Unlock()
		if ended {
			return
		}
		<-changed
	}
}

// catchUp takes what was written of the gang's record; the lock is held. No
// record is missed: whether a rank is launched does not depend on how soon its
// member runs.
func (v *virtualMember) catchUp(t *nomadsim.Task) <-chan struct{} {
	gang := contract.GangID{Region: "global", Namespace: v.start.Alloc.Namespace, Job: v.start.Alloc.JobID}
	list, now, changed := v.channel.Records(gang, v.seen)
	v.seen = now
	for _, r := range list {
		v.record(t, r)
		if r.Ask != nil {
			v.ask(t, *r.Ask)
		}
	}
	return changed
}

func (v *virtualMember) signal(t *nomadsim.Task, signal string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	kind, body, _ := strings.Cut(signal, " ")
	switch kind {
	case contract.SignalAsk:
		var a contract.Ask
		if err := json.Unmarshal([]byte(body), &a); err == nil {
			v.ask(t, a)
		}
		return
	case contract.SignalRecord:
	default:
		return
	}
	r, err := contract.DecodeRecord([]byte(body))
	if err != nil {
		v.members.mu.Lock()
		v.problems = append(v.problems, err.Error())
		v.members.mu.Unlock()
		return
	}
	v.record(t, r)
}

// ask has the member save and leave: at once; with save=slowly, once the test
// lets it; with deaf=yes, when its grace is over.
func (v *virtualMember) ask(t *nomadsim.Task, a contract.Ask) {
	if a.Kind == contract.AskWithdrawn {
		v.asked = false
		v.asks++
		return
	}
	if v.asked || v.state != contract.StateTraining {
		return
	}
	v.asked = true
	v.asks++
	n, outcome := v.asks, contract.OutcomeCheckpointed
	leave := func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.asks == n {
			v.end(t, v.gang, outcome, 0)
		}
	}
	switch {
	case v.act["deaf"] != "":
		outcome = contract.OutcomeKilled
		time.AfterFunc(time.Until(a.By), leave)
	case v.act["save"] == "slowly":
		go func() {
			<-v.saved
			leave()
		}()
	default:
		v.end(t, v.gang, outcome, 0)
	}
}

func (v *virtualMember) record(t *nomadsim.Task, r *contract.Record) {
	v.gang = r.Gang
	if r.Attempt < v.attempt || v.ended {
		return
	}
	v.attempt = r.Attempt
	_, listed := r.Lists(v.start.Alloc.ID, v.start.Task.Name, v.start.Start)
	if _, joins := r.Joins(v.start.Alloc.ID, v.start.Task.Name); joins && v.state == "" {
		switch v.act["joins"] {
		case "":
			v.state = contract.StateReady
			v.report(t, r.Gang, contract.StateReady, nil)
		case "refused":
			v.report(t, r.Gang, contract.StateRefused, func(rep *contract.Report) {
				rep.Problems = []contract.Problem{{What: "card", Text: "a card is busy", Site: true}}
			})
		case "ends":
			v.end(t, r.Gang, contract.OutcomeFailed, 1)
		}
		return
	}
	switch r.Phase {
	case contract.PhasePlaced:
		if !listed || v.state != "" {
			return
		}
		if why, ok := v.act["refuse"]; ok {
			v.report(t, r.Gang, contract.StateRefused, func(rep *contract.Report) {
				rep.Problems = []contract.Problem{{What: why, Text: why + " is wrong here", Site: why != "script"}}
			})
			return
		}
		if v.act["silent"] != "" {
			return
		}
		v.state = contract.StateReady
		v.report(t, r.Gang, contract.StateReady, nil)
	case contract.PhaseReleased:
		if !listed && r.Round > 0 && v.state == contract.StateTraining { // the gang goes on without it
			v.ask(t, contract.Ask{Kind: contract.AskResize, By: time.Now().Add(r.Settle), Grace: r.Settle})
			return
		}
		if !listed || v.state != contract.StateReady {
			return
		}
		v.state = contract.StateTraining
		v.members.mu.Lock()
		v.started[fmt.Sprintf("%s/%d", r.Gang, r.Attempt)]++
		v.launched[v.start.Alloc.ID] = time.Now()
		v.running[v.start.Alloc.JobID+"/"+v.start.Alloc.ID] = v
		v.task = t
		v.members.mu.Unlock()
		v.report(t, r.Gang, contract.StateLaunched, nil)
		if v.act["train"] != "no" {
			v.report(t, r.Gang, contract.StateTraining, func(rep *contract.Report) { rep.Step = 1 })
		}
		run, err := time.ParseDuration(v.act["run"])
		if from := 1; err != nil || v.act["from"] != "" && (scan(v.act["from"], &from) != nil || v.attempt < from) {
			return // until it is stopped
		}
		time.AfterFunc(run, func() {
			v.mu.Lock()
			defer v.mu.Unlock()
			code := 0
			_, _ = fmt.Sscan(v.act["exit"], &code)
			if v.act["signal"] != "" {
				_, _ = fmt.Sscan(v.act["signal"], &v.killed)
				code = 128 + v.killed
			}
			if only, ok := v.act["attempts"]; ok && only != fmt.Sprint(v.attempt) {
				code = 0
			}
			outcome := contract.OutcomeComplete
			if code != 0 {
				outcome = contract.OutcomeFailed
			}
			v.end(t, r.Gang, outcome, code)
		})
	case contract.PhaseEnded:
		v.asked = true
		v.end(t, r.Gang, contract.OutcomePeer, 0)
	}
}

func scan(text string, into *int) error {
	_, err := fmt.Sscan(text, into)
	return err
}

func (v *virtualMember) end(t *nomadsim.Task, gang contract.GangID, outcome contract.Outcome, code int) {
	if v.ended {
		return
	}
	v.ended, v.state = true, contract.StateEnded
	v.members.mu.Lock()
	v.members.ended++
	v.members.mu.Unlock()
	v.report(t, gang, contract.StateEnded, func(r *contract.Report) {
		r.Exit = &contract.Exit{Outcome: outcome, Code: code, Signal: v.killed, Rank: 0, Asked: v.asked, Text: fmt.Sprintf("%s with code %d", outcome, code), At: time.Now()}
	})
	t.Exit(taskstate.Exit{Code: code})
}

func (v *virtualMember) stop(t *nomadsim.Task, _ string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.channel != nil {
		v.catchUp(t)
	}
	v.asked = true
	v.end(t, v.gang, contract.OutcomeKilled, 0)
}

// completeAll ends the ranks of a gang that run, well and by themselves.
func (m *members) completeAll(job string) {
	m.mu.Lock()
	var all []func()
	for key, v := range m.running {
		if strings.HasPrefix(key, job+"/") {
			all = append(all, v.completes)
		}
	}
	m.mu.Unlock()
	for _, end := range all {
		end()
	}
}

// eventuallyNotAsked waits until no member of a gang means to leave.
func (m *members) eventuallyNotAsked(b *bench, job string) {
	b.t.Helper()
	b.eventually("its members know that they may stay", func() bool {
		m.mu.Lock()
		all := maps.Clone(m.running)
		m.mu.Unlock()
		for key, v := range all {
			v.mu.Lock()
			asked := v.asked && !v.ended
			v.mu.Unlock()
			if asked && strings.HasPrefix(key, job+"/") {
				return false
			}
		}
		return true
	})
}
