package nomadsim

import (
	"errors"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// LiveConfig is what a live node is started with.
type LiveConfig struct{}

type liveClient struct{ virtualDriver }

func newLiveClient(*agent) (*liveClient, error) {
	return nil, errors.New("live nodes come with the plugin host")
}
func (l *liveClient) startPlugins(*wire.Node) error           { return nil }
func (l *liveClient) stopPlugins(bool)                        {}
func (l *liveClient) close()                                  {}
func (l *liveClient) deviceStats() []any                      { return nil }
func (l *liveClient) fillStats(*taskRun, map[string]any)      {}
func (q *request) clientFS(string) (any, error)               { return nil, errUnmodelled }
func (q *request) parse(string) (any, error)                  { return nil, errUnmodelled }
func versionDiffs([]*wire.Job, string, string) ([]any, error) { return nil, errUnmodelled }
func jobDiff(_, _ *wire.Job, _ bool, _ *wire.PlanAnnotations) (any, error) {
	return nil, errUnmodelled
}
