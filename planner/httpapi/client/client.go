// Package client speaks to a planner's /v1 API: the CLI and programs that hand
// gangs over use it.
//
// Errors that the planner answers are *view.Error. A planner that cannot be
// reached is a *ContactError, which says where it was looked for and which
// variable changes that. Nothing is retried here.
package client

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/planner/view"
)

// DefaultAddress is where a planner listens by default.
const DefaultAddress = "http://127.0.0.1:4680"

// Options of a client. FromEnv fills them from the environment.
type Options struct {
	Address string // URL; empty: DefaultAddress
	Token   string // of the planner's configuration
	// NomadToken is handed on to Nomad when a job is parsed and registered, in
	// place of the planner's own.
	NomadToken string
	CACert     string // file
	ClientCert string // file
	ClientKey  string // file
	SkipVerify bool
	// From says where the address is from, for the text of a ContactError.
	From string
}

// FromEnv reads MUSTER_ADDR, MUSTER_TOKEN, MUSTER_TOKEN_FILE, MUSTER_CACERT,
// MUSTER_CLIENT_CERT, MUSTER_CLIENT_KEY, MUSTER_SKIP_VERIFY and NOMAD_TOKEN.
func FromEnv(getenv func(string) string) (Options, error) {
	o := Options{Address: getenv("MUSTER_ADDR"), Token: getenv("MUSTER_TOKEN"), NomadToken: getenv("NOMAD_TOKEN"), CACert: getenv("MUSTER_CACERT"),
		ClientCert: getenv("MUSTER_CLIENT_CERT"), ClientKey: getenv("MUSTER_CLIENT_KEY"), From: "MUSTER_ADDR"}
	if o.Address == "" {
		o.Address, o.From = DefaultAddress, "the default"
	}
	if text := getenv("MUSTER_SKIP_VERIFY"); text != "" {
		skip, err := strconv.ParseBool(text)
		if err != nil {
			return o, fmt.Errorf("MUSTER_SKIP_VERIFY=%s is neither true nor false", text)
		}
		o.SkipVerify = skip
	}
	if path := getenv("MUSTER_TOKEN_FILE"); path != "" && o.Token == "" {
		content, err := os.ReadFile(path)
		if err != nil {
			return o, fmt.Errorf("read token: MUSTER_TOKEN_FILE: %w", err)
		}
		o.Token = strings.TrimSpace(string(content))
	}
	return o, nil
}

// Client speaks to one planner.
type Client struct {
	o    Options
	base *url.URL
	http *http.Client
}

// New makes a client; it calls nobody yet.
func New(o Options) (*Client, error) {
	if o.Address == "" {
		o.Address, o.From = DefaultAddress, "the default"
	}
	address := o.Address
	if !strings.Contains(address, "://") {
		address = "http://" + address
	}
	base, err := url.Parse(strings.TrimSuffix(address, "/"))
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, fmt.Errorf("the planner's address %q (from %s) is no URL such as %s", o.Address, o.From, DefaultAddress)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: o.SkipVerify, MinVersion: tls.VersionTLS12}
	if o.CACert != "" {
		pem, err := os.ReadFile(o.CACert)
		if err != nil {
			return nil, fmt.Errorf("read CA certificate: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read CA certificate: %s holds no certificate", o.CACert)
		}
		transport.TLSClientConfig.RootCAs = pool
	}
	if o.ClientCert != "" || o.ClientKey != "" {
		pair, err := tls.LoadX509KeyPair(o.ClientCert, o.ClientKey)
		if err != nil {
			return nil, fmt.Errorf("read client certificate: %w", err)
		}
		transport.TLSClientConfig.Certificates = []tls.Certificate{pair}
	}
	return &Client{o: o, base: base, http: &http.Client{Transport: transport}}, nil
}

// Address is where the client looks for the planner.
func (c *Client) Address() string { return c.base.String() }

// ContactError says that the planner could not be reached, or that what
// answered is none.
type ContactError struct {
	Operation, Address, From string
	Err                      error
}

func (e *ContactError) Error() string {
	return fmt.Sprintf("%s: no contact with the planner at %s (from %s): %v; is the planner running (muster agent)? MUSTER_ADDR or -address names another",
		e.Operation, e.Address, e.From, e.Err)
}

func (e *ContactError) Unwrap() error { return e.Err }

