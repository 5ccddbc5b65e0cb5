package rendezvous_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/rendezvous"
	"github.com/nomad-muster/muster/driver/rendezvous/rendezvoustest"
	"github.com/nomad-muster/muster/internal/contract"
)

func TestMain(m *testing.M) { os.Exit(rendezvoustest.Main(m)) }

// A way is one of the two adapters with the planner's side of it.
type way struct {
	name  string
	board func(t *testing.T, self rendezvous.Self) rendezvous.Board
	// write gives the record's text to the member; the error is the member's
	// refusal where the way has a channel for it.
	write func(t *testing.T, self rendezvous.Self, b rendezvous.Board, text string)
	// report waits for a report of the member that ok accepts.
	report func(t *testing.T, ctx context.Context, self rendezvous.Self, attempt int, ok func(contract.Report) bool) contract.Report
	// moved tells the planner's or Consul's part after Move.
	moved func(t *testing.T, self rendezvous.Self, b rendezvous.Board, r contract.Record)
}

func ways(t *testing.T) []way {
	emitted := make(chan contract.Report, 100)
	signal := way{
		name: "signal",
		board: func(t *testing.T, self rendezvous.Self) rendezvous.Board {
			return rendezvous.NewSignal(self, func(r contract.Report) error { emitted <- r; return nil })
		},
		write: func(_ *testing.T, _ rendezvous.Self, b rendezvous.Board, text string) {
			_ = b.(*rendezvous.Signal).Deliver([]byte(text))
		},
		report: func(t *testing.T, ctx context.Context, _ rendezvous.Self, attempt int, ok func(contract.Report) bool) contract.Report {
			for {
				select {
				case r := <-emitted:
					if r.Attempt == attempt && ok(r) {
						return r
					}
				case <-ctx.Done():
					t.Fatal("no such report")
				}
			}
		},
		moved: func(t *testing.T, self rendezvous.Self, b rendezvous.Board, r contract.Record) {
			for i := range r.Worlds {
				r.Worlds[i].Port = 20444
			}
			must.NoError(t, b.(*rendezvous.Signal).Deliver(encode(t, r)))
		},
	}
	consul := way{
		name: "consul",
		board: func(t *testing.T, self rendezvous.Self) rendezvous.Board {
			b, err := rendezvous.NewConsul(rendezvoustest.Shared(t).Config(), self)
			must.NoError(t, err)
			return b
		},
		write: func(t *testing.T, self rendezvous.Self, _ rendezvous.Board, text string) {
			rendezvoustest.Shared(t).Planner(t, self.Gang).WriteText([]byte(text))
		},
		report: func(t *testing.T, ctx context.Context, self rendezvous.Self, attempt int, ok func(contract.Report) bool) contract.Report {
			reports := rendezvoustest.Shared(t).Planner(t, self.Gang).Await(ctx, attempt, "report", func(all map[string]contract.Report) bool {
				r, there := all[self.Key()]
				return there && ok(r)
			})
			return reports[self.Key()]
		},
		moved: func(*testing.T, rendezvous.Self, rendezvous.Board, contract.Record) {},
	}
	return []way{signal, consul}
}

func encode(t *testing.T, v any) []byte {
	text, err := json.Marshal(v)
	must.NoError(t, err)
	return text
}

// self of a gang that no other test uses.
func selfOf(t *testing.T) rendezvous.Self {
	return rendezvous.Self{Gang: contract.GangID{Region: "global", Namespace: "default", Job: t.Name() + "/ä"}, Alloc: "11111111-aaaa", Task: "train it", Start: 1}
}

func placed(self rendezvous.Self, attempt int) contract.Record {
	return contract.Record{V: contract.RecordVersion, Gang: self.Gang, Attempt: attempt, Phase: contract.PhasePlaced,
		Members: []contract.Member{{Index: 0, Alloc: self.Alloc, Task: self.Task, Group: "rank", Node: "n1"}, {Index: 1, Alloc: "22222222-bbbb", Task: self.Task, Group: "rank", Node: "n2"}}}
}

