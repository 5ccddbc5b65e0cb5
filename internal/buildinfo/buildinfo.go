// Package buildinfo says which build of Muster this is; all binaries share it.
package buildinfo

// Version is the release that this tree leads to. Nomad skips a plugin whose
// version does not parse, so it is never made of a commit id alone.
const Version = "0.1.0"

// commit is set by the linker.
var commit = ""

// String is the version with the commit it was built from, where known.
func String() string {
	if commit == "" {
		return Version
	}
	return Version + "+" + commit
}
