package httpapi

import (
	"crypto/sha256"
	"crypto/subtle"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/nomad-muster/muster/planner/config"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/submit"
	"github.com/nomad-muster/muster/planner/view"
)

// caller tells who a request comes from, or why it may not do what it wants.
func (s *Server) caller(req *http.Request, r *Route) (Caller, error) {
	cfg := s.Config()
	no := func(code view.Code, cause, hint string) error {
		return &view.Error{Code: code, Operation: r.operation(), Cause: cause, Hint: hint}
	}
	by := Caller{Name: "anonymous", NomadToken: req.Header.Get("X-Nomad-Token")}
	header := req.Header.Get("Authorization")
	scheme, secret, _ := strings.Cut(header, " ")
	bearer := strings.EqualFold(scheme, "Bearer")
	switch {
	case header != "" && !bearer:
		return by, no(view.CodeUnauthorized, "the Authorization header has no bearer token", `send "Authorization: Bearer <token>"`)
	case bearer:
		token, known := match(cfg.Tokens, strings.TrimSpace(secret))
		if !known {
			return by, no(view.CodeUnauthorized, "the token is not known", "MUSTER_TOKEN or -token must be one of the planner's token blocks")
		}
		by.Name, by.Role, by.Groups, by.Queues = token.Name, token.Role, token.Groups, token.Queues
	case cfg.API.Anonymous != view.RoleNone && local(req, cfg.API.URL):
		by.Role = cfg.API.Anonymous
	default:
		hint := "set MUSTER_TOKEN or -token"
		if len(cfg.Tokens) == 0 {
			hint = "the planner has no token block in its configuration, and its api block lets nobody in without one"
		}
		return by, no(view.CodeUnauthorized, "the request carries no token", hint)
	}
	if !by.Role.May(r.Role) {
		return by, no(view.CodeForbidden, "this needs the role "+string(r.Role)+", and "+by.Name+" has "+string(by.Role), "use another token")
	}
	return by, nil
}

// match finds the token of a secret in a time that does not depend on how much
// of it is right.
func match(tokens []config.Token, secret string) (config.Token, bool) {
	hash := sha256.Sum256([]byte(secret))
	found := -1
	for i := range tokens {
		if subtle.ConstantTimeCompare(hash[:], tokens[i].Hash[:]) == 1 {
			found = i
		}
	}
	if found < 0 {
		return config.Token{}, false
	}
	return tokens[found], true
}

// local tells whether a request comes from this machine and was meant for it:
// not handed on by a proxy, and not made by a page whose name was pointed at
// this machine (DNS rebinding).
func local(req *http.Request, own string) bool {
	host, _, err := net.SplitHostPort(req.RemoteAddr)
	if err != nil || !loopback(host) {
		return false
	}
	for _, h := range []string{"Forwarded", "X-Forwarded-For", "X-Real-Ip", "Via"} {
		if req.Header.Get(h) != "" {
			return false
		}
	}
	name := req.Host
	if h, _, err := net.SplitHostPort(name); err == nil {
		name = h
	}
	if u, err := url.Parse(own); err == nil && own != "" && u.Hostname() == name {
		return true
	}
	return loopback(strings.Trim(name, "[]"))
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// submitter is the caller as package submit knows one.
func (c Caller) submitter() submit.Submitter {
	return submit.Submitter{Name: c.Name, Groups: c.Groups, Queues: c.Queues, Any: c.Role.May(view.RoleOperator)}
}

// mayUse tells why a caller may not act on gangs of a queue; nil: it may.
func (s *Server) mayUse(q *request, id, queue string) error {
	queues := s.Config().Core.Queues
	i := slices.IndexFunc(queues, func(k core.Queue) bool { return string(k.Name) == queue })
	by := q.by.submitter()
	if i < 0 {
		// A queue that the configuration no longer has: only an operator's.
		if by.Any {
			return nil
		}
		return &view.Error{Code: view.CodeForbidden, Operation: q.route.operation(), Object: id, Cause: "its queue " + queue + " is not in the configuration",
			Hint: "an operator's token may do this"}
	}
	if why := submit.May(&queues[i], by); why != "" {
		return &view.Error{Code: view.CodeForbidden, Operation: q.route.operation(), Object: id, Cause: why, Hint: "use a token of the queue " + queue + ", or an operator's"}
	}
	return nil
}
