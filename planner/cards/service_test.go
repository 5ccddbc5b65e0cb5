package cards

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/view"
)

// memory is a Store that may fail.
type memory struct {
	mu    sync.Mutex
	data  []byte
	saves int
	fail  error
}

func (m *memory) LoadCards(context.Context) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.data, m.fail
}

func (m *memory) SaveCards(_ context.Context, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	m.data, m.saves = data, m.saves+1
	return nil
}

func (m *memory) failing(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = err
}

func (m *memory) count() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.saves
}

func someNode(name string) map[core.NodeID]*core.Node {
	return map[core.NodeID]*core.Node{core.NodeID("id-" + name): {ID: core.NodeID("id-" + name), Name: name, Devices: []core.DeviceGroup{
		{Vendor: "nvidia", Type: "gpu", Name: "H100", Cards: []core.Card{{ID: core.CardID("GPU-" + name), Healthy: true}}}}}}
}

func someReport(name string, seq uint64, state string) contract.CardReport {
	return contract.CardReport{V: 1, Reporter: "life of " + name, Seq: seq, Node: name, At: time.Now(), Cards: []contract.CardStatus{{ID: "GPU-" + name, Group: "nvidia/gpu/H100", State: state, Since: time.Now()}}}
}

func TestServiceKeepsWhatMustSurvive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &memory{}
		var mu sync.Mutex
		changed := 0
		start := func() (*Service, func()) {
			s := New(Options{Settings: DefaultSettings(), Store: store, Changed: func(Changes) { mu.Lock(); changed++; mu.Unlock() }})
			_, err := s.Report(t.Context(), someReport("n1", 1, contract.CardHealthy), "rita")
			must.ErrorIs(t, err, ErrStarting, must.Sprint("nothing is taken before what was saved is known"))
			must.NoError(t, s.Load(t.Context()))
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); s.Run(ctx) }()
			s.Nomad(someNode("n1"))
			return s, func() { cancel(); <-ended }
		}
		s, stop := start()
		_, err := s.Report(t.Context(), someReport("n1", 1, contract.CardQuarantined), "rita")
		must.NoError(t, err)
		why, bad := s.Refuses("id-n1", "GPU-n1")
		must.True(t, bad, must.Sprint(why))
		synctest.Wait()
		must.Eq(t, 1, store.count())

		// An order is saved before it is answered; a store that fails says so, and
		// is tried again.
		store.failing(errors.New("no leader"))
		_, err = s.Give(t.Context(), contract.CardOrder{Kind: contract.OrderClear, Card: "GPU-n1", Who: "ann"}, "")
		must.ErrorContains(t, err, "no leader")
		store.failing(nil)
		time.Sleep(10 * time.Second)
		must.Eq(t, 2, store.count())
		stop()

		s, stop = start()
		reply, err := s.Report(t.Context(), someReport("n1", 1, contract.CardQuarantined), "rita")
		must.NoError(t, err)
		must.Len(t, 1, reply.Orders)
		must.NotEq(t, "", reply.Orders[0].ID)
		r := someReport("n1", 2, contract.CardHealthy)
		r.Done = []contract.CardOrderDone{{ID: reply.Orders[0].ID}}
		_, err = s.Report(t.Context(), r, "rita")
		must.NoError(t, err)
		o, ok := s.Order(reply.Orders[0].ID)
		must.True(t, ok)
		must.Eq(t, view.OrderDone, o.State)
		// A person's breaker survives as well.
		b, err := s.SetBreaker(t.Context(), true, "roll-out", "ann")
		must.NoError(t, err)
		must.True(t, b.Open)
		stop()
		s, stop = start()
		must.Eq(t, "roll-out", s.Breaker().Why)
		stop()

		// What cannot be read is no reason not to start.
		store.data = []byte("{nonsense")
		s, stop = start()
		must.False(t, s.Breaker().Open)
		stop()
		mu.Lock()
		must.Positive(t, changed)
		mu.Unlock()
	})
}

// Everybody at once, for the race detector.
func TestServiceInParallel(t *testing.T) {
	t.Parallel()
	s := New(Options{Settings: DefaultSettings(), Store: &memory{}})
	must.NoError(t, s.Load(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	var work sync.WaitGroup
	for i := range 4 {
		name := fmt.Sprintf("n%d", i)
		work.Go(func() {
			for seq := range uint64(50) {
				s.Nomad(someNode(name))
				state := contract.CardHealthy
				if seq%3 == 1 {
					state = contract.CardQuarantined
				}
				if _, err := s.Report(ctx, someReport(name, seq+1, state), "rita"); err != nil {
					t.Error(err)
				}
				s.Judged(*someNode(name)[core.NodeID("id-"+name)])
				s.List("")
				_, _ = s.Card("GPU-"+name, "")
				_, _ = s.Give(ctx, contract.CardOrder{Kind: contract.OrderNote, Card: "GPU-" + name, Who: "ann", Why: "x"}, "")
				s.Hold(map[core.NodeID]map[string]Holder{core.NodeID("id-" + name): {"GPU-" + name: {Job: "a/b"}}})
				s.Ended(Outcome{Gang: fmt.Sprint("g", seq), Attempt: 1, At: time.Now(), Failed: &Place{Node: core.NodeID("id-" + name), Cards: []string{"GPU-" + name}}})
				s.Counts()
				s.Reporting(core.NodeID("id-" + name))
			}
		})
	}
	work.Wait()
	cancel()
	wg.Wait()
	must.Len(t, 4, s.List(""))
}
