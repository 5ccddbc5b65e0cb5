package jobspec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
)

// serverFields are a job's fields that Nomad sets: they are left out of what
// is registered, and out of comparisons.
var serverFields = []string{"Status", "StatusDescription", "Stable", "Version", "SubmitTime", "CreateIndex", "ModifyIndex",
	"JobModifyIndex", "VersionTag", "NomadTokenID", "Dispatched", "DispatchIdempotencyToken", "Stop"}

// Pin says where one attempt of a gang runs.
type Pin struct {
	Attempt int
	// Step counts the attempt's registrations, from 0: each is another version,
	// though it may say the same.
	Step int `json:",omitempty"`
	// Priority is the server's highest job priority: nothing that Nomad does by
	// itself then evicts a member or takes its cards first.
	Priority int
	// KillTimeout is the least time that a task gets to end; 0: the user's.
	KillTimeout time.Duration
	// Levels narrow the whole job to the domains in use, the outermost topology
	// level first; Nomad skips the classes of all other nodes.
	Levels []LevelPin
	Groups map[string]GroupPin
}

// LevelPin is the domains in use of one topology level.
type LevelPin struct {
	Attribute string // of nodes
	Values    []string
}

// GroupPin pins one task group.
type GroupPin struct {
	Nodes []string // ids
	// Count is how many members the group starts with; 0: as many as it says. An
	// elastic gang may start with fewer.
	Count int
	// PerNode is how many members each node takes: 1 is distinct_hosts, more a
	// distinct_property of the node id; 0 leaves it to the cards.
	PerNode int
	// Cards pins device blocks to exact ids: task, place of the block in it, and
	// the union of the ids over all members.
	Cards []CardPin
}

// CardPin pins one device block.
type CardPin struct {
	Task  string
	Place int
	IDs   []string
}

// Held is the job with the hold constraint, ready to be registered.
func (j *Job) Held() json.RawMessage {
	t := j.bare()
	t["Constraints"] = append(without(list(t["Constraints"]), func(c Constraint) bool { return isHold(c) || isMark(c) }),
		constraint(contract.HoldAttribute, "=", contract.HoldValue))
	return encode(t)
}

// Emptied is Held with no members at all: registered, Nomad tells every
// allocation to stop, those that it has lost contact with too.
func (j *Job) Emptied() json.RawMessage {
	t := j.bare()
	t["Constraints"] = append(without(list(t["Constraints"]), func(c Constraint) bool { return isHold(c) || isMark(c) }),
		constraint(contract.HoldAttribute, "=", contract.HoldValue))
	for _, g := range list(t["TaskGroups"]) {
		group := object(g)
		group["Count"] = 0
		delete(group, "Scaling") // its least count would exclude 0
	}
	return encode(t)
}

// Described is Held with a description for Nomad's UI. A description of the
// user's own is kept, and ours follows it.
func (j *Job) Described(text string) json.RawMessage {
	t := j.bare()
	t["Constraints"] = append(without(list(t["Constraints"]), isHold), constraint(contract.HoldAttribute, "=", contract.HoldValue))
	ui := object(t["UI"])
	if own, _ := ui["Description"].(string); own != "" {
		text = own + "\n\n" + text
	}
	ui["Description"] = text
	t["UI"] = ui
	return encode(t)
}

