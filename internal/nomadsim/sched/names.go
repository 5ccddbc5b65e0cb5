package sched

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// names hands out the indexes of a group's allocations.
type names struct {
	job, group string
	count      int
	used       map[int]int
}

func newNames(job, group string, count int, in ...[]*wire.Allocation) *names {
	x := &names{job: job, group: group, count: count, used: map[int]int{}}
	for _, list := range in {
		for _, a := range list {
			x.used[indexOf(a.Name)]++
		}
	}
	return x
}

func (x *names) name(i int) string { return fmt.Sprintf("%s.%s[%d]", x.job, x.group, i) }

// indexOf reads the index at the end of an allocation's name.
func indexOf(name string) int {
	i := strings.LastIndexByte(name, '[')
	n, err := strconv.Atoi(strings.TrimSuffix(name[i+1:], "]"))
	if err != nil {
		return 0
	}
	return n
}

func (x *names) next(n int) []string {
	var out []string
	for i := 0; len(out) < n && i < x.count; i++ {
		if x.used[i] == 0 {
			x.used[i]++
			out = append(out, x.name(i))
		}
	}
	for i := 0; len(out) < n; i++ {
		x.used[i]++
		out = append(out, x.name(i))
	}
	return out
}

func (x *names) free(i int) {
	if x.used[i] > 0 {
		x.used[i]--
	}
}

func (x *names) duplicate(i int) bool { return x.used[i] > 1 }

// highest takes the n highest indexes in use.
func (x *names) highest(n int) map[string]bool {
	var all []int
	for i, c := range x.used {
		if c > 0 {
			all = append(all, i)
		}
	}
	slices.SortFunc(all, func(a, b int) int { return b - a })
	out := map[string]bool{}
	for _, i := range all[:min(n, len(all))] {
		delete(x.used, i)
		out[x.name(i)] = true
	}
	return out
}

// canaries names canaries after what they are to replace.
func (x *names) canaries(n int, existing, anew []*wire.Allocation) []string {
	taken := map[string]bool{}
	for _, a := range existing {
		taken[a.Name] = true
	}
	var out []string
	slices.SortFunc(anew, byName)
	for _, a := range anew {
		if len(out) < n && !taken[a.Name] {
			out = append(out, a.Name)
			taken[a.Name] = true
		}
	}
	for i := 0; len(out) < n; i++ {
		if name := x.name(i); !taken[name] && x.used[i] == 0 {
			out = append(out, name)
		}
	}
	return out
}
