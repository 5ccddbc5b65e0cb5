package simulate

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/planner/core"
)

// Trace is a file of jobs or nodes.
type Trace struct {
	Jobs   []Job
	Nodes  []core.Node // where the file is an inventory
	SHA256 string      // of the file as it is read, unpacked
	Format string
}

// ReadTrace reads a trace of any known format, packed by gzip or not. The
// format is told by the first line:
//
//	vc,submit_s,duration_v100_s,gpus,job_type      Gavel's Philly trace
//	job,submit_s,run_s,procs,req_time_s,...         HPC logs
//	; or 18 numbers                                 the Standard Workload Format
//	sn,cpu_milli,memory_mib,gpu,model               openb nodes
//	name,cpu_milli,memory_mib,num_gpu,gpu_milli,... openb pods
//	ip,DSW,PSW,ASW                                  Lingjun hosts and switches
//	id,queue,user,name,submit_s,run_s,members,cards,limit_s,priority[,...] our own
//
// Every faulty line is named.
func ReadTrace(path string) (*Trace, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read trace: %w", err)
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(path, ".gz") {
		z, err := gzip.NewReader(f)
		if err != nil {
			return nil, fmt.Errorf("read trace %s: %w", path, err)
		}
		defer z.Close()
		r = z
	}
	t, err := ParseTrace(r)
	if err != nil {
		return nil, fmt.Errorf("read trace %s: %w", path, err)
	}
	return t, nil
}

// ParseTrace reads a trace; see ReadTrace.
func ParseTrace(r io.Reader) (*Trace, error) {
	sum := sha256.New()
	b := bufio.NewReader(io.TeeReader(r, sum))
	first, err := b.Peek(1)
	if err != nil {
		return nil, fmt.Errorf("the trace is empty")
	}
	t := &Trace{}
	if c := first[0]; c == ';' || c == ' ' || c >= '0' && c <= '9' || c == '-' {
		t.Format = "swf"
		err = t.swf(b)
	} else {
		err = t.csv(b)
	}
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(io.Discard, b); err != nil {
		return nil, err
	}
	t.SHA256 = hex.EncodeToString(sum.Sum(nil))
	slices.SortStableFunc(t.Jobs, func(a, b Job) int { return int(a.Submit/time.Microsecond - b.Submit/time.Microsecond) })
	return t, nil
}

// row is one line of a table with its faults.
type row struct {
	line   int
	fields []string
	column map[string]int
	faults *[]error
}

func (r *row) text(name string) string {
	at, ok := r.column[name]
	if !ok || at >= len(r.fields) {
		return ""
	}
	return strings.TrimSpace(r.fields[at])
}

func (r *row) fault(name, want string) {
	if len(*r.faults) < 100 {
		*r.faults = append(*r.faults, fmt.Errorf("line %d: %s = %q: %s", r.line, name, r.text(name), want))
	}
}

// seconds reads a number of seconds that is not negative; absent: 0.
func (r *row) seconds(name string) time.Duration {
	text := r.text(name)
	if text == "" {
		return 0
	}
	s, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(s) || s < 0 || s > 1e9 {
		r.fault(name, "a number of seconds from 0 to 1e9")
		return 0
	}
	return time.Duration(s * float64(time.Second))
}

