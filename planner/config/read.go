package config

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"

	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/notify"
	"github.com/nomad-muster/muster/planner/view"
)

// File is one file of a configuration.
type File struct {
	Name    string
	Content []byte
}

// reader collects what is wrong while it reads.
type reader struct {
	faults  Faults
	sources map[string][]byte
	// readFile gets the files that the configuration names (tokens).
	readFile func(string) ([]byte, error)
	config   *Config
	classes  map[string]int
}

func (r *reader) fault(where hcl.Range, format string, args ...any) {
	r.faults = append(r.faults, at(where, format, args...))
}

// Load reads files and folders; no path at all is the default configuration.
// The error is a Faults where the configuration is at fault.
func Load(paths ...string) (*Config, error) {
	files, err := collect(paths)
	if err != nil {
		return nil, err
	}
	return Parse(files, os.ReadFile)
}

// collect reads the files that paths stand for.
func collect(paths []string) ([]File, error) {
	var files []File
	var faults []error
	add := func(name string) {
		content, err := os.ReadFile(name)
		if err != nil {
			faults = append(faults, fmt.Errorf("read configuration: %w", err))
			return
		}
		files = append(files, File{name, content})
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			faults = append(faults, fmt.Errorf("read configuration: %w", err))
			continue
		}
		if !info.IsDir() {
			add(path)
			continue
		}
		entries, err := os.ReadDir(path) // sorted by name
		if err != nil {
			faults = append(faults, fmt.Errorf("read configuration: %w", err))
			continue
		}
		before := len(files)
		for _, e := range entries {
			if ext := filepath.Ext(e.Name()); !e.IsDir() && (ext == ".hcl" || ext == ".json") {
				add(filepath.Join(path, e.Name()))
			}
		}
		if len(files) == before {
			faults = append(faults, fmt.Errorf("read configuration: folder %s holds no *.hcl or *.json file", path))
		}
	}
	return files, errors.Join(faults...)
}

// Parse reads files that are in memory; readFile gets the token files that
// they name.
func Parse(files []File, readFile func(string) ([]byte, error)) (*Config, error) {
	r := &reader{sources: map[string][]byte{}, readFile: readFile, config: base(), classes: map[string]int{}}
	parser := hclparse.NewParser()
	var bodies []hcl.Body
	for _, f := range files {
		if r.sources[f.Name] != nil {
			r.faults = append(r.faults, Fault{File: f.Name, Text: "this file is named twice"})
			continue
		}
		content := append(bytes.Clone(f.Content), '\n')
		r.sources[f.Name] = content
		parse := parser.ParseHCL
		if strings.HasSuffix(f.Name, ".json") {
			parse = parser.ParseJSON
		}
		file, diags := parse(content, f.Name)
		r.faults = append(r.faults, fromDiagnostics(diags)...)
		if file != nil && file.Body != nil {
			bodies = append(bodies, file.Body)
		}
		r.config.Files = append(r.config.Files, f.Name)
	}
	// What the parser could not read is missing from the bodies: to go on would
	// report as absent or unknown what only stands in the faulty part.
	if len(r.faults) == 0 {
		r.root(hcl.MergeBodies(bodies))
		r.tree()
	}
	if err := r.faults.err(); err != nil {
		return nil, err
	}
	return r.config, nil
}

func (r *reader) root(body hcl.Body) {
	c := r.config
	b := r.open(body, hcl.Range{Filename: "configuration"}, []string{"log_level", "log_json", "data_dir", "retention", "classes"},
		"nomad", "consul", "api", "token name", "webhook name", "level name", "scheduling", "limits", "cards", "queue name")
	c.LogLevel = b.choice("log_level", c.LogLevel, "debug", "info", "warn", "error")
	c.LogJSON = b.boolean("log_json", false)
	c.DataDir = b.text("data_dir", "")
	c.Retention = b.duration("retention", c.Retention)
	b.counts("classes", 0, func(name string, n int, _ hcl.Range) { r.classes[name] = n })
	if nested := b.only("nomad"); nested != nil {
		r.nomad(nested)
	}
	if nested := b.only("consul"); nested != nil {
		r.consul(nested)
	}
	if nested := b.only("api"); nested != nil {
		r.api(nested)
	}
	for _, nested := range b.each("token") {
		r.token(nested)
	}
	sort.SliceStable(c.Tokens, func(i, j int) bool { return c.Tokens[i].Name < c.Tokens[j].Name })
	for _, nested := range b.each("webhook") {
		r.webhook(nested)
	}
	for _, nested := range b.each("level") {
		r.level(nested)
	}
	if nested := b.only("scheduling"); nested != nil {
		r.scheduling(nested)
	}
	if nested := b.only("limits"); nested != nil {
		r.limits(nested)
	}
	if nested := b.only("cards"); nested != nil {
		r.cards(nested)
	}
	queues := b.each("queue")
	for _, nested := range queues {
		r.queue(nested)
	}
	if len(queues) == 0 {
		c.Core.Queues = Default().Core.Queues
	}
}

