package nomadsim

import "github.com/nomad-muster/muster/internal/nomadsim/wire"

func (q *request) parse(string) (any, error)                  { return nil, errUnmodelled }
func versionDiffs([]*wire.Job, string, string) ([]any, error) { return nil, errUnmodelled }
func jobDiff(_, _ *wire.Job, _ bool, _ *wire.PlanAnnotations) (any, error) {
	return nil, errUnmodelled
}