// call sends one request and reads the answer's JSON.
func call[T any](ctx context.Context, c *Client, operation, method, path string, query url.Values, header http.Header, in any) (out T, err error) {
	resp, err := c.send(ctx, operation, method, path, query, header, in)
	if err != nil {
		return out, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<30))
	if err != nil {
		return out, c.contact(ctx, operation, err)
	}
	if resp.StatusCode != http.StatusOK {
		return out, c.refusal(operation, resp, body)
	}
	if err := json.Unmarshal(body, &out); err != nil {
		return out, c.contact(ctx, operation, fmt.Errorf("the answer is not a planner's: %w", err))
	}
	return out, nil
}

func (c *Client) send(ctx context.Context, operation, method, path string, query url.Values, header http.Header, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", operation, err)
		}
		body = bytes.NewReader(data)
	}
	target := c.base.String() + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", operation, err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.o.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.o.Token)
	}
	if c.o.NomadToken != "" && method == http.MethodPost {
		req.Header.Set("X-Nomad-Token", c.o.NomadToken)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.contact(ctx, operation, err)
	}
	return resp, nil
}

// contact makes an error of a call that got no answer. The end of the caller's
// own context is no lack of contact.
func (c *Client) contact(ctx context.Context, operation string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", operation, context.Cause(ctx))
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err // without the method and the URL, which stand in the text already
	}
	return &ContactError{Operation: operation, Address: c.base.String(), From: c.o.From, Err: err}
}

// refusal reads the planner's error. Whatever else answers with an error is no
// planner.
func (c *Client) refusal(operation string, resp *http.Response, body []byte) error {
	var e view.Error
	if err := json.Unmarshal(body, &e); err != nil || e.Code == "" {
		text := strings.TrimSpace(string(body))
		if len(text) > 200 {
			text = text[:200] + "..."
		}
		return &ContactError{Operation: operation, Address: c.base.String(), From: c.o.From, Err: fmt.Errorf("what answers there is no planner: %s: %s", resp.Status, text)}
	}
	return &e
}

// Filter of a list of gangs; zero values let everything through.
type Filter struct {
	Namespace, Queue, Prefix, Stage string
	Ended                           bool
}

// Gangs lists gangs.
func (c *Client) Gangs(ctx context.Context, f Filter) (view.GangList, error) {
	q := url.Values{}
	for name, value := range map[string]string{"namespace": f.Namespace, "queue": f.Queue, "prefix": f.Prefix, "stage": f.Stage} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if f.Ended {
		q.Set("ended", "true")
	}
	return call[view.GangList](ctx, c, "list gangs", http.MethodGet, "/v1/gangs", q, nil, nil)
}

func gangPath(namespace, job string) string {
	return "/v1/gang/" + segment(namespace) + "/" + segment(job)
}

// segment escapes a name for a path. A name of dots is a name too, and no way
// up.
func segment(name string) string {
	if name == "." || name == ".." {
		return strings.ReplaceAll(name, ".", "%2E")
	}
	return url.PathEscape(name)
}

// Gang reads one gang by its exact name. Index above zero waits until the
// gang's own index is above it, or for wait.
func (c *Client) Gang(ctx context.Context, namespace, job string, index uint64, wait time.Duration) (view.Gang, error) {
	q := url.Values{}
	if index > 0 {
		q.Set("index", strconv.FormatUint(index, 10))
		q.Set("wait", wait.String())
	}
	return call[view.Gang](ctx, c, "read gang "+namespace+"/"+job, http.MethodGet, gangPath(namespace, job), q, nil, nil)
}

// Why reads a gang's verdict.
func (c *Client) Why(ctx context.Context, namespace, job string) (view.Why, error) {
	return call[view.Why](ctx, c, "explain gang "+namespace+"/"+job, http.MethodGet, gangPath(namespace, job)+"/why", nil, nil, nil)
}

// Stop ends a gang.
func (c *Client) Stop(ctx context.Context, namespace, job string, how view.StopRequest) (view.Stopped, error) {
	return call[view.Stopped](ctx, c, "stop gang "+namespace+"/"+job, http.MethodPost, gangPath(namespace, job)+"/stop", nil, nil, how)
}