func (r *reader) nomad(nested *hcl.Block) {
	b := r.open(nested.Body, nested.DefRange, []string{"address", "region", "token", "token_file", "ca_cert", "client_cert", "client_key",
		"tls_server_name", "tls_skip_verify"})
	r.config.Nomad = Nomad{Address: b.text("address", ""), Region: b.text("region", ""), Token: b.text("token", ""), TokenFile: b.text("token_file", ""),
		CACert: b.text("ca_cert", ""), ClientCert: b.text("client_cert", ""), ClientKey: b.text("client_key", ""),
		TLSServerName: b.text("tls_server_name", ""), TLSSkipVerify: b.boolean("tls_skip_verify", false)}
	r.config.Nomad.Token = b.secret("token", "token_file")
	b.pair("client_cert", "client_key")
}

func (r *reader) consul(nested *hcl.Block) {
	b := r.open(nested.Body, nested.DefRange, []string{"disabled", "address", "token", "token_file", "namespace", "partition", "ca_cert", "client_cert",
		"client_key", "tls_server_name", "tls_skip_verify"})
	r.config.Consul = Consul{Disabled: b.boolean("disabled", false), Address: b.text("address", ""), TokenFile: b.text("token_file", ""),
		Namespace: b.text("namespace", ""), Partition: b.text("partition", ""), CACert: b.text("ca_cert", ""), ClientCert: b.text("client_cert", ""),
		ClientKey: b.text("client_key", ""), TLSServerName: b.text("tls_server_name", ""), TLSSkipVerify: b.boolean("tls_skip_verify", false)}
	r.config.Consul.Token = b.secret("token", "token_file")
	b.pair("client_cert", "client_key")
}

// secret is the text of one attribute or the content of the file that another
// names.
func (b *block) secret(inline, file string) string {
	secret, path := b.text(inline, ""), b.text(file, "")
	switch {
	case path == "":
		return secret
	case secret != "":
		b.fault(b.attrs[file].Range, "%s and %s are both set: one of them is enough", inline, file)
		return secret
	}
	content, err := b.readFile(path)
	if err != nil {
		b.fault(b.attrs[file].Expr.Range(), "%s: %v", file, err)
		return ""
	}
	secret = strings.TrimSpace(string(content))
	if secret == "" {
		b.fault(b.attrs[file].Expr.Range(), "%s: %s is empty", file, path)
	}
	return secret
}

// pair reports an attribute that needs the other.
func (b *block) pair(one, other string) {
	for _, names := range [][2]string{{one, other}, {other, one}} {
		if b.text(names[0], "") != "" && b.attrs[names[1]] == nil {
			b.fault(b.attrs[names[0]].Range, "%s needs %s beside it", names[0], names[1])
		}
	}
}

func (r *reader) api(nested *hcl.Block) {
	b := r.open(nested.Body, nested.DefRange, []string{"listen", "anonymous", "url", "plaintext"}, "tls")
	a := &r.config.API
	a.Listen = b.text("listen", a.Listen)
	a.URL = strings.TrimSuffix(b.text("url", ""), "/")
	a.Plaintext = b.boolean("plaintext", false)
	known := []string{"none"}
	for _, role := range view.Roles {
		known = append(known, string(role))
	}
	if role := b.choice("anonymous", "none", known...); role != "none" {
		a.Anonymous = view.Role(role)
	}
	if nested := b.only("tls"); nested != nil {
		t := r.open(nested.Body, nested.DefRange, []string{"cert_file", "key_file", "client_ca_file"})
		a.CertFile, a.KeyFile, a.ClientCA = t.text("cert_file", ""), t.text("key_file", ""), t.text("client_ca_file", "")
		if a.CertFile == "" || a.KeyFile == "" {
			t.fault(nested.DefRange, "tls needs cert_file and key_file")
		}
	}
	host, port, err := net.SplitHostPort(a.Listen)
	if n, bad := strconv.Atoi(port); err != nil || bad != nil || n < 0 || n > 65535 {
		b.fault(b.attrs["listen"].Expr.Range(), "listen = %q: must be host:port such as %q", a.Listen, DefaultListen)
		return
	}
	if !loopback(host) && a.CertFile == "" && !a.Plaintext {
		b.fault(b.attrs["listen"].Expr.Range(), "listen = %q: beyond this host tokens would travel in the clear: add a tls block, or plaintext = true where something else encrypts", a.Listen)
	}
}

