// Package nomad is the planner's only way to a Nomad cluster.
//
// Watcher keeps a picture of the cluster: it opens the event stream, lists
// everything, reconciles the two by modify index, follows the stream, and
// starts over whenever the stream ends, falls silent or turns out to have
// left something out. Client carries out what the planner decided; every call
// states whether a failed one may still have taken effect.
package nomad

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/nomad/picture"
)

// Options says how Nomad is reached. Empty fields are taken from the
// environment that Nomad's own client reads (NOMAD_ADDR, NOMAD_TOKEN, ...).
type Options struct {
	Address, Region, Token                       string
	CACert, ClientCert, ClientKey, TLSServerName string
	TLSSkipVerify                                bool
	// Timeout of a call that does not wait on purpose; 0: 30 s.
	Timeout time.Duration
	// Called, if set, sees every call's operation, length and error.
	Called func(operation string, took time.Duration, err error)
	// Before, if set, is asked before every call; its error takes the call's
	// place. Tests cut a planner's life short with it.
	Before func(operation string) error
}

// maxConnections to the agent: Nomad's agents cut a client address off at 100,
// and the stream and the signals of other programs on this host count too.
const maxConnections = 64

// Client speaks to one Nomad agent. Its methods may be called at once.
type Client struct {
	api     *api.Client
	timeout time.Duration
	called  func(string, time.Duration, error)
	before  func(string) error
	address string
	options Options
}

// WithToken is a client for the same agent that uses another token.
func (c *Client) WithToken(token string) (*Client, error) {
	o := c.options
	o.Token = token
	return NewClient(o)
}

// NewClient makes a Client; it does not call anybody yet.
func NewClient(o Options) (*Client, error) {
	cfg := api.DefaultConfig()
	set := func(into *string, value string) {
		if value != "" {
			*into = value
		}
	}
	set(&cfg.Address, o.Address)
	set(&cfg.Region, o.Region)
	set(&cfg.SecretID, o.Token)
	set(&cfg.TLSConfig.CACert, o.CACert)
	set(&cfg.TLSConfig.ClientCert, o.ClientCert)
	set(&cfg.TLSConfig.ClientKey, o.ClientKey)
	set(&cfg.TLSConfig.TLSServerName, o.TLSServerName)
	cfg.TLSConfig.Insecure = cfg.TLSConfig.Insecure || o.TLSSkipVerify
	cfg.Namespace = "" // every call names its own
	if !strings.HasPrefix(cfg.Address, "unix:") {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.ForceAttemptHTTP2 = false
		transport.TLSClientConfig = nil
		transport.MaxConnsPerHost, transport.MaxIdleConnsPerHost, transport.MaxIdleConns = maxConnections, maxConnections, maxConnections
		cfg.HttpClient = &http.Client{Transport: transport}
		if strings.HasPrefix(cfg.Address, "https:") {
			tlsClient, err := tlsTransport(cfg.TLSConfig)
			if err != nil {
				return nil, fmt.Errorf("set up TLS to Nomad at %s: %w", cfg.Address, err)
			}
			transport.TLSClientConfig = tlsClient
		}
	}
	c, err := api.NewClient(cfg)
	if err != nil {
		return nil, fmt.Errorf("set up client of Nomad at %s: %w", cfg.Address, err)
	}
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Called == nil {
		o.Called = func(string, time.Duration, error) {}
	}
	return &Client{api: c, timeout: o.Timeout, called: o.Called, before: o.Before, address: cfg.Address, options: o}, nil
}

// Address that the client calls.
func (c *Client) Address() string { return c.address }

// CallError is a call that did not succeed.
type CallError struct {
	Operation string
	Status    int // HTTP; 0: no answer
	Body      string
	Err       error
}

func (e *CallError) Error() string {
	if e.Body != "" {
		return fmt.Sprintf("%s: Nomad answers %d: %s", e.Operation, e.Status, e.Body)
	}
	return fmt.Sprintf("%s: %v", e.Operation, e.Err)
}

