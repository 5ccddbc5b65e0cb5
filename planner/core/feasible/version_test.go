package feasible_test

import (
	"strings"
	"testing"

	"github.com/hashicorp/go-version"
	"pgregory.net/rapid"

	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/nomad-muster/muster/planner/core"
	"github.com/nomad-muster/muster/planner/core/feasible"
)

func matches(operand, have, want string) bool {
	n := &core.Node{Attributes: map[string]string{"v": have}}
	return feasible.Constraint(n, core.Constraint{Left: "${attr.v}", Operand: operand, Right: want})
}

// library is what the library that Nomad uses answers.
func library(have, want string) bool {
	v, err := version.NewVersion(have)
	if err != nil {
		return false
	}
	c, err := version.NewConstraint(want)
	return err == nil && c.Check(v)
}

// Versions are compared as the library that Nomad uses for them compares them.
func TestVersionsAsTheLibrary(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		number := func(name string) string {
			out := rapid.SampledFrom([]string{"", "", "v"}).Draw(t, "prefix")
			for i := range rapid.IntRange(1, 4).Draw(t, name) {
				if i > 0 {
					out += "."
				}
				out += rapid.SampledFrom([]string{"0", "1", "2", "10", "007"}).Draw(t, "segment")
			}
			return out + rapid.SampledFrom([]string{"", "", "", "-rc1", "-rc2", "-rc.1", "-alpha", "beta1", "-1", "+meta", "-rc1+meta", "-", "~1"}).Draw(t, "suffix")
		}
		have := number("segments")
		var list []string
		for range rapid.IntRange(1, 2).Draw(t, "constraints") {
			list = append(list, rapid.SampledFrom([]string{"", "=", "!=", ">", "<", ">=", "<=", "~>", "=>", "=="}).Draw(t, "operator")+rapid.SampledFrom([]string{"", " ", "  "}).Draw(t, "space")+number("bound"))
		}
		want := strings.Join(list, rapid.SampledFrom([]string{",", ", "}).Draw(t, "comma"))
		if got, lib := matches("version", have, want), library(have, want); got != lib {
			t.Fatalf("%q against %q: %v, the library says %v", have, want, got, lib)
		}
	})
}

func FuzzVersion(f *testing.F) {
	for _, seed := range [][2]string{{"1.2.3", ">= 1.0, < 2"}, {"1.2.3-rc1", "~> 1.2"}, {"v0", ""}, {"1", "1."}, {"1.2.3+x", "=1.2.3"}, {"99999999999999999999", ">1"}, {"1.0-", "1.0"}} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, have, want string) {
		if got, lib := matches("version", have, want), library(have, want); got != lib && have != "" && !strings.HasPrefix(have, "${") && !strings.HasPrefix(want, "${") {
			t.Errorf("%q against %q: %v, the library says %v", have, want, got, lib)
		}
		matches("semver", have, want)
		matches("regexp", have, want)
	})
}

func FuzzAttribute(f *testing.F) {
	for _, seed := range []string{"80 GiB", "1e9999 W", "inf", "NaN GHz", "0x1p-2", "true", "", "-0"} {
		f.Add(seed, seed)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		x, y := feasible.ParseAttribute(a), feasible.ParseAttribute(b)
		v, ok := feasible.Compare(x, y)
		w, back := feasible.Compare(y, x)
		if ok != back || ok && x.Bool == nil && v != -w {
			t.Errorf("%q and %q compare as %d, %v one way and %d, %v the other", a, b, v, ok, w, back)
		}
	})
}
