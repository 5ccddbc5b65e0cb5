package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/httpapi/client"
	"github.com/nomad-muster/muster/planner/view"
)

func cards() Command {
	var node, state string
	var all bool
	return Command{
		Synopsis: "List cards with their health",
		Usage:    "cards [options]",
		About: "Lists the cluster's cards: their state, why, and who holds them; adapters only where they are not healthy, or with -all. " +
			"healthy and suspect cards may be given out (suspect ones last), draining and quarantined ones may not. From says whose word the state is: the node's own report, Nomad's where the node does not report, or the planner's suspicion.",
		API: true, Data: true,
		Flags: func(f *Flags) {
			f.StringVar(&node, "node", "", "Only of the `node` of this name or id.")
			f.StringVar(&state, "state", "", "Only in this `state`: healthy, suspect, draining, quarantined; bad is any but healthy.")
			f.BoolVar(&all, "all", false, "Also adapters that are healthy, and cards that are not offered.")
		},
		Run: func(c *Call, _ []string) error {
			if state != "" && !slices.Contains([]string{contract.CardHealthy, contract.CardSuspect, contract.CardDraining, contract.CardQuarantined, "bad"}, state) {
				return fmt.Errorf("-state=%s is none of healthy, suspect, draining, quarantined, bad", state)
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			list, err := api.Cards(c.Context, node, state)
			if err != nil {
				return err
			}
			if len(list.Cards) == 0 && node != "" {
				if err := c.node(api, "list cards", node); err != nil {
					return err
				}
			}
			return c.print(list, func(w *screen) { w.cards(list, all) })
		},
	}
}

// node says so where no node has a name or id.
func (c *Call) node(api *client.Client, operation, node string) error {
	list, err := api.Nodes(c.Context)
	if err != nil || slices.ContainsFunc(list.Nodes, func(n view.Node) bool { return n.Name == node || n.ID == node }) {
		return err
	}
	return &view.Error{Code: view.CodeNotFound, Operation: operation, Object: "node " + node, Cause: "no node has this name or id", Hint: "muster nodes lists what there is"}
}

var cardColours = map[string]string{contract.CardSuspect: yellow, contract.CardDraining: yellow, contract.CardQuarantined: red}

func (w *screen) cards(list view.CardList, all bool) {
	w.breaker(list.Breaker)
	var rows [][]cell
	states := map[string]int{}
	for _, k := range list.Cards {
		if !all && (k.Hidden != "" || k.Type == contract.TypeNIC && k.State == contract.CardHealthy) {
			continue
		}
		states[k.State]++
		from := k.From
		if k.Silent {
			from += ", node silent for " + w.c.ago(k.ReportAt)
		}
		why := cmp.Or(k.Why, k.Hidden)
		if k.Accepted != "" {
			why += " (confirmed by " + k.Accepted + ")"
		}
		since := ""
		if !k.Since.IsZero() {
			since = w.c.ago(k.Since)
		}
		row := plain(k.Node, strconv.Itoa(k.Index), k.ID, k.Model, "", since, k.Holder, from, why)
		row[4] = cell{k.State, cardColours[k.State]}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		w.line("No cards")
		return
	}
	w.table([]string{"Node", ">#", "Card", "Model", "State", ">Since", "Holder", "From", "Why"}, rows)
	var sum []string
	for _, s := range []string{contract.CardHealthy, contract.CardSuspect, contract.CardDraining, contract.CardQuarantined} {
		if states[s] > 0 {
			sum = append(sum, fmt.Sprintf("%d %s", states[s], s))
		}
	}
	w.line("\n%s", strings.Join(sum, ", "))
}

func (w *screen) breaker(b view.CardBreaker) {
	if b.Open {
		w.line("%s since %s: %s", w.c.paint(w.c.Terminal, red, "The circuit breaker is open"), w.c.clock(b.Since), cmp.Or(b.Why, "opened by "+b.By))
		w.line("Nothing is quarantined by itself until muster card breaker -close.\n")
	}
}

func cardStatus() Command {
	return Command{
		Synopsis: "Show a card with its evidence and its record",
		Usage:    "card status [options] <card>",
		About:    "Shows a card: its state and what would clear it, the evidence with the lines of the kernel log, what persons and tests said, and the orders that are on their way to its node. The card is named by its id, which may be short, or as <node>/<number>.",
		API:      true, Data: true, Least: 1, Most: 1,
		Run: func(c *Call, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			id, err := c.card(api, "read card", args[0], true)
			if err != nil {
				return err
			}
			k, err := api.Card(c.Context, id.id, id.node)
			if err != nil {
				return err
			}
			return c.print(k, func(w *screen) { w.card(k) })
		},
	}
}

func (w *screen) card(k view.CardState) {
	c := w.c
	since := ""
	if !k.Since.IsZero() {
		since = fmt.Sprintf("%s (%s ago)", c.clock(k.Since), c.ago(k.Since))
	}
	told := "not directly"
	if !k.ReportAt.IsZero() {
		told = fmt.Sprintf("%s, %s ago", k.Reported, c.ago(k.ReportAt))
		if k.Silent {
			told += " (silent since: counts no more)"
		}
	}
	use := ""
	if k.Detail != nil && k.Detail.Measured != nil {
		m := k.Detail.Measured
		use = fmt.Sprintf("%.0f %%, %d of %d MiB, processes: %d", m.Utilization, m.MemoryUsed, m.MemoryTotal, m.Processes)
	}
	w.pairs("Card", k.ID, "Node", fmt.Sprintf("%s, card %d", k.Node, k.Index), "Model", strings.Trim(k.Vendor+"/"+k.Type+"/"+k.Model, "/"), "Slot", k.Slot, "Serial", k.Serial, "Slice of", k.Parent,
		"State", c.paint(c.Terminal, cardColours[k.State], k.State), "Why", k.Why, "Since", since, "Clears with", k.Clears, "Confirmed by", k.Accepted, "Not offered", k.Hidden,
		"Held by", k.Holder, "Use", use, "Node's report", told, "Nomad says", cmp.Or(k.Nomad, "not listed"))
	d := k.Detail
	if d == nil {
		return
	}
	if len(d.Evidence) > 0 {
		w.title("Evidence")
		for _, e := range d.Evidence {
			w.line("%s  %s: %s%s", c.when(e.Since), c.paint(c.Terminal, cardColours[e.State], e.State), e.What, times(e.Times))
			if e.Line != "" && e.Line != e.What {
				w.line("          %s", oneLine(e.Line))
			}
		}
	}
	if len(d.Xids) > 0 {
		var all []string
		for _, x := range d.Xids {
			all = append(all, fmt.Sprintf("%d (%d)", x.Code, x.Times))
		}
		w.title("Xids, ever")
		w.line("%s; hardware errors that still count: %d", strings.Join(all, ", "), d.Strikes)
	}
	if len(d.Record) > 0 {
		w.title("Record")
		for _, n := range d.Record {
			w.line("%s  %s%s%s", c.when(n.At), n.Kind, before(" by ", n.Who), before(": ", n.Text))
		}
	}
	if len(d.Orders) > 0 {
		w.title("Orders")
		for _, o := range d.Orders {
			w.line("%s  %s by %s%s: %s%s", c.when(o.At), o.Kind, o.Who, before(", ", o.Why), o.State, before(": ", o.Error))
		}
	}
}

func times(n int) string {
	if n > 1 {
		return fmt.Sprintf(" (%d times)", n)
	}
	return ""
}

// before puts words in front of a text, where there is one.
func before(words, text string) string {
	if text == "" {
		return ""
	}
	return words + text
}

func cardOrder(kind, synopsis, about, text string, least int) Command {
	var detach, force bool
	var timeout time.Duration
	return Command{
		Synopsis: synopsis,
		Usage:    fmt.Sprintf("card %s [options] <card> %s", kind, text),
		About: about + "\n\nThe card is named by its full id, or as <node>/<number>. The order goes to the card's node with the answer to its next report, and stays until the node has carried it out, over restarts of both. " +
			"Who gave it stands in the card's record: the name of the token.",
		API: true, Data: true, Least: least, Most: -1,
		Flags: func(f *Flags) {
			f.BoolVar(&detach, "detach", false, "Do not wait for the node.")
			f.DurationVar(&timeout, "timeout", 15*time.Minute, "Wait at most this `time`; the order stays.")
			if kind == contract.OrderClear {
				f.BoolVar(&force, "force", false, "Clear without a self-test, and forget a card that is not there.")
			}
		},
		Run: func(c *Call, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			id, err := c.card(api, kind+" card", args[0], false)
			if err != nil {
				return err
			}
			o, err := api.OrderCard(c.Context, id.id, id.node, kind, view.CardRequest{Why: strings.Join(args[1:], " "), Force: force})
			if err != nil {
				return err
			}
			if !detach {
				if o, err = c.awaitOrder(api, o, timeout); err != nil {
					return err
				}
			}
			if err := c.print(o, func(w *screen) {
				switch o.State {
				case view.OrderDone:
					w.line("%s of card %s on node %s: done", o.Kind, o.Card, o.Node)
				case view.OrderWaiting:
					w.line("%s of card %s: the order %s waits for node %s", o.Kind, o.Card, o.ID, o.Node)
				}
			}); err != nil || o.State != view.OrderFailed {
				return err
			}
			return &view.Error{Code: view.CodeConflict, Operation: kind + " card", Object: o.Card, Cause: o.Error}
		},
	}
}

func cardConfirm() Command {
	return cardOrder(contract.OrderConfirm, "Accept a card's fault", "Says that a person knows of the card's fault and has seen to its repair; the text is the work order. The card stays as it is.", "[text]", 1)
}

func cardClear() Command {
	return cardOrder(contract.OrderClear, "Release a card after its repair", "Releases a card: everything that stood against it is over, save what is still seen. It is tested first, by what can be known of it and by the site's own test (self_test of the device plugin), "+
		"and stays out where that fails; -force clears it all the same. It also ends the planner's own suspicion of the card.", "[text]", 1)
}

func cardNote() Command {
	return cardOrder(contract.OrderNote, "Add a remark to a card's record", "Adds a remark to a card's record; nothing else changes.", "<text>", 2)
}

// awaitOrder waits for what comes of an order.
func (c *Call) awaitOrder(api *client.Client, o view.CardOrder, timeout time.Duration) (view.CardOrder, error) {
	late := time.After(timeout)
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	said := false
	for began := time.Now(); o.State == view.OrderWaiting; {
		if !said && (o.Heard.IsZero() || time.Since(began) > 5*time.Second) {
			said = true
			if o.Heard.IsZero() {
				c.say("Node %s does not report to this planner: the order waits until it does. On the node itself: nomad-device-gpu card %s %s", o.Node, o.Kind, o.Card)
			} else {
				c.say("Waiting for node %s, which reported last %s ago", o.Node, c.ago(o.Heard))
			}
		}
		select {
		case <-c.Context.Done():
			return o, fmt.Errorf("wait for node %s: %w; the order %s stays", o.Node, context.Cause(c.Context), o.ID)
		case <-late:
			return o, &Exit{Code: ExitTimeout, Err: fmt.Errorf("wait for node %s: it has not carried the order out within %s; the order %s stays", o.Node, timeout, o.ID)}
		case <-tick.C:
		}
		next, err := api.CardOrder(c.Context, o.ID)
		if err != nil {
			return o, err
		}
		o = next
	}
	return o, nil
}

func cardBreaker() Command {
	var open, closed bool
	var why string
	return Command{
		Synopsis: "Show, open or close the cards' circuit breaker",
		Usage:    "card breaker [options]",
		About:    "Shows the circuit breaker. It opens by itself when so many cards turn bad at once that one mistake is more likely than that many faults (cards block of the configuration). While it is open no card is quarantined by itself, unless it does not answer; clearing works. Only a person closes it: what was held back counts then.",
		API:      true, Data: true,
		Flags: func(f *Flags) {
			f.BoolVar(&closed, "close", false, "Close it.")
			f.BoolVar(&open, "open", false, "Open it by hand, before a driver roll-out for example.")
			f.StringVar(&why, "why", "", "The `reason`, for the record.")
		},
		Run: func(c *Call, _ []string) error {
			if open && closed {
				return errors.New("-open and -close exclude each other")
			}
			api, err := c.client()
			if err != nil {
				return err
			}
			var b view.CardBreaker
			if open || closed {
				b, err = api.SetBreaker(c.Context, view.BreakerRequest{Open: open, Why: why})
			} else {
				b, err = api.Breaker(c.Context)
			}
			if err != nil {
				return err
			}
			return c.print(b, func(w *screen) {
				if b.Open {
					w.breaker(b)
					return
				}
				w.line("The circuit breaker is closed%s.", before(" since ", w.c.when(b.Since)))
			})
		},
	}
}

func nodeClear() Command {
	return Command{
		Synopsis: "End the planner's suspicion of a node",
		Usage:    "node clear [options] <node> [text]",
		About:    "Ends what the planner itself holds against a node: that failures followed it over several gangs (muster nodes says so). Its cards' own faults stay; muster card clear releases those. The node is named by its name or id.",
		API:      true, Data: true, Least: 1, Most: -1,
		Run: func(c *Call, args []string) error {
			api, err := c.client()
			if err != nil {
				return err
			}
			out, err := api.ClearNode(c.Context, args[0], strings.Join(args[1:], " "))
			if err != nil {
				return err
			}
			return c.print(out, func(w *screen) {
				if out.Cleared {
					w.line("Node %s is cleared", out.Node)
				} else {
					w.line("Nothing was held against node %s", out.Node)
				}
			})
		},
	}
}

// cardName is a card as the API takes it.
type cardName struct{ id, node string }

// card finds the card that an argument means: its id, or <node>/<number>; short
// lets a prefix do that only one card has.
func (c *Call) card(api *client.Client, operation, arg string, short bool) (cardName, error) {
	list, err := api.Cards(c.Context, "", "")
	if err != nil {
		return cardName{}, err
	}
	node, number, placed := strings.Cut(arg, "/")
	tests := []func(view.CardState) bool{
		func(k view.CardState) bool { return k.ID == arg },
		func(k view.CardState) bool {
			return placed && k.Node == node && (k.ID == number || k.Type != contract.TypeNIC && strconv.Itoa(k.Index) == number)
		},
	}
	if short {
		tests = append(tests, func(k view.CardState) bool { return strings.HasPrefix(k.ID, arg) })
	}
	for _, test := range tests {
		var found []view.CardState
		for _, k := range list.Cards {
			if test(k) {
				found = append(found, k)
			}
		}
		if len(found) == 1 {
			return cardName{found[0].ID, cmp.Or(found[0].NodeID, found[0].Node)}, nil
		}
		if len(found) > 1 {
			names := make([]string, len(found))
			for i, k := range found {
				names[i] = k.Node + "/" + k.ID
			}
			return cardName{}, fmt.Errorf("%s: %q is several cards: %s; give one of these", operation, arg, shorten(names))
		}
	}
	hint := "muster cards lists what there is"
	if !short {
		hint += "; give the full id, or <node>/<number>"
	}
	return cardName{}, &view.Error{Code: view.CodeNotFound, Operation: operation, Object: arg, Cause: "no card has this name", Hint: hint}
}