func (e *CallError) Unwrap() error { return e.Err }

// ErrConflict says that a job changed since the index that a write enforced;
// the write did not happen.
var ErrConflict = errors.New("changed meanwhile")

// NotFound tells whether an error is Nomad's 404.
func NotFound(err error) bool { return status(err) == http.StatusNotFound }

// Forbidden tells whether an error is a refused token.
func Forbidden(err error) bool { return status(err) == http.StatusForbidden }

// Unsupported tells whether an error says that the server has no such
// endpoint: an older Nomad.
func Unsupported(err error) bool {
	s := status(err)
	return s == http.StatusMethodNotAllowed || s == http.StatusNotImplemented || s == http.StatusNotFound && !strings.Contains(err.Error(), "not found")
}

// Refused tells whether the server said no for good, so that the call had no
// effect. Anything else (no answer, a server in trouble) may have had one.
func Refused(err error) bool {
	s := status(err)
	return errors.Is(err, ErrConflict) || s >= 400 && s < 500 && s != http.StatusRequestTimeout ||
		s == http.StatusInternalServerError && refusedText(err)
}

// refusedText recognises the refusals that Nomad answers with status 500.
func refusedText(err error) bool {
	var call *CallError
	if !errors.As(err, &call) {
		return false
	}
	for _, text := range []string{"validation error", "alidation failed", "ermission denied", "job priority must be", "Job priority must be", "already exists", "doesn't exist", "not found"} {
		if strings.Contains(call.Body, text) {
			return true
		}
	}
	return false
}

func status(err error) int {
	var call *CallError
	if errors.As(err, &call) {
		return call.Status
	}
	return 0
}

// do runs one call with the client's timeout and gives its error the
// operation and the server's words.
func (c *Client) do(ctx context.Context, operation string, f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	start := time.Now()
	var err error
	if c.before != nil {
		err = c.before(operation)
	}
	if err == nil {
		err = f(ctx)
	}
	if err != nil {
		call := &CallError{Operation: operation, Err: err}
		var answered api.UnexpectedResponseError
		if errors.As(err, &answered) {
			call.Status, call.Body = answered.StatusCode(), strings.TrimSpace(answered.Body())
		}
		if strings.Contains(call.Body, "Enforcing job modify index") {
			call.Err = ErrConflict
		}
		err = call
	}
	c.called(strings.SplitN(operation, " ", 3)[0], time.Since(start), err)
	return err
}

func query(ctx context.Context, namespace string) *api.QueryOptions {
	return (&api.QueryOptions{Namespace: namespace}).WithContext(ctx)
}

func write(ctx context.Context, namespace string) *api.WriteOptions {
	return (&api.WriteOptions{Namespace: namespace}).WithContext(ctx)
}

// get reads one endpoint's JSON and the index that it stands for.
func (c *Client) get(ctx context.Context, operation, path, namespace string, params map[string]string, out any) (index uint64, err error) {
	err = c.do(ctx, operation, func(ctx context.Context) error {
		q := query(ctx, namespace)
		q.Params = params
		meta, err := c.api.Raw().Query(path, out, q)
		if err == nil {
			index = meta.LastIndex
		}
		return err
	})
	return index, err
}

func jobPath(id string) string { return "/v1/job/" + url.PathEscape(id) }

// Job reads a job as it stands now.
func (c *Client) Job(ctx context.Context, namespace, id string) (json.RawMessage, error) {
	var raw json.RawMessage
	_, err := c.get(ctx, "read job "+namespace+"/"+id, jobPath(id), namespace, nil, &raw)
	return raw, err
}

// Versions reads all versions of a job that Nomad keeps, newest first.
func (c *Client) Versions(ctx context.Context, namespace, id string) ([]json.RawMessage, error) {
	var out struct{ Versions []json.RawMessage }
	_, err := c.get(ctx, "read versions of job "+namespace+"/"+id, jobPath(id)+"/versions", namespace, nil, &out)
	return out.Versions, err
}

