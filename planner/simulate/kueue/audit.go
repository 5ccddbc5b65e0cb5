package kueue

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nomad-muster/muster/planner/core"
)

// Placed is one member as the servers have it.
type Placed struct {
	Workload   string // its ID
	Attempt    uint64 // rises
	Node, Rack string
	Cards      []string
	From, To   time.Time // made, and ended
}

// Figures of one run, as Audit finds them.
type Figures struct {
	Makespan time.Duration
	// Waits from the submission that the load foresees to the placement of the
	// last member of the attempt that ended well, by class.
	Waits map[string][]time.Duration
	// Overtaken tells, of each workload that was placed while one of its queue
	// with a higher priority that asks for no more waited, for how long that one
	// had been with the servers. A planner that decides at once has none; one that
	// needs time has what arrived after it had decided.
	Overtaken []time.Duration
	// Evicted counts the attempts that were not their workload's last.
	Evicted int
	// Breaches of quotas and of topology, cards that were held twice, and
	// workloads whose last attempt was not placed whole.
	Breaches []string
}

// Audit looks at what the servers placed, when: began is when the load did, and
// submitted when the servers took each workload.
func (l *Load) Audit(all []Workload, began time.Time, submitted map[string]time.Time, placed []Placed) Figures {
	f := Figures{Waits: map[string][]time.Duration{}}
	wrong := func(format string, args ...any) { f.Breaches = append(f.Breaches, fmt.Sprintf(format, args...)) }
	byID := make(map[string]*Workload, len(all))
	for i := range all {
		byID[all[i].ID] = &all[i]
	}
	members := map[string]map[uint64][]*Placed{} // by attempt
	for i := range placed {
		p := &placed[i]
		w := byID[p.Workload]
		switch {
		case w == nil:
			wrong("%s was placed, and nobody submitted it", p.Workload)
			continue
		case len(p.Cards) != w.Cards:
			wrong("a member of %s holds %d cards and asked for %d", w.ID, len(p.Cards), w.Cards)
		case p.To.IsZero():
			wrong("a member of %s has not ended", w.ID)
		}
		if members[w.ID] == nil {
			members[w.ID] = map[uint64][]*Placed{}
		}
		members[w.ID][p.Attempt] = append(members[w.ID][p.Attempt], p)
	}
	admitted := make(map[string]time.Time, len(all))
	for i := range all {
		w := &all[i]
		attempts := slices.Sorted(maps.Keys(members[w.ID]))
		for i, attempt := range attempts {
			racks := map[string]bool{}
			for _, p := range members[w.ID][attempt] {
				racks[p.Rack] = true
				if i == len(attempts)-1 && p.From.After(admitted[w.ID]) {
					admitted[w.ID] = p.From
				}
				f.Makespan = max(f.Makespan, p.To.Sub(began))
			}
			if w.Required && len(racks) != 1 {
				wrong("%s requires one rack and is on %d", w.ID, len(racks))
			}
		}
		f.Evicted += max(0, len(attempts)-1)
		if len(attempts) == 0 || len(members[w.ID][attempts[len(attempts)-1]]) != w.Members {
			wrong("%s was not placed whole", w.ID)
		}
		f.Waits[w.Class.Name] = append(f.Waits[w.Class.Name], admitted[w.ID].Sub(began.Add(w.Submit)))
	}
	l.sweep(byID, placed, wrong)
	f.Overtaken = overtaken(all, submitted, admitted)
	return f
}

// sweep goes through the run in time: who holds what.
func (l *Load) sweep(byID map[string]*Workload, placed []Placed, wrong func(string, ...any)) {
	type change struct {
		at   time.Time
		sign int
		of   *Placed
	}
	changes := make([]change, 0, 2*len(placed))
	for i := range placed {
		if byID[placed[i].Workload] != nil {
			changes = append(changes, change{placed[i].From, 1, &placed[i]}, change{placed[i].To, -1, &placed[i]})
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.sign, b.sign)) })
	used := map[core.QueueName]int{}
	holder := map[string]string{} // by card
	for i, c := range changes {
		queue := byID[c.of.Workload].Queue
		used[queue] += c.sign * len(c.of.Cards)
		for _, card := range c.of.Cards {
			if other := holder[card]; c.sign > 0 && other != "" {
				wrong("card %s is given to %s while %s holds it", card, c.of.Workload, other)
			}
			holder[card] = ""
			if c.sign > 0 {
				holder[card] = c.of.Workload
			}
		}
		// Members of one plan come at one instant or nearly; looking at each is the
		// stricter way.
		if i+1 == len(changes) || !changes[i+1].at.Equal(c.at) {
			if err := l.quotas(used); err != nil {
				wrong("at %s: %v", c.at.Format(time.StampMilli), err)
			}
		}
	}
}

// overtaken: see Figures.
func overtaken(all []Workload, submitted, admitted map[string]time.Time) []time.Duration {
	byQueue := map[core.QueueName][]*Workload{}
	for i := range all {
		byQueue[all[i].Queue] = append(byQueue[all[i].Queue], &all[i])
	}
	var out []time.Duration
	for i := range all {
		low, longest := &all[i], time.Duration(0)
		at := admitted[low.ID]
		for _, high := range byQueue[low.Queue] {
			if high.Priority > low.Priority && high.Size() <= low.Size() && submitted[high.ID].Before(at) && admitted[high.ID].After(at) {
				longest = max(longest, at.Sub(submitted[high.ID]))
			}
		}
		if longest > 0 {
			out = append(out, longest)
		}
	}
	return out
}
