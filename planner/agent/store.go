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
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/lifecycle"
	"github.com/nomad-muster/muster/planner/nomad"
	"github.com/nomad-muster/muster/planner/nomad/picture"
)

// A gang's variable has these items: the job's id, since the path may have it
// encoded, and the state: as it stands; compressed, where that is long; or,
// where that is longer than a variable may be, cut into parts, which are
// variables of their own. The parts are written before the variable that names
// them and deleted after the next one is written, so that there is always a
// whole state.
const (
	itemJob    = "job"
	itemState  = "state"
	itemPacked = "state_gzip_base64"
	itemParts  = "parts"      // how many there are
	itemSet    = "parts_set"  // names them: <path>/parts/<set>-<number>
	itemPart   = "state_part" // of a part
)

// plainMost is the longest state that is kept readable; partMost is Nomad's
// limit for the items of one variable, with some room.
const (
	plainMost = 16 << 10
	partMost  = 60 << 10
)

// encodeSaved makes the items of a gang's variable, and the contents of the
// parts where it needs any. Set names the parts.
func encodeSaved(job string, saved lifecycle.Saved, set string) (items map[string]string, parts []string, err error) {
	plain, err := json.Marshal(saved)
	if err != nil {
		return nil, nil, fmt.Errorf("encode state of gang: %w", err)
	}
	if len(plain) <= plainMost {
		return map[string]string{itemJob: job, itemState: string(plain)}, nil, nil
	}
	text, err := pack(plain)
	if err != nil {
		return nil, nil, fmt.Errorf("compress state of gang: %w", err)
	}
	if len(text) <= partMost {
		return map[string]string{itemJob: job, itemPacked: text}, nil, nil
	}
	for len(text) > 0 {
		n := min(len(text), partMost)
		parts, text = append(parts, text[:n]), text[n:]
	}
	return map[string]string{itemJob: job, itemParts: strconv.Itoa(len(parts)), itemSet: set}, parts, nil
}

func decodeSaved(items map[string]string, parts []string) (job string, saved lifecycle.Saved, err error) {
	if items[itemJob] == "" {
		return "", saved, errors.New("it names no job")
	}
	plain := []byte(items[itemState])
	text, packed := items[itemPacked], items[itemPacked] != ""
	if len(parts) > 0 {
		text, packed = strings.Join(parts, ""), true
	}
	if packed {
		if plain, err = unpack(text); err != nil {
			return items[itemJob], saved, fmt.Errorf("read its compressed state: %w", err)
		}
	}
	if err := json.Unmarshal(plain, &saved); err != nil {
		return items[itemJob], saved, fmt.Errorf("read its state: %w", err)
	}
	return items[itemJob], saved, saved.Check()
}

func pack(plain []byte) (string, error) {
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
	if err != nil {
		return "", err
	}
	if _, err := w.Write(plain); err != nil {
		return "", err
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	return base64.StdEncoding.EncodeToString(packed.Bytes()), nil
}

func unpack(text string) ([]byte, error) {
	packed, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, err
	}
	r, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(r, 64<<20))
}

// partPath is where a part is. It lies below the variable, so that it is found
// and deleted with it.
func partPath(path, set string, n int) string { return fmt.Sprintf("%s/parts/%s-%d", path, set, n) }

func isPart(path string) bool { return strings.Contains(path, "/parts/") }

// readParts reads the parts that a variable names.
func (a *Agent) readParts(ctx context.Context, namespace, path string, items map[string]string) ([]string, error) {
	count, _ := strconv.Atoi(items[itemParts])
	var parts []string
	for n := range count {
		v, err := a.client.Load(ctx, namespace, partPath(path, items[itemSet], n))
		if err != nil {
			return nil, err
		}
		if v == nil {
			return nil, fmt.Errorf("read %s: part %d of %d is not there", path, n+1, count)
		}
		parts = append(parts, v.Items[itemPart])
	}
	return parts, nil
}

