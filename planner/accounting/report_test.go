package accounting

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

// told is an attempt of a queue with the given times of the test's day; a
// negative one is not known.
func told(name, queue string, cards int, queued, planned, ended int64, end AttemptEnd, eta ETA) Gang {
	a := Attempt{Key: Key{Gang: name, Number: 1, Base: 1}, Queue: queue, User: "u", Members: 1, Cards: cards, Submitted: at(queued), Queued: at(queued), Planned: at(planned), Foretold: eta,
		Allocs: []Alloc{{ID: name, Node: "n", Created: at(planned), Holds: []Hold{{"H100", cards}}, Ended: at(ended), Exact: true, How: "complete"}}}
	a.Stages = []Stage{{"started", at(planned)}}
	end.At = at(ended)
	a.End = &end
	return Gang{Name: name, Attempts: []Attempt{a}, Whole: true}
}

func TestQuestionsOfTheReport(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	l := open(t, "")
	defer closed(t, l)
	done := AttemptEnd{Outcome: "complete"}
	for i := range 20 {
		l.Observe(told(fmt.Sprintf("default/small-%d", i), "research", 1, 100, 100+int64(i), 1000, done, ETA{}), at(1001))
	}
	l.Observe(told("default/late", "research", 64, 0, 7200, 9000, AttemptEnd{Outcome: "killed", Reason: "preempted"}, ETA{Made: at(0), From: at(3000), To: at(3600)}), at(9001))
	l.Observe(told("default/within", "production", 8, 50, 60, 500, AttemptEnd{Outcome: "failed", Code: 1}, ETA{Made: at(50), From: at(55), To: at(70)}), at(9001))
	l.Observe(told("default/early", "production", 8, 50, 60, 500, done, ETA{Made: at(50), From: at(160), To: at(270)}), at(9001))
	l.Observe(told("default/outside", "production", 8, 90000, 90001, 90002, done, ETA{}), at(90003))
	l.Tick(at(100000))
	flushed(t, l)

	waits, err := l.Waits(ctx, at(0), at(86400))
	must.NoError(t, err)
	s := time.Second
	must.Eq(t, []Wait{
		{"", "1", 20, 9500 * time.Millisecond, [5]time.Duration{0, 4 * s, 9 * s, 14 * s, 18 * s}},
		{"", "2-8", 2, 10 * s, [5]time.Duration{10 * s, 10 * s, 10 * s, 10 * s, 10 * s}},
		{"", "33-128", 1, 7200 * s, [5]time.Duration{7200 * s, 7200 * s, 7200 * s, 7200 * s, 7200 * s}},
		{"production", "2-8", 2, 10 * s, [5]time.Duration{10 * s, 10 * s, 10 * s, 10 * s, 10 * s}},
		{"research", "1", 20, 9500 * time.Millisecond, [5]time.Duration{0, 4 * s, 9 * s, 14 * s, 18 * s}},
		{"research", "33-128", 1, 7200 * s, [5]time.Duration{7200 * s, 7200 * s, 7200 * s, 7200 * s, 7200 * s}},
	}, waits)

	foretold, err := l.Foretold(ctx, at(0), at(86400))
	must.NoError(t, err)
	must.Eq(t, Foretold{Within: 1, Early: 1, Late: 1, Median: 100 * s, P95: 100 * s}, foretold)

	ends, err := l.Ends(ctx, at(0), at(86400))
	must.NoError(t, err)
	must.Eq(t, []Ends{
		{"production", "failed", 1, 440 * 8},
		{"production", "complete", 1, 0},
		{"research", "preempted", 1, 1800 * 64},
		{"research", "complete", 20, 0},
	}, ends)

	waiting, err := l.Waiting(ctx, at(0), at(86400))
	must.NoError(t, err)
	must.Eq(t, Waiting{at(50), "production", 2}, waiting[0])
	must.Eq(t, Waiting{at(60), "production", 0}, waiting[1])
	must.Eq(t, Waiting{at(0), "research", 1}, waiting[2])
	must.Eq(t, Waiting{at(7200), "research", 0}, waiting[len(waiting)-1])
	// A window that begins in the middle has what waited before it.
	waiting, err = l.Waiting(ctx, at(4000), at(5000))
	must.NoError(t, err)
	must.Eq(t, []Waiting{{at(4000), "research", 1}}, waiting)

	none, err := l.Waits(ctx, at(200000), at(300000))
	must.NoError(t, err)
	must.SliceEmpty(t, none)
}