// loopback tells whether a host is this machine alone.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func (r *reader) token(nested *hcl.Block) {
	b := r.open(nested.Body, nested.DefRange, []string{"secret", "secret_file", "role", "groups", "queues"})
	t := Token{Name: nested.Labels[0], Groups: b.texts("groups"), Queues: b.texts("queues")}
	var known []string
	for _, role := range view.Roles {
		known = append(known, string(role))
	}
	t.Role = view.Role(b.choice("role", string(view.RoleViewer), known...))
	secret := b.secret("secret", "secret_file")
	switch {
	case t.Name == "" || t.Name == "anonymous":
		b.fault(nested.DefRange, "a token cannot have the name %q", t.Name)
	case b.attrs["secret"] == nil && b.attrs["secret_file"] == nil:
		b.fault(nested.DefRange, "token %q has neither secret nor secret_file", t.Name)
	case secret != "" && len(secret) < 16:
		b.fault(nested.DefRange, "token %q has a secret of %d characters: at least 16 are needed", t.Name, len(secret))
	}
	t.Hash = sha256.Sum256([]byte(secret))
	for _, other := range r.config.Tokens {
		if other.Name == t.Name {
			b.fault(nested.DefRange, "a second token %q; the first is at %s", t.Name, place(r.config.at.of("token", t.Name)))
		} else if other.Hash == t.Hash && secret != "" {
			b.fault(nested.DefRange, "tokens %q and %q have the same secret", other.Name, t.Name)
		}
	}
	r.config.at.set(nested.DefRange, "token", t.Name)
	r.config.Tokens = append(r.config.Tokens, t)
}

func (r *reader) webhook(nested *hcl.Block) {
	b := r.open(nested.Body, nested.DefRange, []string{"url", "secret", "secret_file", "types", "queues"})
	w := notify.Webhook{Name: nested.Labels[0], URL: b.text("url", ""), Types: b.texts("types"), Queues: b.texts("queues")}
	if secret := b.secret("secret", "secret_file"); secret != "" {
		if w.Secret = []byte(secret); len(secret) < 16 {
			b.fault(nested.DefRange, "webhook %q has a secret of %d characters: at least 16 are needed", w.Name, len(secret))
		}
	}
	if !validName.MatchString(w.Name) {
		b.fault(nested.DefRange, "webhook %q: %s", w.Name, nameRule)
	}
	switch u, err := url.Parse(w.URL); {
	case b.attrs["url"] == nil:
		b.fault(nested.DefRange, "webhook %q has no url", w.Name)
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		b.fault(b.attrs["url"].Expr.Range(), "url = %q: must be an http or https address", w.URL)
	}
	for _, kind := range w.Types {
		if !slices.Contains(notify.Types(), kind) {
			b.fault(b.attrs["types"].Expr.Range(), "types: %q is none of %s", kind, strings.Join(notify.Types(), ", "))
		}
	}
	for _, other := range r.config.Webhooks {
		if other.Name == w.Name {
			b.fault(nested.DefRange, "a second webhook %q; the first is at %s", w.Name, place(r.config.at.of("webhook", w.Name)))
		}
	}
	r.config.at.set(nested.DefRange, "webhook", w.Name)
	r.config.Webhooks = append(r.config.Webhooks, w)
}

func (r *reader) level(nested *hcl.Block) {
	b := r.open(nested.Body, nested.DefRange, []string{"attribute"})
	name := nested.Labels[0]
	level := core.Level{Name: name, Attribute: b.attribute("attribute")}
	switch {
	case !validName.MatchString(name):
		b.fault(nested.DefRange, "level %q: %s", name, nameRule)
	case name == core.LevelNode || name == core.LevelLink:
		b.fault(nested.DefRange, "level %q is always there and cannot be defined", name)
	}
	for _, other := range r.config.Core.Levels {
		if other.Name == name {
			b.fault(nested.DefRange, "a second level %q; the first is at %s", name, place(r.config.at.of("level", name)))
		} else if other.Attribute == level.Attribute && level.Attribute != "" {
			b.fault(nested.DefRange, "levels %q and %q have the same attribute", other.Name, name)
		}
	}
	r.config.at.set(nested.DefRange, "level", name)
	r.config.Core.Levels = append(r.config.Core.Levels, level)
}

const nameRule = "a name has 1 to 128 letters, digits, dots, dashes and underscores"

var validName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