// dropParts deletes the parts that a variable named. One that stays behind does
// no harm, and goes with the next.
func (a *Agent) dropParts(ctx context.Context, namespace, path string, items map[string]string) {
	count, _ := strconv.Atoi(items[itemParts])
	for n := range count {
		part := partPath(path, items[itemSet], n)
		v, err := a.client.Load(ctx, namespace, part)
		if err == nil && v != nil {
			err = a.client.Forget(ctx, namespace, part, v.Index)
		}
		if err != nil {
			a.log.Warn("a part of a gang's old state could not be deleted", "path", part, "error", err)
		}
	}
}

// loaded is what a variable held.
type loaded struct {
	key   picture.Key
	saved lifecycle.Saved
	index uint64
	items map[string]string
}

// save writes a gang's variable. Where somebody else wrote it meanwhile, what
// stands there is loaded: either it is this very state, whose answer was lost,
// or the gang goes on from it.
func (a *Agent) save(ctx context.Context, id contract.GangID, saved lifecycle.Saved, o *outcome) error {
	stored, path := a.storedAt(id), id.VariablePath()
	items, parts, err := encodeSaved(id.Job, saved, strconv.FormatInt(time.Now().UnixNano(), 36))
	if err != nil {
		return fmt.Errorf("save gang %s: %w", id, err)
	}
	for n, text := range parts {
		if err := a.savePart(ctx, id.Namespace, partPath(path, items[itemSet], n), text); err != nil {
			return fmt.Errorf("save gang %s, part %d of %d: %w", id, n+1, len(parts), err)
		}
	}
	index, err := a.client.Store(ctx, id.Namespace, path, items, stored.index)
	if err == nil {
		o.done.Stored = index
		a.setStored(id, storedState{index, items})
		if stored.items[itemParts] != "" {
			a.dropParts(ctx, id.Namespace, path, stored.items)
		}
		return nil
	}
	if !errors.Is(err, nomad.ErrConflict) {
		return err
	}
	there, readErr := a.client.Load(ctx, id.Namespace, path)
	if readErr != nil {
		return readErr
	}
	if there == nil {
		a.setStored(id, storedState{})
		return err
	}
	a.setStored(id, storedState{there.Index, there.Items})
	if maps.Equal(there.Items, items) {
		o.done.Stored = there.Index
		return nil
	}
	a.dropParts(ctx, id.Namespace, path, items)
	otherParts, readErr := a.readParts(ctx, id.Namespace, path, there.Items)
	if readErr != nil {
		return readErr
	}
	_, other, decodeErr := decodeSaved(there.Items, otherParts)
	if decodeErr != nil {
		return fmt.Errorf("save gang %s: its variable was overwritten with what cannot be read: %w", id, decodeErr)
	}
	o.reloaded = &loaded{saved: other, index: there.Index}
	return err
}

// savePart writes one part, over what a try before may have left there: no
// variable names it yet.
func (a *Agent) savePart(ctx context.Context, namespace, path, text string) error {
	items := map[string]string{itemPart: text}
	_, err := a.client.Store(ctx, namespace, path, items, 0)
	if !errors.Is(err, nomad.ErrConflict) {
		return err
	}
	there, err := a.client.Load(ctx, namespace, path)
	if err != nil || there == nil {
		return err
	}
	_, err = a.client.Store(ctx, namespace, path, items, there.Index)
	return err
}

func (a *Agent) forgetSaved(ctx context.Context, id contract.GangID) error {
	stored, path := a.storedAt(id), id.VariablePath()
	err := a.client.Forget(ctx, id.Namespace, path, stored.index)
	if errors.Is(err, nomad.ErrConflict) {
		there, readErr := a.client.Load(ctx, id.Namespace, path)
		if readErr != nil {
			return readErr
		}
		if there != nil {
			a.setStored(id, storedState{there.Index, there.Items})
			return err
		}
		err = nil
	}
	if err == nil {
		a.dropParts(ctx, id.Namespace, path, stored.items)
		a.setStored(id, storedState{})
	}
	return err
}

// storedState is a gang's variable as it was last written or read.
type storedState struct {
	index uint64
	items map[string]string
}

