package accounting

import (
	"context"
	"fmt"
	"time"

	"github.com/nomad-muster/muster/planner/utilisation"
)

// Sampled books what cards did at about a time, summed up by queue, user and
// model.
func (l *Ledger) Sampled(at time.Time, sums map[utilisation.Sum]*utilisation.Figures) {
	for k, f := range sums {
		l.put(recSampled{hour: at.Unix() / hour, sum: k, figures: *f})
	}
}

// Used books what an attempt that ended has done with its cards.
func (l *Ledger) Used(used []utilisation.Used) {
	for _, u := range used {
		l.put(recUsed{u})
	}
}

// Keep stores what is known of a running attempt's samples, for the next start.
func (l *Ledger) Keep(k Key, state []byte) { l.put(recKeep{k, state}) }

// Kept gives what Keep stored of attempts that have not ended.
func (l *Ledger) Kept(ctx context.Context) (map[Key][]byte, error) {
	rows, err := l.readers.QueryContext(ctx, "SELECT a.gang, a.number, a.base, s.state FROM sampling s JOIN attempt a ON a.id = s.attempt")
	if err != nil {
		return nil, fmt.Errorf("read ledger %s: %w", l.path, err)
	}
	defer rows.Close()
	out := map[Key][]byte{}
	for rows.Next() {
		var k Key
		var base int64
		var state []byte
		if err := rows.Scan(&k.Gang, &k.Number, &base, &state); err != nil {
			return nil, fmt.Errorf("read ledger %s: %w", l.path, err)
		}
		k.Base = uint64(base)
		out[k] = state
	}
	return out, rows.Err()
}

// Cluster is the cards of one model at a time.
type Cluster struct {
	Model                  string
	Free, Used, Other, Out int
	Fragmented             float64 // share of the free ones that what waits cannot use
	Wanted                 int     // cards that gangs wait for
}

// Clusters books the state that the cluster was in for a time up to now.
func (l *Ledger) Clusters(now time.Time, lasted time.Duration, states []Cluster) {
	for _, c := range states {
		l.put(recCluster{hour: now.Unix() / hour, seconds: int64(lasted / time.Second), state: c})
	}
}

type recSampled struct {
	hour    int64
	sum     utilisation.Sum
	figures utilisation.Figures
}

func (r recSampled) write(w *writer) error {
	queue, user, model := w.name(r.sum.Queue), w.name(r.sum.User), w.name(r.sum.Model)
	f := r.figures
	var packed []byte
	found, err := w.row("SELECT histogram FROM utilisation_hour WHERE hour = ? AND queue = ? AND user = ? AND model = ?", []any{r.hour, queue, user, model}, &packed)
	if err != nil {
		return err
	}
	if found {
		var have utilisation.Figures
		if err := have.Unpack(packed); err != nil {
			return err
		}
		for i := range have.Histogram {
			f.Histogram[i] += have.Histogram[i]
		}
	}
	_, _, err = w.insert("INSERT INTO utilisation_hour (hour, queue, user, model, sampled, activity, idle, memory, memory_total, energy, histogram) VALUES (?,?,?,?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET "+
		"sampled = sampled + excluded.sampled, activity = activity + excluded.activity, idle = idle + excluded.idle, memory = memory + excluded.memory, "+
		"memory_total = memory_total + excluded.memory_total, energy = energy + excluded.energy, histogram = excluded.histogram",
		r.hour, queue, user, model, f.Sampled, f.Activity, f.Idle, f.Memory, f.MemoryTotal, f.Energy, f.Pack())
	return err
}

type recUsed struct{ utilisation.Used }

func (r recUsed) write(w *writer) error {
	attempt, err := w.attempt(Key{r.Gang, r.Number, r.Base}, nil)
	if err != nil {
		return err
	}
	f := &r.Figures
	if _, _, err := w.insert("INSERT OR IGNORE INTO utilisation (attempt, model, cards, sampled, activity, idle, memory, memory_total, energy, never_busy, untouched, histogram) VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
		attempt, w.name(r.Model), r.Cards, f.Sampled, f.Activity, f.Idle, f.Memory, f.MemoryTotal, f.Energy, r.NeverBusy, r.Untouched, f.Pack()); err != nil {
		return err
	}
	_, _, err = w.insert("DELETE FROM sampling WHERE attempt = ?", attempt)
	return err
}

type recKeep struct {
	key   Key
	state []byte
}

func (r recKeep) write(w *writer) error {
	attempt, err := w.attempt(r.key, nil)
	if err != nil {
		return err
	}
	_, _, err = w.insert("INSERT INTO sampling VALUES (?, ?) ON CONFLICT DO UPDATE SET state = excluded.state", attempt, r.state)
	return err
}

type recCluster struct {
	hour, seconds int64
	state         Cluster
}

func (r recCluster) write(w *writer) error {
	s, c := r.seconds, &r.state
	_, _, err := w.insert("INSERT INTO cluster_hour (hour, model, observed, free, used, other, out, fragmented, wanted) VALUES (?,?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET "+
		"observed = observed + excluded.observed, free = free + excluded.free, used = used + excluded.used, other = other + excluded.other, out = out + excluded.out, "+
		"fragmented = fragmented + excluded.fragmented, wanted = wanted + excluded.wanted",
		r.hour, w.name(c.Model), s, s*int64(c.Free), s*int64(c.Used), s*int64(c.Other), s*int64(c.Out), int64(float64(s*int64(c.Free))*c.Fragmented+0.5), s*int64(c.Wanted))
	return err
}
