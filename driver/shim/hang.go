package shim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nomad-muster/muster/driver/hang"
	"github.com/nomad-muster/muster/driver/isolation"
	"github.com/nomad-muster/muster/driver/member"
	"github.com/nomad-muster/muster/driver/rendezvous"
	"github.com/nomad-muster/muster/internal/contract"
)

// notePeers remembers what other members report.
func (s *supervisor) notePeers(sight rendezvous.Sight) {
	marks := false
	for key, r := range sight.Reports {
		marks = marks || key != s.spec.Self.Key() && r.State == contract.StateTraining
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.marks = s.marks || marks
	s.sight = sight
	close(s.seen)
	s.seen = make(chan struct{})
}

// watchHang looks for a hang until the launch is over.
func (s *supervisor) watchHang(l *launch) {
	launched := time.Now()
	timeout := s.spec.Config.HangTimeout
	ticker := time.NewTicker(max(100*time.Millisecond, min(timeout/10, 5*time.Second)))
	defer ticker.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-ticker.C:
		}
		if s.current() != l {
			return
		}
		s.mu.Lock()
		peers := s.marks
		s.mu.Unlock()
		if v := hang.Judge(time.Now(), launched, timeout, l.lives(), peers); v.Hung {
			s.event(member.Hung{Rank: v.Rank, Text: v.Text})
			return
		}
	}
}

// lives tells what is known of the running ranks, in order.
func (l *launch) lives() []hang.Rank {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []hang.Rank
	for n, r := range l.ranks {
		if r.ended || r.pid == 0 {
			continue
		}
		life := hang.Rank{Number: n, Marked: r.marked, Step: r.step}
		for _, source := range r.sources {
			if at := source.Last(); at.After(life.Printed) {
				life.Printed = at
			}
		}
		if p, err := isolation.ReadProcess(r.pid); err == nil {
			life.State = p.State
		}
		out = append(out, life)
	}
	slices.SortFunc(out, func(a, b hang.Rank) int { return a.Number - b.Number })
	return out
}

// dumpTime bounds how long the ranks' stack dumps may take.
const dumpTime = 5 * time.Second

// EvidenceFile is where what the ranks did at a hang is kept, in the start's
// folder.
const EvidenceFile = "hang.txt"

// keepEvidence writes down what every rank is doing: marks, last output, state
// and kernel stack of each of its processes, Python's own stacks where py-spy is
// installed. It ends up in the start's folder, and in the task's log in short.
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
	dumps := s.pythonStacks(l.running())
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

// pythonStacks asks py-spy, where it is installed, for the stacks of all ranks
// at once.
func (s *supervisor) pythonStacks(ranks map[int]int) map[int]string {
	env := []string{"PATH=" + s.spec.Env["PATH"]}
	spy, err := resolve("py-spy", "/", env)
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
