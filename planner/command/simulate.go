package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/planner/config"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/simulate"
)

// simulateFlags say what a trace study runs on, and how.
type simulateFlags struct {
	nodes, policies                   list
	inventory, snapshot, queue, svg   string
	seed                              uint64
	until, save, restart, checkpoints time.Duration
	jobs                              int
	oracle                            bool
	faults                            float64
	repair                            time.Duration
}

func simulateCommand() Command {
	var o simulateFlags
	return Command{
		Synopsis: "Run a trace of jobs through the scheduler in virtual time",
		Usage:    "simulate [options] <trace>",
		About: "Runs the jobs of a trace (CSV or the Standard Workload Format, by gzip or not) through the planner's own decision core in virtual time, and tells how they fared: waits, utilisation, evictions, promises kept. " +
			"Nothing real is touched. With several -policy, the same jobs run under each, side by side. The same seed gives the same result.\n\n" +
			"The cluster is of -nodes, of an -inventory, or of a captured -snapshot. Without -policy, the default configuration with one queue for each that the trace names.",
		Data: true, Least: 1, Most: 1,
		Flags: func(f *Flags) {
			f.Var(&o.nodes, "nodes", "Nodes as `countxcards`, such as 64x8, or 64x8:MODEL; may be given several times.")
			f.StringVar(&o.inventory, "inventory", "", "`File` with the cluster's nodes.")
			f.StringVar(&o.snapshot, "snapshot", "", "`File` of muster snapshot: its nodes.")
			f.Var(&o.policies, "policy", "`name=path` of a planner's configuration; may be given several times.")
			f.StringVar(&o.queue, "queue", "", "Put all jobs into this `queue`, whatever the trace says.")
			f.Uint64Var(&o.seed, "seed", 1, "`Seed` of what is random. Default: 1.")
			f.DurationVar(&o.until, "until", 0, "End after so `long`, though jobs are left.")
			f.IntVar(&o.jobs, "jobs", 0, "Only the first `number` of jobs.")
			f.BoolVar(&o.oracle, "oracle", false, "The planner knows each job's run time.")
			f.DurationVar(&o.save, "save", 0, "How `long` a gang takes to save when asked to leave; without it, evicted work is lost.")
			f.DurationVar(&o.restart, "restart", 0, "How `long` a gang takes to be where it was.")
			f.DurationVar(&o.checkpoints, "checkpoints", 0, "Gangs save by themselves so `often`.")
			f.Float64Var(&o.faults, "faults", 0, "Faults a day and thousand nodes (`rate`).")
			f.DurationVar(&o.repair, "repair", 0, "How `long` a faulty node is out. Default: 4h.")
			f.StringVar(&o.svg, "svg", "", "Draw plots into this `folder`: queue, wanted, utilisation and fragmentation over time, waits by size.")
		},
		Run: func(c *Call, args []string) error { return runSimulation(c, o, args[0]) },
	}
}

// policy is a configuration to compare.
type policy struct {
	name   string
	config *core.Config
}

func runSimulation(c *Call, o simulateFlags, path string) error {
	trace, err := simulate.ReadTrace(path)
	if err != nil {
		return err
	}
	jobs := trace.Jobs
	if o.jobs > 0 && o.jobs < len(jobs) {
		jobs = jobs[:o.jobs]
	}
	if len(jobs) == 0 {
		return fmt.Errorf("simulate: %s holds no jobs", path)
	}
	for i := range jobs {
		switch {
		case o.queue != "":
			jobs[i].Queue = core.QueueName(o.queue)
		case jobs[i].Queue == "":
			jobs[i].Queue = config.DefaultQueueName
		}
	}
	nodes, err := o.cluster(c)
	if err != nil {
		return err
	}
	policies, err := o.read(jobs)
	if err != nil {
		return err
	}
	if n, most := tooWide(jobs, nodes); n > 0 {
		c.warn([]string{fmt.Sprintf("%s for more cards on one node than any node has (%d), and will never run; a trace that counts processors wants them on one node, such as -nodes 1x512", asks(n, "job"), most)})
	}
	figures, results := make([]simulate.Figures, len(policies)), make([]*simulate.Result, len(policies))
	for i, p := range policies {
		run := simulate.Options{Name: p.name, Seed: o.seed, Config: p.config, Nodes: nodes, Jobs: slices.Clone(jobs), Oracle: o.oracle, Save: o.save, Restart: o.restart,
			Checkpoints: o.checkpoints, Until: o.until, Faults: simulate.Faults{PerThousandNodeDays: o.faults, Repair: o.repair}, Progress: c.progress(p.name)}
		r, err := simulate.Run(c.Context, run)
		c.endProgress()
		if err != nil {
			if cause := context.Cause(c.Context); cause != nil {
				err = errors.Join(cause, err)
			}
			return err
		}
		figures[i], results[i] = r.Figures(), r
	}
	plots, err := o.draw(results)
	if err != nil {
		return err
	}
	return c.print(struct {
		Trace   string             `json:"trace"`
		SHA256  string             `json:"sha256"`
		Format  string             `json:"format"`
		Seed    uint64             `json:"seed"`
		Nodes   int                `json:"nodes"`
		Jobs    int                `json:"jobs"`
		Figures []simulate.Figures `json:"figures"`
		Plots   []string           `json:"plots,omitempty"`
	}{path, trace.SHA256, trace.Format, o.seed, len(nodes), len(jobs), figures, plots}, func(w *screen) {
		w.line("%s of %s on %s, seed %d.", count(len(jobs), "job"), path, count(len(nodes), "node"), o.seed)
		w.line("")
		w.figures(figures)
		if len(plots) > 0 {
			w.line("")
			w.line("Plots: %s.", strings.Join(plots, ", "))
		}
	})
}

