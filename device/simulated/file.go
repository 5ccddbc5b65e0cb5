package simulated

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclparse"
)

// file is the whole of a description, as HCL has it.
type file struct {
	Nodes []*nodeBlock `hcl:"node,block"`
}

type nodeBlock struct {
	Name   string      `hcl:"name,label"`
	Preset string      `hcl:"preset,optional"`
	GPUs   []*gpuBlock `hcl:"gpu,block"`
	NICs   []*nicBlock `hcl:"nic,block"`
	Links  []linkBlock `hcl:"link,block"`
	At     hcl.Range   `hcl:",def_range"`
}

// gpuBlock is one accelerator, or Count of them with the same description; its
// label is the first one's index.
type gpuBlock struct {
	Label   string   `hcl:"index,label"`
	Count   int      `hcl:"count,optional"`
	Vendor  string   `hcl:"vendor,optional"` // nvidia (default), amd, huawei, intel
	Model   string   `hcl:"model,optional"`
	Memory  int      `hcl:"memory,optional"` // MiB
	NUMA    *int     `hcl:"numa,optional"`
	Bus     string   `hcl:"bus,optional"`
	Place   string   `hcl:"place,optional"` // host bridge and switches above it: "a/s1"
	Serial  string   `hcl:"serial,optional"`
	UUID    string   `hcl:"uuid,optional"`
	Slices  []string `hcl:"mig,optional"` // MIG profiles: the card is cut into these
	Driver  string   `hcl:"driver,optional"`
	CUDA    string   `hcl:"cuda,optional"`
	Compute string   `hcl:"compute,optional"`
	Fabric  string   `hcl:"fabric,optional"` // cluster/clique of a rack-wide NVLink fabric
	Nodes   []string `hcl:"device_nodes,optional"`
	Lost    bool     `hcl:"lost,optional"`
	Hot     bool     `hcl:"thermal,optional"`
	Index   int      // the label's number

	At hcl.Range `hcl:",def_range"`
}

type nicBlock struct {
	Name  string    `hcl:"name,label"`
	Model string    `hcl:"model,optional"`
	Rate  int       `hcl:"rate,optional"`  // Gb/s
	Layer string    `hcl:"layer,optional"` // InfiniBand (default) or Ethernet
	NUMA  *int      `hcl:"numa,optional"`
	Bus   string    `hcl:"bus,optional"`
	Place string    `hcl:"place,optional"`
	Nodes []string  `hcl:"device_nodes,optional"`
	Down  bool      `hcl:"down,optional"`
	At    hcl.Range `hcl:",def_range"`
}

// linkBlock connects each pair of the listed accelerators with Count links of
// their own, or each accelerator with Count links to a switch.
type linkBlock struct {
	Cards  []int     `hcl:"cards"`
	Count  int       `hcl:"count"`
	Switch bool      `hcl:"switch,optional"`
	At     hcl.Range `hcl:",def_range"`
}

// fileFaults collects what is wrong, each with its place.
type fileFaults []error

func (f *fileFaults) add(at hcl.Range, format string, args ...any) {
	*f = append(*f, fmt.Errorf("%s:%d: %s", at.Filename, at.Start.Line, fmt.Sprintf(format, args...)))
}

// load reads a description. The error lists every fault with its line.
func load(path string) (*file, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read simulated cards: %w", err)
	}
	return parse(src, path)
}

func parse(src []byte, path string) (*file, error) {
	parser := hclparse.NewParser()
	read := parser.ParseHCL
	if strings.HasSuffix(path, ".json") {
		read = parser.ParseJSON
	}
	body, diags := read(src, path)
	var f file
	if !diags.HasErrors() {
		diags = append(diags, gohcl.DecodeBody(body.Body, nil, &f)...)
	}
	var faults fileFaults
	for _, d := range diags {
		if d.Severity == hcl.DiagError {
			at := hcl.Range{Filename: path, Start: hcl.InitialPos}
			if d.Subject != nil {
				at = *d.Subject
			}
			faults.add(at, "%s: %s", d.Summary, d.Detail)
		}
	}
	seen := map[string]bool{}
	for _, n := range f.Nodes {
		if n.Name == "" || seen[n.Name] {
			faults.add(n.At, "node %q is unnamed or described twice", n.Name)
		}
		seen[n.Name] = true
		n.check(&faults)
	}
	if len(faults) > 0 {
		return nil, fmt.Errorf("simulated cards: %d faults:\n%w", len(faults), errors.Join(faults...))
	}
	if len(f.Nodes) == 0 {
		return nil, fmt.Errorf("simulated cards: %s describes no node: write node \"NAME\" { preset = \"%s\" }", path, presetNames()[0])
	}
	return &f, nil
}

