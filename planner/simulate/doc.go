// Package simulate runs the decision core in virtual time: traces of jobs, or
// a world that a test drives by hand.
//
// The clock is a heap of (time, sequence): the earliest event is handled, then
// one cycle is decided and carried out at that instant, as a faithful executor
// would. Nothing is random but faults, whose seed is stated; the same options
// give the same result. The core is the production one, unchanged.
//
// Times are durations since the trace began; cards are counted in pieces, or
// in thousandths where jobs share one.
package simulate
