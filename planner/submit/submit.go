// Package submit prepares a job for its registration as a gang: which queue it
// goes to and whether its submitter may use it, and the blocks that every gang
// carries and that a user may leave out.
//
// All of it is pure. A job is the bare object of Nomad's JSON, as the parse API
// gives it without canonicalizing: what the user left out is null there. It is
// treated as a tree, so that fields which this build does not know stay.
package submit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
)

// Completed is a job that is ready to be registered.
type Completed struct {
	Job json.RawMessage
	// Added tells what the job lacked and got, Warnings what it has and will
	// find overridden.
	Added, Warnings []string
}

// Unwrap takes the bare job out of what users of Nomad's API hand over: the
// job itself, or {"Job": job}.
func Unwrap(raw []byte) (json.RawMessage, error) {
	var outer map[string]json.RawMessage
	if err := json.Unmarshal(raw, &outer); err != nil {
		return nil, fmt.Errorf("read job: %w", err)
	}
	if inner, wrapped := outer["Job"]; wrapped && outer["ID"] == nil {
		if err := json.Unmarshal(inner, &outer); err != nil || outer == nil {
			return nil, fmt.Errorf("read job: what stands under Job is no object")
		}
		return inner, nil
	}
	if outer == nil {
		return nil, fmt.Errorf("read job: it is null")
	}
	return raw, nil
}

