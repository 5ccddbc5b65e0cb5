//go:build e2e && linux

package e2e

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/report"
	"github.com/nomad-muster/muster/planner/view"
)

// usage is what the command line says that gangs used, in card-seconds, by gang
// and attempt; -1 is their lost ones.
func (l *lab) usage(ctx context.Context, t *testing.T) map[string]map[int]int64 {
	t.Helper()
	r, err := l.Muster(ctx, "usage", "-by=gang,attempt", "-from=6h", "-csv")
	must.NoError(t, err)
	must.Eq(t, 0, r.Code, must.Sprint(r.Stderr))
	rows, err := csv.NewReader(strings.NewReader(r.Stdout)).ReadAll()
	must.NoError(t, err, must.Sprint(r.Stdout))
	at := map[string]int{}
	for i, name := range rows[0] {
		at[name] = i
	}
	number := func(row []string, column string) int64 {
		n, err := strconv.ParseInt(row[at[column]], 10, 64)
		must.NoError(t, err)
		return n
	}
	out := map[string]map[int]int64{}
	for _, row := range rows[1:] {
		gang := strings.TrimPrefix(row[at["gang"]], "default/")
		if out[gang] == nil {
			out[gang] = map[int]int64{}
		}
		must.Eq(t, number(row, "card_seconds"), number(row, "guaranteed")+number(row, "borrowed"))
		must.Eq(t, number(row, "card_seconds"), number(row, "held")+number(row, "training"))
		out[gang][int(number(row, "attempt"))] += number(row, "card_seconds")
		out[gang][-1] += number(row, "lost")
	}
	return out
}

// nomadRan is what a gang's allocations held by Nomad's own times, in whole
// seconds, times the cards of a member.
func (l *lab) nomadRan(ctx context.Context, t *testing.T, job string, cards int) (sum int64) {
	t.Helper()
	for _, a := range l.allocations(ctx, t, job) {
		end := finished(a)
		must.False(t, end.IsZero(), must.Sprintf("allocation %s of %s has not ended", a.ID, job))
		sum += int64(cards) * max(end.Unix()-a.CreateTime/1e9, 0)
	}
	return sum
}

// Usage equals what Nomad's allocations ran, to the second: a gang that
// completes, one that fails and is retried, one that is evicted and the one that
// it is evicted for; also after the planner was killed, and what is lost has its
// cause.
func TestUsageIsWhatNomadRan(t *testing.T) {
	ctx, l := queues(t)
	completes, fails, borrows, entitled := folder(t), folder(t), folder(t), folder(t)
	l.submit(ctx, t, gangJob{name: "u-completes", queue: "lab", members: 2, cards: 2, config: shellRanks(t, completes, 1)}.hcl())
	l.submit(ctx, t, gangJob{name: "u-fails", queue: "lab", members: 2, cards: 2, meta: map[string]string{contract.MetaRetries: "1"}, config: shellRanks(t, fails, 1)}.hcl())
	awaitStarted(ctx, t, completes, 1, 2)
	awaitStarted(ctx, t, fails, 1, 2)
	pause(ctx, 1500*time.Millisecond) // that there is something to book
	touch(t, fails, "1.1.exit", "3")
	awaitStarted(ctx, t, fails, 2, 2)
	pause(ctx, 1100*time.Millisecond)
	touch(t, completes, "end", "")
	touch(t, fails, "end", "")
	l.awaitStage(ctx, t, "u-completes", contract.StageComplete)
	l.awaitStage(ctx, t, "u-fails", contract.StageComplete)

	l.submit(ctx, t, gangJob{name: "u-borrows", queue: "lab", members: 4, cards: 4, config: shellRanks(t, borrows, 1)}.hcl())
	awaitStarted(ctx, t, borrows, 1, 4)
	pause(ctx, 1500*time.Millisecond)
	poll(ctx, t, "the device plugins' samples of all cards that the gang holds", func() error {
		r, err := l.Muster(ctx, "top", "-json")
		must.NoError(t, err)
		var top view.Top
		must.NoError(t, json.Unmarshal([]byte(r.Stdout), &top), must.Sprint(r.Stderr))
		for _, g := range top.Gangs {
			if g.Gang == "default/u-borrows" && g.Cards == 16 && g.Sampled == 16 && g.Memory.Known {
				return nil
			}
		}
		return fmt.Errorf("%s", r.Stdout)
	})
	l.submit(ctx, t, gangJob{name: "u-entitled", queue: "prod", members: 2, cards: 4, config: shellRanks(t, entitled, 1)}.hcl())
	awaitStarted(ctx, t, entitled, 1, 2)

	must.NoError(t, l.Planner.Kill())
	pause(ctx, 1100*time.Millisecond)
	must.NoError(t, l.StartPlanner(ctx))
	touch(t, entitled, "end", "")
	l.awaitStage(ctx, t, "u-entitled", contract.StageComplete)
	awaitStarted(ctx, t, borrows, 2, 4)
	touch(t, borrows, "end", "")
	l.awaitStage(ctx, t, "u-borrows", contract.StageComplete)

	cards := map[string]int{"u-completes": 2, "u-fails": 2, "u-borrows": 4, "u-entitled": 4}
	var used map[string]map[int]int64
	poll(ctx, t, "usage is what Nomad ran", func() error {
		used = l.usage(ctx, t)
		for job, n := range cards {
			sum := int64(0)
			for attempt, seconds := range used[job] {
				if attempt > 0 {
					sum += seconds
				}
			}
			if want := l.nomadRan(ctx, t, job, n); sum != want {
				return fmt.Errorf("%s: Nomad ran %d card-seconds, muster usage says %v", job, want, used[job])
			}
		}
		return nil
	})
	must.Positive(t, used["u-borrows"][1])
	must.Positive(t, used["u-borrows"][-1], must.Sprint("it was evicted without having saved"))
	must.Positive(t, used["u-fails"][-1])
	must.Eq(t, 0, used["u-completes"][-1])
	must.Eq(t, 0, used["u-entitled"][-1])
	must.MapLen(t, 3, used["u-fails"], must.Sprint("two attempts, and what was lost"))

	r, err := l.Muster(ctx, "ledger", "verify")
	must.NoError(t, err)
	must.Eq(t, 0, r.Code, must.Sprint(r.Stdout, r.Stderr))
	must.StrContains(t, r.Stdout, "Nothing is wrong")

	// The report of the same time says the same.
	page := filepath.Join(t.TempDir(), "report.html")
	r, err = l.Muster(ctx, "report", "-json", "-from", "6h", "-o", page)
	must.NoError(t, err)
	must.Eq(t, 0, r.Code, must.Sprint(r.Stdout, r.Stderr))
	var told report.Report
	must.NoError(t, json.Unmarshal([]byte(r.Stdout), &told))
	sum := int64(0)
	for _, attempts := range l.usage(ctx, t) {
		for attempt, seconds := range attempts {
			if attempt > 0 {
				sum += seconds
			}
		}
	}
	must.Eq(t, sum, told.Totals.Used.Total())
	must.Positive(t, told.Totals.Lost)
	must.Positive(t, told.Totals.Attempts)
	causes := map[string]bool{}
	for _, e := range told.Ends {
		causes[e.Cause] = true
	}
	must.MapContainsKeys(t, causes, []string{"complete", "failed", "preempted"}, must.Sprintf("%+v", told.Ends))
	html, err := os.ReadFile(page)
	must.NoError(t, err)
	must.StrContains(t, string(html), "What the cluster did")
}

// pause waits for a time that the books measure.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
