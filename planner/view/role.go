package view

// Role is what a token may do. Viewer, submitter and operator may each do all of
// what those before it may; a reporter, as the nodes' device plugins are, may
// only report cards.
type Role string

// Roles.
const (
	RoleNone      Role = ""          // nothing
	RoleReporter  Role = "reporter"  // report the cards of nodes, and nothing else
	RoleViewer    Role = "viewer"    // look
	RoleSubmitter Role = "submitter" // submit to and stop in its own queues
	RoleOperator  Role = "operator"  // everything
)

// Roles are all that grant something, the least first.
var Roles = []Role{RoleReporter, RoleViewer, RoleSubmitter, RoleOperator}

// May tells whether the role includes another.
func (r Role) May(needs Role) bool {
	if needs == RoleReporter {
		return r == RoleReporter || r == RoleOperator
	}
	rank := map[Role]int{RoleNone: 0, RoleReporter: 0, RoleViewer: 1, RoleSubmitter: 2, RoleOperator: 3}
	has, known := rank[r]
	return known && has >= rank[needs]
}
