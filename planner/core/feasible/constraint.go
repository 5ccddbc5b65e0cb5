package feasible

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"

	"github.com/nomad-muster/muster/planner/core"
)

// Constraint tells whether a node satisfies one constraint (or affinity).
func Constraint(n *core.Node, c core.Constraint) bool {
	left, leftOK := resolve(n, c.Left)
	right, rightOK := resolve(n, c.Right)
	return holds(c.Operand, left, right, leftOK, rightOK)
}

// Value is what a target such as ${meta.rack} is on a node; text without a
// leading "${" stands for itself.
func Value(n *core.Node, target string) (string, bool) { return resolve(n, target) }

// Unique tells whether the value of a target may differ between nodes that
// are otherwise alike.
func Unique(target string) bool {
	return strings.HasPrefix(target, "${node.unique.") || strings.HasPrefix(target, "${attr.unique.") || strings.HasPrefix(target, "${meta.unique.")
}

func resolve(n *core.Node, target string) (string, bool) {
	if !strings.HasPrefix(target, "${") {
		return target, true
	}
	switch target {
	case "${node.unique.id}":
		return string(n.ID), true
	case "${node.unique.name}":
		return n.Name, true
	case "${node.datacenter}":
		return n.Datacenter, true
	case "${node.class}":
		return n.Class, true
	case "${node.pool}":
		return n.Pool, true
	}
	if name, ok := strings.CutPrefix(target, "${attr."); ok {
		v, ok := n.Attributes[strings.TrimSuffix(name, "}")]
		return v, ok
	}
	if name, ok := strings.CutPrefix(target, "${meta."); ok {
		v, ok := n.Meta[strings.TrimSuffix(name, "}")]
		return v, ok
	}
	return "", false
}

// holds applies an operator to two values, either of which may be missing. An
// operator that is not known never holds.
func holds(operand, left, right string, leftOK, rightOK bool) bool {
	both := leftOK && rightOK
	switch operand {
	case "distinct_hosts", "distinct_property":
		return true
	case "=", "==", "is":
		return both && left == right
	case "!=", "not":
		return left != right
	case "<", "<=", ">", ">=":
		return both && order(operand, left, right)
	case "is_set":
		return leftOK
	case "is_not_set":
		return !leftOK
	case "version":
		return both && versionMatch(left, right, false)
	case "semver":
		return both && versionMatch(left, right, true)
	case "regexp":
		return both && regexpMatch(left, right)
	case "set_contains", "set_contains_all":
		return both && setContains(left, right, true)
	case "set_contains_any":
		return both && setContains(left, right, false)
	}
	return false
}

// order compares as whole numbers where both are, else as numbers, else as
// text.
func order(operand, left, right string) bool {
	if a, err := strconv.ParseInt(left, 10, 64); err == nil {
		if b, err := strconv.ParseInt(right, 10, 64); err == nil {
			return ordered(operand, a, b)
		}
	}
	if a, err := strconv.ParseFloat(left, 64); err == nil {
		if b, err := strconv.ParseFloat(right, 64); err == nil {
			return ordered(operand, a, b)
		}
	}
	return ordered(operand, left, right)
}

func ordered[T cmp.Ordered](operand string, a, b T) bool {
	switch operand {
	case "<":
		return a < b
	case "<=":
		return a <= b
	case ">":
		return a > b
	case ">=":
		return a >= b
	}
	return false
}

// regexpMatch is unanchored; an expression that does not compile matches
// nothing.
func regexpMatch(text, expression string) bool {
	re, err := regexp.Compile(expression)
	return err == nil && re.MatchString(text)
}

// setContains asks whether the comma-separated set left has all, or any, of
// the items of right.
func setContains(left, right string, all bool) bool {
	have := strings.Split(left, ",")
	for i := range have {
		have[i] = strings.TrimSpace(have[i])
	}
	for _, want := range strings.Split(right, ",") {
		want = strings.TrimSpace(want)
		found := false
		for _, h := range have {
			if h == want {
				found = true
				break
			}
		}
		if found != all {
			return found
		}
	}
	return all
}
