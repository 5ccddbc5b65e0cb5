package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"sort"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/nomad-muster/muster/device"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/ledger"
)

// card shows this node's cards and gives orders, through the plugin's state
// folder: for a site without a planner, or while it is away.
func card(args []string, out io.Writer) error {
	dir, who, force := device.DefaultStateDir(device.Simulated{}), os.Getenv("SUDO_USER"), false
	if u, err := user.Current(); err == nil && who == "" {
		who = u.Username
	}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		name, value, joined := strings.Cut(strings.TrimLeft(args[0], "-"), "=")
		args = args[1:]
		if name == "force" {
			force = true
			continue
		}
		if !joined {
			if len(args) == 0 {
				return fmt.Errorf("card: -%s needs a value", name)
			}
			value, args = args[0], args[1:]
		}
		switch name {
		case "state-dir":
			dir = value
		case "who":
			who = value
		default:
			return fmt.Errorf("card: unknown option -%s\n\n%s", name, usage)
		}
	}
	if len(args) == 0 {
		return fmt.Errorf("card: list, status, confirm, clear or note\n\n%s", usage)
	}
	command, args := args[0], args[1:]
	if command == "list" {
		return listCards(dir, out)
	}
	if len(args) == 0 {
		return fmt.Errorf("card %s: which card? (`card list` names them)", command)
	}
	id, text := args[0], strings.Join(args[1:], " ")
	kinds := map[string]health.Kind{"confirm": health.Confirm, "clear": health.Clear, "note": health.Note}
	switch kind, known := kinds[command]; {
	case command == "status":
		return showCard(dir, id, out)
	case !known:
		return fmt.Errorf("card: unknown command %q\n\n%s", command, usage)
	default:
		ctx, cancel := context.WithTimeout(context.Background(), 15*time.Minute)
		defer cancel()
		if kind != health.Clear { // nothing that takes long
			ctx, cancel = context.WithTimeout(ctx, 15*time.Second)
			defer cancel()
		}
		return device.SendOrder(ctx, dir, device.Order{Kind: kind, Card: id, Who: who, Text: text, Force: force})
	}
}

// listCards prints what the plugin last wrote down.
func listCards(dir string, out io.Writer) error {
	l, err := ledger.Load(dir + "/cards")
	if len(l.Cards) == 0 {
		return errors.Join(err, fmt.Errorf("no cards are recorded in %s: -state-dir names the plugin's state_dir", dir))
	}
	var ids []string
	for id := range l.Cards {
		ids = append(ids, id)
	}
	sort.Slice(ids, func(i, j int) bool {
		a, b := l.Cards[ids[i]].Card, l.Cards[ids[j]].Card
		if a.Group != b.Group {
			return fmt.Sprint(a.Group) < fmt.Sprint(b.Group)
		}
		return a.Index < b.Index || a.Index == b.Index && a.ID < b.ID
	})
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "Card\tType\tIndex\tSlot\tState\tWhy")
	for _, id := range ids {
		c := l.Cards[id]
		_, v := health.Evolve(c.Health, []health.Event{{Kind: health.Tick, At: time.Now()}}, health.Default())
		state := string(v.Level)
		if !c.Retired.IsZero() {
			state = "taken out"
		}
		fmt.Fprintf(w, "%s\t%s/%s\t%d\t%s\t%s\t%s\n", id, c.Card.Group.Vendor, c.Card.Group.Type, c.Card.Index, c.Card.Bus, state, v.Sentence)
	}
	return errors.Join(err, w.Flush())
}

// showCard prints one card with its evidence and its record.
func showCard(dir, id string, out io.Writer) error {
	l, err := ledger.Load(dir + "/cards")
	c := l.Cards[id]
	if c == nil {
		return errors.Join(err, fmt.Errorf("card %s is not recorded in %s", id, dir))
	}
	_, v := health.Evolve(c.Health, []health.Event{{Kind: health.Tick, At: time.Now()}}, health.Default())
	fmt.Fprintf(out, "Card    %s\nModel   %s\nSlot    %s\nSerial  %s\nState   %s\n", id, c.Card.Group.Model, c.Card.Bus, c.Card.Serial, v.Level)
	if v.Sentence != "" {
		fmt.Fprintf(out, "Why     %s\nClears  %s\n", v.Sentence, v.Clears)
	}
	if c.Health.Accepted != "" {
		fmt.Fprintf(out, "Accepted by %s\n", c.Health.Accepted)
	}
	for _, cause := range v.Causes {
		fmt.Fprintf(out, "\n%s since %s, %d times: %s\n", cause.Level, cause.Since.UTC().Format(time.RFC3339), cause.Times, cause.Text)
		if cause.Line != "" {
			fmt.Fprintf(out, "  %s\n", cause.Line)
		}
	}
	for _, e := range c.Health.Log {
		fmt.Fprintf(out, "%s  %s by %s %s\n", e.At.UTC().Format(time.RFC3339), e.Kind, e.Who, e.Text)
	}
	return err
}
