package agent_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/notify"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
)

// A workflow tool is told of a gang's whole life, in order and once, although
// the planner is started anew in the middle and the tool is away for a while.
func TestWebhooksFollowAGang(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got []string
	away := false
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if away {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		body, _ := io.ReadAll(r.Body)
		if r.Header.Get("Webhook-Signature") != notify.Sign([]byte("between the two of us"), r.Header.Get("Webhook-Id"), r.Header.Get("Webhook-Timestamp"), body) {
			t.Error("wrong signature")
		}
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		e, err := cloudevents.NewEventFromHTTPRequest(r)
		if err != nil {
			t.Error(err)
			return
		}
		var data struct {
			Gang, Queue, Stage, Link string
			Attempt                  int
		}
		if err := e.DataAs(&data); err != nil || data.Gang != e.Subject() || data.Queue != "default" || !strings.HasSuffix(data.Link, "/v1/gang/default/g1") {
			t.Errorf("data %+v of subject %s: %v", data, e.Subject(), err)
		}
		got = append(got, data.Stage)
	}))
	t.Cleanup(hook.Close)

	b := newBench(t, 2, 1).direct()
	b.cfg.DataDir = t.TempDir()
	b.cfg.Webhooks = []notify.Webhook{{Name: "flow", URL: hook.URL, Secret: []byte("between the two of us"), Types: []string{notify.GangStage}}}
	b.start()
	b.submit(job{id: "g1", count: 2, cards: 1})
	b.stage("g1", contract.StageTraining)
	b.eventually("told of the training", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Contains(got, string(contract.StageTraining))
	})
	b.stop()
	mu.Lock()
	away = true
	mu.Unlock()
	b.start()
	b.until("g1", "known again", func(g view.Gang) bool { return g.Running == 2 })
	_, _, err := b.sim.Client().Jobs().Deregister("g1", false, nil)
	must.NoError(t, err)
	b.stage("g1", contract.StageCancelled)
	b.eventually("the planner's status tells", func() bool {
		return slices.ContainsFunc(b.agent.Status().Problems, func(p view.Problem) bool { return p.Object == "webhook flow" })
	})
	mu.Lock()
	away = false
	mu.Unlock()
	var want []string
	for _, s := range contract.Stages {
		want = append(want, string(s))
	}
	want = append(want, string(contract.StageCancelled))
	b.eventually("told of the end", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return slices.Contains(got, string(contract.StageCancelled))
	})
	mu.Lock()
	defer mu.Unlock()
	must.Eq(t, want, got)
}
