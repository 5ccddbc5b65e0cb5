package feasible

import (
	"cmp"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// version is a parsed version number. Segments are padded to three.
type version struct {
	segments []int64
	stated   int // segments that were written
	pre      string
}

// Versions are written as Nomad accepts them; a semantic version needs a
// hyphen before its pre-release.
var (
	versionSyntax = regexp.MustCompile(`^v?([0-9]+(?:\.[0-9]+)*)(?:-?([0-9A-Za-z\-~]+(?:\.[0-9A-Za-z\-~]+)*))?(?:\+[0-9A-Za-z\-~.]+)?$`)
	semverSyntax  = regexp.MustCompile(`^v?([0-9]+(?:\.[0-9]+)*)(?:-([0-9A-Za-z\-~]+(?:\.[0-9A-Za-z\-~]+)*))?(?:\+[0-9A-Za-z\-~.]+)?$`)
	operatorText  = regexp.MustCompile(`^\s*(=|!=|>=|<=|>|<|~>|)\s*(\S+)\s*$`)
)

func parseVersion(text string, strict bool) (version, bool) {
	syntax := versionSyntax
	if strict {
		syntax = semverSyntax
	}
	m := syntax.FindStringSubmatch(text)
	if m == nil {
		return version{}, false
	}
	v := version{pre: m[2]}
	for _, s := range strings.Split(m[1], ".") {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return version{}, false
		}
		v.segments = append(v.segments, n)
	}
	v.stated = len(v.segments)
	for len(v.segments) < 3 {
		v.segments = append(v.segments, 0)
	}
	return v, true
}

// versionMatch asks whether a version satisfies all of a comma-separated list
// of constraints. Under "version" a pre-release satisfies an ordering only
// where the constraint names a pre-release of the same number; under "semver"
// pre-releases are ordered like any version and "~>" is not known.
func versionMatch(text, constraints string, semver bool) bool {
	v, ok := parseVersion(text, false)
	if !ok {
		return false
	}
	for _, single := range strings.Split(constraints, ",") {
		m := operatorText.FindStringSubmatch(single)
		if m == nil || semver && m[1] == "~>" {
			return false
		}
		c, ok := parseVersion(m[2], semver)
		if !ok || !v.satisfies(m[1], c, semver) {
			return false
		}
	}
	return true
}

func (v version) satisfies(operator string, c version, semver bool) bool {
	order := v.compare(c)
	switch operator {
	case "", "=":
		return order == 0
	case "!=":
		return order != 0
	}
	if !semver && v.pre != "" && (c.pre == "" || !slices.Equal(v.segments, c.segments)) {
		return false
	}
	switch operator {
	case ">":
		return order > 0
	case "<":
		return order < 0
	case ">=":
		return order >= 0
	case "<=":
		return order <= 0
	case "~>":
		if c.pre != "" && v.pre == "" || order < 0 || len(c.segments) > len(v.segments) {
			return false
		}
		// All segments but the last stated one are equal, and that one is at
		// least as large.
		return slices.Equal(v.segments[:c.stated-1], c.segments[:c.stated-1]) && v.segments[c.stated-1] >= c.segments[c.stated-1]
	}
	return false
}

func (v version) compare(o version) int {
	for i := range max(len(v.segments), len(o.segments)) {
		var a, b int64
		if i < len(v.segments) {
			a = v.segments[i]
		}
		if i < len(o.segments) {
			b = o.segments[i]
		}
		if a != b {
			return cmp.Compare(a, b)
		}
	}
	switch {
	case len(v.segments) != len(o.segments): // Nomad's library looks no further then
		return 0
	case v.pre == o.pre:
		return 0
	case v.pre == "":
		return 1
	case o.pre == "":
		return -1
	}
	a, b := strings.Split(v.pre, "."), strings.Split(o.pre, ".")
	for i := range max(len(a), len(b)) {
		if i >= len(a) {
			return -1
		}
		if i >= len(b) {
			return 1
		}
		if c := comparePart(a[i], b[i]); c != 0 {
			return c
		}
	}
	return 0
}

// comparePart orders one part of two pre-releases: numbers before text.
func comparePart(a, b string) int {
	x, xErr := strconv.ParseInt(a, 10, 64)
	y, yErr := strconv.ParseInt(b, 10, 64)
	switch {
	case xErr == nil && yErr == nil:
		return cmp.Compare(x, y)
	case xErr == nil:
		return -1
	case yErr == nil:
		return 1
	}
	return cmp.Compare(a, b)
}
