package device

import (
	"fmt"
	"maps"
	"slices"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/internal/contract"
	nomad "github.com/nomad-muster/muster/internal/nomadplugin/device"
)

// share hides the cards that the operator excluded, and cuts those that are to
// be shared into as many devices. Shares have a device type of their own: a
// plain nvidia/gpu never gets one.
func (c *Config) share(s *card.Scan) {
	for i := range s.Cards {
		if slices.Contains(c.Ignore, s.Cards[i].ID) && s.Cards[i].Hidden == "" {
			s.Cards[i].Hidden = "listed in ignored_cards"
		}
	}
	if len(c.Shares) == 0 {
		return
	}
	var shares []card.Card
	for i := range s.Cards {
		whole := &s.Cards[i]
		rule := c.shareOf(whole)
		if rule == nil {
			continue
		}
		whole.Hidden = fmt.Sprintf("offered as %d shares", rule.Replicas)
		for n := range rule.Replicas {
			part := *whole
			part.ID, part.Parent, part.Hidden, part.Note = fmt.Sprintf("%s::%d", whole.ID, n+1), whole.ID, "", ""
			part.Group.Type = contract.TypeShared
			part.Attributes = maps.Clone(whole.Attributes)
			if part.Attributes == nil {
				part.Attributes = map[string]nomad.Attribute{}
			}
			part.Attributes[contract.AttrReplicas] = nomad.Int(int64(rule.Replicas), "")
			// The whole card's counters, processes and links are told once, at
			// the card itself; its faults reach each share all the same.
			part.Grant.Env = maps.Clone(part.Grant.Env)
			if part.Grant.Env == nil {
				part.Grant.Env = map[string]string{}
			}
			part.Grant.Env[contract.EnvCardsShared] = "1" // the driver does not take another share's ranks for strangers
			part.Counters, part.Processes, part.Odometer, part.Up, part.Links = nil, nil, 0, nil, nil
			if rule.MPS {
				part.Grant = withMPS(part.Grant, *rule, part.Attributes[contract.AttrMemory])
			}
			shares = append(shares, part)
		}
	}
	s.Cards = append(s.Cards, shares...)
}

func (c *Config) shareOf(whole *card.Card) *Share {
	if whole.Group.Type != contract.TypeGPU || whole.Group.Vendor != "nvidia" || whole.Parent != "" || whole.Hidden != "" {
		return nil
	}
	for i := range c.Shares {
		if c.Shares[i].Model == "" || c.Shares[i].Model == whole.Group.Model {
			return &c.Shares[i]
		}
	}
	return nil
}

// withMPS bounds a share's part of the card through the site's MPS daemon.
func withMPS(g card.Grant, rule Share, memory nomad.Attribute) card.Grant {
	g.Env = maps.Clone(g.Env)
	g.Env["CUDA_MPS_PIPE_DIRECTORY"] = rule.PipeDirectory
	g.Env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = fmt.Sprint(100 / rule.Replicas)
	if memory.Int != nil {
		g.Env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = fmt.Sprintf("0=%dM", *memory.Int/int64(rule.Replicas))
	}
	g.Mounts = append(slices.Clone(g.Mounts), nomad.Mount{TaskPath: rule.PipeDirectory, HostPath: rule.PipeDirectory})
	return g
}