// tooWide counts the jobs of which one member alone asks for more cards than
// the largest node has.
func tooWide(jobs []simulate.Job, nodes []core.Node) (n, most int) {
	for i := range nodes {
		cards := 0
		for _, g := range nodes[i].Devices {
			cards += len(g.Cards)
		}
		most = max(most, cards)
	}
	for i := range jobs {
		if jobs[i].Cards > most {
			n++
		}
	}
	return n, most
}

// draw writes the plots and tells their paths.
func (o *simulateFlags) draw(results []*simulate.Result) ([]string, error) {
	if o.svg == "" {
		return nil, nil
	}
	if err := os.MkdirAll(o.svg, 0o755); err != nil {
		return nil, fmt.Errorf("simulate: make the folder for plots: %w", err)
	}
	var paths []string
	for _, p := range simulate.Plots(results...) {
		path := filepath.Join(o.svg, p.Name+".svg")
		if err := os.WriteFile(path, []byte(p.SVG), 0o644); err != nil {
			return nil, fmt.Errorf("simulate: write plot %s: %w", p.Name, err)
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// cluster makes the nodes.
func (o *simulateFlags) cluster(c *Call) ([]core.Node, error) {
	given := 0
	for _, set := range []bool{len(o.nodes) > 0, o.inventory != "", o.snapshot != ""} {
		if set {
			given++
		}
	}
	if given != 1 {
		return nil, errors.New("simulate: exactly one of -nodes, -inventory and -snapshot says what the cluster is")
	}
	if o.inventory != "" {
		t, err := simulate.ReadTrace(o.inventory)
		if err == nil && len(t.Nodes) == 0 {
			err = fmt.Errorf("simulate: %s holds no nodes", o.inventory)
		}
		if err != nil {
			return nil, err
		}
		return t.Nodes, nil
	}
	if o.snapshot != "" {
		d, err := readCapture(c, o.snapshot)
		if err != nil {
			return nil, err
		}
		return d.Snapshot.Nodes, nil
	}
	var shapes []simulate.Shape
	for i, text := range o.nodes {
		size, model, _ := strings.Cut(text, ":")
		n, cards, ok := strings.Cut(size, "x")
		s := simulate.Shape{Prefix: fmt.Sprintf("%c", 'a'+i%26), Model: core.Model(model)}
		var err1, err2 error
		s.Count, err1 = strconv.Atoi(n)
		s.Cards, err2 = strconv.Atoi(cards)
		if !ok || err1 != nil || err2 != nil || s.Count < 1 || s.Count > 100_000 || s.Cards < 0 || s.Cards > 100_000 {
			return nil, fmt.Errorf("simulate: -nodes=%s is not countxcards, such as 64x8", text)
		}
		shapes = append(shapes, s)
	}
	return simulate.Nodes(shapes...), nil
}

// read reads the configurations to compare, and checks that they have the
// queues of the jobs.
func (o *simulateFlags) read(jobs []simulate.Job) ([]policy, error) {
	wanted := map[core.QueueName]bool{}
	for _, j := range jobs {
		wanted[j.Queue] = true
	}
	names := make([]core.QueueName, 0, len(wanted))
	for name := range wanted {
		names = append(names, name)
	}
	slices.Sort(names)
	if len(o.policies) == 0 {
		cfg := core.Defaults()
		for _, name := range names {
			cfg.Queues = append(cfg.Queues, core.DefaultQueue(name))
		}
		return []policy{{"default", &cfg}}, nil
	}
	var out []policy
	for _, text := range o.policies {
		name, path, ok := strings.Cut(text, "=")
		if !ok {
			name, path = text, text
		}
		cfg, err := config.Load(path)
		if err != nil {
			return nil, err
		}
		for _, q := range names {
			if !slices.ContainsFunc(cfg.Core.Queues, func(k core.Queue) bool { return k.Name == q }) {
				return nil, fmt.Errorf("simulate: the trace has jobs of queue %q, which the policy %s does not define; -queue puts all jobs into one", q, name)
			}
		}
		out = append(out, policy{name, &cfg.Core})
	}
	return out, nil
}

// progress draws a line on a terminal while a simulation runs.
func (c *Call) progress(name string) func(done, all int, now time.Duration) {
	if !c.ErrTerminal {
		return nil
	}
	return func(done, all int, now time.Duration) {
		fmt.Fprintf(c.Stderr, "\r%s: %d of %d jobs over, %s of virtual time %s ", name, done, all, duration(now), bar(done, all, 30))
	}
}

func (c *Call) endProgress() {
	if c.ErrTerminal {
		fmt.Fprint(c.Stderr, "\r\x1b[K")
	}
}

// figures prints results side by side.
func (w *screen) figures(all []simulate.Figures) {
	head := []string{"Figure"}
	for _, f := range all {
		head = append(head, ">"+f.Name)
	}
	share := func(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }
	whole := func(n int) string { return fmt.Sprint(n) }
	rows := []struct {
		name string
		of   func(f simulate.Figures) string
	}{
		{"Jobs complete", func(f simulate.Figures) string { return fmt.Sprintf("%d of %d", f.Done, f.Jobs) }},
		{"Makespan", func(f simulate.Figures) string { return seconds(f.Makespan) }},
		{"Utilisation", func(f simulate.Figures) string { return share(f.Utilisation) }},
		{"Mean completion time", func(f simulate.Figures) string { return seconds(f.MeanJCT) }},
		{"99 % completion time", func(f simulate.Figures) string { return seconds(f.P99JCT) }},
		{"Mean wait", func(f simulate.Figures) string { return seconds(f.MeanWait) }},
		{"99 % wait", func(f simulate.Figures) string { return seconds(f.P99Wait) }},
		{"Longest wait", func(f simulate.Figures) string { return seconds(f.MaxWait) }},
		{"Mean wait of the largest", func(f simulate.Figures) string { return seconds(f.LargestWait) }},
		{"Bounded slowdown", func(f simulate.Figures) string { return fmt.Sprintf("%.2f", f.BoundedSlowdown) }},
		{"Evictions", func(f simulate.Figures) string { return whole(f.Evictions) }},
		{"Card hours lost", func(f simulate.Figures) string { return fmt.Sprintf("%.1f", f.LostCardHours) }},
		{"Faults", func(f simulate.Figures) string { return whole(f.Faults) }},
		{"Gangs hit, run again", func(f simulate.Figures) string { return fmt.Sprintf("%d, %d", f.Hit, f.Repaired) }},
		{"Mean repair", func(f simulate.Figures) string { return seconds(f.MeanRepair) }},
		{"Card hours lost to faults", func(f simulate.Figures) string { return fmt.Sprintf("%.1f", f.LostToFaults) }},
		{"Card hours lost making room for those", func(f simulate.Figures) string { return fmt.Sprintf("%.1f (%.1f %%)", f.LostAside, 100*f.AsideShare) }},
		{"Gangs that made room one for another, at most", func(f simulate.Figures) string { return fmt.Sprint(f.Chain) }},
		{"Hits in a row, at most", func(f simulate.Figures) string { return fmt.Sprint(f.InARow) }},
		{"Promised starts", func(f simulate.Figures) string { return whole(f.Promises) }},
		{"Promises broken", func(f simulate.Figures) string { return whole(f.BrokenPromises) }},
		{"Promised start was off, median", func(f simulate.Figures) string { return seconds(f.PromiseErrorP50) }},
		{"Promised start was off, 95 %", func(f simulate.Figures) string { return seconds(f.PromiseErrorP95) }},
		{"Cycles", func(f simulate.Figures) string { return whole(f.Cycles) }},
		{"99 % cycle", func(f simulate.Figures) string { return fmt.Sprintf("%.2f ms", f.CycleP99) }},
	}
	var out [][]cell
	for _, r := range rows {
		texts := []string{r.name}
		for _, f := range all {
			texts = append(texts, r.of(f))
		}
		out = append(out, plain(texts...))
	}
	w.table(head, out)
}