// node finds a node's description: its own, else that of node "*".
func (f *file) node(name string) (*nodeBlock, error) {
	var names []string
	for _, n := range f.Nodes {
		if n.Name == name {
			return n, nil
		}
		names = append(names, n.Name)
	}
	for _, n := range f.Nodes {
		if n.Name == "*" {
			return n, nil
		}
	}
	return nil, fmt.Errorf("simulated cards: no node %q and no node \"*\": described are %s", name, strings.Join(names, ", "))
}

// check completes a node from its preset, and names what is wrong with it.
func (n *nodeBlock) check(faults *fileFaults) {
	for _, g := range n.GPUs {
		var err error
		if g.Index, err = strconv.Atoi(g.Label); err != nil {
			faults.add(g.At, "node %q: gpu %q: the label is the card's index, such as \"0\"", n.Name, g.Label)
			return
		}
	}
	if n.Preset != "" {
		make, known := presets[n.Preset]
		if !known {
			faults.add(n.At, "node %q: there is no preset %q: there are %s", n.Name, n.Preset, strings.Join(presetNames(), ", "))
		} else {
			n.merge(make())
		}
	}
	n.GPUs = expand(n.GPUs, faults)
	indexes, names := map[int]bool{}, map[string]bool{}
	buses := map[string]string{}
	bus := func(at hcl.Range, what, text string) {
		if text == "" {
			return
		}
		a, err := parseBus(text)
		if err != nil {
			faults.add(at, "%s: %v", what, err)
		} else if other := buses[a.String()]; other != "" {
			faults.add(at, "%s: %s has the same bus %s", what, other, text)
		} else {
			buses[a.String()] = what
		}
	}
	for _, g := range n.GPUs {
		what := fmt.Sprintf("node %q gpu %d", n.Name, g.Index)
		if indexes[g.Index] {
			faults.add(g.At, "%s: described twice", what)
		}
		indexes[g.Index] = true
		if g.Index < 0 || g.Index > 255 {
			faults.add(g.At, "%s: an index is 0 to 255", what)
		}
		if g.Memory < 0 {
			faults.add(g.At, "%s: memory = %d: MiB above zero", what, g.Memory)
		}
		if !slices.Contains([]string{"nvidia", "amd", "huawei", "intel"}, g.Vendor) {
			faults.add(g.At, "%s: vendor = %q: nvidia, amd, huawei or intel", what, g.Vendor)
		}
		for _, p := range g.Slices {
			if _, err := sliceMemory(p); err != nil {
				faults.add(g.At, "%s: %v", what, err)
			}
		}
		if strings.ContainsAny(g.UUID+g.Model, "\x00\n,") {
			faults.add(g.At, "%s: uuid and model have no comma and no line break", what)
		}
		bus(g.At, what, g.Bus)
	}
	for _, c := range n.NICs {
		what := fmt.Sprintf("node %q nic %q", n.Name, c.Name)
		if c.Name == "" || names[c.Name] {
			faults.add(c.At, "%s: unnamed, or described twice", what)
		}
		names[c.Name] = true
		if c.Rate < 0 {
			faults.add(c.At, "%s: rate = %d: Gb/s above zero", what, c.Rate)
		}
		if c.Layer != "InfiniBand" && c.Layer != "Ethernet" && c.Layer != "" {
			faults.add(c.At, "%s: layer = %q: InfiniBand or Ethernet", what, c.Layer)
		}
		bus(c.At, what, c.Bus)
	}
	for _, l := range n.Links {
		if l.Count < 1 || len(l.Cards) < 2 {
			faults.add(l.At, "node %q link: count of at least 1 between at least two cards", n.Name)
		}
		for i, c := range l.Cards {
			if !indexes[c] {
				faults.add(l.At, "node %q link: there is no gpu %d", n.Name, c)
			}
			if slices.Contains(l.Cards[:i], c) {
				faults.add(l.At, "node %q link: gpu %d stands twice", n.Name, c)
			}
		}
	}
	if len(n.GPUs)+len(n.NICs) == 0 {
		faults.add(n.At, "node %q has no card: give it a preset, gpu or nic blocks", n.Name)
	}
}