func released(self rendezvous.Self, attempt int) contract.Record {
	r := placed(self, attempt)
	r.Phase = contract.PhaseReleased
	for i := range r.Members {
		r.Members[i].Start, r.Members[i].Address, r.Members[i].Ranks = 1, "127.0.0.1", 1
	}
	r.Worlds = []contract.World{{Name: "rank", Members: []int{0, 1}, Host: "127.0.0.1", Port: 20333}}
	return r
}

func ready(self rendezvous.Self, attempt int) contract.Report {
	return contract.Report{V: contract.RecordVersion, Gang: self.Gang, Attempt: attempt, Alloc: self.Alloc, Task: self.Task, Start: self.Start,
		State: contract.StateReady, Address: "127.0.0.1", Port: 20333, Ranks: 1, World: "rank", At: time.Now()}
}

// follower collects what a board shows.
type follower struct {
	sights chan rendezvous.Sight
	warned chan error
}

func follow(t *testing.T, ctx context.Context, b rendezvous.Board) *follower {
	f := &follower{make(chan rendezvous.Sight, 1000), make(chan error, 1000)}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.Follow(ctx, func(s rendezvous.Sight) { f.sights <- s }, func(err error) { f.warned <- err })
	}()
	t.Cleanup(func() { cancel(); <-done })
	return f
}

func (f *follower) await(t *testing.T, ctx context.Context, what string, ok func(rendezvous.Sight) bool) rendezvous.Sight {
	t.Helper()
	var last rendezvous.Sight
	for {
		select {
		case last = <-f.sights:
			if ok(last) {
				return last
			}
		case <-ctx.Done():
			t.Fatalf("%s: never seen; last was %+v", what, last)
		}
	}
}

func inPhase(attempt int, phase contract.Phase) func(rendezvous.Sight) bool {
	return func(s rendezvous.Sight) bool {
		return s.Record != nil && s.Record.Attempt == attempt && s.Record.Phase == phase
	}
}

// TestBoard is the suite that every adapter passes.
func TestBoard(t *testing.T) {
	for _, w := range ways(t) {
		t.Run(w.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			self := selfOf(t)
			board := w.board(t, self)
			t.Cleanup(func() { _ = board.Close(context.Background()) })
			f := follow(t, ctx, board)

			f.await(t, ctx, "no record at first", func(s rendezvous.Sight) bool { return s.Record == nil })

			w.write(t, self, board, string(encode(t, placed(self, 3))))
			f.await(t, ctx, "placed", inPhase(3, contract.PhasePlaced))

			must.NoError(t, board.Publish(ctx, ready(self, 3)))
			got := w.report(t, ctx, self, 3, func(r contract.Report) bool { return r.State == contract.StateReady })
			must.Eq(t, 20333, got.Port)

			// A record that contradicts itself, or is none, changes nothing.
			wrong := released(self, 3)
			wrong.Worlds[0].Port = 0
			w.write(t, self, board, string(encode(t, wrong)))
			w.write(t, self, board, "{")
			w.write(t, self, board, `{"v":99}`)
			w.write(t, self, board, string(encode(t, released(self, 3))))
			seen := f.await(t, ctx, "released", func(s rendezvous.Sight) bool {
				if s.Record != nil && s.Record.Phase == contract.PhaseReleased {
					must.Eq(t, 20333, s.Record.Worlds[0].Port)
				}
				return inPhase(3, contract.PhaseReleased)(s)
			})
			must.Eq(t, 2, len(seen.Record.Members))

			// The store moves; nobody of another attempt can move it.
			must.Error(t, board.Move(ctx, 2, "rank", contract.Endpoint{V: 1, Host: "127.0.0.1", Port: 1, Move: 1}))
			must.NoError(t, board.Move(ctx, 3, "rank", contract.Endpoint{V: 1, Host: "127.0.0.1", Port: 20444, Move: 1, At: time.Now()}))
			w.moved(t, self, board, released(self, 3))
			f.await(t, ctx, "moved", func(s rendezvous.Sight) bool {
				return s.Endpoints["rank"].Port == 20444 || s.Record.Worlds[0].Port == 20444
			})

			// A report of another member cannot be published.
			stranger := ready(self, 3)
			stranger.Alloc = "22222222-bbbb"
			must.Error(t, board.Publish(ctx, stranger))

			end := ready(self, 3)
			end.State, end.Exit = contract.StateEnded, &contract.Exit{Outcome: contract.OutcomeFailed, Code: 42, Rank: 0, At: time.Now()}
			must.NoError(t, board.Publish(ctx, end))
			w.report(t, ctx, self, 3, func(r contract.Report) bool { return r.State == contract.StateEnded && r.Exit.Code == 42 })

			last := released(self, 3)
			last.Phase = contract.PhaseEnded
			w.write(t, self, board, string(encode(t, last)))
			f.await(t, ctx, "ended", inPhase(3, contract.PhaseEnded))
			must.NoError(t, board.Close(ctx))
		})
	}
}

