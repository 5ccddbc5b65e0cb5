package command

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/nomad-muster/muster/planner/view"
)

func top() Command {
	var every time.Duration
	var rounds int
	return Command{
		Synopsis: "Show what the cards of running gangs do",
		Usage:    "top [options]",
		About: "Shows the gangs that hold cards with what the cards do now, and did so far in this attempt, from the samples of the nodes' device plugins. On a terminal it is renewed until Ctrl-C; elsewhere, and with -json, -t or -n=1, it is printed once.\n\n" +
			"Activity is that of the card's units where the device plugin measures it, else the share of time in which any kernel ran. Idle cards do nothing now; Idle time is the share of the attempt's sampled time in which cards did nothing.",
		API: true, Data: true,
		Flags: func(f *Flags) {
			f.DurationVar(&every, "every", 2*time.Second, "`Time` between two looks.")
			f.IntVar(&rounds, "n", 0, "`Number` of looks; 0: until Ctrl-C on a terminal, else one.")
		},
		Run: func(c *Call, _ []string) error {
			switch {
			case every < 100*time.Millisecond:
				return fmt.Errorf("-every=%s is less than 100ms", every)
			case rounds < 0:
				return fmt.Errorf("-n=%d is less than 0", rounds)
			}
			once := !c.Terminal || c.asJSON || c.template != ""
			if rounds == 0 && once {
				rounds = 1
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			for n := 1; ; n++ {
				t, err := api.Top(c.Context)
				if err != nil {
					if n > 1 && c.Context.Err() != nil {
						return nil // to be ended is what it is for
					}
					return err
				}
				if c.Terminal && rounds != 1 && !once {
					if _, err := io.WriteString(c.Stdout, "\x1b[H\x1b[2J"); err != nil {
						return err
					}
				}
				if err := c.print(t, func(w *screen) { w.top(t) }); err != nil {
					return err
				}
				if n == rounds {
					return nil
				}
				select {
				case <-c.Context.Done():
					return nil
				case <-time.After(every):
				}
			}
		},
	}
}

func (s *screen) top(t view.Top) {
	for _, n := range t.Cards {
		s.line("%s: %d cards, %d used by gangs, %d by others, %d free, %d out", n.Model, n.Total, n.Used, n.Other, n.Free, n.Out)
	}
	for _, p := range t.Problems {
		s.line("%s", s.c.paint(s.c.Terminal, yellow, p.Object+": "+p.Text))
	}
	if len(t.Gangs) == 0 {
		s.line("No gang holds a card")
		return
	}
	var rows [][]cell
	for i := range t.Gangs {
		g := &t.Gangs[i]
		watts := ""
		if g.Watts > 0 {
			watts = strconv.FormatFloat(g.Watts, 'f', 0, 64)
		}
		idle := ""
		if g.Mean.Known {
			idle = fmt.Sprintf("%.0f%%", g.Idle*100)
		}
		row := plain(g.Gang, strconv.Itoa(g.Attempt), g.Queue, g.User, g.Model, strconv.Itoa(g.Cards), strconv.Itoa(g.Sampled), "", percent(g.Activity, g.Activity.Mean), percent(g.Memory, g.Memory.Mean), watts,
			percent(g.Mean, g.Mean.Mean), percent(g.Mean, g.Mean.P50), idle)
		colour := ""
		if g.IdleNow > 0 {
			colour = yellow
		}
		row[7] = cell{strconv.Itoa(g.IdleNow), colour}
		rows = append(rows, row)
	}
	s.table([]string{"Gang", ">Attempt", "Queue", "User", "Model", ">Cards", ">Sampled", ">Idle cards", ">Activity", ">Memory", ">Watts", ">Mean", ">p50", ">Idle time"}, rows)
}

func demand() Command {
	return Command{
		Synopsis: "Show which further nodes would let waiting gangs start",
		Usage:    "demand [options]",
		About:    "Shows nodes by shape (card model, cards of a node, node pool) that would let waiting gangs start, as autoscalers are told by muster_demand_nodes and the API.",
		API:      true, Data: true,
		Run: func(c *Call, _ []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			list, err := api.Demand(c.Context)
			if err != nil {
				return err
			}
			return c.print(list, func(w *screen) {
				if len(list.Demand) == 0 {
					w.line("No gang waits for nodes")
					return
				}
				var rows [][]cell
				for _, d := range list.Demand {
					rows = append(rows, plain(d.Model, strconv.Itoa(d.Cards), d.Pool, strconv.Itoa(d.Nodes), strconv.Itoa(d.Gangs)))
				}
				w.table([]string{"Model", ">Cards of a node", "Pool", ">Nodes", ">Gangs"}, rows)
			})
		},
	}
}