// expand turns a block with a count into as many.
func expand(blocks []*gpuBlock, faults *fileFaults) []*gpuBlock {
	var out []*gpuBlock
	for _, b := range blocks {
		if b.Count < 0 || b.Count > 256 {
			faults.add(b.At, "gpu %d: count = %d: 1 to 256", b.Index, b.Count)
			continue
		}
		if b.Count > 1 && (b.UUID != "" || b.Bus != "" || b.Serial != "") {
			faults.add(b.At, "gpu %d: uuid, bus and serial are one card's: not together with count", b.Index)
		}
		for i := range max(b.Count, 1) {
			g := *b
			g.Index, g.Count = b.Index+i, 0
			if g.Vendor == "" {
				g.Vendor = "nvidia"
			}
			if g.Model == "" {
				g.Model = "Simulated GPU"
			}
			out = append(out, &g)
		}
	}
	return out
}

// merge lays a node's own blocks over a preset: a gpu or nic block replaces
// what it names of the preset's (fields that it leaves out keep the preset's),
// and links replace the preset's links.
func (n *nodeBlock) merge(base *nodeBlock) {
	var none fileFaults
	gpus := expand(base.GPUs, &none)
	for _, own := range n.GPUs {
		for i := range max(own.Count, 1) {
			index := own.Index + i
			at := slices.IndexFunc(gpus, func(g *gpuBlock) bool { return g.Index == index })
			if at < 0 {
				g := *own
				g.Index, g.Count = index, 0
				gpus = append(gpus, &g)
				continue
			}
			gpus[at].override(own)
		}
	}
	for _, own := range n.NICs {
		if at := slices.IndexFunc(base.NICs, func(c *nicBlock) bool { return c.Name == own.Name }); at >= 0 {
			base.NICs[at].override(own)
		} else {
			base.NICs = append(base.NICs, own)
		}
	}
	n.GPUs, n.NICs = gpus, base.NICs
	if len(n.Links) == 0 {
		n.Links = base.Links
		for i := range n.Links {
			n.Links[i].At = n.At
		}
	}
}

func (g *gpuBlock) override(own *gpuBlock) {
	set(&g.Vendor, own.Vendor)
	set(&g.Model, own.Model)
	set(&g.Memory, own.Memory)
	set(&g.NUMA, own.NUMA)
	set(&g.Bus, own.Bus)
	set(&g.Place, own.Place)
	set(&g.Serial, own.Serial)
	set(&g.UUID, own.UUID)
	set(&g.Driver, own.Driver)
	set(&g.CUDA, own.CUDA)
	set(&g.Compute, own.Compute)
	set(&g.Fabric, own.Fabric)
	set(&g.Lost, own.Lost)
	set(&g.Hot, own.Hot)
	if own.Slices != nil {
		g.Slices = own.Slices
	}
	if own.Nodes != nil {
		g.Nodes = own.Nodes
	}
	g.At = own.At
}

func (c *nicBlock) override(own *nicBlock) {
	set(&c.Model, own.Model)
	set(&c.Rate, own.Rate)
	set(&c.Layer, own.Layer)
	set(&c.NUMA, own.NUMA)
	set(&c.Bus, own.Bus)
	set(&c.Place, own.Place)
	set(&c.Down, own.Down)
	if own.Nodes != nil {
		c.Nodes = own.Nodes
	}
	c.At = own.At
}

func set[T comparable](to *T, from T) {
	var zero T
	if from != zero {
		*to = from
	}
}

// Describe reads a description and says in a line for each node what it holds.
func Describe(path string) (string, error) {
	f, err := load(path)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, n := range f.Nodes {
		models := map[string]int{}
		for _, g := range n.GPUs {
			models[g.Vendor+"/"+g.Model]++
		}
		fmt.Fprintf(&b, "node %s: %d cards, %d adapters, %d link groups\n", n.Name, len(n.GPUs), len(n.NICs), len(n.Links))
		for _, model := range slices.Sorted(maps.Keys(models)) {
			fmt.Fprintf(&b, "  %d x %s\n", models[model], model)
		}
	}
	return b.String(), nil
}