func TestSignalRefusesWhatIsOlder(t *testing.T) {
	self := selfOf(t)
	b := rendezvous.NewSignal(self, func(contract.Report) error { return nil })
	must.NoError(t, b.Deliver(encode(t, released(self, 2))))
	must.ErrorContains(t, b.Deliver(encode(t, placed(self, 1))), "attempt 2 is known already")
	must.ErrorContains(t, b.Deliver(encode(t, placed(self, 2))), `phase "released" of attempt 2 is known already`)
	must.NoError(t, b.Deliver(encode(t, placed(self, 3))))
	other := self
	other.Gang.Job = "another"
	must.ErrorContains(t, b.Deliver(encode(t, placed(other, 4))), "belongs to")
}

// C24: what other attempts left in Consul never shows, and goes.
func TestConsulIgnoresOtherAttempts(t *testing.T) {
	agent := rendezvoustest.Shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	self := selfOf(t)
	planner := agent.Planner(t, self.Gang)

	stale := ready(self, 1)
	stale.Address = "192.0.2.11"
	put := func(key string, v any) {
		_, err := agent.API().KV().Put(&api.KVPair{Key: key, Value: encode(t, v)}, nil)
		must.NoError(t, err)
	}
	endpoint := map[string]any{"v": 1, "world": "rank", "host": "192.0.2.11", "port": 20100, "move": 1}
	put(self.Gang.ReportKey(1, self.Alloc, self.Task), stale)
	put(self.Gang.EndpointKey(1, "rank"), endpoint)
	// A confused writer: an old report in the new attempt's folder.
	put(self.Gang.ReportKey(2, "22222222-bbbb", self.Task), stale)

	board, err := rendezvous.NewConsul(agent.Config(), self)
	must.NoError(t, err)
	t.Cleanup(func() { _ = board.Close(context.Background()) })
	f := follow(t, ctx, board)
	planner.Write(placed(self, 2))
	f.await(t, ctx, "placed", inPhase(2, contract.PhasePlaced))
	must.NoError(t, board.Publish(ctx, ready(self, 2)))
	f.await(t, ctx, "own report", func(s rendezvous.Sight) bool {
		for key, r := range s.Reports {
			must.Eq(t, 2, r.Attempt)
			must.Eq(t, self.Key(), key)
		}
		must.MapEmpty(t, s.Endpoints)
		return len(s.Reports) == 1
	})
	// The stale attempt's folder is swept by member 0.
	for {
		left := false
		for _, key := range planner.Keys() {
			left = left || strings.HasPrefix(key, self.Gang.AttemptPrefix(1))
		}
		if !left {
			break
		}
		must.NoError(t, ctx.Err(), must.Sprint("attempt 1 is still there"))
		time.Sleep(20 * time.Millisecond)
	}
}

