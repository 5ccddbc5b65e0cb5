package notify

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	cloudevents "github.com/cloudevents/sdk-go/v2"
	"github.com/shoenig/test/must"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("MUSTER_NOTIFY_CHILD"); dir != "" {
		child(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

var secret = []byte("between us")

// receiver is a webhook that reads what it gets with the CloudEvents SDK.
type receiver struct {
	*httptest.Server
	mu     sync.Mutex
	got    []cloudevents.Event
	news   chan struct{}
	answer func(n int, e cloudevents.Event) int // the status; nil: 204
	tries  int
}

func receive(t *testing.T, answer func(n int, e cloudevents.Event) int) *receiver {
	t.Helper()
	r := &receiver{news: make(chan struct{}, 1), answer: answer}
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			t.Error(err)
		}
		want := Sign(secret, req.Header.Get("Webhook-Id"), req.Header.Get("Webhook-Timestamp"), body)
		if got := req.Header.Get("Webhook-Signature"); got != want {
			t.Errorf("signature %q, want %q", got, want)
		}
		req.Body = io.NopCloser(strings.NewReader(string(body)))
		e, err := cloudevents.NewEventFromHTTPRequest(req)
		if err != nil {
			t.Errorf("not a CloudEvent: %v: %s", err, body)
			return
		}
		if err := e.Validate(); err != nil {
			t.Errorf("not a valid CloudEvent: %v: %s", err, body)
		}
		if e.ID() != req.Header.Get("Webhook-Id") {
			t.Errorf("Webhook-Id %q of event %q", req.Header.Get("Webhook-Id"), e.ID())
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.tries++
		status := http.StatusNoContent
		if r.answer != nil {
			status = r.answer(r.tries, *e)
		}
		if status/100 == 2 {
			r.got = append(r.got, *e)
			select {
			case r.news <- struct{}{}:
			default:
			}
		}
		w.WriteHeader(status)
	}))
	t.Cleanup(r.Close)
	return r
}

// await n events, in the order in which they came.
func (r *receiver) await(t *testing.T, n int) []cloudevents.Event {
	t.Helper()
	late := time.After(2 * time.Minute)
	for {
		r.mu.Lock()
		got := slices.Clone(r.got)
		r.mu.Unlock()
		if len(got) >= n {
			return got
		}
		select {
		case <-r.news:
		case <-late:
			t.Fatalf("%d of %d events in time", len(got), n)
		}
	}
}

func (r *receiver) hook(name string) Webhook {
	return Webhook{Name: name, URL: r.URL, Secret: secret}
}

var start = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func stage(gang string, n int) Event {
	return Event{ID: fmt.Sprintf("%s/1/%d", gang, n), Type: GangStage, Subject: gang, Queue: "research", Time: start.Add(time.Duration(n) * time.Second),
		Data: map[string]any{"stage": n}}
}

// quick options: the tests' events are of long ago.
func quick(hooks ...Webhook) Options {
	return Options{Source: "muster/global", Webhooks: hooks, MinPause: time.Millisecond, MaxPause: 20 * time.Millisecond, MaxAge: 1 << 62}
}

func run(t *testing.T, o Options) *Sender {
	t.Helper()
	s := Start(o)
	t.Cleanup(s.Close)
	return s
}

func flush(t *testing.T, s *Sender) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	must.NoError(t, s.Flush(ctx))
}

// awaitStatus waits until the first webhook's status is so.
func awaitStatus(t *testing.T, s *Sender, what string, so func(Status) bool) Status {
	t.Helper()
	h := s.hooks[0]
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.saved.Broadcast()
	})()
	for {
		h.mu.Lock()
		rounds := h.rounds
		h.mu.Unlock()
		st := s.Status()[0]
		if so(st) {
			return st
		}
		must.NoError(t, ctx.Err(), must.Sprintf("%s: %+v", what, st))
		h.mu.Lock()
		if ctx.Err() == nil && h.rounds == rounds {
			h.saved.Wait()
		}
		h.mu.Unlock()
	}
}