// Complete adds what a gang's job needs and this one does not say: the hold
// constraint; for batch jobs also restart, reschedule and disconnect blocks
// under which Nomad never rewrites a running gang by itself. What the user did
// state stays; where the planner overrides it later, a warning says so.
// Namespace overrides the job's where not empty.
func Complete(raw json.RawMessage, namespace string) (Completed, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber() // 64-bit numbers keep their digits
	var job map[string]any
	if err := dec.Decode(&job); err != nil {
		return Completed{}, fmt.Errorf("read job: %w", err)
	}
	c := completer{job: job}
	if namespace != "" {
		job["Namespace"] = namespace
	} else if text(job["Namespace"]) == "" {
		job["Namespace"] = "default"
	}
	if text(job["Type"]) == "" {
		job["Type"] = "service" // as Nomad takes it
	}
	c.hold()
	for i, item := range list(job["TaskGroups"]) {
		group, ok := item.(map[string]any)
		if !ok {
			return Completed{}, fmt.Errorf("read job: task group %d is no object", i+1)
		}
		if group["Count"] == nil {
			group["Count"] = 1
		}
		if job["Type"] == "batch" {
			c.group(group)
		}
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(job); err != nil {
		return Completed{}, fmt.Errorf("write job: %w", err)
	}
	return Completed{Job: bytes.TrimSpace(out.Bytes()), Added: c.added, Warnings: c.warnings}, nil
}

type completer struct {
	job             map[string]any
	added, warnings []string
}

func (c *completer) hold() {
	constraints := list(c.job["Constraints"])
	for _, item := range constraints {
		if k, ok := item.(map[string]any); ok && text(k["LTarget"]) == contract.HoldAttribute && text(k["RTarget"]) == contract.HoldValue {
			return
		}
	}
	c.job["Constraints"] = append(constraints, map[string]any{"LTarget": contract.HoldAttribute, "RTarget": contract.HoldValue, "Operand": "="})
	c.added = append(c.added, fmt.Sprintf("constraint %s = %s: holds the job until the whole gang can run", contract.HoldAttribute, contract.HoldValue))
}

func (c *completer) group(group map[string]any) {
	name := text(group["Name"])
	add := func(block, field, says string, value map[string]any) {
		group[field] = value
		c.added = append(c.added, fmt.Sprintf("group %q %s { %s }", name, block, says))
	}
	if restart, ok := group["RestartPolicy"].(map[string]any); !ok {
		add("restart", "RestartPolicy", `attempts = 0, mode = "fail"`, map[string]any{"Attempts": 0, "Mode": "fail"})
	} else if !zero(restart["Attempts"]) {
		c.warn("group %q restart: a rank that ended is not started again by itself, the gang is as a whole: attempts is overridden while it runs", name)
	}
	reschedule, stated := group["ReschedulePolicy"].(map[string]any)
	if _, ofJob := c.job["Reschedule"].(map[string]any); !stated && !ofJob {
		add("reschedule", "ReschedulePolicy", "attempts = 0, unlimited = false", map[string]any{"Attempts": 0, "Unlimited": false})
	} else if ofJob || !zero(reschedule["Attempts"]) || reschedule["Unlimited"] == true {
		c.warn("group %q reschedule: Nomad does not replace a member by itself, the planner places the gang again as a whole: overridden while it runs", name)
	}
	var older []string
	for _, old := range []struct{ field, block string }{{"MaxClientDisconnect", "max_client_disconnect"},
		{"StopAfterClientDisconnect", "stop_after_client_disconnect"}, {"PreventRescheduleOnLost", "prevent_reschedule_on_lost"}} {
		if group[old.field] != nil {
			older = append(older, old.block)
		}
	}
	disconnect, stated := group["Disconnect"].(map[string]any)
	switch {
	case len(older) > 0:
		c.warn("group %q %s: the planner decides when a member is lost: overridden while the gang runs", name, strings.Join(older, ", "))
	case !stated:
		add("disconnect", "Disconnect", `lost_after = "24h", replace = false`, map[string]any{"LostAfter": int64(24 * time.Hour), "Replace": false})
	case disconnect["Replace"] != false || fmt.Sprint(disconnect["LostAfter"]) != fmt.Sprint(int64(24*time.Hour)):
		c.warn("group %q disconnect: the planner decides when a member is lost: overridden while the gang runs", name)
	}
}

func (c *completer) warn(format string, args ...any) {
	c.warnings = append(c.warnings, fmt.Sprintf(format, args...))
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

// zero tells whether a number is zero; one that is not stated is not.
func zero(v any) bool { return fmt.Sprint(v) == "0" }

// Submitter is who submits a job through Muster's API.
type Submitter struct {
	Name   string
	Groups []string
	// Queues that its token is bound to; empty: none in particular.
	Queues []string
	// Any: it may use every queue (operators, and jobs that came past the API).
	Any bool
}

// Queue finds the queue of a job: the one that it names (muster_queue), else
// the one that its namespace is bound to. The faults tell why there is none,
// or why it may not be used.
//
// A queue is open to the namespaces it lists, and to all where it lists none
// or is shared; through the API it is open to the users and groups it lists,
// and to all where it lists none.
func Queue(cfg *core.Config, namespace, named string, by Submitter) (core.QueueName, []contract.Fault) {
	queue, faults := find(cfg, namespace, named)
	if queue == nil {
		return "", faults
	}
	if why := May(queue, by); why != "" {
		faults = append(faults, contract.Fault{Field: "meta." + contract.MetaQueue, Value: string(queue.Name), Want: why})
	}
	return queue.Name, faults
}

func find(cfg *core.Config, namespace, named string) (*core.Queue, []contract.Fault) {
	fault := func(format string, args ...any) []contract.Fault {
		return []contract.Fault{{Field: "meta." + contract.MetaQueue, Value: named, Want: fmt.Sprintf(format, args...)}}
	}
	inner := map[core.QueueName]bool{}
	for _, q := range cfg.Queues {
		inner[q.Parent] = true
	}
	var leaves, bound []string
	var queue *core.Queue
	for i := range cfg.Queues {
		q := &cfg.Queues[i]
		if inner[q.Name] {
			if string(q.Name) == named {
				return nil, fault("the queue holds queues, not gangs: name one of those below it")
			}
			continue
		}
		if open(q, namespace) {
			leaves = append(leaves, string(q.Name))
		}
		if slices.Contains(q.Namespaces, namespace) {
			bound = append(bound, string(q.Name))
		}
		if string(q.Name) == named || named == "" && len(bound) == 1 && bound[0] == string(q.Name) {
			queue = q
		}
	}
	slices.Sort(leaves)
	switch {
	case named == "" && len(bound) == 0:
		return nil, fault("no queue is bound to the namespace %q, so the job must name one: %s", namespace, orNone(leaves))
	case named == "" && len(bound) > 1:
		slices.Sort(bound)
		return nil, fault("several queues are bound to the namespace %q, so the job must name one: %s", namespace, orNone(bound))
	case queue == nil:
		return nil, fault("no queue has this name; open to the namespace %q are: %s", namespace, orNone(leaves))
	case !open(queue, namespace):
		return nil, fault("the queue belongs to the namespaces %s and is not shared; open to the namespace %q are: %s",
			strings.Join(queue.Namespaces, ", "), namespace, orNone(leaves))
	}
	return queue, nil
}

func open(q *core.Queue, namespace string) bool {
	return len(q.Namespaces) == 0 || q.Shared || slices.Contains(q.Namespaces, namespace)
}

// May tells why a submitter may not use a queue; empty: it may.
func May(q *core.Queue, by Submitter) string {
	if by.Any {
		return ""
	}
	if len(by.Queues) > 0 && !slices.Contains(by.Queues, string(q.Name)) {
		return fmt.Sprintf("the token of %s is for the queues %s", by.Name, strings.Join(by.Queues, ", "))
	}
	if len(q.Users) == 0 || slices.Contains(q.Users, by.Name) {
		return ""
	}
	for _, g := range by.Groups {
		if slices.Contains(q.Users, g) {
			return ""
		}
	}
	return fmt.Sprintf("the queue is for %s, and %s is none of them", strings.Join(q.Users, ", "), by.Name)
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