// Submission reads what the user wrote for one version; nil: Nomad has it not.
func (c *Client) Submission(ctx context.Context, namespace, id string, version uint64) (json.RawMessage, error) {
	var raw json.RawMessage
	_, err := c.get(ctx, "read submission of job "+namespace+"/"+id, jobPath(id)+"/submission", namespace, map[string]string{"version": strconv.FormatUint(version, 10)}, &raw)
	if NotFound(err) {
		return nil, nil
	}
	return raw, err
}

// Registration is a job to write.
type Registration struct {
	Job json.RawMessage
	// EnforceIndex is the JobModifyIndex that the job must still have.
	EnforceIndex uint64
	Submission   json.RawMessage // nil: none
	// Fresh registers a job that must not exist yet: EnforceIndex is then 0 and
	// enforced as such.
	Fresh bool
}

// Registered is what Nomad answers.
type Registered struct {
	EvalID         string
	JobModifyIndex uint64
	Warnings       string
}

// Register writes a job. ErrConflict: it changed since EnforceIndex.
func (c *Client) Register(ctx context.Context, namespace, id string, r Registration) (Registered, error) {
	var out Registered
	body := map[string]any{"Job": r.Job, "EnforceIndex": r.EnforceIndex > 0 || r.Fresh, "JobModifyIndex": r.EnforceIndex}
	if len(r.Submission) > 0 {
		body["Submission"] = r.Submission
	}
	err := c.do(ctx, "register job "+namespace+"/"+id, func(ctx context.Context) error {
		_, err := c.api.Raw().Write("/v1/jobs", body, &out, write(ctx, namespace))
		return err
	})
	return out, err
}

// DryRun is what Nomad's scheduler would do with a job.
type DryRun struct {
	JobModifyIndex uint64
	FailedTGAllocs map[string]*picture.Unplaced
	Warnings       string
	Annotations    *struct {
		DesiredTGUpdates map[string]struct{ Place, Stop, Migrate, DestructiveUpdate, InPlaceUpdate, Preemptions int }
		PreemptedAllocs  []struct{ ID, JobID, Namespace string }
	}
}

// WhyNot is what the scheduler says of the first group without a place.
func (d DryRun) WhyNot() string { return picture.WhyNot(d.FailedTGAllocs) }

// Plan asks Nomad's scheduler what it would do; nothing changes.
func (c *Client) Plan(ctx context.Context, namespace, id string, job json.RawMessage) (DryRun, error) {
	var out DryRun
	err := c.do(ctx, "plan job "+namespace+"/"+id, func(ctx context.Context) error {
		_, err := c.api.Raw().Write(jobPath(id)+"/plan", map[string]any{"Job": job, "Diff": false}, &out, write(ctx, namespace))
		return err
	})
	return out, err
}

// Deregister stops a job, or removes it as well.
func (c *Client) Deregister(ctx context.Context, namespace, id string, purge bool) (Registered, error) {
	var out Registered
	err := c.do(ctx, "stop job "+namespace+"/"+id, func(ctx context.Context) error {
		_, err := c.api.Raw().Delete(jobPath(id)+"?purge="+strconv.FormatBool(purge), &out, write(ctx, namespace))
		return err
	})
	return out, err
}

// StopAlloc asks for the end of one allocation.
func (c *Client) StopAlloc(ctx context.Context, namespace, id string) error {
	return c.do(ctx, "stop allocation "+id, func(ctx context.Context) error {
		_, err := c.api.Raw().Write("/v1/allocation/"+id+"/stop", nil, new(json.RawMessage), write(ctx, namespace))
		return err
	})
}

// Signal sends a text to one task.
func (c *Client) Signal(ctx context.Context, namespace, alloc, task, text string) error {
	return c.do(ctx, "signal allocation "+alloc, func(ctx context.Context) error {
		return c.api.Allocations().Signal(&api.Allocation{ID: alloc}, query(ctx, namespace), task, text)
	})
}

