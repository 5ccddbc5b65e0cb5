package simulated

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

// Injection is one fault or repair, as a line of the journal.
type Injection struct {
	At   time.Time `json:"at"`
	Node string    `json:"node"`
	Card int       `json:"card"`          // index; -1: the whole node
	NIC  string    `json:"nic,omitempty"` // instead of a card
	Do   string    `json:"do"`
	Code int       `json:"code,omitempty"` // xid, sxid
	N    uint64    `json:"n,omitempty"`    // link-down: which link; counter: by how much
	Name string    `json:"name,omitempty"` // counter: which; process: its name
	Text string    `json:"text,omitempty"` // xid, sxid: what follows the code; line: the record, with %BUS% for the card's address
}

// action says what an injection needs and does.
type action struct {
	card, nic, code, n, name, text bool
	doc                            string
}

// actions are all injections. The order of the list is that of the help text.
var actionNames = []string{"xid", "sxid", "line", "lost", "link-down", "nic-down", "thermal", "counter", "remap", "process", "idle", "swap", "reset", "driver-reload", "reboot", "clear"}

var actions = map[string]action{
	"xid":           {card: true, code: true, text: true, doc: "the driver logs this Xid for the card; 79 also makes it fall off the bus"},
	"sxid":          {code: true, text: true, doc: "an NVSwitch logs this SXid (TEXT begins with Fatal or Non-fatal)"},
	"line":          {card: true, text: true, doc: "the kernel logs TEXT, in which %BUS% stands for the card's address"},
	"lost":          {card: true, doc: "the card falls off the bus without a word in the kernel log"},
	"link-down":     {card: true, n: true, doc: "link N of the card goes down"},
	"nic-down":      {nic: true, doc: "the adapter's port goes down"},
	"thermal":       {card: true, doc: "the card is hot and slows itself down"},
	"counter":       {card: true, name: true, n: true, doc: "counter NAME (nvlink_crc, pcie_replay, ecc_corrected, ...) grows by N"},
	"remap":         {card: true, doc: "a memory row waits for a reset to be remapped"},
	"process":       {card: true, name: true, doc: "a process NAME runs on the card"},
	"idle":          {card: true, doc: "the card's processes are gone"},
	"swap":          {card: true, doc: "another card stands in this card's slot"},
	"reset":         {card: true, doc: "the card is reset: it answers, its counters begin anew"},
	"driver-reload": {doc: "the node's driver is loaded anew"},
	"reboot":        {doc: "the node starts anew: new boot id, empty kernel log"},
	"clear":         {doc: "what was injected into the card, the adapter or (without either) the whole node is undone; what the kernel logged stays logged"},
}

// Check names what is wrong with an injection.
func (i Injection) Check() error {
	var faults []error
	a, known := actions[i.Do]
	if !known {
		return fmt.Errorf("there is no injection %q: there are %s", i.Do, strings.Join(actionNames, ", "))
	}
	need := func(is bool, what string) {
		if !is {
			faults = append(faults, fmt.Errorf("%s needs %s", i.Do, what))
		}
	}
	need(i.Node != "", "a node")
	need(!a.card || i.Card >= 0, "a card")
	need(!a.nic || i.NIC != "", "an adapter")
	need(!a.code || i.Code > 0 && i.Code < 1e9, "a code")
	need(!a.name || i.Name != "", "a name")
	need(i.Do != "line" || i.Text != "", "a text")
	need(i.Do != "counter" || i.N > 0, "a number")
	if strings.ContainsAny(i.Text+i.Name, "\n\x00") {
		faults = append(faults, errors.New("a text has no line break"))
	}
	return errors.Join(faults...)
}

// JournalPath is where injections for a description are kept.
func JournalPath(file string) string { return file + ".injected" }

