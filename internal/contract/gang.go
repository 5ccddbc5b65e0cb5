package contract

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"net/url"
	"strings"
)

// GangID names a gang: one Nomad job in one namespace of one region.
type GangID struct {
	Region    string `json:"region"`
	Namespace string `json:"namespace"`
	Job       string `json:"job"`
}

// String is namespace/job, the form that people read; the region is left out
// since one planner serves one region.
func (g GangID) String() string { return g.Namespace + "/" + g.Job }

// key is the GangID as one path of a key-value store. Job ids may hold any
// character, so each part is escaped.
func (g GangID) key() string {
	return url.PathEscape(g.Region) + "/" + url.PathEscape(g.Namespace) + "/" + url.PathEscape(g.Job)
}

// RecordKey is the Consul key of the gang's record. One key per gang: the
// record inside carries the attempt, and a member that an attempt does not
// list ignores it.
func (g GangID) RecordKey() string { return ConsulPrefix + "/gangs/" + g.key() + "/record" }

// AttemptPrefix is the Consul folder of everything else that belongs to one
// attempt; deleting it removes the attempt.
func (g GangID) AttemptPrefix(attempt int) string {
	return fmt.Sprintf("%s/gangs/%s/attempts/%d/", ConsulPrefix, g.key(), attempt)
}

// ReportKey is the Consul key of one member's report.
func (g GangID) ReportKey(attempt int, allocID, task string) string {
	return g.AttemptPrefix(attempt) + "members/" + allocID + "." + url.PathEscape(task)
}

// EndpointKey is the Consul key under which the host of a world's store
// publishes another endpoint than the record's, because that port was taken.
func (g GangID) EndpointKey(attempt int, world string) string {
	return g.AttemptPrefix(attempt) + "endpoints/" + url.PathEscape(world)
}

// VariablePath is the path of the planner's Nomad variable for a job; the
// variable lives in the job's namespace. Paths of variables allow few
// characters, so the parts are encoded.
func (g GangID) VariablePath() string {
	return VariablePrefix + "/gangs/" + variableName(g.Job)
}

// variableName keeps names that are allowed in a variable's path and encodes
// the others, with a mark so that no two ids share a name. A path has at most
// 128 characters, of which the prefix and the names of parts need 40: of what is
// longer then, the name is a hash (the variable itself holds the id).
func variableName(id string) string {
	plain := id != "" && len(id) <= 64 && !strings.HasPrefix(id, "x-") && !strings.HasPrefix(id, "h-")
	for _, r := range id {
		plain = plain && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	}
	if plain {
		return id
	}
	if encoded := "x-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString([]byte(id))); len(encoded) <= 80 {
		return encoded
	}
	return fmt.Sprintf("h-%x", sha256.Sum256([]byte(id)))
}

// RunID is the rendezvous id of one world of one attempt: it can never be
// shared by two gangs, two attempts or two worlds. It has no slash, since
// launchers name folders after it.
func (g GangID) RunID(attempt int, world string) string {
	parts := []string{g.Region, g.Namespace, g.Job, world}
	for i, p := range parts {
		parts[i] = strings.ReplaceAll(url.PathEscape(p), ".", "%2E")
	}
	return strings.Join(parts, ".") + "." + fmt.Sprint(attempt)
}