func (r *reader) scheduling(nested *hcl.Block) {
	b := r.open(nested.Body, nested.DefRange, []string{"reservations", "queue_reservations", "gather_after", "prefer_wait", "reserve_timeout", "packing", "max_attempts",
		"consolidate", "card_types", "preemption", "backfill_most", "lost_grace"})
	c := &r.config.Core
	c.Reservations = b.count("reservations", c.Reservations, 0)
	c.QueueReservations = b.count("queue_reservations", c.QueueReservations, 1)
	c.GatherAfter = b.duration("gather_after", c.GatherAfter)
	c.PreferWait = b.duration("prefer_wait", c.PreferWait)
	c.ReserveTimeout = b.duration("reserve_timeout", c.ReserveTimeout)
	c.Packing = core.Packing(b.choice("packing", string(c.Packing), string(core.PackAuto), string(core.PackBin), string(core.PackSpread)))
	c.MaxAttempts = b.count("max_attempts", c.MaxAttempts, 1)
	c.Consolidate = b.boolean("consolidate", c.Consolidate)
	c.Preemption = b.boolean("preemption", c.Preemption)
	c.BackfillMost = b.count("backfill_most", c.BackfillMost, 0)
	r.config.LostGrace = b.duration("lost_grace", r.config.LostGrace)
	if b.attrs["card_types"] != nil {
		if c.CardTypes = b.texts("card_types"); len(c.CardTypes) == 0 {
			b.fault(b.attrs["card_types"].Expr.Range(), "card_types must name at least one device type")
		}
	}
}

func (r *reader) cards(nested *hcl.Block) {
	b := r.open(nested.Body, nested.DefRange, []string{"on_quarantine", "grace"}, "breaker", "suspicion")
	c := &r.config.Cards
	c.OnQuarantine = b.choice("on_quarantine", c.OnQuarantine, "ask", "stop", "leave")
	c.Grace = b.duration("grace", c.Grace)
	if nested := b.only("breaker"); nested != nil {
		k := r.open(nested.Body, nested.DefRange, []string{"share", "within", "nodes"})
		percent := k.count("share", int(c.Breaker.Share*100), 0)
		if percent > 100 {
			k.fault(k.attrs["share"].Expr.Range(), "share = %d: is in percent of the cluster's cards, at most 100; 0 switches the breaker off", percent)
		}
		c.Breaker.Share = float64(percent) / 100
		c.Breaker.Within = k.duration("within", c.Breaker.Within)
		c.Breaker.Nodes = k.count("nodes", c.Breaker.Nodes, 1)
	}
	if nested := b.only("suspicion"); nested != nil {
		k := r.open(nested.Body, nested.DefRange, []string{"window", "suspect", "quarantine", "clean"})
		s := &c.Suspicion
		s.Window, s.Clean = k.duration("window", s.Window), k.duration("clean", s.Clean)
		s.Suspect, s.Quarantine = k.count("suspect", s.Suspect, 0), k.count("quarantine", s.Quarantine, 0)
	}
}

func (r *reader) limits(nested *hcl.Block) {
	b := r.open(nested.Body, nested.DefRange, nil, "user name", "domain level")
	users, domains := map[string]hcl.Range{}, map[string]hcl.Range{}
	for _, nested := range b.each("user") {
		u := r.open(nested.Body, nested.DefRange, []string{"max_cards", "max_gangs"})
		name := nested.Labels[0]
		if first, twice := users[name]; twice {
			u.fault(nested.DefRange, "a second limit of user %q; the first is at %s", name, place(first))
		}
		users[name] = nested.DefRange
		limit := core.UserLimit{User: name, MaxCards: u.count("max_cards", 0, 1), MaxGangs: u.count("max_gangs", 0, 1)}
		if name == "" || u.attrs["max_cards"] == nil && u.attrs["max_gangs"] == nil {
			u.fault(nested.DefRange, "the limit of user %q states neither max_cards nor max_gangs, or names nobody (\"*\" is each user)", name)
		}
		r.config.Core.UserLimits = append(r.config.Core.UserLimits, limit)
	}
	for _, nested := range b.each("domain") {
		d := r.open(nested.Body, nested.DefRange, []string{"max_gangs", "max_share"})
		level := nested.Labels[0]
		if first, twice := domains[level]; twice {
			d.fault(nested.DefRange, "a second limit of level %q; the first is at %s", level, place(first))
		}
		domains[level] = nested.DefRange
		limit := core.BlastLimit{Level: level, Gangs: d.count("max_gangs", 0, 1), Share: d.count("max_share", 0, 1)}
		if limit.Share > 100 {
			d.fault(d.attrs["max_share"].Expr.Range(), "max_share = %d: is in percent, at most 100", limit.Share)
		}
		if d.attrs["max_gangs"] == nil && d.attrs["max_share"] == nil {
			d.fault(nested.DefRange, "the limit of level %q states neither max_gangs nor max_share", level)
		}
		known := level == core.LevelNode
		for _, l := range r.config.Core.Levels {
			known = known || l.Name == level
		}
		if !known {
			d.fault(nested.DefRange, "no level %q is defined", level)
		}
		r.config.Core.Blast = append(r.config.Core.Blast, limit)
	}
}
