package shim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/nomad-muster/muster/driver/cards"
	"github.com/nomad-muster/muster/driver/hang"
	"github.com/nomad-muster/muster/driver/isolation"
)

// dumpTime bounds how long the ranks' stack dumps may take.
const dumpTime = 5 * time.Second

// EvidenceFile is where what the ranks did at a hang is kept, in the start's
// folder.
const EvidenceFile = "hang.txt"

// keepEvidence writes down what every rank is doing: marks, last output, state
// and kernel stack of each of its processes, Python's own stacks where py-spy is
// installed, and what the cards do. It ends up in the start's folder, and in the
// task's log in short.
func (s *supervisor) keepEvidence(why string) {
	l := s.current()
	if l == nil || l.examined {
		return
	}
	l.examined = true
	lives := l.lives()
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\n", time.Now().UTC().Format(time.RFC3339), why)
	table, _ := isolation.ReadTable()
	var dumps map[int]string
	var activity string
	var asking sync.WaitGroup
	asking.Go(func() { dumps = s.pythonStacks(l.running()) })
	asking.Go(func() { activity = s.cardActivity() })
	asking.Wait()
	short := "[muster] " + why + "\n"
	for _, life := range lives {
		l.mu.Lock()
		r := l.ranks[life.Number]
		pid, tail := r.pid, r.tail
		l.mu.Unlock()
		fmt.Fprintf(&b, "\nrank %d, process %d, state %c, last step %d, last mark %s, last output %s\n", life.Number, pid, life.State, life.Step, ago(life.Marked), ago(life.Printed))
		short += fmt.Sprintf("[muster] rank %d: state %c, last step %d, last mark %s\n", life.Number, life.State, life.Step, ago(life.Marked))
		for _, p := range append([]int{pid}, table.Below(pid)...) {
			b.WriteString(processEvidence(p))
		}
		if dump := dumps[life.Number]; dump != "" {
			b.WriteString("py-spy:\n" + dump)
		}
		b.WriteString("last output:\n")
		for _, line := range tail.Lines() {
			fmt.Fprintf(&b, "  %s\n", line)
		}
	}
	b.WriteString(activity)
	s.stderr.Write([]byte(short))
	if number, text := hang.Suspect(lives); number >= 0 && !strings.HasPrefix(why, "rank ") {
		s.tell(fmt.Sprintf("rank %d is the one to look at: %s", number, text))
	}
	path := filepath.Join(string(s.start), EvidenceFile)
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		s.log.Warn("cannot keep the evidence of a hang", "error", err)
		return
	}
	s.log.Info("kept the evidence of a hang", "file", path)
}

// tool finds a program of the operator's that looks at ranks or cards from
// outside, with all that the supervisor may do: never on the task's own path.
func (s *supervisor) tool(name string) (argv0 string, env []string, err error) {
	env = []string{"PATH=" + s.spec.Image.Path}
	argv0, err = resolve(name, "/", env)
	return argv0, env, err
}

// pythonStacks asks py-spy, where it is installed, for the stacks of all ranks
// at once.
func (s *supervisor) pythonStacks(ranks map[int]int) map[int]string {
	spy, env, err := s.tool("py-spy")
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, dumpTime)
	defer cancel()
	out := map[int]string{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	for number, pid := range ranks {
		wg.Go(func() {
			text, err := run(ctx, s.spawn, command{argv: []string{spy, "dump", "--pid", fmt.Sprint(pid)}, env: env, dir: "/", outside: true})
			if err != nil {
				text = append(text, (err.Error() + "\n")...)
			}
			mu.Lock()
			out[number] = string(text)
			mu.Unlock()
		})
	}
	wg.Wait()
	return out
}

// queryCards asks for what tells a card that computes from one that waits.
const queryCards = "index,uuid,pstate,utilization.gpu,utilization.memory,memory.used,power.draw,clocks.sm,clocks_throttle_reasons.active"

// cardActivity is what the task's cards do: as the kernel's driver tells of AMD's,
// and nvidia-smi, where it is installed, of NVIDIA's.
func (s *supervisor) cardActivity() string {
	var b strings.Builder
	for _, d := range s.spec.Devices {
		if text := cards.Activity("/sys", d.Host); text != "" {
			fmt.Fprintf(&b, "  %s: %s\n", d.Host, text)
		}
	}
	var ids []string
	for _, id := range s.spec.Cards {
		if strings.HasPrefix(id, "GPU-") {
			ids = append(ids, id)
		}
	}
	if smi, env, err := s.tool("nvidia-smi"); err == nil && len(ids) > 0 {
		ctx, cancel := context.WithTimeout(s.ctx, dumpTime)
		defer cancel()
		text, err := run(ctx, s.spawn, command{argv: []string{smi, "--id=" + strings.Join(ids, ","), "--query-gpu=" + queryCards, "--format=csv"}, env: env, dir: "/", outside: true})
		if err != nil {
			text = append(text, (err.Error() + "\n")...) // that it does not answer tells something as well
		}
		for line := range strings.Lines(string(text)) {
			b.WriteString("  " + line)
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return "\ncards:\n" + b.String()
}

func ago(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return time.Since(t).Round(time.Second).String() + " ago"
}

// processEvidence is what the kernel tells of one process and its threads.
func processEvidence(pid int) string {
	var b strings.Builder
	p, err := isolation.ReadProcess(pid)
	if err != nil {
		return ""
	}
	fmt.Fprintf(&b, "  process %d (%s), state %c\n", pid, p.Command, p.State)
	threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	for _, dir := range threads[:min(len(threads), 64)] {
		where, _ := os.ReadFile(dir + "/wchan")
		stack, _ := os.ReadFile(dir + "/stack") // root's to read
		name, _ := os.ReadFile(dir + "/comm")
		fmt.Fprintf(&b, "    thread %s (%s) in %s\n", filepath.Base(dir), strings.TrimSpace(string(name)), where)
		for line := range strings.Lines(string(stack)) {
			b.WriteString("      " + line)
		}
	}
	return b.String()
}
