package sched

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

func TestConstraints(t *testing.T) {
	t.Parallel()
	node := &wire.Node{ID: "0000-1", Name: "n1", Datacenter: "dc1", NodePool: "gpu", NodeClass: "big",
		Attributes: map[string]string{"kernel.name": "linux", "cpu.numcores": "10", "version": "1.9.2", "pre": "2.0.0-dev", "list": "a, b,c"},
		Meta:       map[string]string{"leaf": "leaf1", "empty": ""}}
	cases := []struct {
		l, op, r string
		want     bool
	}{
		{"${attr.kernel.name}", "=", "linux", true},
		{"${attr.kernel.name}", "==", "linux", true},
		{"${attr.kernel.name}", "is", "linux", true},
		{"${attr.kernel.name}", "=", "windows", false},
		{"${attr.none}", "=", "", false}, // what is not there equals nothing
		{"${attr.kernel.name}", "!=", "windows", true},
		{"${attr.kernel.name}", "not", "linux", false},
		{"${attr.none}", "!=", "x", true}, // and differs from everything
		{"${meta.empty}", "=", "", true},
		{"${attr.cpu.numcores}", ">", "9", true}, // as numbers, not as text
		{"${attr.cpu.numcores}", ">=", "10", true},
		{"${attr.cpu.numcores}", "<", "9", false},
		{"${attr.cpu.numcores}", "<=", "10.5", true},
		{"${attr.kernel.name}", "<", "m", true},
		{"${attr.none}", "<", "m", false},
		{"${attr.kernel.name}", "regexp", "^lin", true},
		{"${attr.kernel.name}", "regexp", "(", false},
		{"${attr.list}", "set_contains", "a,c", true},
		{"${attr.list}", "set_contains", "a,d", false},
		{"${attr.list}", "set_contains_all", "b", true},
		{"${attr.list}", "set_contains_any", "d,b", true},
		{"${attr.list}", "set_contains_any", "d,e", false},
		{"${node.unique.id}", "set_contains_any", "0000-2,0000-1", true},
		{"${attr.version}", "version", ">= 1.9, < 2.0", true},
		{"${attr.version}", "version", "~> 1.8", true},
		{"${attr.version}", "version", "> 1.9.2", false},
		{"${attr.pre}", "version", ">= 1.0", false}, // a prerelease meets no range but its own
		{"${attr.pre}", "semver", ">= 1.0.0", true},
		{"${attr.pre}", "semver", ">= 2.0.0", false},
		{"${attr.kernel.name}", "version", ">= 1", false},
		{"${attr.version}", "version", "rubbish", false},
		{"${attr.kernel.name}", "is_set", "", true},
		{"${attr.none}", "is_set", "", false},
		{"${attr.none}", "is_not_set", "", true},
		{"${node.datacenter}", "=", "dc1", true},
		{"${node.pool}", "=", "gpu", true},
		{"${node.class}", "=", "big", true},
		{"${node.unique.name}", "=", "n1", true},
		{"${meta.leaf}", "=", "leaf1", true},
		{"leaf1", "=", "${meta.leaf}", true},
		{"${unknown.thing}", "=", "${unknown.thing}", false},
		{"${attr.kernel.name}", "bogus", "linux", false},
	}
	m := newMatcher()
	for _, c := range cases {
		t.Run(c.l+" "+c.op+" "+c.r, func(t *testing.T) {
			must.Eq(t, c.want, m.constraint(&wire.Constraint{LTarget: c.l, RTarget: c.r, Operand: c.op}, node))
		})
	}
}

func TestWhatEscapesClasses(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]bool{
		"${node.unique.id}": true, "${node.unique.name}": true, "${attr.unique.hostname}": true, "${meta.unique.rack}": true,
		"${meta.leaf}": false, "${attr.kernel.name}": false, "${node.class}": false, "plain": false,
	} {
		must.Eq(t, want, escapes(&wire.Constraint{LTarget: target}), must.Sprint(target))
		must.Eq(t, want, escapes(&wire.Constraint{RTarget: target}), must.Sprint(target))
	}
}