// A member whose session was lost, for whatever reason, comes back by itself
// with the same report; and what it held goes at Close.
func TestConsulSession(t *testing.T) {
	agent := rendezvoustest.Shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	self := selfOf(t)
	planner := agent.Planner(t, self.Gang)
	key := self.Gang.ReportKey(1, self.Alloc, self.Task)
	board, err := rendezvous.NewConsul(agent.Config(), self)
	must.NoError(t, err)
	must.NoError(t, board.Publish(ctx, ready(self, 1)))
	must.SliceLen(t, 1, planner.Services())

	pair, _, err := agent.API().KV().Get(key, nil)
	must.NoError(t, err)
	_, err = agent.API().Session().Destroy(pair.Session, nil)
	must.NoError(t, err)
	must.SliceEmpty(t, planner.Keys())

	// Publishing again does it at once ...
	training := ready(self, 1)
	training.State = contract.StateTraining
	must.NoError(t, board.Publish(ctx, training))
	must.SliceLen(t, 1, planner.Keys())

	// ... and without it the loop that renews.
	pair, _, err = agent.API().KV().Get(key, nil)
	must.NoError(t, err)
	_, err = agent.API().Session().Destroy(pair.Session, nil)
	must.NoError(t, err)
	planner.Await(ctx, 1, "report again", func(all map[string]contract.Report) bool { return all[self.Key()].State == contract.StateTraining })

	// Another start of the same member takes over from one that died.
	again := self
	again.Start = 2
	successor, err := rendezvous.NewConsul(agent.Config(), again)
	must.NoError(t, err)
	second := ready(again, 1)
	must.NoError(t, successor.Publish(ctx, second))
	must.Eq(t, 2, planner.Reports(1)[self.Key()].Start)

	must.NoError(t, successor.Close(ctx))
	must.NoError(t, successor.Forget(ctx))
	must.NoError(t, board.Close(ctx))
	must.SliceEmpty(t, planner.Keys())
	must.SliceEmpty(t, planner.Services())
}

// An outage of Consul is trouble and the end of it is told; afterwards the
// member is on the board again.
func TestConsulOutage(t *testing.T) {
	agent := rendezvoustest.Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	self := selfOf(t)
	board, err := rendezvous.NewConsul(agent.Config(), self)
	must.NoError(t, err)
	t.Cleanup(func() { _ = board.Close(context.Background()) })
	f := follow(t, ctx, board)
	agent.Planner(t, self.Gang).Write(placed(self, 1))
	f.await(t, ctx, "placed", inPhase(1, contract.PhasePlaced))
	must.NoError(t, board.Publish(ctx, ready(self, 1)))

	agent.Down()
	for err := range f.warned {
		if err != nil {
			must.ErrorContains(t, err, "in Consul")
			break
		}
	}
	must.Error(t, agent.Config().Check(time.Second))
	must.NoError(t, agent.Up())
	must.NoError(t, agent.Config().Check(time.Minute))
	agent.Planner(t, self.Gang).Write(placed(self, 2))
	f.await(t, ctx, "placed again", inPhase(2, contract.PhasePlaced))
	second := ready(self, 2)
	for board.Publish(ctx, second) != nil {
		must.NoError(t, ctx.Err())
		time.Sleep(50 * time.Millisecond)
	}
	must.Eq(t, 2, agent.Planner(t, self.Gang).Reports(2)[self.Key()].Attempt)
}

func TestConsulConfigFromEnvironment(t *testing.T) {
	for name, value := range map[string]string{"CONSUL_HTTP_ADDR": "https://consul.example:8501", "CONSUL_HTTP_TOKEN": "secret", "CONSUL_CACERT": "/ca.pem",
		"CONSUL_HTTP_SSL": "true", "CONSUL_HTTP_SSL_VERIFY": "false", "CONSUL_NAMESPACE": "ml", "CONSUL_TLS_SERVER_NAME": "server.dc1.consul"} {
		t.Setenv(name, value)
	}
	got := rendezvous.ConsulConfig{Namespace: "own"}.FromEnvironment()
	must.Eq(t, rendezvous.ConsulConfig{Address: "https://consul.example:8501", Token: "secret", CAFile: "/ca.pem", TLS: true, NoVerify: true,
		Namespace: "own", ServerName: "server.dc1.consul"}, got)
	// A token file of the configuration is not overruled by a token around it.
	must.Eq(t, "", rendezvous.ConsulConfig{TokenFile: "/t"}.FromEnvironment().Token)
}

func TestCheckSaysWhereItLooked(t *testing.T) {
	err := rendezvous.ConsulConfig{Address: "127.0.0.1:1"}.Check(time.Second)
	must.ErrorContains(t, err, "reach Consul at 127.0.0.1:1")
	must.StrContains(t, fmt.Sprint(rendezvous.ConsulConfig{}.Where()), "CONSUL_HTTP_ADDR")
}
