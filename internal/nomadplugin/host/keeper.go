package host

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nomad-muster/muster/internal/nomadplugin/base"
)

// restartPause is how long a process or stream that ended right after its
// start is left alone.
const restartPause = time.Second

// ErrClosed is the error of a call after Close or Detach.
var ErrClosed = errors.New("the agent has let go of the plugin")

// keeper holds the one process of a plugin that is in use.
type keeper struct {
	plugin *Plugin
	agent  base.Agent

	mu     sync.Mutex
	proc   *process
	closed error // why no process is launched any more
}

// dispense is the running process, or a new one.
func (k *keeper) dispense(ctx context.Context) (*process, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed != nil {
		return nil, k.closed
	}
	if k.proc != nil && !k.proc.exited() {
		return k.proc, nil
	}
	if k.proc != nil {
		k.proc.forget()
		k.proc = nil
	}
	proc, err := k.launch(ctx)
	if err != nil {
		return nil, err
	}
	k.proc = proc
	return proc, nil
}

// launch is the third launch and every later one.
func (k *keeper) launch(ctx context.Context) (*process, error) {
	proc, err := k.plugin.start(ctx)
	if err != nil {
		return nil, err
	}
	agent := k.agent
	err = proc.base.SetConfig(ctx, base.Config{MsgPack: k.plugin.config, APIVersion: base.APIVersion, Agent: &agent})
	if err != nil {
		proc.end()
		return nil, fmt.Errorf("set the config of %s: %w", k.plugin.path, err)
	}
	if err := k.prepare(ctx, proc); err != nil {
		proc.end()
		return nil, err
	}
	return proc, nil
}

// prepare readies a driver after its configuration or re-attachment.
func (k *keeper) prepare(ctx context.Context, proc *process) error {
	if k.plugin.info.Type != base.TypeDriver {
		return nil
	}
	if err := proc.driver.Init(ctx); err != nil {
		return fmt.Errorf("init %s: %w", k.plugin.path, err)
	}
	return nil
}

// Process tells where the running process is; false where there is none.
func (k *keeper) Process() (Reattach, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.proc == nil || k.proc.exited() {
		return Reattach{}, false
	}
	return k.proc.reattach()
}

// Detach forgets the process without ending it, as the death of an agent does:
// running calls end, later ones return ErrClosed. False where there is none.
func (k *keeper) Detach() (Reattach, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed == nil {
		k.closed = ErrClosed
	}
	proc := k.proc
	if proc == nil {
		return Reattach{}, false
	}
	k.proc = nil
	proc.forget()
	if proc.exited() {
		return Reattach{}, false
	}
	return proc.reattach()
}

// Close ends the process as a graceful end of an agent does; later calls
// return ErrClosed.
func (k *keeper) Close() { k.close(ErrClosed) }

func (k *keeper) close(reason error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed == nil {
		k.closed = reason
	}
	if k.proc == nil {
		return
	}
	if !k.proc.exited() && k.plugin.info.Type == base.TypeDriver {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		if err := k.proc.driver.Shutdown(ctx); err != nil {
			k.plugin.log.Warn("driver could not be told of its end", "error", err)
		}
		cancel()
	}
	k.proc.end()
	k.proc = nil
}

// pause waits after something that began at since and has just ended, unless
// it lasted.
func pause(ctx context.Context, since time.Time) {
	if time.Since(since) > restartPause {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(restartPause):
	}
}
