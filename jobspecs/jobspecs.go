// Package jobspecs holds examples of gangs, which run as they are on a cluster of
// four nodes with four cards each and on anything larger.
package jobspecs

import "embed"

// Files are the examples, by file name.
//
//go:embed *.hcl
var Files embed.FS
