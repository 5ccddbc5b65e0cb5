package driver

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/nomad-muster/muster/driver/image"
	"github.com/nomad-muster/muster/driver/preflight"
	"github.com/nomad-muster/muster/internal/buildinfo"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadplugin/device"
	"github.com/nomad-muster/muster/internal/nomadplugin/driver"
)

const (
	fingerprintEvery = 30 * time.Second
	// unhealthyEvery: what is missing may come at any moment, as after a start
	// of the whole machine.
	unhealthyEvery = 2 * time.Second
	consulTimeout  = 3 * time.Second
)

// Fingerprint reports the driver's health and attributes, at once and then
// every 30 s, more often while the driver is not healthy.
func (p *Plugin) Fingerprint(ctx context.Context, send func(driver.Fingerprint) error) error {
	for {
		config, changed := p.settings()
		f := p.fingerprint(ctx, config)
		if err := send(f); err != nil {
			return err
		}
		pause := fingerprintEvery
		if f.Health != driver.HealthHealthy {
			pause = unhealthyEvery
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		case <-time.After(pause):
		}
	}
}

// fingerprint is healthy where gangs can be placed here. Python and torch may
// be missing: launcher = "ranks" needs neither, and a task may bring its own.
func (p *Plugin) fingerprint(ctx context.Context, config Config) driver.Fingerprint {
	f := driver.Fingerprint{Health: driver.HealthHealthy, Attributes: map[string]device.Attribute{
		"driver." + contract.DriverName: device.Bool(true),
		contract.AttrDriverVersion:      device.String(buildinfo.String()),
	}}
	var notes []string

	mode, err := p.rendezvousMode(config)
	if err != nil {
		f.Health, f.Description = driver.HealthUnhealthy, err.Error()
	} else {
		f.Attributes[contract.AttrDriverRendezvous] = device.String(mode)
		notes = append(notes, "rendezvous over "+map[string]string{contract.RendezvousConsul: "Consul at " + config.Consul.Where(), contract.RendezvousSignal: "Nomad's signals"}[mode])
	}

	isolated := p.hierarchy.String()
	if config.Isolation == contract.IsolationNone {
		isolated = contract.IsolationNone
	}
	f.Attributes[contract.AttrDriverIsolation] = device.String(isolated)
	if p.hierarchy.Version == 0 && config.Isolation == contract.IsolationAuto {
		notes = append(notes, "no cgroups: "+p.hierarchy.Why)
	}
	if p.noJail != nil && config.Isolation == contract.IsolationAuto {
		notes = append(notes, "no private /dev and /tmp: "+p.noJail.Error())
	}

	if engine, err := image.Find(config.Images.Engine, config.Path); err == nil {
		f.Attributes[contract.AttrDriverImages] = device.String(engine.Name)
		notes = append(notes, "images with "+engine.Name)
	}

	python, err := preflight.FindPython(ctx, preflight.Place{Run: runProgram}, config.Python, config.Path)
	switch {
	case err != nil:
		notes = append(notes, "torchrun not to be had: "+err.Error())
	case python.Torch == "":
		notes = append(notes, fmt.Sprintf("torchrun not to be had: %s has no torch", python.Path))
	default:
		f.Attributes[contract.AttrDriverTorch] = device.String(python.Torch)
		notes = append(notes, "torch "+python.Torch+" of "+python.Path)
	}
	if f.Health == driver.HealthHealthy {
		f.Description = strings.Join(notes, "; ")
	}
	return f
}

// rendezvousMode settles how members of this node hear of their gang; an error
// where Consul is to be used and cannot be reached.
func (p *Plugin) rendezvousMode(config Config) (string, error) {
	switch config.Rendezvous {
	case contract.RendezvousSignal:
		return contract.RendezvousSignal, nil
	case contract.RendezvousConsul:
		return contract.RendezvousConsul, config.Consul.Check(consulTimeout)
	}
	err := config.Consul.Check(consulTimeout)
	if err == nil {
		return contract.RendezvousConsul, nil
	}
	if config.Consul.Address != "" { // one is named, so it is meant
		return contract.RendezvousConsul, err
	}
	return contract.RendezvousSignal, nil
}

// runProgram is the preflight.Runner of this process.
func runProgram(ctx context.Context, argv, env []string, dir string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env, cmd.Dir, cmd.WaitDelay = env, dir, time.Second
	return cmd.Output()
}