// count reads a whole number from least on; absent: otherwise.
func (r *row) count(name string, least, otherwise int) int {
	text := r.text(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < least || n > 1<<30 {
		r.fault(name, fmt.Sprintf("a whole number of at least %d", least))
		return otherwise
	}
	return n
}

func (t *Trace) csv(r io.Reader) error {
	c := csv.NewReader(r)
	c.FieldsPerRecord = -1
	c.ReuseRecord = true
	head, err := c.Read()
	if err != nil {
		return fmt.Errorf("line 1: %w", err)
	}
	column := map[string]int{}
	for i, name := range head {
		column[strings.TrimSpace(strings.TrimPrefix(name, "\ufeff"))] = i
	}
	has := func(names ...string) bool {
		return !slices.ContainsFunc(names, func(n string) bool { _, ok := column[n]; return !ok })
	}
	var read func(*row)
	switch {
	case has("vc", "submit_s", "duration_v100_s", "gpus"):
		t.Format, read = "gavel", t.gavel
	case has("job", "submit_s", "run_s", "procs"):
		t.Format, read = "hpc", t.hpc
	case has("sn", "gpu", "model"):
		t.Format, read = "openb-nodes", t.openbNode
	case has("name", "num_gpu", "gpu_milli"):
		t.Format, read = "openb-pods", t.openbPod
	case has("ip", "DSW", "PSW", "ASW"):
		t.Format, read = "lingjun", t.lingjun
	case has("id", "submit_s", "run_s", "cards"):
		t.Format, read = "muster", t.own
	default:
		return fmt.Errorf("line 1: no known format has the columns %s; a trace of your own has the columns id, submit_s, run_s, cards, and if you like queue, user, name, members, limit_s, priority, min", strings.Join(head, ","))
	}
	var faults []error
	for line := 2; ; line++ {
		fields, err := c.Read()
		if err == io.EOF {
			break
		}
		if err != nil {
			faults = append(faults, err)
			if len(faults) > 100 {
				break
			}
			continue
		}
		read(&row{line, fields, column, &faults})
	}
	return errors.Join(faults...)
}

func (t *Trace) gavel(r *row) {
	t.Jobs = append(t.Jobs, Job{ID: fmt.Sprintf("j%06d", r.line-1), User: "", Name: strings.Clone(r.text("vc") + " " + r.text("job_type")), Submit: r.seconds("submit_s"), Run: r.seconds("duration_v100_s"),
		Members: 1, Cards: r.count("gpus", 1, 1)})
}

func (t *Trace) hpc(r *row) {
	t.Jobs = append(t.Jobs, Job{ID: fmt.Sprintf("j%06d", r.line-1), Submit: r.seconds("submit_s"), Run: r.seconds("run_s"), Members: 1, Cards: r.count("procs", 1, 1), Limit: r.seconds("req_time_s"), Fixed: true, NoPlacement: true})
}

func (t *Trace) own(r *row) {
	t.Jobs = append(t.Jobs, Job{ID: strings.Clone(r.text("id")), Queue: core.QueueName(strings.Clone(r.text("queue"))), User: strings.Clone(r.text("user")), Name: strings.Clone(r.text("name")), Submit: r.seconds("submit_s"), Run: r.seconds("run_s"),
		Members: r.count("members", 1, 1), Cards: r.count("cards", 0, 1), Limit: r.seconds("limit_s"), Priority: r.count("priority", 0, 50), Min: r.count("min", 0, 0)})
}

func (t *Trace) openbPod(r *row) {
	j := Job{ID: strings.Clone(r.text("name")), Members: 1, Use: core.Resources{CPU: int64(r.count("cpu_milli", 0, 0)), MemoryMB: int64(r.count("memory_mib", 0, 0))}, Submit: r.seconds("creation_time")}
	gpus, milli := r.count("num_gpu", 0, 0), r.count("gpu_milli", 0, 0)
	if gpus == 1 && milli < 1000 {
		j.Shares = milli
	} else {
		j.Cards = gpus
	}
	for _, m := range strings.Split(r.text("gpu_spec"), "|") {
		if m = strings.TrimSpace(m); m != "" {
			j.Models = append(j.Models, core.Model(strings.Clone(m)))
		}
	}
	if end := r.seconds("deletion_time"); end > j.Submit {
		j.Run = end - j.Submit
	}
	t.Jobs = append(t.Jobs, j)
}

func (t *Trace) openbNode(r *row) {
	cards := r.count("gpu", 0, 0)
	n := Nodes(Shape{Count: 1, Cards: cards, Shares: 1000, Model: core.Model(strings.Clone(r.text("model"))), CPU: int64(r.count("cpu_milli", 1, 1)), MemoryMB: int64(r.count("memory_mib", 1, 1)), Prefix: strings.Clone(r.text("sn")) + "."})[0]
	t.Nodes = append(t.Nodes, n)
}

func (t *Trace) lingjun(r *row) {
	id := strings.Clone(r.text("ip"))
	n := Nodes(Shape{Count: 1, Cards: 8, Prefix: id})[0]
	n.ID, n.Name = core.NodeID(id), id
	n.Domains = []string{strings.Clone(r.text("DSW")), strings.Clone(r.text("PSW")), strings.Clone(r.text("ASW"))}
	t.Nodes = append(t.Nodes, n)
}

// swf reads the Standard Workload Format: 18 numbers a line, of which job
// number (1), submit (2), run (4), processors (5, or asked for: 8), time asked
// for (9), user (12), group (13), program (14) and queue (15) are used. Lines of
// jobs that never ran are left out.
func (t *Trace) swf(r io.Reader) error {
	var faults []error
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 64<<10), 1<<20)
	for line := 1; s.Scan(); line++ {
		text := strings.TrimSpace(s.Text())
		if text == "" || strings.HasPrefix(text, ";") {
			continue
		}
		fields := strings.Fields(text)
		if len(fields) != 18 {
			if faults = append(faults, fmt.Errorf("line %d: has %d numbers, not 18", line, len(fields))); len(faults) > 100 {
				break
			}
			continue
		}
		var v [18]float64
		ok := true
		for i, f := range fields {
			n, err := strconv.ParseFloat(f, 64)
			if err != nil || math.IsNaN(n) || math.Abs(n) > 1e12 {
				faults = append(faults, fmt.Errorf("line %d: field %d = %q: a number", line, i+1, f))
				ok = false
			}
			v[i] = n
		}
		procs := v[4]
		if procs <= 0 {
			procs = v[7]
		}
		if !ok || v[3] < 0 || procs < 1 || procs > 1<<30 || v[1] < 0 || v[1] > 1e9 || v[3] > 1e9 || v[8] > 1e9 {
			continue
		}
		j := Job{ID: fmt.Sprintf("j%07d", line), Submit: time.Duration(v[1] * float64(time.Second)), Run: time.Duration(v[3] * float64(time.Second)), Members: 1, Cards: int(procs), Fixed: true, NoPlacement: true}
		if v[8] > 0 {
			j.Limit = time.Duration(v[8] * float64(time.Second))
		}
		if v[11] > 0 {
			j.User = fmt.Sprintf("user%d", int(v[11]))
		}
		if v[13] > 0 {
			j.Name = fmt.Sprintf("program%d", int(v[13]))
		}
		t.Jobs = append(t.Jobs, j)
	}
	return errors.Join(append(faults, s.Err())...)
}
