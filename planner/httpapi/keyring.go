package httpapi

import (
	"context"
	"crypto/sha256"
	"sync"
	"time"

	"github.com/nomad-muster/muster/planner/view"
)

// keyring remembers what submissions with an Idempotency-Key came to, so that
// one that is sent again registers nothing and gets the first one's answer.
// It holds them in memory: a planner that starts again has forgotten them, and
// the same job is then an update that changes nothing while its gang lives.
type keyring struct {
	mu   sync.Mutex
	most int
	keep time.Duration
	now  func() time.Time
	held map[string]*kept
	old  []string // keys in the order in which they came
}

// kept is one submission's outcome, or that it is under way.
type kept struct {
	body [32]byte
	at   time.Time
	done chan struct{} // closed once answer is set
	// answer is nil while the submission is under way, and when it failed: a
	// failed one may be tried again with the same key.
	answer *view.Submitted
}

func newKeyring(most int, keep time.Duration) *keyring {
	return &keyring{most: most, keep: keep, now: time.Now, held: map[string]*kept{}}
}

// do runs submit once for a key and a body. Who comes while another is at it
// waits for that one's answer. same is false where the key came with another
// body before.
func (k *keyring) do(ctx context.Context, key string, body []byte, submit func() (view.Submitted, error)) (answer view.Submitted, same bool, err error) {
	hash := sha256.Sum256(body)
	for {
		k.mu.Lock()
		k.expire(k.most)
		entry := k.held[key]
		if entry == nil {
			k.expire(k.most - 1) // room for this one
			entry = &kept{body: hash, at: k.now(), done: make(chan struct{})}
			k.held[key] = entry
			k.old = append(k.old, key)
			k.mu.Unlock()
			return k.run(key, entry, submit)
		}
		k.mu.Unlock()
		if entry.body != hash {
			return view.Submitted{}, false, nil
		}
		select {
		case <-entry.done:
		case <-ctx.Done():
			return view.Submitted{}, true, ctx.Err()
		}
		if entry.answer != nil {
			return *entry.answer, true, nil
		}
		// The first one failed and was forgotten: this one tries itself.
	}
}

func (k *keyring) run(key string, entry *kept, submit func() (view.Submitted, error)) (view.Submitted, bool, error) {
	answer, err := view.Submitted{}, error(nil)
	finished := false
	defer func() {
		k.mu.Lock()
		if finished && err == nil {
			entry.answer = &answer
		} else {
			delete(k.held, key)
		}
		k.mu.Unlock()
		close(entry.done)
	}()
	answer, err = submit()
	finished = true
	return answer, true, err
}

// expire forgets what is too old, and the oldest as long as more than most are
// held. What is under way stays.
func (k *keyring) expire(most int) {
	for len(k.old) > 0 {
		entry := k.held[k.old[0]]
		if entry != nil {
			if len(k.held) <= most && k.now().Sub(entry.at) < k.keep {
				return
			}
			select {
			case <-entry.done:
				delete(k.held, k.old[0])
			default:
				return
			}
		}
		k.old = k.old[1:]
	}
}