func TestEventArrivesWhole(t *testing.T) {
	t.Parallel()
	r := receive(t, nil)
	s := run(t, quick(r.hook("a")))
	s.Post(stage("default/train", 1))
	e := r.await(t, 1)[0]
	must.Eq(t, "1.0", e.SpecVersion())
	must.Eq(t, "default/train/1/1", e.ID())
	must.Eq(t, "muster/global", e.Source())
	must.Eq(t, GangStage, e.Type())
	must.Eq(t, "default/train", e.Subject())
	must.Eq(t, start.Add(time.Second), e.Time())
	must.Eq(t, map[string]any{"musterqueue": "research"}, e.Extensions())
	var data map[string]int
	must.NoError(t, e.DataAs(&data))
	must.Eq(t, map[string]int{"stage": 1}, data)
}

// A webhook that fails half of the time gets each event once that it accepted,
// and those of each gang in order.
func TestInOrderForEachGang(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	r := receive(t, func(int, cloudevents.Event) int {
		return []int{204, 200, 202, 500, 503, 400, 429, 302}[rng.IntN(8)]
	})
	o := quick(r.hook("a"))
	o.Dir = t.TempDir()
	s := run(t, o)
	const gangs, each = 10, 20
	for n := range each {
		for g := range gangs {
			s.Post(stage(fmt.Sprintf("default/g%d", g), n))
			s.Post(stage(fmt.Sprintf("default/g%d", g), n)) // told twice: sent once
		}
	}
	next := map[string]int{}
	for _, e := range r.await(t, gangs*each) {
		must.Eq(t, fmt.Sprintf("%s/1/%d", e.Subject(), next[e.Subject()]), e.ID())
		next[e.Subject()]++
	}
	st := awaitStatus(t, s, "all delivered", func(st Status) bool { return st.Delivered == gangs*each })
	must.Eq(t, 0, int(st.Dropped))
	must.Positive(t, st.Failed)
}

// One gang's event that is refused for ever holds back that gang alone.
func TestARefusedEventHoldsNobodyElse(t *testing.T) {
	t.Parallel()
	r := receive(t, func(_ int, e cloudevents.Event) int {
		if e.Subject() == "default/bad" {
			return http.StatusBadRequest
		}
		return http.StatusOK
	})
	s := run(t, quick(r.hook("a")))
	s.Post(stage("default/bad", 1))
	s.Post(stage("default/bad", 2))
	for n := range 20 {
		s.Post(stage("default/good", n))
	}
	for _, e := range r.await(t, 20) {
		must.Eq(t, "default/good", e.Subject())
	}
	awaitStatus(t, s, "the bad gang's wait", func(st Status) bool { return st.Pending == 2 && st.Delivered == 20 })
}

func TestFilters(t *testing.T) {
	t.Parallel()
	r := receive(t, nil)
	all, cards, other := r.hook("all"), r.hook("cards"), r.hook("other")
	cards.Types, other.Queues = []string{CardQuarantined}, []string{"production"}
	s := run(t, quick(all, cards, other))
	s.Post(stage("default/train", 1))
	s.Post(Event{ID: "n1/GPU-1/1", Type: CardQuarantined, Subject: "n1/GPU-1", Time: start})
	s.Post(Event{ID: "p/1", Type: GangStage, Subject: "default/p", Queue: "production", Time: start})
	r.await(t, 3+1+2)
	var delivered []int64
	for _, st := range s.Status() {
		delivered = append(delivered, st.Delivered+int64(st.Pending))
	}
	must.Eq(t, []int64{3, 1, 2}, delivered)
}

// What waited when the planner ended is sent by the next one; what was
// delivered is not sent again, although it is told again.
func TestGoesOnAfterARestart(t *testing.T) {
	t.Parallel()
	up := false
	r := receive(t, func(n int, e cloudevents.Event) int {
		if !up && e.ID() != "default/a/1/0" {
			return http.StatusServiceUnavailable
		}
		return http.StatusOK
	})
	o := quick(r.hook("a"))
	o.Dir = t.TempDir()
	s := Start(o)
	s.Post(stage("default/a", 0))
	awaitStatus(t, s, "delivered", func(st Status) bool { return st.Delivered == 1 })
	for n := 1; n < 5; n++ {
		s.Post(stage("default/a", n))
	}
	flush(t, s)
	s.Close()
	r.mu.Lock()
	up = true
	r.mu.Unlock()
	s = run(t, o)
	for n := range 5 {
		s.Post(stage("default/a", n))
	}
	var ids []string
	for _, e := range r.await(t, 5) {
		ids = append(ids, e.ID())
	}
	must.Eq(t, []string{"default/a/1/0", "default/a/1/1", "default/a/1/2", "default/a/1/3", "default/a/1/4"}, ids)
	awaitStatus(t, s, "nothing waits", func(st Status) bool { return st.Pending == 0 })
}