// Tag puts a tag on a version of a job; where another version has it, it
// moves. Unsupported errors come from Nomad before 1.9.
func (c *Client) Tag(ctx context.Context, namespace, id, tag string, version uint64) error {
	put := func() error {
		return c.do(ctx, "tag job "+namespace+"/"+id, func(ctx context.Context) error {
			_, err := c.api.Raw().Write(jobPath(id)+"/versions/"+tag+"/tag", map[string]any{"Version": version,
				"Description": "as its user submitted it; kept by Muster while the gang lives"}, new(json.RawMessage), write(ctx, namespace))
			return err
		})
	}
	err := put()
	var call *CallError
	if errors.As(err, &call) && strings.Contains(call.Body, "already exists on a different version") {
		if err := c.Untag(ctx, namespace, id, tag); err != nil {
			return err
		}
		return put()
	}
	return err
}

// Untag removes a tag; one that is not there is no error.
func (c *Client) Untag(ctx context.Context, namespace, id, tag string) error {
	err := c.do(ctx, "untag job "+namespace+"/"+id, func(ctx context.Context) error {
		_, err := c.api.Raw().Delete(jobPath(id)+"/versions/"+tag+"/tag", new(json.RawMessage), write(ctx, namespace))
		return err
	})
	var call *CallError
	if errors.As(err, &call) && (call.Status == http.StatusNotFound || strings.Contains(call.Body, "not found")) {
		return nil
	}
	return err
}

// Parse turns HCL into a job's JSON, not canonicalized: what the user left out
// is null.
func (c *Client) Parse(ctx context.Context, hcl, variables string) (json.RawMessage, error) {
	var raw json.RawMessage
	err := c.do(ctx, "parse job", func(ctx context.Context) error {
		_, err := c.api.Raw().Write("/v1/jobs/parse", map[string]any{"JobHCL": hcl, "Variables": variables, "Canonicalize": false}, &raw, write(ctx, ""))
		return err
	})
	return raw, err
}

// Server is what the planner needs to know of the cluster's servers.
type Server struct {
	Version string // of the oldest server; "": not allowed to know
	Region  string
	// MaxPriority that a job may have.
	MaxPriority int
	// Evicts: the scheduler may evict others for a batch job, or it is not known
	// whether it may.
	Evicts bool
}

// Server reads the server's settings. A token that may not read the agent
// gets Nomad's defaults for what it cannot know.
func (c *Client) Server(ctx context.Context) (Server, error) {
	out := Server{Region: "global", MaxPriority: 100, Evicts: true}
	var scheduler struct {
		SchedulerConfig struct {
			PreemptionConfig *struct{ BatchSchedulerEnabled *bool }
		}
	}
	if _, err := c.get(ctx, "read scheduler configuration", "/v1/operator/scheduler/configuration", "", nil, &scheduler); err == nil {
		p := scheduler.SchedulerConfig.PreemptionConfig
		out.Evicts = p == nil || p.BatchSchedulerEnabled == nil || *p.BatchSchedulerEnabled
	}
	var self struct {
		Config map[string]any
		Member struct {
			Tags map[string]string
		}
	}
	_, err := c.get(ctx, "read agent", "/v1/agent/self", "", nil, &self)
	switch {
	case status(err) == http.StatusForbidden:
		var regions []string
		if _, err := c.get(ctx, "read regions", "/v1/regions", "", nil, &regions); err != nil {
			return out, err
		}
		if len(regions) == 1 {
			out.Region = regions[0]
		}
		return out, nil
	case err != nil:
		return out, err
	}
	if region, _ := self.Config["Region"].(string); region != "" {
		out.Region = region
	}
	out.Version = self.Member.Tags["build"]
	if version, ok := self.Config["Version"].(map[string]any); ok && out.Version == "" {
		out.Version, _ = version["Version"].(string)
	}
	if server, ok := self.Config["Server"].(map[string]any); ok {
		if n, ok := server["JobMaxPriority"].(float64); ok && n > 0 {
			out.MaxPriority = int(n)
		}
	}
	return out, nil
}

