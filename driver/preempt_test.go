package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/internal/contract"
)

// marksOf gives what the ranks of a member's first start have marked.
func marksOf(t *testing.T, tr *trial, i int) string {
	t.Helper()
	paths, err := filepath.Glob(tr.task(i).start.Progress(0)[:len(tr.task(i).start.Progress(0))-1] + "*")
	must.NoError(t, err)
	var all strings.Builder
	for _, path := range paths {
		text, err := os.ReadFile(path)
		must.NoError(t, err)
		all.Write(text)
	}
	return all.String()
}

var saved = regexp.MustCompile(`checkpoint end (\d+)`)

// acknowledged is the highest step that a rank has said is saved.
func acknowledged(marks string) int {
	best := 0
	for _, m := range saved.FindAllStringSubmatch(marks, -1) {
		n, _ := strconv.Atoi(m[1])
		best = max(best, n)
	}
	return best
}

// A DDP training that is asked, or killed, in the middle of a save loses no step
// that it has acknowledged: the next attempt begins right after it.
func TestPreemptedInTheMiddleOfASave(t *testing.T) {
	needTorch(t)
	for _, how := range []string{"asked", "killed"} {
		t.Run(how, func(t *testing.T) {
			if how == "killed" {
				long(t, "the other way to be interrupted is tested")
			}
			t.Parallel()
			checkpoints := t.TempDir()
			gang := func(args ...any) *trial {
				return newTrial(t, 1, map[string]any{"script": "local/train_ddp.py", "args": args, "nproc_per_node": 2, "checkpoint": checkpoints},
					withExample(t, "train_ddp.py", "muster_progress.py"))
			}
			tr := gang("--steps", "100000", "--save-every", "5", "--step-time", "0.01", "--save-time", "2.2")
			tr.run()
			for { // one save is acknowledged, and another one is being written
				marks := marksOf(t, tr, 0)
				if n := acknowledged(marks); n > 0 && strings.Count(marks, "checkpoint begin") > strings.Count(marks, "checkpoint end") {
					break
				}
				must.NoError(t, tr.ctx.Err())
				time.Sleep(5 * time.Millisecond)
			}
			if how == "asked" {
				// The save that follows the ask takes longer than the grace, at whatever
				// moment of the one before it comes.
				tr.record.Ask = &contract.Ask{Kind: "preempt", Grace: 2 * time.Second, By: time.Now().Add(2 * time.Second)}
				tr.planner.Write(tr.record)
				x := tr.exit(0)
				must.Eq(t, contract.OutcomeCheckpointed, x.Outcome, must.Sprint(x.Text))
				tr.awaitEvent(tr.members[0], "a checkpoint is being written: 2s more")
				must.Eq(t, contract.CodeAsked, tr.wait(0).ExitCode)
			} else {
				s, err := tr.task(0).start.ReadShim()
				must.NoError(t, err)
				must.NoError(t, unix.Kill(s.Process.PID, unix.SIGKILL))
				must.Eq(t, contract.OutcomeLost, tr.exit(0).Outcome)
			}
			step := acknowledged(marksOf(t, tr, 0))
			next := gang("--steps", strconv.Itoa(step+2), "--save-every", "1000")
			next.run()
			must.Eq(t, 0, next.wait(0).ExitCode)
			next.members[0].log.await(t, next.ctx, fmt.Sprintf("of 2 begins at step %d", step+1))
		})
	}
}
