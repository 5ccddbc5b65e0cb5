package nomadsim

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/cronexpr"
	goversion "github.com/hashicorp/go-version"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// faults collects what is wrong, and reads as a server writes such a list.
type faults []error

func (f *faults) add(format string, args ...any) { *f = append(*f, fmt.Errorf(format, args...)) }

func (f faults) Error() string {
	if len(f) == 1 {
		return fmt.Sprintf("1 error occurred:\n\t* %s\n\n", f[0])
	}
	lines := make([]string, len(f))
	for i, e := range f {
		lines[i] = fmt.Sprintf("* %s", e)
	}
	return fmt.Sprintf("%d errors occurred:\n\t%s\n\n", len(f), strings.Join(lines, "\n\t"))
}

// maxPriority is the highest priority that a job may have, maxCount how many allocations all its groups may ask for
// together (job_max_count of a server's configuration, at its default).
const (
	maxPriority = 100
	maxCount    = 50000
)

// validateJob lists everything that is wrong with a job.
func (c *Cluster) validateJob(j *wire.Job) faults {
	var f faults
	if j.Region == "" {
		f.add("Missing job region")
	}
	switch {
	case j.ID == "":
		f.add("Missing job ID")
	case strings.Contains(j.ID, " "):
		f.add("Job ID contains a space")
	case strings.Contains(j.ID, "\x00"):
		f.add("Job ID contains a null character")
	}
	if j.Name == "" {
		f.add("Missing job name")
	}
	switch j.Type {
	case wire.TypeService, wire.TypeBatch, wire.TypeSystem, wire.TypeSysBatch:
	case "":
		f.add("Missing job type")
	default:
		f.add("Invalid job type: %q", j.Type)
	}
	if len(j.Datacenters) == 0 {
		f.add("Missing job datacenters")
	}
	for _, d := range j.Datacenters {
		if d == "" {
			f.add("Job datacenter must be non-empty string")
		}
	}
	if len(j.TaskGroups) == 0 {
		f.add("Missing job task groups")
	}
	constraints(&f, j.Constraints)
	affinities(&f, j, j.Affinities)
	spreads(&f, j, j.Spreads)
	if j.UI != nil && len(j.UI.Description) > 1000 {
		f.add("UI description must be under 1000 characters, currently %d", len(j.UI.Description))
	}
	seen := map[string]int{}
	for i, g := range j.TaskGroups {
		if g.Name == "" {
			f.add("Job task group %d missing name", i+1)
		} else if at, ok := seen[g.Name]; ok {
			f.add("Job task group %d redefines '%s' from group %d", i+1, g.Name, at+1)
		} else {
			seen[g.Name] = i
		}
		if j.Type == wire.TypeSystem && g.Count > 1 {
			f.add("Job task group %s has count %d. Count cannot exceed 1 with system scheduler", g.Name, g.Count)
		}
	}
	total := 0
	for _, g := range j.TaskGroups {
		total += min(max(g.Count, 0), maxCount+1)
	}
	if total > maxCount {
		f.add("total count was greater than configured job_max_count: %d > %d", total, maxCount)
	}
	for _, g := range j.TaskGroups {
		if gf := validateGroup(j, g); len(gf) > 0 {
			f.add("Task group %s validation failed: %v", g.Name, gf)
		}
	}
	batch := j.Type == wire.TypeBatch || j.Type == wire.TypeSysBatch
	if j.Periodic != nil && j.Periodic.Enabled && !batch {
		f.add("Periodic can only be used with %q or %q scheduler", wire.TypeBatch, wire.TypeSysBatch)
	}
	if p := j.Periodic; p != nil && p.Enabled {
		var pf faults
		for _, spec := range append(slices.Clone(p.Specs), p.Spec) {
			if spec == "" {
				continue
			}
			if _, err := cronexpr.Parse(spec); err != nil {
				pf.add("Invalid cron spec %q: %v", spec, err)
			}
		}
		if len(pf) > 0 {
			f.add("%v", pf)
		}
	}
	if j.IsParameterized() && !batch {
		f.add("Parameterized job can only be used with %q or %q scheduler", wire.TypeBatch, wire.TypeSysBatch)
	}
	if j.Priority < 1 || j.Priority > maxPriority {
		f.add("job priority must be between [1, %d]", maxPriority)
	}
	snap := c.store.Snapshot()
	if snap.Namespace(j.Namespace) == nil {
		f.add("job %q is in nonexistent namespace %q", j.ID, j.Namespace)
	}
	if snap.NodePool(j.NodePool) == nil {
		f.add("job %q is in nonexistent node pool %q", j.ID, j.NodePool)
	}
	return f
}

