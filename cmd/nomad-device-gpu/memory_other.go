//go:build !linux

package main

import "runtime/debug"

// settle gives back what only the start needed.
func settle() { debug.FreeOSMemory() }
