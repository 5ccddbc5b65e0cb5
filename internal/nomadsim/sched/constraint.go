package sched

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"

	goversion "github.com/hashicorp/go-version"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// Operators of constraints that are not plain comparisons.
const (
	opDistinctHosts    = "distinct_hosts"
	opDistinctProperty = "distinct_property"
	opRegexp           = "regexp"
	opVersion          = "version"
	opSemver           = "semver"
	opSetContains      = "set_contains"
	opSetContainsAll   = "set_contains_all"
	opSetContainsAny   = "set_contains_any"
	opIsSet            = "is_set"
	opIsNotSet         = "is_not_set"
)

// matcher compares values; it keeps what it has parsed, since the same text is compared with thousands of nodes.
type matcher struct {
	sets     map[string]map[string]bool
	regexps  map[string]*regexp.Regexp // nil: does not compile
	versions map[string]goversion.Constraints
}

func newMatcher() *matcher {
	return &matcher{sets: map[string]map[string]bool{}, regexps: map[string]*regexp.Regexp{}, versions: map[string]goversion.Constraints{}}
}

// resolve gives the value of a target on a node. Text that is no interpolation is its own value.
func resolve(target string, n *wire.Node) (string, bool) {
	if !strings.HasPrefix(target, "${") {
		return target, true
	}
	switch name := strings.TrimSuffix(target[2:], "}"); name {
	case "node.unique.id":
		return n.ID, true
	case "node.datacenter":
		return n.Datacenter, true
	case "node.unique.name":
		return n.Name, true
	case "node.class":
		return n.NodeClass, true
	case "node.pool":
		return n.NodePool, true
	default:
		if k, ok := strings.CutPrefix(name, "attr."); ok {
			v, ok := n.Attributes[k]
			return v, ok
		}
		if k, ok := strings.CutPrefix(name, "meta."); ok {
			v, ok := n.Meta[k]
			return v, ok
		}
		return "", false
	}
}

// constraint says whether a node meets a constraint that can be judged by the node alone.
func (m *matcher) constraint(c *wire.Constraint, n *wire.Node) bool {
	l, lok := resolve(c.LTarget, n)
	r, rok := resolve(c.RTarget, n)
	return m.check(c.Operand, l, r, lok, rok)
}

func (m *matcher) check(op, l, r string, lok, rok bool) bool {
	switch op {
	case opDistinctHosts, opDistinctProperty:
		return true // judged with the other allocations in view
	case "!=", "not":
		return l != r
	case opIsSet:
		return lok
	case opIsNotSet:
		return !lok
	}
	if !lok || !rok {
		return false
	}
	switch op {
	case "=", "==", "is":
		return l == r
	case "<", "<=", ">", ">=":
		return ordered(op, order(l, r))
	case opVersion, opSemver:
		return m.version(op, l, r)
	case opRegexp:
		return m.regexp(l, r)
	case opSetContains, opSetContainsAll:
		have := m.set(l)
		for v := range m.set(r) {
			if !have[v] {
				return false
			}
		}
		return true
	case opSetContainsAny:
		have, want := m.set(l), m.set(r)
		if len(want) < len(have) {
			have, want = want, have
		}
		for v := range have {
			if want[v] {
				return true
			}
		}
	}
	return false
}

// order compares as integers, else as numbers, else as text.
func order(l, r string) int {
	if a, err := strconv.ParseInt(l, 10, 64); err == nil {
		if b, err := strconv.ParseInt(r, 10, 64); err == nil {
			return cmp.Compare(a, b)
		}
	}
	if a, err := strconv.ParseFloat(l, 64); err == nil {
		if b, err := strconv.ParseFloat(r, 64); err == nil {
			return cmp.Compare(a, b)
		}
	}
	return cmp.Compare(l, r)
}

func ordered(op string, c int) bool {
	switch op {
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	default:
		return c >= 0
	}
}

func (m *matcher) set(list string) map[string]bool {
	if s, ok := m.sets[list]; ok {
		return s
	}
	s := map[string]bool{}
	for v := range strings.SplitSeq(list, ",") {
		s[strings.TrimSpace(v)] = true
	}
	m.sets[list] = s
	return s
}

func (m *matcher) regexp(l, r string) bool {
	re, ok := m.regexps[r]
	if !ok {
		re, _ = regexp.Compile(r)
		m.regexps[r] = re
	}
	return re != nil && re.MatchString(l)
}

func (m *matcher) version(op, l, r string) bool {
	v, err := goversion.NewVersion(l)
	if op == opSemver {
		v, err = goversion.NewSemver(l)
	}
	if err != nil {
		return false
	}
	key := op + " " + r
	c, ok := m.versions[key]
	if !ok {
		c, _ = goversion.NewConstraint(r)
		m.versions[key] = c
	}
	if c == nil {
		return false
	}
	if op == opSemver {
		return checkSemver(v, c)
	}
	return c.Check(v)
}

// checkSemver compares by precedence alone: a prerelease is below its release, and meets a range it lies in.
func checkSemver(v *goversion.Version, c goversion.Constraints) bool {
	for _, one := range c {
		text := strings.TrimSpace(one.String())
		op := strings.TrimRight(text[:len(text)-len(strings.TrimLeft(text, "<>=!~"))], " ")
		w, err := goversion.NewSemver(strings.TrimSpace(strings.TrimLeft(text, "<>=!~ ")))
		if err != nil {
			return false
		}
		switch c := v.Compare(w); op {
		case "", "=":
			if c != 0 {
				return false
			}
		case "!=":
			if c == 0 {
				return false
			}
		case "<", "<=", ">", ">=":
			if !ordered(op, c) {
				return false
			}
		default: // ~> has no meaning for semantic versions
			return false
		}
	}
	return true
}

// escapes says whether a constraint tells nodes of one class apart, so that the class cannot stand for the node.
func escapes(c *wire.Constraint) bool {
	for _, t := range []string{c.LTarget, c.RTarget} {
		for _, p := range []string{"${unique.", "${node.unique.", "${attr.unique.", "${meta.unique."} {
			if strings.HasPrefix(t, p) {
				return true
			}
		}
	}
	return false
}

func anyEscapes(list []*wire.Constraint) bool {
	for _, c := range list {
		if escapes(c) {
			return true
		}
	}
	return false
}
