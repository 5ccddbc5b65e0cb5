//go:build linux

package trial

import (
	"context"
	"errors"
	"fmt"
)

// existingNomad is a cluster that somebody else runs, with Muster's plugins on
// its clients. Nothing of it is started, killed or stopped.
type existingNomad struct{ http string }

func (e existingNomad) address() string                    { return e.http }
func (e existingNomad) startServer(context.Context) error  { return nil }
func (e existingNomad) startClients(context.Context) error { return nil }
func (e existingNomad) stop()                              {}
func (e existingNomad) logs(string) string                 { return "" }
func (e existingNomad) killClient(string) error            { return errNotOurs }
func (e existingNomad) startClient(string) error           { return errNotOurs }

var errNotOurs = errors.New("the cluster is not ours: it was there before")

// attach takes an existing cluster, which must be empty: Close stops all jobs.
func (c *Cluster) attach(ctx context.Context, o Options) error {
	c.nomad, c.NomadAddr, c.ConsulAddr = existingNomad{o.NomadAddr}, o.NomadAddr, o.ConsulAddr
	if err := consulReady(ctx, c.ConsulAddr); err != nil {
		return fmt.Errorf("use the Consul at %s: %w", c.ConsulAddr, err)
	}
	var jobs []struct{ ID, Status string }
	if err := call(ctx, "GET", c.NomadAddr+"/v1/jobs?namespace=*", nil, &jobs); err != nil {
		return fmt.Errorf("use the Nomad at %s: %w", c.NomadAddr, err)
	}
	for _, j := range jobs {
		if j.Status != "dead" {
			return fmt.Errorf("use the Nomad at %s: job %s is %s there, and all jobs would be stopped: name a cluster without jobs", c.NomadAddr, j.ID, j.Status)
		}
	}
	for _, n := range o.Nodes {
		c.nodes = append(c.nodes, &node{Node: n})
	}
	return c.nodesReady(ctx)
}
