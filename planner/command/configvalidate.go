package command

import (
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/config"
)

func configValidate() Command {
	var cluster bool
	return Command{
		Synopsis: "Report everything that is wrong with a configuration",
		Usage:    "config validate [options] <path>...",
		About: "Reads the planner's configuration from files and folders as muster agent does, and reports all that is wrong with it, with file and line.\n\n" +
			"-cluster also asks the running planner for its nodes, and reports card models that none of them has.",
		API: true, Data: true, Least: 1, Most: -1,
		Flags: func(f *Flags) {
			f.BoolVar(&cluster, "cluster", false, "Compare with the cluster of the running planner.")
		},
		Run: func(c *Call, args []string) error {
			cfg, err := config.Load(args...)
			if err != nil {
				return err
			}
			if cluster {
				if err := against(c, cfg); err != nil {
					return err
				}
			}
			out := struct {
				Valid  bool     `json:"valid"`
				Files  []string `json:"files"`
				Queues []string `json:"queues"`
			}{Valid: true, Files: cfg.Files}
			for _, q := range cfg.Core.Queues {
				out.Queues = append(out.Queues, string(q.Name))
			}
			return c.print(out, func(w *screen) {
				w.line("Nothing is wrong with the configuration: %s, %s.", count(len(out.Files), "file"), count(len(out.Queues), "queue"))
			})
		},
	}
}

// against compares a configuration with the running planner's nodes.
func against(c *Call, cfg *config.Config) error {
	api, err := c.client()
	if err != nil {
		return err
	}
	list, err := api.Nodes(c.Context)
	if err != nil {
		return err
	}
	seen := map[string]bool{}
	known := config.Cluster{Models: []string{}}
	for _, n := range list.Nodes {
		for _, card := range n.Cards {
			if !seen[card.Model] && card.Type != contract.TypeNIC {
				seen[card.Model] = true
				known.Models = append(known.Models, card.Model)
			}
		}
	}
	if faults := cfg.Against(known); len(faults) > 0 {
		return faults
	}
	return nil
}
