package simulate

import (
	"time"

	"github.com/nomad-muster/muster/planner/core"
)

// Job is one gang of a trace: what it asks for, and what only time will show.
type Job struct {
	ID          string
	Queue       core.QueueName
	User, Name  string
	Submit      time.Duration // since the trace began
	Run         time.Duration // on its full size, undisturbed
	Members     int
	Cards       int // of one member
	Shares      int // of one card instead, in thousandths
	Min         int
	Use         core.Resources
	Models      []core.Model
	Limit       time.Duration // stated by its user; 0: none
	Priority    int
	Fixed       bool // cannot be preempted
	Level       string
	Required    bool
	NoPlacement bool // the trace says nothing of its shape: any free cards do
}

// gang is the job as it is submitted.
func (j *Job) gang(start time.Time) core.Gang {
	g := core.Gang{ID: core.GangID(j.ID), Queue: j.Queue, User: j.User, Name: j.Name, Priority: j.Priority, Submitted: start.Add(j.Submit), Queued: start.Add(j.Submit)}
	if g.Priority == 0 {
		g.Priority = 50
	}
	ask := core.DeviceAsk{Task: "train", Type: "gpu", Count: j.Cards, Shares: j.Shares}
	group := core.Group{Name: "rank", Count: max(1, j.Members), Use: j.Use}
	if j.Cards > 0 || j.Shares > 0 {
		group.Devices = []core.DeviceAsk{ask}
	}
	g.Groups = []core.Group{group}
	g.Min, g.Models, g.TimeLimit, g.Level, g.Required, g.Preemptible = j.Min, j.Models, j.Limit, j.Level, j.Required, !j.Fixed
	return g
}

// cards is the size of the whole job, in thousandths of a card.
func (j *Job) milli() int64 {
	if j.Shares > 0 {
		return int64(max(1, j.Members)) * int64(j.Shares)
	}
	return int64(max(1, j.Members)) * int64(j.Cards) * 1000
}

// Shape of like nodes, for clusters that are made up.
type Shape struct {
	Count    int
	Prefix   string
	Cards    int
	Shares   int // of each card; 0: whole only
	Model    core.Model
	CPU      int64
	MemoryMB int64
	// Domains of each level, outermost first: so many nodes share one.
	Domains []int
}

// Nodes makes a cluster of shapes. Names are chosen so that the order of names
// is the order of the nodes.
func Nodes(shapes ...Shape) []core.Node {
	var out []core.Node
	for _, s := range shapes {
		if s.Prefix == "" {
			s.Prefix = "n"
		}
		if s.CPU == 0 {
			s.CPU = 1 << 20
		}
		if s.MemoryMB == 0 {
			s.MemoryMB = 1 << 24
		}
		width := len(number(s.Count, 0))
		for i := range s.Count {
			id := s.Prefix + number(i, width)
			n := core.Node{ID: core.NodeID(id), Name: id, Version: 1, Datacenter: "dc1", Ready: true, Eligible: true,
				Capacity: core.Resources{CPU: s.CPU, MemoryMB: s.MemoryMB, DiskMB: 1 << 24}}
			for _, size := range s.Domains {
				n.Domains = append(n.Domains, s.Prefix+"-"+number(i/size, width))
			}
			g := core.DeviceGroup{Vendor: "nvidia", Type: "gpu", Name: s.Model, Cards: make([]core.Card, s.Cards)}
			if s.Model == "" {
				g.Name = "card"
			}
			for k := range g.Cards {
				g.Cards[k] = core.Card{ID: core.CardID(id + "." + number(k, 0)), Healthy: true, NUMA: -1, Shares: s.Shares}
			}
			if s.Cards > 0 {
				n.Devices = []core.DeviceGroup{g}
			}
			out = append(out, n)
		}
	}
	return out
}

func number(n, width int) string {
	text := ""
	for n > 0 || text == "" {
		text = string(rune('0'+n%10)) + text
		n /= 10
	}
	for len(text) < width {
		text = "0" + text
	}
	return text
}
