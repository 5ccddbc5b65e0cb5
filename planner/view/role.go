package view

// Role is what a token may do; each may do all of what those before it may.
type Role string

// Roles.
const (
	RoleNone      Role = ""          // nothing
	RoleViewer    Role = "viewer"    // look
	RoleSubmitter Role = "submitter" // submit to and stop in its own queues
	RoleOperator  Role = "operator"  // everything
)

// Roles are all that grant something, the least first.
var Roles = []Role{RoleViewer, RoleSubmitter, RoleOperator}

// May tells whether the role includes another.
func (r Role) May(needs Role) bool {
	rank := map[Role]int{RoleNone: 0, RoleViewer: 1, RoleSubmitter: 2, RoleOperator: 3}
	has, known := rank[r]
	return known && has >= rank[needs]
}
