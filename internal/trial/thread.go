//go:build linux

package trial

import (
	"runtime"
	"sync"
)

// Children are killed when the thread that started them ends (Pdeathsig), so
// that a killed test leaves nothing behind. Go may end a thread long before
// the program, so all are started from one that never ends.
var lasting = sync.OnceValue(func() chan<- func() {
	calls := make(chan func())
	go func() {
		runtime.LockOSThread()
		for call := range calls {
			call()
		}
	}()
	return calls
})

func fromLastingThread(f func() error) error {
	result := make(chan error, 1)
	lasting() <- func() { result <- f() }
	return <-result
}