func validateGroup(j *wire.Job, g *wire.TaskGroup) faults {
	var f faults
	if g.Name == "" {
		f.add("Missing task group name")
	}
	if g.Count < 0 {
		f.add("Task group count can't be negative")
	}
	if len(g.Tasks) == 0 {
		f.add("Missing tasks for task group")
	}
	if d := g.Disconnect; d != nil {
		if d.StopOnClientAfter != nil && *d.StopOnClientAfter < 0 {
			f.add("stop_on_client_after cannot be negative")
		}
		if d.StopOnClientAfter != nil && d.LostAfter != 0 {
			f.add("Disconnect cannot be configured with both lost_after and stop_after")
		}
		if d.LostAfter < 0 {
			f.add("lost_after cannot be a negative duration")
		}
		switch d.Reconcile {
		case "", "keep_original", "keep_replacement", "best_score", "longest_running":
		default:
			f.add("%s: %q", "Invalid reconcile strategy", d.Reconcile)
		}
	}
	if g.MaxRunDuration != nil {
		if *g.MaxRunDuration <= 0 {
			f.add("MaxRunDuration must be greater than zero")
		}
		if j.Type != wire.TypeBatch && j.Type != wire.TypeSysBatch {
			f.add("Job type %q does not allow max_run_duration", j.Type)
		}
	}
	constraints(&f, g.Constraints)
	affinities(&f, j, g.Affinities)
	if r := g.RestartPolicy; r == nil {
		f.add("Task Group %v should have a restart policy", g.Name)
	} else {
		if r.Mode != "fail" && r.Mode != "delay" {
			f.add("Unsupported restart mode: %q", r.Mode)
		}
		if r.Interval < 5e9 {
			f.add("Interval can not be less than %v (got %v)", "5s", r.Interval)
		}
		if r.Attempts > 0 && r.Delay > 0 && int64(r.Attempts)*int64(r.Delay) > int64(r.Interval) {
			f.add("Nomad can't restart the TaskGroup %v times in an interval of %v with a delay of %v", r.Attempts, r.Interval, r.Delay)
		}
	}
	spreads(&f, j, g.Spreads)
	system := j.Type == wire.TypeSystem || j.Type == wire.TypeSysBatch
	switch {
	case system && g.ReschedulePolicy != nil:
		f.add("System or sysbatch jobs should not have a reschedule policy")
	case !system && g.ReschedulePolicy == nil:
		f.add("Task Group %v should have a reschedule policy", g.Name)
	case !system:
		reschedule(&f, g.ReschedulePolicy)
	}
	if g.EphemeralDisk == nil {
		f.add("Task Group %v should have an ephemeral disk object", g.Name)
	} else if g.EphemeralDisk.SizeMB < 10 {
		f.add("minimum DiskMB value is 10; got %d", g.EphemeralDisk.SizeMB)
	}
	if g.Update != nil && j.Type != wire.TypeService && j.Type != wire.TypeSystem {
		f.add("Job type %q does not allow update block", j.Type)
	}
	if g.Migrate != nil && j.Type != wire.TypeService {
		f.add("Job type %q does not allow migrate block", j.Type)
	}
	tasks := map[string]int{}
	leaders, mains := 0, 0
	for i, t := range g.Tasks {
		if t.Name == "" {
			f.add("Task %d missing name", i+1)
		} else if at, ok := tasks[t.Name]; ok {
			f.add("Task %d redefines '%s' from task %d", i+1, t.Name, at+1)
		} else {
			tasks[t.Name] = i
		}
		if t.Leader {
			leaders++
		}
		if t.Lifecycle == nil || t.Lifecycle.Hook == "" {
			mains++
		}
	}
	if leaders > 1 {
		f.add("Only one task may be marked as leader")
	}
	if len(g.Tasks) > 0 && mains == 0 {
		f.add("Task group %s must have at least one main task", g.Name)
	}
	labels := map[string]bool{}
	for _, n := range g.Networks {
		for _, p := range append(append([]wire.Port{}, n.ReservedPorts...), n.DynamicPorts...) {
			if labels[p.Label] {
				f.add("Task group network validation failed: 1 error occurred:\n\t* Port label %s already in use\n\n", p.Label)
			}
			labels[p.Label] = true
		}
	}
	for _, t := range g.Tasks {
		if tf := validateTask(j, g, t); len(tf) > 0 {
			f.add("Task %s validation failed: %v", t.Name, tf)
		}
	}
	return f
}

