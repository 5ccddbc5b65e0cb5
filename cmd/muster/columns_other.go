//go:build !unix

package main

// columns is the terminal's width; 0: lines are not cut.
func columns() int { return 0 }
