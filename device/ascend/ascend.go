// Package ascend is the source of Huawei's Ascend NPUs, from what the vendor's
// tool prints: `npu-smi info` for the cards and their health, `npu-smi info -t
// topo` for their links. The tool's columns differ in width from version to
// version, so they are read by their separators and words.
package ascend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/pci"
	"github.com/nomad-muster/muster/device/sysfs"
	"github.com/nomad-muster/muster/internal/contract"
	nomad "github.com/nomad-muster/muster/internal/nomadplugin/device"
)

// Run runs the vendor's tool and gives its output.
type Run func(ctx context.Context, args ...string) (string, error)

// Source lists NPUs.
type Source struct {
	run  Run
	root sysfs.Root
	host string
}

// Tool runs npu-smi from the PATH, or from where the driver puts it.
func Tool(ctx context.Context, args ...string) (string, error) {
	path, err := exec.LookPath("npu-smi")
	if err != nil {
		path = "/usr/local/sbin/npu-smi"
		if _, err := os.Stat(path); err != nil {
			return "", exec.ErrNotFound
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w: %.200s", path, strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// New makes the source; root holds /sys and /dev.
func New(run Run, root sysfs.Root) *Source {
	host, err := os.Hostname()
	if err != nil {
		host = "unnamed"
	}
	return &Source{run: run, root: root, host: host}
}

// Name is "ascend".
func (*Source) Name() string { return "ascend" }

// Chip is one NPU as the tool prints it.
type Chip struct {
	NPU, Chip   int
	Phy         int // -1: not printed
	Name        string
	Health      string
	Bus         pci.Address
	Power       float64 // W; -1: not printed
	Temperature float64 // -1: not printed
	Busy        float64 // percent; -1: not printed
	Used, Total uint64  // MiB of the card's memory
}

// ParseInfo reads the table of `npu-smi info`: two lines for each chip.
func ParseInfo(text string) []Chip {
	var out []Chip
	var head []string
	for _, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		columns := strings.Split(strings.Trim(line, "|"), "|")
		if !strings.HasPrefix(line, "|") || len(columns) != 3 {
			head = nil // a ruler or a title stands between tables
			continue
		}
		if head == nil {
			if f := strings.Fields(columns[0]); len(f) >= 2 && isNumber(f[0]) {
				head = columns
			}
			continue
		}
		if c, ok := chip(head, columns); ok {
			out = append(out, c)
		}
		head = nil
	}
	return out
}

// chip reads a chip's two lines.
func chip(head, tail []string) (Chip, bool) {
	first, second := strings.Fields(head[0]), strings.Fields(tail[0])
	bus, err := pci.Parse(strings.TrimSpace(tail[1]))
	if err != nil || len(second) == 0 || !isNumber(second[0]) {
		return Chip{}, false
	}
	c := Chip{Phy: -1, Name: strings.Join(first[1:], " "), Health: strings.TrimSpace(head[1]), Bus: bus, Power: -1, Temperature: -1, Busy: -1}
	c.NPU, _ = strconv.Atoi(first[0]) // isNumber
	c.Chip, _ = strconv.Atoi(second[0])
	if len(second) > 1 && isNumber(second[1]) {
		c.Phy, _ = strconv.Atoi(second[1])
	}
	values := strings.Fields(head[2])
	if len(values) > 0 {
		c.Power = number(values[0])
	}
	if len(values) > 1 {
		c.Temperature = number(values[1])
	}
	// Busy, then pairs of used and total: of DDR, and of HBM where there is any.
	values = strings.Fields(strings.ReplaceAll(tail[2], "/", " "))
	if len(values) > 0 {
		c.Busy = number(values[0])
	}
	for i := 1; i+1 < len(values); i += 2 {
		used, total := number(values[i]), number(values[i+1])
		if used >= 0 && total > 0 && uint64(total) > c.Total {
			c.Used, c.Total = uint64(used), uint64(total)
		}
	}
	return c, true
}

func isNumber(text string) bool {
	n, err := strconv.Atoi(text)
	return err == nil && n >= 0 && n < 1<<16
}

// number reads a value; -1 where there is none.
func number(text string) float64 {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || v < 0 || v > 1e9 {
		return -1
	}
	return v
}

// ParseTopology reads the matrix of `npu-smi info -t topo`: for each pair of
// NPUs, by their place in the list, what connects them.
func ParseTopology(text string) map[[2]int]string {
	out := map[[2]int]string{}
	var columns []int
	for _, line := range strings.Split(text, "\n") {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		if columns == nil {
			for _, w := range words {
				if n, ok := npu(w); ok {
					columns = append(columns, n)
				}
			}
			continue
		}
		row, ok := npu(words[0])
		if !ok {
			continue
		}
		for i, w := range words[1:] {
			if i < len(columns) && w != "X" {
				out[[2]int{row, columns[i]}] = w
			}
		}
	}
	return out
}

func npu(word string) (int, bool) {
	digits, found := strings.CutPrefix(word, "NPU")
	if !found || !isNumber(digits) {
		return 0, false
	}
	n, _ := strconv.Atoi(digits) // isNumber
	return n, true
}

// linked are the words for direct connections.
var linked = map[string]bool{"HCCS": true, "HCCS_SW": true, "SIO": true}

// Scan lists the NPUs.
func (s *Source) Scan(ctx context.Context) (card.Scan, error) {
	info, err := s.run(ctx, "info")
	if errors.Is(err, exec.ErrNotFound) {
		return card.Scan{Absent: "npu-smi is not installed: Ascend NPUs are not seen"}, nil
	}
	if err != nil {
		return card.Scan{}, fmt.Errorf("list Ascend NPUs: %w", err)
	}
	var scan card.Scan
	chips := ParseInfo(info)
	if len(chips) == 0 {
		return card.Scan{}, errors.New("list Ascend NPUs: npu-smi info printed no chip that can be read")
	}
	places := map[int]int{} // of the cards, by the tool's number for links
	for i, c := range chips {
		scan.Cards = append(scan.Cards, s.card(i, c))
		places[logical(i, c)] = i
	}
	topo, err := s.run(ctx, "info", "-t", "topo")
	if err != nil {
		scan.Notes = append(scan.Notes, "the links of Ascend NPUs are not known: npu-smi info -t topo fails")
		return scan, nil
	}
	for pair, word := range ParseTopology(topo) {
		a, okA := places[pair[0]]
		b, okB := places[pair[1]]
		if !okA || !okB || !linked[word] {
			continue
		}
		c := &scan.Cards[a]
		if c.Links == nil {
			c.Links = map[string]int{}
		}
		c.Links[scan.Cards[b].ID] = 1
	}
	domains(scan.Cards)
	return scan, nil
}

// logical is the number under which a chip is granted and linked.
func logical(place int, c Chip) int {
	switch {
	case c.Phy >= 0:
		return c.Phy
	case c.Chip > 0:
		return place
	}
	return c.NPU
}

// domains names the sets of cards that reach each other.
func domains(cards []card.Card) {
	at := map[string]*card.Card{}
	for i := range cards {
		at[cards[i].ID] = &cards[i]
	}
	var spread func(c *card.Card, name string)
	spread = func(c *card.Card, name string) {
		if c == nil || c.Domain != "" {
			return
		}
		c.Domain = name
		for peer := range c.Links {
			spread(at[peer], name)
		}
	}
	for i := range cards {
		if len(cards[i].Links) > 0 {
			spread(&cards[i], fmt.Sprintf("hccs%d", i))
		}
	}
}

// card makes one NPU. What the tool calls anything but OK is not healthy.
func (s *Source) card(place int, chip Chip) card.Card {
	number := logical(place, chip)
	model := chip.Name
	if !strings.HasPrefix(strings.ToLower(model), "ascend") {
		model = "Ascend " + model
	}
	c := card.Card{Group: card.Group{Vendor: "huawei", Type: contract.TypeNPU, Model: model}, ID: "NPU-" + s.host + "-" + chip.Bus.Sysfs(), Index: number, Bus: chip.Bus, NUMA: -1, GI: -1, CI: -1,
		Attributes: map[string]nomad.Attribute{contract.AttrSource: nomad.String("ascend")}, Grant: card.Ascend(strconv.Itoa(number))}
	c.Path, c.NUMA = s.root.Place(chip.Bus)
	if chip.Total > 0 {
		c.Attributes[contract.AttrMemory] = nomad.Int(int64(chip.Total), "MiB")
	}
	switch strings.ToUpper(chip.Health) {
	case "OK":
	case "WARNING":
		c.Conditions = []card.Condition{{Name: health.VendorWarning, Text: "npu-smi says " + chip.Health}}
	default:
		c.Conditions = []card.Condition{{Name: health.VendorFault, Text: fmt.Sprintf("npu-smi says %q", chip.Health)}}
	}
	for _, f := range []string{fmt.Sprintf("/dev/davinci%d", number), "/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"} {
		if s.root.Exists(f) {
			c.Grant.Nodes = append(c.Grant.Nodes, card.Node(f))
		}
	}
	return c
}

// Sample measures the NPUs.
func (s *Source) Sample(ctx context.Context) (map[string]card.Sample, error) {
	info, err := s.run(ctx, "info")
	if err != nil {
		return nil, err
	}
	out := map[string]card.Sample{}
	for i, c := range ParseInfo(info) {
		sample := card.Sample{At: time.Now()}
		for _, v := range []struct {
			value float64
			to    **float64
		}{{c.Busy, &sample.GPUUtil}, {c.Temperature, &sample.Temperature}, {c.Power, &sample.Power}} {
			if v.value >= 0 {
				*v.to = &v.value
			}
		}
		if c.Total > 0 {
			sample.MemUsed, sample.MemTotal = &c.Used, &c.Total
		}
		out[s.card(i, c).ID] = sample
	}
	return out, nil
}
