package main

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/nomad-muster/muster/planner/agent"
	"github.com/nomad-muster/muster/planner/command"
	"github.com/nomad-muster/muster/planner/httpapi"
)

// runAgent runs the planner and its API until the context ends, or one of the
// two fails and takes the other with it.
func runAgent(ctx context.Context, a command.Agent) error {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	planner, err := agent.New(agent.Options{Config: a.Config, Log: a.Log, Registry: registry})
	if err != nil {
		return err
	}
	// The address is opened first: a second planner on the same one ends before
	// it has done anything.
	listener, err := httpapi.Listen(a.Config.Current().API)
	if err != nil {
		return err
	}
	api := httpapi.New(httpapi.Options{Config: a.Config.Current, Gangs: planner, Cluster: planner, Jobs: planner, Stopper: planner, Capture: planner, Cards: planner, Books: planner, Reports: planner, Feed: planner.Feed(),
		Metrics: promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry}), Log: a.Log})
	a.Log.Info("the API listens", "address", listener.Addr().String())

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 2)
	go func() { ended <- planner.Run(ctx) }()
	go func() { ended <- api.Serve(ctx, listener) }()
	for {
		select {
		case <-a.Reloaded:
			planner.Reload()
		case first := <-ended:
			cancel()
			return errors.Join(first, <-ended)
		}
	}
}
