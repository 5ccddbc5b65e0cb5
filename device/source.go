package device

import (
	"context"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/kernlog"
)

// Source is one vendor's view of the node. A new vendor is one small package
// with a type like this.
type Source interface {
	// Name is a word for logs and for the group attribute "source".
	Name() string
	// Scan lists the cards. What is wrong with one card is said at that card;
	// an error says that the source as a whole could not be asked. It may
	// block: a scan that does not come back makes the source's cards
	// unhealthy, and no others.
	Scan(ctx context.Context) (card.Scan, error)
	// Sample measures the cards, by id. A card that cannot be measured is
	// absent.
	Sample(ctx context.Context) (map[string]card.Sample, error)
}

// Watcher is a Source that also tells of faults as they happen.
type Watcher interface {
	// Watch tells until ctx ends. poke asks for a scan at once. An error, or
	// an early return, is logged and Watch is called again after a pause.
	Watch(ctx context.Context, tell func(card.Sighting), poke func()) error
}

// Log is a kernel log, real or made up.
type Log interface {
	// Name is a word for logs.
	Name() string
	// Next gives records in order. The first call gives what is there already,
	// without blocking; later ones block until there is more or ctx ends.
	Next(ctx context.Context) ([]kernlog.Record, error)
}
