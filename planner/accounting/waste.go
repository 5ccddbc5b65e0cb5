package accounting

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/nomad-muster/muster/planner/utilisation"
)

// Utilisation is what cards did in [from, to), by queue, user and model.
func (l *Ledger) Utilisation(ctx context.Context, from, to time.Time) (map[utilisation.Sum]*utilisation.Figures, error) {
	out := map[utilisation.Sum]*utilisation.Figures{}
	err := l.each(ctx, "sum up utilisation", "SELECT q.text, n.text, m.text, u.sampled, u.activity, u.idle, u.memory, u.memory_total, u.energy, u.histogram FROM utilisation_hour u "+
		"JOIN name q ON q.id = u.queue JOIN name n ON n.id = u.user JOIN name m ON m.id = u.model WHERE u.hour >= ? AND u.hour < ?",
		[]any{from.Unix() / hour, (to.Unix() + hour - 1) / hour}, func(rows *sql.Rows) error {
			var k utilisation.Sum
			var f utilisation.Figures
			var packed []byte
			if err := rows.Scan(&k.Queue, &k.User, &k.Model, &f.Sampled, &f.Activity, &f.Idle, &f.Memory, &f.MemoryTotal, &f.Energy, &packed); err != nil {
				return err
			}
			if err := f.Unpack(packed); err != nil {
				return err
			}
			if out[k] == nil {
				out[k] = &utilisation.Figures{}
			}
			out[k].Add(&f)
			return nil
		})
	return out, err
}

// Wasted is what one attempt held and did not use.
type Wasted struct {
	utilisation.Used
	Running bool
	Held    int64 // card-seconds before the launch
}

// Total is what was held before the launch, and what cards were idle for.
func (w *Wasted) Total() int64 { return w.Held + w.Figures.Idle/1000 }

// Worst are the attempts that wasted most of those that ended in [from, to) and
// of the given ones that run, at most so many.
func (l *Ledger) Worst(ctx context.Context, from, to time.Time, running []utilisation.Used, most int) ([]Wasted, error) {
	held := map[Key]map[string]int64{}
	u, err := l.Usage(ctx, Query{From: from, To: to, By: []string{ByGang, ByAttempt, ByModel}})
	if err != nil {
		return nil, err
	}
	for i := range u.Lines {
		k := Key{Gang: u.Lines[i].Gang, Number: u.Lines[i].Attempt} // two of one number are rare, and summed up
		if held[k] == nil {
			held[k] = map[string]int64{}
		}
		held[k][u.Lines[i].Model] += u.Lines[i].Held
	}
	var all []Wasted
	add := func(used utilisation.Used, running bool) {
		all = append(all, Wasted{Used: used, Running: running, Held: held[Key{Gang: used.Gang, Number: used.Number}][used.Model]})
	}
	err = l.each(ctx, "find waste", "SELECT a.gang, a.number, a.base, q.text, n.text, m.text, u.cards, u.sampled, u.activity, u.idle, u.memory, u.memory_total, u.energy, u.never_busy, u.untouched, u.histogram "+
		"FROM attempt_end e JOIN utilisation u ON u.attempt = e.attempt JOIN attempt a ON a.id = e.attempt JOIN name q ON q.id = a.queue JOIN name n ON n.id = a.user JOIN name m ON m.id = u.model "+
		"WHERE e.ended >= ? AND e.ended < ?", []any{from.UnixMilli(), to.UnixMilli()}, func(rows *sql.Rows) error {
		var used utilisation.Used
		var base int64
		var packed []byte
		f := &used.Figures
		if err := rows.Scan(&used.Gang, &used.Number, &base, &used.Queue, &used.User, &used.Model, &used.Cards, &f.Sampled, &f.Activity, &f.Idle, &f.Memory, &f.MemoryTotal, &f.Energy,
			&used.NeverBusy, &used.Untouched, &packed); err != nil {
			return err
		}
		used.Base = uint64(base)
		if err := f.Unpack(packed); err != nil {
			return err
		}
		add(used, false)
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, used := range running {
		add(used, true)
	}
	slices.SortFunc(all, func(a, b Wasted) int {
		return cmp.Or(cmp.Compare(b.Total(), a.Total()), cmp.Compare(a.Gang, b.Gang), cmp.Compare(a.Number, b.Number), cmp.Compare(a.Model, b.Model))
	})
	return all[:min(len(all), most)], nil
}
