package command

import (
	"fmt"
	"sort"
	"strings"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/view"
)

func nodes() Command {
	return Command{
		Synopsis: "List nodes with their cards",
		Usage:    "nodes [options]",
		About:    "Lists the cluster's nodes: their place in the topology, whether gangs are placed on them and why not, and their cards. Reported is how long ago a node's device plugin told of its cards directly; where it does not, Nomad's word counts, some seconds later.",
		API:      true, Data: true,
		Run: func(c *Call, _ []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			list, err := api.Nodes(c.Context)
			if err != nil {
				return err
			}
			return c.print(list, func(w *screen) { w.nodes(list.Nodes) })
		},
	}
}

func (w *screen) nodes(nodes []view.Node) {
	if len(nodes) == 0 {
		w.line("No nodes")
		return
	}
	var rows [][]cell
	for _, n := range nodes {
		cards, free, sick := 0, 0, 0
		models := map[string]bool{}
		for _, k := range n.Cards {
			if k.Type == contract.TypeNIC {
				continue // -json has them
			}
			cards++
			models[k.Model] = true
			switch {
			case k.State != "healthy":
				sick++
			case k.Holder == "":
				free++
			}
		}
		names := make([]string, 0, len(models))
		for m := range models {
			names = append(names, m)
		}
		sort.Strings(names)
		state, colour := n.Status, ""
		if n.Status != "ready" {
			colour = yellow
		}
		if n.Suspect {
			state += ", suspect"
		}
		told := ""
		if n.Reporting != nil {
			if told = w.c.ago(n.Reporting.At); n.Reporting.Silent {
				told += ", silent"
			}
		}
		row := plain(n.Name, n.Pool, domains(n), "", strings.Join(names, ", "), fmt.Sprint(cards), fmt.Sprint(free), fmt.Sprint(sick), told,
			fmt.Sprintf("%d/%d", n.CPUUsed, n.CPU), fmt.Sprintf("%d/%d", n.MemUsed, n.MemoryMB), n.Why)
		row[3] = cell{state, colour}
		rows = append(rows, row)
	}
	w.table([]string{"Node", "Pool", "Place", "Status", "Models", ">Cards", ">Free", ">Not healthy", ">Reported", ">CPU MHz", ">Memory MB", "Why"}, rows)
}

// domains are a node's place, by level in alphabetical order.
func domains(n view.Node) string {
	levels := make([]string, 0, len(n.Domains))
	for l := range n.Domains {
		levels = append(levels, l)
	}
	sort.Strings(levels)
	parts := make([]string, len(levels))
	for i, l := range levels {
		parts[i] = l + "=" + n.Domains[l]
	}
	return strings.Join(parts, " ")
}