// Parse turns a specification into a job in Nomad's JSON.
func (c *Client) Parse(ctx context.Context, spec view.Spec) (json.RawMessage, error) {
	out, err := call[view.Parsed](ctx, c, "parse job", http.MethodPost, "/v1/parse", nil, nil, spec)
	return out.Job, err
}

// Validate checks a specification.
func (c *Client) Validate(ctx context.Context, spec view.Spec) (view.Validation, error) {
	return call[view.Validation](ctx, c, "validate job", http.MethodPost, "/v1/validate", nil, nil, spec)
}

// Plan says what would happen to a specification now.
func (c *Client) Plan(ctx context.Context, spec view.Spec) (view.Plan, error) {
	return call[view.Plan](ctx, c, "plan job", http.MethodPost, "/v1/plan", nil, nil, spec)
}

// Submit registers a job. A key that is not empty makes a repetition harmless.
func (c *Client) Submit(ctx context.Context, s view.Submission, key string) (view.Submitted, error) {
	header := http.Header{}
	if key != "" {
		header.Set("Idempotency-Key", key)
	}
	return call[view.Submitted](ctx, c, "submit job", http.MethodPost, "/v1/jobs", nil, header, s)
}

// Queues lists the queue tree.
func (c *Client) Queues(ctx context.Context) (view.QueueList, error) {
	return call[view.QueueList](ctx, c, "list queues", http.MethodGet, "/v1/queues", nil, nil, nil)
}

// Queue reads one queue with its gangs.
func (c *Client) Queue(ctx context.Context, name string) (view.QueueDetail, error) {
	return call[view.QueueDetail](ctx, c, "read queue "+name, http.MethodGet, "/v1/queue/"+segment(name), nil, nil, nil)
}

// Nodes lists the nodes with their cards.
func (c *Client) Nodes(ctx context.Context) (view.NodeList, error) {
	return call[view.NodeList](ctx, c, "list nodes", http.MethodGet, "/v1/nodes", nil, nil, nil)
}

// Usage sums up card-seconds.
func (c *Client) Usage(ctx context.Context, ask view.UsageQuery) (view.Usage, error) {
	q := spanned(ask.From, ask.To)
	for name, value := range map[string]string{"by": strings.Join(ask.By, ","), "queue": ask.Queue, "user": ask.User, "model": ask.Model, "gang": ask.Gang} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return call[view.Usage](ctx, c, "sum up usage", http.MethodGet, "/v1/usage", q, nil, nil)
}

// Waste finds what was held and not used.
func (c *Client) Waste(ctx context.Context, from, to time.Time) (view.Waste, error) {
	return call[view.Waste](ctx, c, "find waste", http.MethodGet, "/v1/usage/waste", spanned(from, to), nil, nil)
}

// Top tells what cards do now.
func (c *Client) Top(ctx context.Context) (view.Top, error) {
	return call[view.Top](ctx, c, "read what cards do", http.MethodGet, "/v1/top", nil, nil, nil)
}

// Demand tells which nodes would let waiting gangs start.
func (c *Client) Demand(ctx context.Context) (view.DemandList, error) {
	return call[view.DemandList](ctx, c, "read demand", http.MethodGet, "/v1/demand", nil, nil, nil)
}

// CheckLedger holds the books against themselves and against Nomad.
func (c *Client) CheckLedger(ctx context.Context) (view.LedgerCheck, error) {
	return call[view.LedgerCheck](ctx, c, "check ledger", http.MethodGet, "/v1/ledger/check", nil, nil, nil)
}

func spanned(from, to time.Time) url.Values {
	q := url.Values{}
	if !from.IsZero() {
		q.Set("from", from.UTC().Format(time.RFC3339))
	}
	if !to.IsZero() {
		q.Set("to", to.UTC().Format(time.RFC3339))
	}
	return q
}

// Cards lists cards; node and state, where not empty, say which.
func (c *Client) Cards(ctx context.Context, node, state string) (view.CardList, error) {
	q := url.Values{}
	for name, value := range map[string]string{"node": node, "state": state} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return call[view.CardList](ctx, c, "list cards", http.MethodGet, "/v1/cards", q, nil, nil)
}

// cardQuery names a card's node, where it has to be named.
func cardQuery(node string) url.Values {
	if node == "" {
		return nil
	}
	return url.Values{"node": {node}}
}

