// Package accounting keeps the books: who used which cards, when, for what,
// and what was lost. It is told what is seen of gangs (Gang), writes it down in
// an append-only ledger (SQLite), and answers questions about it. It decides
// nothing, and nothing waits for it: where its disk is full, scheduling goes on
// and the health of the ledger says so.
//
// # Facts
//
// Facts are booked from observation of Nomad's allocations and of what a gang's
// own saved state tells of its attempts, with their own times, never with the
// time of the observation. So two planners that watch the same cluster book the
// same, a fact that is seen twice is booked once, and after a gap the history
// that Nomad still has fills it. Each kind of fact has a natural key:
//
//	attempt         gang, number, and the Nomad index its allocations came after
//	allocation      Nomad's id and the cards' model
//	allocation end  the same; one that Nomad's client told (exact) replaces one
//	                that was concluded (a lost node, an allocation that is gone)
//	stage, attempt end, loss   the attempt
//	gang end        the gang and the time
//	decision        the gang, the time and the action
//
// # Card-seconds
//
// An allocation holds its cards from Nomad's CreateTime to the time that its
// last task ended. Both are cut to whole seconds, so an allocation's
// card-seconds are cards × (⌊end⌋ − ⌊start⌋), and any cut of it at whole seconds
// adds up to exactly that. They are divided twice, and each division adds up to
// the whole:
//
//	held        before the attempt's ranks were launched (stage "started")
//	training    from then on
//
//	guaranteed  within what the gang's queue is guaranteed
//	borrowed    beyond it
//
// At each second the allocations of a queue are guaranteed in the order of
// their creation, by model first and then by "any", until the guarantee is used
// up.
//
// lost is work that has to be done again: where an attempt does not end as
// complete, the card-seconds from its last checkpoint (or its launch) to its
// end, by cause, booked at the time of the loss. It is a part of training.
//
// # Hours
//
// Usage is booked by attempt, model and UTC hour, once the hour has been over
// for two minutes; until then it is worked out from the facts in memory. A fact
// that comes later, or that corrects another, is booked as a further revision
// with the difference; of such a difference what is left of the hour's guarantee
// is guaranteed and the rest borrowed. Sums by hour and by day are kept in the
// same transactions. The hours that have been booked are a function of the
// facts, and Verify holds the one against the other.
//
// # Trouble
//
// One goroutine writes, in transactions that reach the disk before anything in
// them counts as written. A writer that is killed leaves whole transactions
// only: what was acknowledged (Flush) is there, what was not is told again from
// what Nomad has. While the disk refuses, records wait in memory, up to a bound;
// beyond it they are dropped and counted, and what is still to be seen is told
// again afterwards.
//
// When the machine's clock steps by more than two minutes, no hour is closed
// for ten: a clock that is wrong for a moment must not book the future.
package accounting