// Pinned is the job with the hold replaced by pins, and with everything
// overridden that would let Nomad rewrite a running gang by itself: no
// restarts, no rescheduling, nothing replaced on lost contact for a day, no
// restart for a changed template.
func (j *Job) Pinned(p Pin) (json.RawMessage, error) {
	t := j.bare()
	cs := without(list(t["Constraints"]), func(c Constraint) bool { return isHold(c) || isMark(c) })
	mark := markPrefix + strconv.Itoa(p.Attempt)
	if p.Step > 0 {
		mark += "." + strconv.Itoa(p.Step)
	}
	cs = append(cs, constraint(contract.HoldAttribute, "!=", mark))
	for _, l := range p.Levels {
		cs = append(cs, constraint(l.Attribute, "set_contains_any", joined(l.Values)))
	}
	t["Constraints"] = cs
	t["AllAtOnce"] = true
	t["Priority"] = p.Priority
	seen := 0
	for _, g := range list(t["TaskGroups"]) {
		group := object(g)
		name, _ := group["Name"].(string)
		pin, ok := p.Groups[name]
		if !ok {
			if n, _ := group["Count"].(json.Number); n == "0" {
				continue
			}
			return nil, fmt.Errorf("pin job %s: the plan places nothing of group %q", j.ID, name)
		}
		seen++
		if err := pinGroup(group, pin, p.KillTimeout); err != nil {
			return nil, fmt.Errorf("pin job %s: group %q: %w", j.ID, name, err)
		}
	}
	if seen != len(p.Groups) {
		return nil, fmt.Errorf("pin job %s: the plan places %d groups, of which the job has %d", j.ID, len(p.Groups), seen)
	}
	return encode(t), nil
}

// Admitted is a service without its hold, marked with the attempt: Nomad
// places and replaces its replicas as it likes. An update that fails is not
// taken back by Nomad, since the version that it would go back to is held.
func (j *Job) Admitted(attempt, priority int) json.RawMessage {
	t := j.bare()
	t["Constraints"] = append(without(list(t["Constraints"]), func(c Constraint) bool { return isHold(c) || isMark(c) }),
		constraint(contract.HoldAttribute, "!=", markPrefix+strconv.Itoa(attempt)))
	t["Priority"] = priority
	noRevert(t)
	for _, g := range list(t["TaskGroups"]) {
		noRevert(object(g))
	}
	return encode(t)
}

func noRevert(of map[string]any) {
	if update, ok := of["Update"].(map[string]any); ok && update != nil {
		update["AutoRevert"] = false
	}
}

func pinGroup(group map[string]any, pin GroupPin, kill time.Duration) error {
	if pin.Count > 0 {
		group["Count"] = pin.Count
		delete(group, "Scaling") // its least count may exclude this one
	}
	cs := append(list(group["Constraints"]), constraint("${node.unique.id}", "set_contains_any", joined(pin.Nodes)))
	switch {
	case pin.PerNode == 1:
		cs = append(cs, constraint("", "distinct_hosts", "true"))
	case pin.PerNode > 1:
		cs = append(cs, constraint("${node.unique.id}", "distinct_property", strconv.Itoa(pin.PerNode)))
	}
	group["Constraints"] = cs
	group["RestartPolicy"] = noRestart(group["RestartPolicy"])
	reschedule := object(group["ReschedulePolicy"])
	reschedule["Attempts"], reschedule["Unlimited"] = 0, false
	group["ReschedulePolicy"] = reschedule
	disconnect := object(group["Disconnect"])
	disconnect["LostAfter"], disconnect["Replace"], disconnect["StopOnClientAfter"] = 24*time.Hour, false, nil
	group["Disconnect"] = disconnect
	// The older spellings of disconnect exclude it.
	for _, old := range []string{"MaxClientDisconnect", "StopAfterClientDisconnect", "PreventRescheduleOnLost"} {
		delete(group, old)
	}
	for _, item := range list(group["Tasks"]) {
		task := object(item)
		task["RestartPolicy"] = noRestart(task["RestartPolicy"])
		if own, _ := task["KillTimeout"].(json.Number); kill > 0 {
			if n, _ := own.Int64(); n < int64(kill) {
				task["KillTimeout"] = kill
			}
		}
		for _, tmpl := range list(task["Templates"]) {
			template := object(tmpl)
			template["ChangeMode"], template["ChangeSignal"], template["ChangeScript"] = "noop", "", nil
		}
	}
	for _, c := range pin.Cards {
		if err := pinCards(group, c); err != nil {
			return err
		}
	}
	return nil
}