// Card reads one card by its exact id, and by its node where several have one
// of that id.
func (c *Client) Card(ctx context.Context, card, node string) (view.CardState, error) {
	return call[view.CardState](ctx, c, "read card "+card, http.MethodGet, "/v1/card/"+segment(card), cardQuery(node), nil, nil)
}

// OrderCard has something done with a card: kind is confirm, clear or note.
func (c *Client) OrderCard(ctx context.Context, card, node, kind string, how view.CardRequest) (view.CardOrder, error) {
	return call[view.CardOrder](ctx, c, kind+" card "+card, http.MethodPost, "/v1/card/"+segment(card)+"/"+kind, cardQuery(node), nil, how)
}

// CardOrder reads an order.
func (c *Client) CardOrder(ctx context.Context, id string) (view.CardOrder, error) {
	return call[view.CardOrder](ctx, c, "read card order "+id, http.MethodGet, "/v1/cards/order/"+segment(id), nil, nil, nil)
}

// Breaker reads the cards' circuit breaker.
func (c *Client) Breaker(ctx context.Context) (view.CardBreaker, error) {
	return call[view.CardBreaker](ctx, c, "read the cards' breaker", http.MethodGet, "/v1/cards/breaker", nil, nil, nil)
}

// SetBreaker opens or closes it.
func (c *Client) SetBreaker(ctx context.Context, how view.BreakerRequest) (view.CardBreaker, error) {
	return call[view.CardBreaker](ctx, c, "set the cards' breaker", http.MethodPost, "/v1/cards/breaker", nil, nil, how)
}

// ClearNode ends what the planner holds against a node.
func (c *Client) ClearNode(ctx context.Context, node, why string) (view.NodeCleared, error) {
	return call[view.NodeCleared](ctx, c, "clear node "+node, http.MethodPost, "/v1/node/"+segment(node)+"/clear", nil, nil, view.NodeRequest{Why: why})
}

// Status reads the planner's own.
func (c *Client) Status(ctx context.Context) (view.Status, error) {
	return call[view.Status](ctx, c, "read status", http.MethodGet, "/v1/status", nil, nil, nil)
}

// Snapshot writes a captured decision to w, as package capture reads it.
func (c *Client) Snapshot(ctx context.Context, w io.Writer) error {
	const operation = "capture decision"
	resp, err := c.send(ctx, operation, http.MethodGet, "/v1/snapshot", nil, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return c.refusal(operation, resp, body)
	}
	if _, err := io.Copy(w, resp.Body); err != nil {
		return c.contact(ctx, operation, err)
	}
	return nil
}

// Report copies a report of [from, to) in one of its forms: html, json, plots.
func (c *Client) Report(ctx context.Context, from, to time.Time, format string, w io.Writer) error {
	const operation = "read report"
	resp, err := c.send(ctx, operation, http.MethodGet, "/v1/report", url.Values{"from": {from.UTC().Format(time.RFC3339)}, "to": {to.UTC().Format(time.RFC3339)}, "format": {format}}, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return c.refusal(operation, resp, body)
	}
	if _, err := io.Copy(w, resp.Body); err != nil {
		return c.contact(ctx, operation, err)
	}
	return nil
}

// Events calls each with the events after an index as they come, until the
// context ends, each returns an error, or the contact is lost. gap says that
// events between are missing.
func (c *Client) Events(ctx context.Context, index uint64, gang string, each func(e view.Event, gap bool) error) error {
	q := url.Values{"index": {strconv.FormatUint(index, 10)}}
	if gang != "" {
		q.Set("gang", gang)
	}
	const operation = "read events"
	resp, err := c.send(ctx, operation, http.MethodGet, "/v1/events", q, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
		return c.refusal(operation, resp, body)
	}
	lines := bufio.NewReader(resp.Body) // without a limit to a line's length
	kind, gap := "", false
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return c.contact(ctx, operation, err)
		}
		line = strings.TrimRight(line, "\r\n")
		field, value, _ := strings.Cut(line, ": ")
		switch field {
		case "event":
			kind = value
		case "data":
			if kind == string(view.EventGap) {
				gap = true
				continue
			}
			var e view.Event
			if err := json.Unmarshal([]byte(value), &e); err != nil {
				return c.contact(ctx, operation, fmt.Errorf("the answer is not a planner's: %w", err))
			}
			if err := each(e, gap); err != nil {
				return err
			}
			gap = false
		}
	}
}
