//go:build e2e && linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/trial"
	"github.com/shoenig/test/must"
)

// worlds are the attempt and the size of each world that began, one line a rank,
// and whether it went on from a checkpoint.
func worlds(dir string) string {
	text, _ := os.ReadFile(filepath.Join(dir, "worlds"))
	return string(text)
}

// An elastic gang loses a member's supervisor: the other goes on by itself, in
// the same attempt.
func TestElasticGangOutlivesAMember(t *testing.T) {
	ctx, l := shared(t)
	needTorch(t)
	dir := folder(t)
	config := python(t, "elastic.py", 1, dir) + "        elastic = true\n"
	l.submit(ctx, t, gangJob{name: "elastic", members: 2, cards: 2, meta: map[string]string{contract.MetaMin: "1", contract.MetaGrace: "30s"}, config: config}.hcl())
	poll(ctx, t, "wait for the world of two", func() error {
		if strings.Count(worlds(dir), "1 2 False") < 2 {
			return fmt.Errorf("the worlds so far: %q", worlds(dir))
		}
		return nil
	})
	l.awaitStage(ctx, t, "elastic", contract.StageTraining)
	g := l.await(ctx, t, "elastic", "two members", stage(contract.StageTraining))
	host := g.Detail.Members[0].Alloc
	for _, a := range l.allocations(ctx, t, "elastic") {
		if a.ID != host {
			l.killTask(t, a.ID)
		}
	}
	poll(ctx, t, "wait for the world of one", func() error {
		if !strings.Contains(worlds(dir), "1 1 ") {
			return fmt.Errorf("the worlds so far: %q", worlds(dir))
		}
		return nil
	})
	touch(t, dir, "end", "")
	g = l.awaitStage(ctx, t, "elastic", contract.StageComplete)
	must.Eq(t, 1, g.Attempt)
}

// A gang that states a bandwidth is probed, and its events say what happened in
// order.
func TestBandwidthIsProbed(t *testing.T) {
	// Its own cluster: the planner holds it against nodes that their ways are slow.
	ctx, l := own(t, trial.Options{})
	dir := folder(t)
	l.submit(ctx, t, gangJob{name: "probed", members: 2, cards: 4, meta: map[string]string{contract.MetaMinBandwidth: "10 Mbit/s"}, config: shellRanks(t, dir, 2)}.hcl())
	awaitStarted(ctx, t, dir, 1, 4)
	touch(t, dir, "end", "")
	l.awaitStage(ctx, t, "probed", contract.StageComplete)
	for _, a := range l.allocations(ctx, t, "probed") {
		var told []string
		for _, e := range a.TaskStates["train"].Events {
			told = append(told, e.DisplayMessage)
		}
		all := strings.Join(told, "\n")
		for _, part := range []string{"held: waits for the whole gang", "preflight passed: 2 ranks, 4 cards", "released: attempt 1, member", "ended: all ranks ended with 0"} {
			must.StrContains(t, all, part)
		}
	}

	l.submit(ctx, t, gangJob{name: "toofast", members: 2, cards: 4, meta: map[string]string{contract.MetaMinBandwidth: "100000 Gbit/s"}, config: shellRanks(t, dir, 2)}.hcl())
	poll(ctx, t, "wait until the way between members is refused", func() error {
		for _, a := range l.allocations(ctx, t, "toofast") {
			if a.TaskStates["train"] == nil {
				continue
			}
			for _, e := range a.TaskStates["train"].Events {
				if strings.Contains(e.DisplayMessage, "preflight refused: the way from") && strings.Contains(e.DisplayMessage, "asks for 100000") {
					return nil
				}
			}
		}
		return fmt.Errorf("no event says so")
	})
	l.stop(ctx, t, "toofast")
}
