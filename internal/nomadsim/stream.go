package nomadsim

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/nomadsim/store"
	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// heartbeat is how often a stream says {} when it has nothing else to say.
const heartbeat = 30 * time.Second

// eventStream sends events line by line. As on a real server an accepted subscription begins with {}, and a reader that
// falls behind the ring is cut off with an error as the last line.
func (q *request) eventStream(string) (any, error) {
	if err := q.method(http.MethodGet); err != nil {
		return nil, err
	}
	from := int64(0)
	if s := q.q.Get("index"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return nil, fail(http.StatusBadRequest, "Unable to parse index: %v", err)
		}
		from = n
	}
	topics := map[string][]string{}
	for _, t := range q.q["topic"] {
		k, v, ok := strings.Cut(t, ":")
		if !ok {
			v = "*"
		} else if strings.Contains(v, ":") {
			return nil, fail(http.StatusBadRequest, "Invalid topic query: error parsing topics: Invalid key value pair for topic, topic: %s", t)
		}
		topics[k] = append(topics[k], v)
	}
	if len(topics) == 0 {
		topics["*"] = []string{"*"}
	}
	// Namespaces are settled when the subscription begins: one made later is not seen.
	namespaces := map[string]bool{q.namespace: true}
	if q.namespace == "*" {
		for n := range q.c.store.Snapshot().Namespaces("") {
			namespaces[n.Name] = true
		}
	}
	sub := q.c.store.Events().Subscribe(uint64(max(from, 0)))
	cut, end := q.c.hooks.stream()
	defer end()

	hj, ok := q.w.(http.Hijacker)
	if !ok {
		return nil, fail(http.StatusInternalServerError, "streaming not supported")
	}
	conn, buf, err := hj.Hijack()
	if err != nil {
		return nil, fail(http.StatusInternalServerError, "streaming not supported: %v", err)
	}
	defer conn.Close()
	q.c.conns.hold(conn, 1)
	defer q.c.conns.hold(conn, -1)
	ctx := q.c.ctx
	done := make(chan struct{})
	go func() { // the reader going away
		defer close(done)
		buf.Reader.WriteTo(discard{})
	}()
	w := buf.Writer
	fmt.Fprintf(w, "HTTP/1.1 200 OK\r\nCache-Control: no-cache\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n{}\n")
	if w.Flush() != nil {
		return nil, errHandled
	}
	lines := make(chan *wire.Events, 1)
	failed := make(chan error, 1)
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			e, err := sub.Next(ctx)
			if err != nil {
				failed <- err
				return
			}
			select {
			case lines <- e:
			case <-stop:
				return
			}
		}
	}()
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	for {
		select {
		case <-done:
			return nil, errHandled
		case <-ctx.Done():
			return nil, errHandled
		case <-cut.cut:
			if tcp, ok := conn.(*net.TCPConn); ok {
				tcp.SetLinger(0)
			}
			return nil, errHandled
		case <-beat.C:
			conn.SetWriteDeadline(time.Now().Add(heartbeat + 10*time.Second))
			if _, err := w.WriteString("{}\n"); err != nil || w.Flush() != nil {
				return nil, errHandled
			}
		case err := <-failed:
			if errors.Is(err, store.ErrDropped) {
				fmt.Fprintf(w, "{\"Error\":%q}\n", err.Error())
				w.Flush()
			}
			return nil, errHandled
		case e := <-lines:
			if err := writeLine(conn, w, pick(e, topics, namespaces)); err != nil {
				return nil, errHandled
			}
			if len(lines) == 0 && w.Flush() != nil { // lines that come together go together
				return nil, errHandled
			}
		}
	}
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

func writeLine(conn net.Conn, w *bufio.Writer, e *wire.Events) error {
	if len(e.Events) == 0 {
		return nil
	}
	conn.SetWriteDeadline(time.Now().Add(heartbeat + 10*time.Second))
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(e); err != nil {
		return fmt.Errorf("send events of index %d: %w", e.Index, err)
	}
	return nil
}

// pick keeps the events of a line that a subscription is for.
func pick(e *wire.Events, topics map[string][]string, namespaces map[string]bool) *wire.Events {
	out := &wire.Events{Index: e.Index}
	for _, ev := range e.Events {
		if ev.Namespace != "" && !namespaces[ev.Namespace] {
			continue
		}
		keys := slices.Concat(topics[ev.Topic], topics["*"])
		if slices.ContainsFunc(keys, func(k string) bool { return k == "*" || k == ev.Key || slices.Contains(ev.FilterKeys, k) }) {
			out.Events = append(out.Events, ev)
		}
	}
	return out
}

// hold counts a connection that has left the hands of the server but is still open.
func (cc *connCount) hold(c net.Conn, by int) {
	cc.mu.Lock()
	defer cc.mu.Unlock()
	if cc.n == nil {
		cc.n = map[string]int{}
	}
	cc.n[peer(c)] += by
}
