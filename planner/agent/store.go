package agent

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/lifecycle"
	"github.com/nomad-muster/muster/planner/nomad"
	"github.com/nomad-muster/muster/planner/nomad/picture"
)

// A gang's variable has these items: the job's id, since the path may have it
// encoded, and the state, as it stands or, where that is long, compressed.
const (
	itemJob    = "job"
	itemState  = "state"
	itemPacked = "state_gzip_base64"
)

// plainMost is the longest state that is kept readable; variableMost is
// Nomad's limit for the items of one variable, with some room.
const (
	plainMost    = 16 << 10
	variableMost = 63 << 10
)

// encodeSaved makes the items of a gang's variable. Where they exceed what a
// variable may hold, earlier attempts are left out, the oldest first.
func encodeSaved(job string, saved lifecycle.Saved) (map[string]string, error) {
	for {
		plain, err := json.Marshal(saved)
		if err != nil {
			return nil, fmt.Errorf("encode state of gang: %w", err)
		}
		if len(plain) <= plainMost {
			return map[string]string{itemJob: job, itemState: string(plain)}, nil
		}
		var packed bytes.Buffer
		w, _ := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
		if _, err := w.Write(plain); err != nil {
			return nil, fmt.Errorf("compress state of gang: %w", err)
		}
		if err := w.Close(); err != nil {
			return nil, fmt.Errorf("compress state of gang: %w", err)
		}
		text := base64.StdEncoding.EncodeToString(packed.Bytes())
		if len(text) <= variableMost {
			return map[string]string{itemJob: job, itemPacked: text}, nil
		}
		if len(saved.Attempts) == 0 {
			return nil, fmt.Errorf("the state takes %d bytes compressed, and a variable holds %d: the gang has too many members", len(text), variableMost)
		}
		saved.Attempts = saved.Attempts[1:]
	}
}

func decodeSaved(items map[string]string) (job string, saved lifecycle.Saved, err error) {
	plain := []byte(items[itemState])
	if text, ok := items[itemPacked]; ok {
		packed, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return "", saved, fmt.Errorf("read item %s: %w", itemPacked, err)
		}
		r, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			return "", saved, fmt.Errorf("read item %s: %w", itemPacked, err)
		}
		if plain, err = io.ReadAll(io.LimitReader(r, 32<<20)); err != nil {
			return "", saved, fmt.Errorf("read item %s: %w", itemPacked, err)
		}
	}
	if items[itemJob] == "" {
		return "", saved, errors.New("it names no job")
	}
	if err := json.Unmarshal(plain, &saved); err != nil {
		return "", saved, fmt.Errorf("read item %s: %w", itemState, err)
	}
	return items[itemJob], saved, saved.Check()
}

// loaded is what a variable held.
type loaded struct {
	key   picture.Key
	saved lifecycle.Saved
	index uint64
}

// save writes a gang's variable. Where somebody else wrote it meanwhile, what
// stands there is loaded: either it is this very state, whose answer was lost,
// or the gang goes on from it.
func (a *Agent) save(ctx context.Context, id contract.GangID, saved lifecycle.Saved, o *outcome) error {
	items, err := encodeSaved(id.Job, saved)
	if err != nil {
		return fmt.Errorf("save gang %s: %w", id, err)
	}
	stored := a.storedIndex(id)
	index, err := a.client.Store(ctx, id.Namespace, id.VariablePath(), items, stored)
	if err == nil {
		o.done.Stored = index
		a.setStored(id, index)
		return nil
	}
	if !errors.Is(err, nomad.ErrConflict) {
		return err
	}
	there, readErr := a.client.Load(ctx, id.Namespace, id.VariablePath())
	if readErr != nil {
		return readErr
	}
	if there == nil {
		a.setStored(id, 0)
		return err
	}
	a.setStored(id, there.Index)
	if there.Items[itemState] == items[itemState] && there.Items[itemPacked] == items[itemPacked] {
		o.done.Stored = there.Index
		return nil
	}
	_, other, decodeErr := decodeSaved(there.Items)
	if decodeErr != nil {
		return fmt.Errorf("save gang %s: its variable was overwritten with what cannot be read: %w", id, decodeErr)
	}
	o.reloaded = &loaded{saved: other, index: there.Index}
	return err
}

func (a *Agent) forgetSaved(ctx context.Context, id contract.GangID) error {
	err := a.client.Forget(ctx, id.Namespace, id.VariablePath(), a.storedIndex(id))
	if errors.Is(err, nomad.ErrConflict) {
		there, readErr := a.client.Load(ctx, id.Namespace, id.VariablePath())
		if readErr != nil {
			return readErr
		}
		if there != nil {
			a.setStored(id, there.Index)
			return err
		}
		err = nil
	}
	if err == nil {
		a.setStored(id, 0)
	}
	return err
}

// The index of each gang's variable is kept here rather than with the gang: a
// step may save twice.
func (a *Agent) storedIndex(id contract.GangID) uint64 {
	a.storeMu.Lock()
	defer a.storeMu.Unlock()
	return a.stored[id]
}

func (a *Agent) setStored(id contract.GangID, index uint64) {
	a.storeMu.Lock()
	defer a.storeMu.Unlock()
	if index == 0 {
		delete(a.stored, id)
		return
	}
	a.stored[id] = index
}

// loadAll reads every gang's variable. One that cannot be read is reported and
// left alone: its gang is started over from its job.
func (a *Agent) loadAll(ctx context.Context) ([]loaded, error) {
	refs, err := a.client.SavedIDs(ctx)
	if err != nil {
		return nil, err
	}
	var (
		mu    sync.Mutex
		out   []loaded
		first error
		wg    sync.WaitGroup
		slots = make(chan struct{}, 24)
	)
	for _, ref := range refs {
		slots <- struct{}{}
		wg.Add(1)
		go func() {
			defer func() { <-slots; wg.Done() }()
			v, err := a.client.Load(ctx, ref.Namespace, ref.Path)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				first = err
				return
			}
			if v == nil {
				return
			}
			job, saved, err := decodeSaved(v.Items)
			if err != nil {
				a.log.Error("a gang's variable cannot be read; the gang is taken as new", "namespace", ref.Namespace, "path", ref.Path, "error", err)
				id := contract.GangID{Region: a.state.server.Region, Namespace: ref.Namespace, Job: job}
				a.setStored(id, v.Index)
				return
			}
			out = append(out, loaded{key: picture.Key{Namespace: ref.Namespace, Job: job}, saved: saved, index: v.Index})
		}()
	}
	wg.Wait()
	return out, first
}

// restore takes the saved gangs into the state.
func (a *Agent) restore(saved []loaded) {
	a.inbox.do(func(s *state) {
		for _, l := range saved {
			id := contract.GangID{Region: s.set.Region, Namespace: l.key.Namespace, Job: l.key.Job}
			a.setStored(id, l.index)
			e := s.gangs[l.key]
			if e == nil {
				e = s.add(l.key)
			}
			e.gang = lifecycle.Restore(id, s.set, l.saved, l.index)
			e.dirty = true
			// What an earlier planner told is not told again.
			if n := len(l.saved.Stages); n > 0 {
				e.told, e.toldLast, e.settled = n, l.saved.Stages[n-1], true
			}
			s.reclaim(l.key)
		}
		s.loaded = true
		a.log.Info("loaded the saved gangs", "gangs", len(saved))
	})
}
