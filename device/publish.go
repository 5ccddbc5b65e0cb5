package device

import (
	"maps"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/topology"
	"github.com/nomad-muster/muster/internal/contract"
	nomad "github.com/nomad-muster/muster/internal/nomadplugin/device"
)

// unnamed is the model of a card whose name its source cannot tell.
const unnamed = "unknown model"

// view is what the plugin tells at one time: the device groups, and what a
// reservation needs. It is never changed once made.
type view struct {
	groups []nomad.Group
	cards  map[string]viewed
}

type viewed struct {
	card    card.Card
	verdict health.Verdict
	xids    map[int]uint64
}

// maxWhy bounds the sentence that travels with each card: a node's devices are
// sent to Nomad's servers whole, whenever one of them changes.
const maxWhy = 100

// look makes the view of a registry.
func (r *registry) look() *view {
	v := &view{cards: map[string]viewed{}}
	byGroup := map[card.Group][]*card.Card{}
	var nics []*card.Card
	for _, id := range r.ids("") {
		e := r.Cards[id]
		c := e.Card
		if !r.sources[c.Source] || c.Hidden != "" {
			continue
		}
		c.Group = groupName(c.Group)
		v.cards[id] = viewed{card: c, verdict: r.verdict(id), xids: e.Health.Xids}
		byGroup[c.Group] = append(byGroup[c.Group], &c)
		if c.IsNIC() && r.verdict(id).Level.Usable() {
			nics = append(nics, &c)
		}
	}
	sortCards(nics)
	for name, cards := range byGroup {
		sortCards(cards)
		v.groups = append(v.groups, r.group(name, cards, nics))
	}
	sort.Slice(v.groups, func(i, j int) bool {
		a, b := v.groups[i], v.groups[j]
		return a.Vendor+"/"+a.Type+"/"+a.Name < b.Vendor+"/"+b.Type+"/"+b.Name
	})
	return v
}

// verdict is a card's, or that of the card that it is a part of, whichever is
// worse.
func (r *registry) verdict(id string) health.Verdict {
	own := r.verdicts[id]
	whole, ok := r.verdicts[r.Cards[id].Card.Parent]
	if ok && whole.Level.Worse(own.Level) {
		return whole
	}
	return own
}

func sortCards(cards []*card.Card) {
	sort.Slice(cards, func(i, j int) bool {
		if cards[i].Index != cards[j].Index {
			return cards[i].Index < cards[j].Index
		}
		return cards[i].ID < cards[j].ID
	})
}

// group makes one device group.
func (r *registry) group(name card.Group, cards, nics []*card.Card) nomad.Group {
	g := nomad.Group{Vendor: name.Vendor, Type: name.Type, Name: name.Model, Attributes: shared(cards)}
	encoded := topology.Group(cards, nics)
	for i, c := range cards {
		verdict := r.verdict(c.ID)
		d := nomad.Device{ID: c.ID, Healthy: verdict.Level.Usable(), PCIBusID: clean(c.Bus.String())}
		// Nomad keeps the address and the words for each device; they are not
		// told twice.
		encoded.Cards[i].Bus, encoded.Cards[i].Serial = "", clean(c.Serial)
		if verdict.Level != health.Healthy {
			why := shorten(clean(verdict.Sentence), maxWhy)
			d.HealthDescription = string(verdict.Level) + ": " + why
			encoded.Cards[i].State = string(verdict.Level)
		}
		g.Devices = append(g.Devices, d)
	}
	if text, err := contract.EncodeCards(encoded); err != nil {
		r.sayOnce("encode "+name.Model, "the cards of a group do not fit into its attribute: they go without topology", "group", name.Model, "error", err.Error())
	} else {
		g.Attributes[contract.AttrCards] = nomad.String(text)
	}
	return g
}

// shared are the attributes of a group: what its cards agree on, and of sizes
// the least, so that a constraint never promises more than each card has.
func shared(cards []*card.Card) map[string]nomad.Attribute {
	out := map[string]nomad.Attribute{}
	for i, c := range cards {
		if i == 0 {
			for k, a := range c.Attributes {
				out[k] = tidy(a)
			}
			continue
		}
		maps.DeleteFunc(out, func(k string, a nomad.Attribute) bool {
			b, have := c.Attributes[k]
			if !have {
				return true
			}
			b = tidy(b)
			switch {
			case a.Int != nil && b.Int != nil && a.Unit == b.Unit:
				if *b.Int < *a.Int {
					out[k] = b
				}
				return false
			case a.Float != nil && b.Float != nil && a.Unit == b.Unit:
				if *b.Float < *a.Float {
					out[k] = b
				}
				return false
			case a.String != nil && b.String != nil:
				return *a.String != *b.String
			case a.Bool != nil && b.Bool != nil:
				return *a.Bool != *b.Bool
			}
			return true
		})
	}
	return out
}

func tidy(a nomad.Attribute) nomad.Attribute {
	if a.String != nil {
		s := clean(*a.String)
		a.String = &s
	}
	return a
}

// groupName makes a name that Nomad takes whatever a driver answers: no part is
// empty, and a model has no slash, since a jobspec's name is cut at them.
func groupName(g card.Group) card.Group {
	g.Vendor, g.Type, g.Model = clean(g.Vendor), clean(g.Type), strings.ReplaceAll(clean(g.Model), "/", "-")
	if g.Model == "" {
		g.Model = unnamed
	}
	return g
}

// clean cuts text at the first NUL (drivers pad with them) and drops what does
// not print.
func clean(text string) string {
	text, _, _ = strings.Cut(text, "\x00")
	return strings.TrimSpace(strings.Map(func(c rune) rune {
		if c < 0x20 || c == 0x7f || c == utf8.RuneError {
			return -1
		}
		return c
	}, text))
}

func shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most-3], "") + "..."
}
