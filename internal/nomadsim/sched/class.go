package sched

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"strings"
	"unique"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// ComputedClass is the class of a node: nodes of one class differ only in what is unique to each. Ids and health of
// devices do not count. The number differs from a real server's, which hashes in another way.
func ComputedClass(n *wire.Node) string {
	h := fnv.New64a()
	put := func(parts ...string) {
		for _, p := range parts {
			var l [4]byte
			binary.BigEndian.PutUint32(l[:], uint32(len(p)))
			h.Write(l[:])
			io.WriteString(h, p)
		}
	}
	put(n.Datacenter, n.NodeClass, n.NodePool)
	for i, m := range []map[string]string{n.Attributes, n.Meta} {
		put(fmt.Sprint(i))
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !strings.HasPrefix(k, "unique.") {
				put(k, m[k])
			}
		}
	}
	for _, d := range n.NodeResources.Devices {
		put(d.Vendor, d.Type, d.Name)
		for _, k := range slices.Sorted(maps.Keys(d.Attributes)) {
			if strings.HasPrefix(k, "unique.") {
				continue
			}
			a := d.Attributes[k]
			put(k, a.Unit)
			switch {
			case a.Int != nil:
				put(fmt.Sprint(*a.Int))
			case a.Float != nil:
				put(fmt.Sprint(*a.Float))
			case a.Bool != nil:
				put(fmt.Sprint(*a.Bool))
			case a.String != nil:
				put(*a.String)
			}
		}
	}
	// Nodes of one class share one text: an evaluation looks it up for every node that it walks.
	return unique.Make(fmt.Sprintf("v1:%d", h.Sum64())).Value()
}

type verdict byte

const (
	unknown verdict = iota
	ineligible
	eligible
)

// eligibility remembers, within one evaluation, which classes of nodes are no use, so that one node speaks for its class.
type eligibility struct {
	job          map[string]verdict
	groups       map[string]map[string]verdict
	jobEscaped   bool
	groupEscaped map[string]bool
}

func newEligibility(job *wire.Job) *eligibility {
	e := &eligibility{job: map[string]verdict{}, groups: map[string]map[string]verdict{}, groupEscaped: map[string]bool{}}
	if job == nil {
		return e
	}
	e.jobEscaped = anyEscapes(job.Constraints)
	for _, g := range job.TaskGroups {
		esc := anyEscapes(g.Constraints)
		for _, t := range g.Tasks {
			esc = esc || anyEscapes(t.Constraints)
		}
		for _, v := range g.Volumes {
			esc = esc || v.Type == "csi"
		}
		e.groupEscaped[g.Name] = esc
		e.groups[g.Name] = map[string]verdict{}
	}
	return e
}

func (e *eligibility) escaped() bool {
	for _, g := range e.groupEscaped {
		if g {
			return true
		}
	}
	return e.jobEscaped
}

// classes says of each class seen whether any group can use it.
func (e *eligibility) classes() map[string]bool {
	out := map[string]bool{}
	for _, g := range e.groups {
		for class, v := range g {
			if v == eligible {
				out[class] = true
			} else if _, ok := out[class]; !ok {
				out[class] = false
			}
		}
	}
	for class, v := range e.job {
		if v == ineligible {
			out[class] = false
		} else if _, ok := out[class]; !ok {
			out[class] = true
		}
	}
	return out
}