// Inject appends to the journal of a description, which plugins watch. A zero
// time is now.
func Inject(file string, i Injection) error {
	if i.At.IsZero() {
		i.At = time.Now()
	}
	if err := i.Check(); err != nil {
		return fmt.Errorf("inject: %w", err)
	}
	f, err := load(file)
	if err != nil {
		return fmt.Errorf("inject: %w", err)
	}
	n, err := f.node(i.Node)
	if err != nil {
		return fmt.Errorf("inject: %w", err)
	}
	if i.Card >= 0 && !slices.ContainsFunc(n.GPUs, func(g *gpuBlock) bool { return g.Index == i.Card }) {
		return fmt.Errorf("inject: node %q has no card %d", i.Node, i.Card)
	}
	if i.NIC != "" && !slices.ContainsFunc(n.NICs, func(c *nicBlock) bool { return c.Name == i.NIC }) {
		return fmt.Errorf("inject: node %q has no adapter %q", i.Node, i.NIC)
	}
	line, err := json.Marshal(i)
	if err != nil {
		return fmt.Errorf("inject: %w", err)
	}
	out, err := os.OpenFile(JournalPath(file), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("inject: %w", err)
	}
	_, err = out.Write(append(line, '\n')) // one write: lines of several writers do not mix
	if err = errors.Join(err, out.Close()); err != nil {
		return fmt.Errorf("inject: %w", err)
	}
	return nil
}

// readJournal reads the injections into one node, in order. Lines that cannot
// be read are left out and named; a line without its end is not there yet.
func readJournal(path, node string) ([]Injection, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read injections: %w", err)
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, 64<<20))
	if err != nil {
		return nil, fmt.Errorf("read injections: %w", err)
	}
	var out []Injection
	var faults []error
	for number := 1; len(data) > 0; number++ {
		line, rest, whole := bytes.Cut(data, []byte("\n"))
		data = rest
		if !whole {
			break
		}
		var i Injection
		err := json.Unmarshal(line, &i)
		if err == nil {
			err = i.Check()
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s:%d: %w", path, number, err))
			continue
		}
		if i.Node == node {
			out = append(out, i)
		}
	}
	return out, errors.Join(faults...)
}

// Usage lists the injections for a help text.
func Usage() string {
	var b strings.Builder
	for _, name := range actionNames {
		a := actions[name]
		words := name
		for _, w := range []struct {
			is   bool
			word string
		}{{a.code, "CODE"}, {a.name, "NAME"}, {a.n, "N"}, {a.text && name == "line", "TEXT"}, {a.text && name != "line", "[TEXT]"}} {
			if w.is {
				words += " " + w.word
			}
		}
		fmt.Fprintf(&b, "  %-24s %s\n", words, a.doc)
	}
	return b.String()
}

// ParseInjection reads an action and its words, as a command line has them.
func ParseInjection(i Injection, words []string) (Injection, error) {
	if len(words) == 0 {
		return i, fmt.Errorf("no injection is named: there are %s", strings.Join(actionNames, ", "))
	}
	i.Do, words = words[0], words[1:]
	a := actions[i.Do]
	take := func() string {
		if len(words) == 0 {
			return ""
		}
		w := words[0]
		words = words[1:]
		return w
	}
	var faults []error
	if a.code {
		if _, err := fmt.Sscan(take(), &i.Code); err != nil {
			faults = append(faults, fmt.Errorf("%s needs a code, a number", i.Do))
		}
	}
	if a.name {
		i.Name = take()
	}
	if a.n {
		if _, err := fmt.Sscan(take(), &i.N); err != nil {
			faults = append(faults, fmt.Errorf("%s needs a number", i.Do))
		}
	}
	if a.text {
		i.Text, words = strings.Join(words, " "), nil
	}
	if len(words) > 0 {
		faults = append(faults, fmt.Errorf("%s takes no further words: %s", i.Do, strings.Join(words, " ")))
	}
	if err := i.Check(); err != nil && len(faults) == 0 {
		faults = append(faults, err)
	}
	return i, errors.Join(faults...)
}
