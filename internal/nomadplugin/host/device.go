package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nomad-muster/muster/internal/nomadplugin/base"
	"github.com/nomad-muster/muster/internal/nomadplugin/device"
)

// Device keeps a device plugin running.
type Device struct{ keeper }

// Device makes the keeper of a device plugin; nothing is launched before its
// first call.
func (p *Plugin) Device(agent base.Agent) (*Device, error) {
	if p.info.Type != base.TypeDevice {
		return nil, fmt.Errorf("plugin %q is a %v, not a device plugin", p.info.Name, p.info.Type)
	}
	return &Device{keeper{plugin: p, agent: agent}}, nil
}

// EndStale ends a device plugin that a dead agent left.
func (p *Plugin) EndStale(ctx context.Context, r Reattach) error {
	proc, err := p.attach(ctx, r)
	if err != nil {
		return err
	}
	proc.end()
	return nil
}

// Fingerprint calls receive with every complete list of groups until ctx ends
// or receive returns an error. A crash of the plugin is bridged by a new
// process. Anything else that ends the stream, and an invalid group, ends the
// plugin for good, as in Nomad: receive gets an empty list, Fingerprint returns
// the reason, and so does every later call.
func (d *Device) Fingerprint(ctx context.Context, receive func([]device.Group) error) error {
	for {
		since := time.Now()
		proc, err := d.dispense(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return d.lose(err, receive)
		}
		var received error
		err = proc.device.Fingerprint(ctx, func(groups []device.Group) error {
			if err := device.ValidateGroups(groups); err != nil {
				return fmt.Errorf("invalid fingerprint: %w", err)
			}
			received = receive(groups)
			return received
		})
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case received != nil:
			return received
		case errors.Is(err, ErrExited):
			d.plugin.log.Error("device plugin exited unexpectedly", "error", err)
			pause(ctx, since)
		case err == nil:
			return d.lose(errors.New("the plugin ended its fingerprint stream"), receive)
		default:
			return d.lose(err, receive)
		}
	}
}

// lose ends the plugin for good.
func (d *Device) lose(reason error, receive func([]device.Group) error) error {
	if errors.Is(reason, ErrClosed) {
		return reason
	}
	reason = fmt.Errorf("device plugin %q is lost until the agent restarts: %w", d.plugin.info.Name, reason)
	d.close(reason)
	return errors.Join(reason, receive(nil))
}

// Reserve asks what a task needs to use these devices.
func (d *Device) Reserve(ctx context.Context, ids []string) (*device.Reservation, error) {
	proc, err := d.dispense(ctx)
	if err != nil {
		return nil, err
	}
	return proc.device.Reserve(ctx, ids)
}

// Pauses after an error of Stats, as Nomad has them.
const (
	statsPause    = 5 * time.Second
	statsPauseMax = 30 * time.Minute
)

// Stats calls receive with the statistics of every interval until ctx ends or
// receive returns an error. A crash is bridged; after an error it asks again,
// later each time; when the plugin ends the stream, it returns nil and the last
// values stand, as in Nomad.
func (d *Device) Stats(ctx context.Context, interval time.Duration, receive func([]device.GroupStats) error) error {
	wait := statsPause
	for {
		since := time.Now()
		proc, err := d.dispense(ctx)
		if err != nil {
			return err
		}
		var received error
		err = proc.device.Stats(ctx, interval, func(groups []device.GroupStats) error {
			wait = statsPause
			received = receive(groups)
			return received
		})
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case received != nil:
			return received
		case err == nil:
			return nil
		case errors.Is(err, ErrExited):
			pause(ctx, since)
		default:
			d.plugin.log.Error("device stats returned an error", "error", err, "retry", wait)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(wait):
			}
			wait = min(2*wait, statsPauseMax)
		}
	}
}