// HasTags tells whether the server knows tags of job versions (Nomad 1.9). A
// server whose version is not known is asked to try.
func (s Server) HasTags() bool {
	var major, minor int
	if _, err := fmt.Sscanf(s.Version, "%d.%d", &major, &minor); err != nil {
		return true
	}
	return major > 1 || major == 1 && minor >= 9
}

// Saved is one stored variable.
type Saved struct {
	Items map[string]string
	Index uint64
}

// SavedIDs lists the jobs that have a variable of the planner's.
func (c *Client) SavedIDs(ctx context.Context) ([]SavedRef, error) {
	var out []SavedRef
	_, err := c.get(ctx, "list variables", "/v1/vars", "*", map[string]string{"prefix": contract.VariablePrefix + "/gangs/"}, &out)
	return out, err
}

// SavedRef is where one variable is.
type SavedRef struct{ Namespace, Path string }

// Load reads a variable; nil: there is none.
func (c *Client) Load(ctx context.Context, namespace, path string) (*Saved, error) {
	var out struct {
		Items       map[string]string
		ModifyIndex uint64
	}
	_, err := c.get(ctx, "read variable "+path, "/v1/var/"+path, namespace, nil, &out)
	if NotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &Saved{Items: out.Items, Index: out.ModifyIndex}, nil
}

// Store writes a variable that must still be at index (0: must not exist), and
// gives its new index. ErrConflict: somebody else wrote it.
func (c *Client) Store(ctx context.Context, namespace, path string, items map[string]string, index uint64) (uint64, error) {
	var out struct{ ModifyIndex uint64 }
	err := c.do(ctx, "write variable "+path, func(ctx context.Context) error {
		_, err := c.api.Raw().Write("/v1/var/"+path+"?cas="+strconv.FormatUint(index, 10),
			map[string]any{"Namespace": namespace, "Path": path, "Items": items}, &out, write(ctx, namespace))
		return err
	})
	return out.ModifyIndex, casConflict(err)
}

// Forget deletes a variable that must still be at index.
func (c *Client) Forget(ctx context.Context, namespace, path string, index uint64) error {
	err := c.do(ctx, "delete variable "+path, func(ctx context.Context) error {
		_, err := c.api.Variables().CheckedDelete(path, index, write(ctx, namespace))
		var conflict api.ErrCASConflict
		if errors.As(err, &conflict) {
			return ErrConflict
		}
		return err
	})
	if NotFound(err) {
		return nil
	}
	return casConflict(err)
}

func casConflict(err error) error {
	var call *CallError
	if errors.As(err, &call) && call.Status == http.StatusConflict {
		call.Err = ErrConflict
	}
	return err
}

// Ping asks for the leader: the cheapest sign of a working server.
func (c *Client) Ping(ctx context.Context) error {
	_, err := c.get(ctx, "read leader", "/v1/status/leader", "", nil, new(string))
	return err
}

// stream opens the event stream of all namespaces from index on; its body ends
// with ctx.
func (c *Client) stream(ctx context.Context, index uint64) (io.ReadCloser, error) {
	q := query(ctx, "*")
	q.Params = map[string]string{"index": strconv.FormatUint(index, 10)}
	body, err := c.api.Raw().Response("/v1/event/stream?topic=Job&topic=Evaluation&topic=Allocation&topic=Node", q)
	if err != nil {
		call := &CallError{Operation: "open event stream", Err: err}
		var answered api.UnexpectedResponseError
		if errors.As(err, &answered) {
			call.Status, call.Body = answered.StatusCode(), string(bytes.TrimSpace([]byte(answered.Body())))
		}
		return nil, call
	}
	return body, nil
}