// reschedule lists what is wrong with a policy.
func reschedule(f *faults, r *wire.ReschedulePolicy) {
	if !r.Enabled() {
		return
	}
	const least = 5 * time.Second
	if r.Delay < least {
		f.add("Delay cannot be less than %v (got %v)", least, r.Delay)
	}
	switch r.DelayFunction {
	case "constant", "exponential", "fibonacci":
	default:
		f.add("Invalid delay function %q, must be one of %q", r.DelayFunction, []string{"constant", "exponential", "fibonacci"})
	}
	if r.DelayFunction != "constant" {
		if r.MaxDelay < least {
			f.add("Max Delay cannot be less than %v (got %v)", least, r.Delay)
		}
		if r.MaxDelay < r.Delay {
			f.add("Max Delay cannot be less than Delay %v (got %v)", r.Delay, r.MaxDelay)
		}
	}
	if !r.Unlimited && r.Interval < least {
		f.add("Interval cannot be less than %v (got %v)", least, r.Interval)
	}
}

func validateTask(j *wire.Job, g *wire.TaskGroup, t *wire.Task) faults {
	var f faults
	if t.Name == "" {
		f.add("Missing task name")
	}
	if t.Name == "alloc" {
		f.add("Task cannot be named \"alloc\"")
	}
	if strings.ContainsAny(t.Name, `/\`) {
		f.add("Task name cannot include slashes")
	}
	if t.Driver == "" {
		f.add("Missing task driver")
	}
	if t.KillTimeout < 0 {
		f.add("KillTimeout must be a positive value")
	} else if j.Type == wire.TypeService && g.Update != nil && g.Update.ProgressDeadline > 0 && t.KillTimeout > g.Update.ProgressDeadline {
		f.add("KillTimout (%s) longer than the group's ProgressDeadline (%s)", t.KillTimeout, g.Update.ProgressDeadline)
	}
	if t.ShutdownDelay < 0 {
		f.add("ShutdownDelay must be a positive value")
	}
	if r := t.Resources; r == nil {
		f.add("Missing task resources")
	} else {
		var least faults
		switch {
		case r.Cores > 0 && r.CPU > 0:
			f.add("Task can only ask for 'cpu' or 'cores' resource, not both.")
		case r.CPU < 1 && r.Cores < 1:
			least.add("minimum CPU value is 1; got %d", r.CPU)
		}
		if r.MemoryMB < 10 {
			least.add("minimum MemoryMB value is 10; got %d", r.MemoryMB)
		}
		if len(least) > 0 {
			f.add("%v", faults{least})
		}
		for i, d := range r.Devices {
			if d.Name == "" {
				f.add("device %d failed validation: %v", i+1, faults{errors.New("device name must be given as one of the following: type, vendor/type, or vendor/type/name")})
			}
			var df faults
			constraints(&df, d.Constraints)
			if len(df) > 0 {
				f.add("device %d failed validation: %v", i+1, df)
			}
		}
	}
	if l := t.LogConfig; l == nil {
		f.add("Missing Log Config")
	} else if !l.Disabled {
		if l.MaxFiles < 1 {
			f.add("minimum number of files is 1; got %d", l.MaxFiles)
		}
		if l.MaxFileSizeMB < 1 {
			f.add("minimum file size is 1MB; got %d", l.MaxFileSizeMB)
		}
		if g.EphemeralDisk != nil && l.MaxFiles*l.MaxFileSizeMB > g.EphemeralDisk.SizeMB {
			f.add("%v", faults{fmt.Errorf("log storage (%d MB) must be less than requested disk capacity (%d MB)", l.MaxFiles*l.MaxFileSizeMB, g.EphemeralDisk.SizeMB)})
		}
	}
	constraints(&f, t.Constraints)
	for i, c := range t.Constraints {
		if c.Operand == "distinct_hosts" || c.Operand == "distinct_property" {
			f.add("Constraint %d has disallowed Operand at task level: %s", i+1, c.Operand)
		}
	}
	dest := map[string]int{}
	for i, tm := range t.Templates {
		if tm.SourcePath == "" && tm.EmbeddedTmpl == "" {
			f.add("Template %d validation failed: %v", i+1, faults{errors.New("Must specify a source path or have an embedded template")})
		}
		if tm.DestPath == "" {
			f.add("Template %d validation failed: %v", i+1, faults{errors.New("Must specify a destination for the template")})
		}
		switch tm.ChangeMode {
		case "noop", "restart", "script":
		case "signal":
			if tm.ChangeSignal == "" {
				f.add("Template %d validation failed: %v", i+1, faults{errors.New("Must specify signal value when change mode is signal")})
			}
		default:
			f.add("Template %d validation failed: %v", i+1, faults{fmt.Errorf("Invalid change mode given: %q", tm.ChangeMode)})
		}
		if at, ok := dest[tm.DestPath]; ok {
			f.add("Template %d has same destination as %d", i+1, at)
		} else {
			dest[tm.DestPath] = i + 1
		}
	}
	for i, a := range t.Artifacts {
		if source, _ := a["GetterSource"].(string); source == "" {
			f.add("Artifact %d validation failed: %v", i+1, faults{errors.New("source must be specified")})
		}
	}
	for i, m := range t.VolumeMounts {
		if g.Volumes[m.Volume] == nil {
			f.add("Volume Mount (%d) references undefined volume %s", i, m.Volume)
		}
	}
	return f
}

func constraints(f *faults, list []*wire.Constraint) {
	for i, c := range list {
		if cf := validateConstraint(c); len(cf) > 0 {
			f.add("Constraint %d validation failed: %s", i+1, cf)
		}
	}
}

func validateConstraint(c *wire.Constraint) faults {
	var f faults
	left := true
	switch c.Operand {
	case "":
		f.add("Missing constraint operand")
	case "distinct_hosts":
		left = false
	case "set_contains_all", "set_contains_any", "set_contains":
		if c.RTarget == "" {
			f.add("Set contains constraint requires an RTarget")
		}
	case "regexp":
		if _, err := regexp.Compile(c.RTarget); err != nil {
			f.add("Regular expression failed to compile: %v", err)
		}
	case "version":
		if _, err := goversion.NewConstraint(c.RTarget); err != nil {
			f.add("Version constraint is invalid: %v", err)
		}
	case "semver":
		if _, err := goversion.NewConstraint(c.RTarget); err != nil {
			f.add("Semver constraint is invalid: %v", err)
		}
	case "distinct_property":
		if c.RTarget != "" {
			if _, err := strconv.ParseUint(c.RTarget, 10, 64); err != nil {
				f.add("Failed to convert RTarget %q to uint64: %v", c.RTarget, err)
			}
		}
	case "=", "==", "is", "!=", "not", "<", "<=", ">", ">=":
		if c.RTarget == "" {
			f.add("Operator %q requires an RTarget", c.Operand)
		}
	case "is_set", "is_not_set":
		if c.RTarget != "" {
			f.add("Operator %q does not support an RTarget", c.Operand)
		}
	default:
		f.add("Unknown constraint type %q", c.Operand)
	}
	if left && c.LTarget == "" {
		f.add("No LTarget provided but is required by constraint")
	}
	return f
}

func affinities(f *faults, j *wire.Job, list []*wire.Affinity) {
	if j.Type == wire.TypeSystem && len(list) > 0 {
		f.add("System jobs may not have an affinity block")
		return
	}
	for i, a := range list {
		var af faults
		if a.Operand == "" {
			af.add("Missing affinity operand")
		}
		if a.Weight == 0 {
			af.add("Affinity weight cannot be zero")
		}
		if a.Weight > 100 || a.Weight < -100 {
			af.add("Affinity weight must be within the range [-100,100]")
		}
		if len(af) > 0 {
			f.add("Affinity %d validation failed: %s", i+1, af)
		}
	}
}

func spreads(f *faults, j *wire.Job, list []*wire.Spread) {
	if j.Type == wire.TypeSystem && len(list) > 0 {
		f.add("System jobs may not have a spread block")
		return
	}
	for i, s := range list {
		var sf faults
		if s.Attribute == "" {
			sf.add("Missing spread attribute")
		}
		if s.Weight <= 0 || s.Weight > 100 {
			sf.add("Spread block must have a positive weight from 0 to 100")
		}
		sum := 0
		for _, t := range s.SpreadTarget {
			sum += t.Percent
		}
		if sum > 100 {
			sf.add("Sum of spread target percentages must not be greater than 100%%; got %d%%", sum)
		}
		if len(sf) > 0 {
			f.add("Spread %d validation failed: %s", i+1, sf)
		}
	}
}
