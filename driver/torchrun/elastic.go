package torchrun

import (
	"fmt"
	"strconv"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
)

// An elastic world runs torchrun with --nnodes=min:max and the c10d rendezvous.
// Each time its members change, all of them start torchrun anew at a store of
// its own, so max is how many meet this time: they begin the moment the last of
// them is there. When one does not come after all, those that are there begin
// without it, if they are min, after lastCall.
//
// c10d numbers the nodes by itself, and would have ranks look each other up by
// the name of one of them. So the ranks are told to meet at the store of the
// launchers, by its address, as torchrun's static rendezvous has them do.

// lastCallLeast is for how long those that have met wait for the rest at least.
const lastCallLeast = time.Minute

// lastCall is for how long those that have met wait for members that may still
// be saving: the grace can be extended twice.
func lastCall(settle time.Duration) time.Duration { return lastCallLeast + 3*settle }

// meeting gives the places in the record of the members that meet, in order.
func meeting(in Input, world contract.World) ([]int, error) {
	order := NodeOrder(world)
	if in.Endpoint == nil || len(in.Endpoint.Members) == 0 {
		return order, nil
	}
	at := map[string]int{}
	for i, m := range in.Record.Members {
		at[m.Key()] = i
	}
	var out []int
	self := false
	for _, key := range in.Endpoint.Members {
		i, listed := at[key]
		if !listed {
			return nil, fmt.Errorf("plan launch: %s is to meet the others, and the record does not list it", key)
		}
		self = self || i == in.Member
		out = append(out, i)
	}
	if !self {
		return nil, fmt.Errorf("plan launch: the world meets without member %d", in.Member)
	}
	return out, nil
}

// elasticArguments are those of torchrun's that an elastic world has instead of
// the static ones.
func elasticArguments(in Input, l Launch, local int) []string {
	least := min(max(1, in.Record.Min), l.Nodes)
	seconds := func(d time.Duration) string { return strconv.Itoa(int(d.Seconds())) }
	return []string{
		"--nnodes", fmt.Sprintf("%d:%d", least, l.Nodes), "--nproc_per_node", strconv.Itoa(local),
		"--rdzv_backend", "c10d", "--rdzv_id", in.Record.Gang.RunID(in.Record.Attempt, l.World),
		"--rdzv_endpoint", bracketed(l.Address) + ":" + strconv.Itoa(l.Port),
		"--rdzv_conf", fmt.Sprintf("is_host=%t,join_timeout=%s,last_call_timeout=%s,read_timeout=%s", l.Host, seconds(in.JoinTimeout), seconds(lastCall(in.Record.Settle)), seconds(in.JoinTimeout)),
	}
}

// elasticVariables lead a rank to the launchers' store.
func elasticVariables(l Launch) map[string]string {
	return map[string]string{"MASTER_ADDR": l.Address, "MASTER_PORT": strconv.Itoa(l.Port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
}