func pinCards(group map[string]any, pin CardPin) error {
	for _, item := range list(group["Tasks"]) {
		task := object(item)
		if name, _ := task["Name"].(string); name != pin.Task {
			continue
		}
		devices := list(object(task["Resources"])["Devices"])
		if pin.Place >= len(devices) {
			break
		}
		device := object(devices[pin.Place])
		device["Constraints"] = append(list(device["Constraints"]), constraint("${device.ids}", "set_contains_any", joined(pin.IDs)))
		return nil
	}
	return fmt.Errorf("the plan names device block %d of task %q, which the job does not have", pin.Place, pin.Task)
}

func noRestart(policy any) map[string]any {
	p := object(policy)
	p["Attempts"], p["Mode"] = 0, "fail"
	return p
}

// Rescaled is the job with the members of its groups counted as other has
// them, and the names of the groups whose count differs. A group that only one
// of them has makes ok false.
func (j *Job) Rescaled(other *Job) (raw json.RawMessage, changed []string, ok bool) {
	counts := map[string]int{}
	for _, g := range other.TaskGroups {
		counts[g.Name] = g.Count
	}
	if len(counts) != len(j.TaskGroups) {
		return nil, nil, false
	}
	t := j.tree()
	for i, g := range j.TaskGroups {
		n, known := counts[g.Name]
		if !known {
			return nil, nil, false
		}
		if n != g.Count {
			changed = append(changed, g.Name)
			object(list(t["TaskGroups"])[i])["Count"] = n
		}
	}
	return encode(t), changed, true
}

// Same tells whether two versions of a job ask for the same, whoever holds
// them: the hold, the mark and what Nomad itself sets are left aside.
func Same(a, b *Job) bool { return bytes.Equal(comparable(a, true), comparable(b, true)) }

// SameButUI is Same with the description for Nomad's UI left aside too.
func SameButUI(a, b *Job) bool { return bytes.Equal(comparable(a, false), comparable(b, false)) }

func comparable(j *Job, ui bool) []byte {
	t := j.bare()
	t["Constraints"] = without(list(t["Constraints"]), func(c Constraint) bool { return isHold(c) || isMark(c) })
	if !ui {
		delete(t, "UI")
	}
	return encode(object(prune(t)))
}

// prune drops what a text may leave out: null and empty values. Nomad gives
// back null where a rewritten text has an empty list.
func prune(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, item := range v {
			if item = prune(item); item == nil {
				delete(v, k)
			} else {
				v[k] = item
			}
		}
		if len(v) == 0 {
			return nil
		}
	case []any:
		if len(v) == 0 {
			return nil
		}
		for i := range v {
			v[i] = prune(v[i])
		}
	case string:
		if v == "" {
			return nil
		}
	}
	return v
}

// bare is the tree without what Nomad sets by itself.
func (j *Job) bare() map[string]any {
	t := j.tree()
	for _, f := range serverFields {
		delete(t, f)
	}
	return t
}

func without(cs []any, drop func(Constraint) bool) []any {
	return slices.DeleteFunc(slices.Clone(cs), func(item any) bool {
		c := object(item)
		l, _ := c["LTarget"].(string)
		r, _ := c["RTarget"].(string)
		o, _ := c["Operand"].(string)
		return drop(Constraint{LTarget: l, RTarget: r, Operand: o})
	})
}

func constraint(left, operand, right string) map[string]any {
	return map[string]any{"LTarget": left, "Operand": operand, "RTarget": right}
}

// joined is a sorted list in the form that set_contains_any takes.
func joined(values []string) string {
	sorted := slices.Clone(values)
	sort.Strings(sorted)
	return strings.Join(slices.Compact(sorted), ",")
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

// object is v where it is one, and an empty one for null and anything else.
func object(v any) map[string]any {
	if m, ok := v.(map[string]any); ok && m != nil {
		return m
	}
	return map[string]any{}
}

func encode(t map[string]any) json.RawMessage {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	// A tree that came out of JSON goes back into it.
	if err := enc.Encode(t); err != nil {
		panic(fmt.Sprintf("encode job: %v", err))
	}
	return bytes.TrimSpace(out.Bytes())
}
