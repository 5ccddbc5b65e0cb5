// Package config reads the planner's configuration: HCL files that say where
// Nomad and Consul are, who may use the API, and how the cluster is shared
// (levels, queues, limits).
//
// A configuration is read as a whole: the files named, and the *.hcl and
// *.json files of the folders named in the order of their names, form one
// body. What stands once may stand in any of them, and nothing may stand
// twice. All faults are reported at once, each with its file and line, and a
// configuration with a fault is not used at all: a start fails, a reload keeps
// what is in force (see Live).
//
// What is left out has the defaults below. Without any queue block there is
// one queue, "default", bound to Nomad's namespace "default", with no limit.
// Addresses, tokens and TLS files of Nomad and Consul that are left out come
// from NOMAD_* and CONSUL_* variables as in HashiCorp's own clients.
//
//	log_level = "info"                    # debug, info, warn, error
//	log_json  = false
//	data_dir  = "/var/lib/muster"         # default: nothing is kept on disk
//
//	nomad {
//	  address = "https://nomad.example:4646"
//	  region  = "global"
//	  token_file = "/etc/muster/nomad.token"
//	}
//
//	api {
//	  listen    = "127.0.0.1:4680"
//	  anonymous = "viewer"                # of requests from this host without a token; default: none
//	}
//
//	token "alice" {
//	  secret_file = "/etc/muster/alice.token"
//	  role        = "submitter"           # viewer, submitter, operator
//	  groups      = ["team-b"]
//	  queues      = ["research"]          # default: all that admit alice or team-b
//	}
//
//	webhook "workflow" {                  # told of stages, evictions, cards: docs/events.md
//	  url         = "https://airflow.example/muster"
//	  secret_file = "/etc/muster/workflow.secret"
//	  types       = ["muster.gang.stage"] # default: all
//	  queues      = ["research"]          # default: all
//	}
//
//	level "spine" { attribute = "meta.spine" }   # outermost first
//	level "leaf"  { attribute = "meta.leaf" }
//
//	classes = { scavenger = 10, research = 50, serving = 90 }
//
//	queue "research" {
//	  guaranteed = { "NVIDIA H100 80GB HBM3" = 64 }
//	  class      = "research"
//	  namespaces = ["research"]
//	}
//
// docs/configuration.md has every block and attribute.
package config

import (
	"time"

	"github.com/nomad-muster/muster/planner/cards"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/notify"
	"github.com/nomad-muster/muster/planner/view"
)

// Config is a whole configuration without faults, defaults filled in.
type Config struct {
	LogLevel string // debug, info, warn, error
	LogJSON  bool
	DataDir  string // "": nothing is kept on disk
	Nomad    Nomad
	Consul   Consul
	API      API
	Tokens   []Token          // ordered by name
	Webhooks []notify.Webhook // in the order of the files
	Core     core.Config
	Cards    Cards
	// LostGrace is how long Nomad may call a member's node disconnected before
	// the planner gives the member up.
	LostGrace time.Duration
	// Retention is how long gangs that are over stay visible.
	Retention time.Duration
	// Files that were read; empty: all is default.
	Files []string

	at places
}

// Nomad is how the planner reaches Nomad. Empty fields leave the matter to the
// NOMAD_* variables.
type Nomad struct {
	Address       string
	Region        string
	Token         string
	TokenFile     string // Token is its content; read again at each reload
	CACert        string // file
	ClientCert    string // file
	ClientKey     string // file
	TLSServerName string
	TLSSkipVerify bool
}

// Consul is how the planner reaches Consul. Empty fields leave the matter to
// the CONSUL_* variables.
type Consul struct {
	// Disabled: members get their record through Nomad's signals.
	Disabled      bool
	Address       string
	Token         string
	TokenFile     string
	Namespace     string
	Partition     string
	CACert        string
	ClientCert    string
	ClientKey     string
	TLSServerName string
	TLSSkipVerify bool
}

// API is how the planner serves its own.
type API struct {
	Listen    string    // host:port
	Anonymous view.Role // of requests from loopback without a token
	URL       string    // under which people reach it; "": made of Listen
	CertFile  string    // TLS where set
	KeyFile   string
	// ClientCA: clients must show a certificate that this file's authorities
	// signed, beside their token.
	ClientCA  string
	Plaintext bool // beyond loopback without TLS, on purpose
}

// Base is the API's address for people.
func (a API) Base() string {
	switch {
	case a.URL != "":
		return a.URL
	case a.CertFile != "":
		return "https://" + a.Listen
	}
	return "http://" + a.Listen
}

// Cards is how faults of cards are taken.
type Cards struct {
	// Settings of the breaker and of suspicion; its CardTypes are those of Core.
	cards.Settings
	// OnQuarantine says what becomes of a gang that runs on a card which is
	// quarantined: ask (save and leave within Grace), stop, or leave.
	OnQuarantine string
	Grace        time.Duration
}

// Token lets its bearer use the API.
type Token struct {
	Name   string
	Role   view.Role
	Groups []string
	// Queues that a submitter may use; empty: those that admit its name or one
	// of its groups.
	Queues []string
	// Hash is the SHA-256 of the secret; the secret itself is not kept.
	Hash [32]byte
}

// Defaults of what an operator leaves out, beside core.Defaults.
const (
	DefaultListen    = "127.0.0.1:4680"
	DefaultLostGrace = 5 * time.Minute
	DefaultCardGrace = 2 * time.Minute
	DefaultRetention = 24 * time.Hour
	DefaultQueueName = "default"
)

// Default is the configuration without any file.
func Default() *Config {
	c := base()
	c.Core.Queues = []core.Queue{core.DefaultQueue(DefaultQueueName)}
	c.Core.Queues[0].Namespaces = []string{"default"}
	return c
}

func base() *Config {
	return &Config{LogLevel: "info", API: API{Listen: DefaultListen}, Cards: Cards{Settings: cards.DefaultSettings(), OnQuarantine: "ask", Grace: DefaultCardGrace}, LostGrace: DefaultLostGrace, Retention: DefaultRetention, Core: core.Defaults(), at: places{}}
}
