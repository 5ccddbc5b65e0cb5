package nomadsim

import (
	"fmt"
	"strconv"

	"github.com/nomad-muster/muster/internal/nomadsim/jobdiff"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// jobDiff is the difference that a plan shows.
func jobDiff(old, new *wire.Job, a *wire.PlanAnnotations) (*jobdiff.Job, error) {
	d, err := jobdiff.Diff(old, new, true)
	if err != nil {
		return nil, err
	}
	d.Annotate(a)
	return d, nil
}

// versionDiffs compares each version with the one before it, or all with one of them.
func versionDiffs(list []*wire.Job, version, tag string) ([]any, error) {
	var against *wire.Job
	if version != "" {
		n, err := strconv.ParseUint(version, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("diff_version: %w", err)
		}
		for _, v := range list {
			if v.Version == n {
				against = v
			}
		}
		if against == nil {
			return nil, fmt.Errorf("version %d not found", n)
		}
	}
	if tag != "" {
		for _, v := range list {
			if v.VersionTag != nil && v.VersionTag.Name == tag {
				against = v
			}
		}
		if against == nil {
			return nil, fmt.Errorf("tag %q not found", tag)
		}
	}
	var out []any
	for i, v := range list {
		base := against
		if base == nil {
			if i == len(list)-1 {
				break
			}
			base = list[i+1]
		} else if v == base {
			continue
		}
		d, err := jobdiff.Diff(base, v, true)
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}