// What is stored of each gang is kept here rather than with the gang: a step
// may save twice.
func (a *Agent) storedAt(id contract.GangID) storedState {
	a.storeMu.Lock()
	defer a.storeMu.Unlock()
	return a.stored[id]
}

func (a *Agent) setStored(id contract.GangID, s storedState) {
	// Only what is needed to find the parts is kept.
	s.items = map[string]string{itemParts: s.items[itemParts], itemSet: s.items[itemSet]}
	a.storeMu.Lock()
	defer a.storeMu.Unlock()
	if s.index == 0 {
		delete(a.stored, id)
		return
	}
	a.stored[id] = s
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
		if isPart(ref.Path) {
			continue
		}
		slots <- struct{}{}
		wg.Add(1)
		go func() {
			defer func() { <-slots; wg.Done() }()
			v, err := a.client.Load(ctx, ref.Namespace, ref.Path)
			var parts []string
			if err == nil && v != nil {
				parts, err = a.readParts(ctx, ref.Namespace, ref.Path, v.Items)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				first = err
				return
			}
			if v == nil {
				return
			}
			job, saved, err := decodeSaved(v.Items, parts)
			if err != nil {
				a.log.Error("a gang's variable cannot be read; the gang is taken as new", "namespace", ref.Namespace, "path", ref.Path, "error", err)
				id := contract.GangID{Region: a.state.server.Region, Namespace: ref.Namespace, Job: job}
				a.setStored(id, storedState{v.Index, v.Items})
				return
			}
			out = append(out, loaded{key: picture.Key{Namespace: ref.Namespace, Job: job}, saved: saved, index: v.Index, items: v.Items})
		}()
	}
	wg.Wait()
	if first == nil {
		a.dropStrays(ctx, refs, out)
	}
	return out, first
}

// dropStrays deletes parts that no variable names: those of a save that was cut
// off.
func (a *Agent) dropStrays(ctx context.Context, refs []nomad.SavedRef, all []loaded) {
	named := map[string]bool{}
	for _, l := range all {
		id := contract.GangID{Region: a.state.server.Region, Namespace: l.key.Namespace, Job: l.key.Job}
		if set := l.items[itemSet]; set != "" {
			named[l.key.Namespace+"/"+id.VariablePath()+"/parts/"+set] = true
		}
	}
	for _, ref := range refs {
		set, _, _ := strings.Cut(strings.TrimPrefix(ref.Path[strings.LastIndexByte(ref.Path, '/')+1:], "/"), "-")
		if !isPart(ref.Path) || named[ref.Namespace+"/"+ref.Path[:strings.LastIndexByte(ref.Path, '/')+1]+set] {
			continue
		}
		v, err := a.client.Load(ctx, ref.Namespace, ref.Path)
		if err == nil && v != nil {
			err = a.client.Forget(ctx, ref.Namespace, ref.Path, v.Index)
		}
		if err != nil {
			a.log.Warn("a stray part of a gang's state could not be deleted", "path", ref.Path, "error", err)
		}
	}
}

// restore takes the saved gangs into the state.
func (a *Agent) restore(saved []loaded) {
	a.inbox.do(func(s *state) {
		for _, l := range saved {
			id := contract.GangID{Region: s.set.Region, Namespace: l.key.Namespace, Job: l.key.Job}
			a.setStored(id, storedState{l.index, l.items})
			e := s.gangs[l.key]
			if e == nil {
				e = s.add(l.key)
			}
			e.gang = lifecycle.Restore(id, s.set, l.saved, l.index)
			s.stir(e)
			// What an earlier planner told is not told again, but to webhooks, which
			// may not have heard of it.
			if n := len(l.saved.Stages); n > 0 {
				e.told, e.toldLast, e.settled = n, l.saved.Stages[n-1], true
			}
			e.repeat = true
			s.rehome(l.key)
			s.reclaim(l.key)
		}
		s.loaded = true
		a.log.Info("loaded the saved gangs", "gangs", len(saved))
	})
}