// child posts events to nowhere, says after each Flush how many are safe, and
// waits to be killed.
func child(dir string) {
	s := Start(Options{Source: "muster/global", Dir: dir, Webhooks: []Webhook{{Name: "a", URL: "http://127.0.0.1:1/"}}, MaxAge: 1 << 62})
	for n := 0; ; n++ {
		s.Post(stage("default/a", n))
		if s.Flush(context.Background()) == nil {
			fmt.Println(n)
		}
	}
}

// A planner that is killed at any moment loses nothing that was safe.
func TestKilled(t *testing.T) {
	t.Parallel()
	for range 5 {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0], "-test.run=^$")
		cmd.Env = append(os.Environ(), "MUSTER_NOTIFY_CHILD="+dir)
		out, err := cmd.StdoutPipe()
		must.NoError(t, err)
		must.NoError(t, cmd.Start())
		safe := -1
		for range 3 + rand.IntN(20) {
			_, err := fmt.Fscan(out, &safe)
			must.NoError(t, err)
		}
		must.NoError(t, cmd.Process.Kill())
		cmd.Wait()
		r := receive(t, nil)
		o := quick(r.hook("a"))
		o.Dir = dir
		s := Start(o)
		for n, e := range r.await(t, safe+1) {
			must.Eq(t, fmt.Sprintf("default/a/1/%d", n), e.ID())
		}
		s.Close()
	}
}

func TestTornAndBrokenFiles(t *testing.T) {
	t.Parallel()
	good := `{"event":{"specversion":"1.0","id":"a/1","source":"s","type":"muster.gang.stage","subject":"a","time":"2026-11-29T12:00:00Z","datacontenttype":"application/json","data":null}}` + "\n"
	for name, c := range map[string]struct {
		text   string
		events int
		fault  string
	}{
		"empty":       {"", 0, ""},
		"torn":        {good + good[:40], 1, ""},
		"torn at nul": {good + "\x00\x00\x00\n", 1, ""},
		"done":        {good + `{"done":"a/1"}` + "\n", 0, ""},
		"broken":      {"what?\n" + good, 0, "line 1 is broken"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := receive(t, nil)
			o := quick(r.hook("a"))
			o.Dir = t.TempDir()
			path := filepath.Join(o.Dir, "a.queue")
			must.NoError(t, os.WriteFile(path, []byte(c.text), 0o600))
			s := run(t, o)
			s.Post(stage("default/new", 1))
			r.await(t, c.events+1)
			if c.fault != "" {
				must.StrContains(t, s.Status()[0].Disk, c.fault)
				left, err := os.ReadFile(path)
				must.NoError(t, err)
				must.Eq(t, c.text, string(left))
				return
			}
			flush(t, s)
		})
	}
}

// A dead webhook costs a bounded queue and is told; the newest events stay.
func TestDeadWebhookIsBounded(t *testing.T) {
	t.Parallel()
	up := false
	r := receive(t, func(int, cloudevents.Event) int {
		if up {
			return 200
		}
		return 503
	})
	o := quick(r.hook("a"))
	o.Dir, o.MaxPending, o.Remembered = t.TempDir(), 100, 100
	s := run(t, o)
	for n := range 6000 {
		s.Post(stage(fmt.Sprintf("default/g%d", n), 1))
	}
	flush(t, s)
	st := s.Status()[0]
	must.Eq(t, 100, st.Pending)
	must.Eq(t, 5900, int(st.Dropped))
	s.Post(stage("default/last", 1)) // an occasion to shorten the file
	flush(t, s)
	s.Post(stage("default/last", 2))
	flush(t, s)
	info, err := os.Stat(filepath.Join(o.Dir, "a.queue"))
	must.NoError(t, err)
	must.Less(t, 3<<20, info.Size())
	r.mu.Lock()
	up = true
	r.mu.Unlock()
	got := r.await(t, 100)
	must.True(t, slices.ContainsFunc(got, func(e cloudevents.Event) bool { return e.Subject() == "default/last" }))
}

