// Package draws lets the environment say how the tests' properties draw (rapid): MUSTER_SEED is the seed, which a judged
// change shares with the change before it, so that it is judged by what it changes; MUSTER_DRAWS is the number of draws
// of each property. Unset, every run draws anew, as rapid does by itself. A flag on the command line (-rapid.seed,
// -rapid.checks) prevails. Test packages import it for its effect, since go test gives a flag that one package does not
// know to all of them.
package draws

import (
	"flag"
	"fmt"
	"os"

	_ "pgregory.net/rapid" // has the flags
)

func init() {
	for variable, name := range map[string]string{"MUSTER_SEED": "rapid.seed", "MUSTER_DRAWS": "rapid.checks"} {
		value := os.Getenv(variable)
		if value == "" {
			continue
		}
		if err := flag.Set(name, value); err != nil {
			panic(fmt.Sprintf("%s=%s: %v; give a whole number", variable, value, err))
		}
	}
}