func TestTooOldIsGivenUp(t *testing.T) {
	t.Parallel()
	r := receive(t, nil)
	o := quick(r.hook("a"))
	o.MaxAge = time.Hour
	s := run(t, o)
	s.Post(stage("default/old", 1))
	e := stage("default/new", 1)
	e.Time = time.Now()
	s.Post(e)
	must.Eq(t, "default/new", r.await(t, 1)[0].Subject())
	must.Eq(t, 1, int(s.Status()[0].Dropped))
}

// A disk that fails is told, and sending goes on; when it works again the file
// has what waits.
func TestDiskThatFails(t *testing.T) {
	t.Parallel()
	r := receive(t, func(_ int, e cloudevents.Event) int {
		if e.Subject() == "default/waits" {
			return 400
		}
		return 200
	})
	o := quick(r.hook("a"))
	o.Dir = t.TempDir()
	s := Start(o)
	s.Post(stage("default/a", 0))
	awaitStatus(t, s, "delivered", func(st Status) bool { return st.Delivered == 1 })
	// The file's descriptor goes away under it: every write fails.
	h := s.hooks[0]
	h.mu.Lock()
	h.journal.file.Close()
	h.mu.Unlock()
	must.NoError(t, os.Rename(o.Dir, o.Dir+"-gone"))
	s.Post(stage("default/a", 1))
	s.Post(stage("default/waits", 1))
	r.await(t, 2)
	must.ErrorContains(t, s.Flush(t.Context()), "webhook queue")
	must.NotEq(t, "", s.Status()[0].Disk)
	must.NoError(t, os.Rename(o.Dir+"-gone", o.Dir))
	s.Post(stage("default/a", 2))
	r.await(t, 3)
	awaitStatus(t, s, "delivered and on disk", func(st Status) bool { return st.Delivered == 3 && st.Disk == "" })
	s.Close()
	_, pending, done, err := openJournal(filepath.Join(o.Dir, "a.queue"))
	must.NoError(t, err)
	must.Len(t, 1, pending)
	must.Eq(t, "default/waits", pending[0].Subject)
	must.Eq(t, []string{"default/a/1/0", "default/a/1/1", "default/a/1/2"}, done)
}

func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	elsewhere := receive(t, nil)
	redirects := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusTemporaryRedirect))
	t.Cleanup(redirects.Close)
	s := run(t, quick(Webhook{Name: "a", URL: redirects.URL, Secret: secret}))
	s.Post(stage("default/a", 1))
	must.StrContains(t, awaitStatus(t, s, "tried", func(st Status) bool { return st.Failed >= 3 }).LastError, "307")
	must.Eq(t, 0, elsewhere.tries)
}

func TestSignatureIsTheStandardOne(t *testing.T) {
	t.Parallel()
	// The example of the Standard Webhooks specification.
	key, err := base64.StdEncoding.DecodeString("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	must.NoError(t, err)
	got := Sign(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`))
	must.Eq(t, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", got)
}

func FuzzJournal(f *testing.F) {
	f.Add([]byte(`{"done":"x"}` + "\n"))
	f.Add([]byte(`{"event":{"id":"a"}}` + "\n" + `{"done":"a"}` + "\n{"))
	f.Add([]byte("\n\n"))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text []byte) {
		path := filepath.Join(dir, "q")
		must.NoError(t, os.WriteFile(path, text, 0o600))
		j, pending, done, err := openJournal(path)
		if err != nil {
			return
		}
		defer j.close()
		must.NoError(t, j.append([]line{{Done: "last"}}))
		j2, again, done2, err := openJournal(path)
		must.NoError(t, err)
		defer j2.close()
		must.Eq(t, len(done)+1, len(done2))
		a, _ := json.Marshal(pending)
		b, _ := json.Marshal(again)
		if !slices.ContainsFunc(pending, func(e *cloudEvent) bool { return e.ID == "last" }) {
			must.Eq(t, string(a), string(b))
		}
	})
}
