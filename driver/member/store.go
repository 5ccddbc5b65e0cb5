package member

import (
	"fmt"
	"time"

	"github.com/nomad-muster/muster/internal/contract"
)

// world of this member in the record in force.
func (m *Member) world() contract.World {
	w, _, _ := m.record.WorldOf(m.index)
	return w
}

func (m *Member) hosts() bool { return m.world().HostMember == m.index }

// movedStore is where the store moved to, nil where it stands as the record
// says.
func (m *Member) movedStore() *contract.Endpoint {
	if e, ok := m.sight.Endpoints[m.world().Name]; ok && e.Move > 0 {
		return &e
	}
	return nil
}

// followStore starts a member anew whose store moved, as long as its ranks
// have not met there. Where the last move is seen no more its host has left, or
// lost its session: the store did not move back.
func (m *Member) followStore(todo *actions) {
	if m.stage != Running || m.hosts() || m.launch == 0 || m.met() {
		return
	}
	at := func(e *contract.Endpoint) (string, int) {
		if e == nil {
			w := m.world()
			return w.Host, w.Port
		}
		return e.Host, e.Port
	}
	to := m.movedStore()
	if m.endpoint != nil && (to == nil || to.Move < m.endpoint.Move) {
		return
	}
	host, port := at(to)
	if m.planned.Address == "" || host == m.planned.Address && port == m.planned.Port {
		return
	}
	m.endpoint = to
	m.start(todo)
}

// moved takes the port that the host chose instead of a busy one.
func (m *Member) moved(now time.Time, e Moved, todo *actions) {
	if m.stage != Running || e.Launch != m.launch {
		return
	}
	if e.Err != nil {
		m.end(now, cause{contract.OutcomeFailed, "the rendezvous port was taken and no other is to be had: " + e.Err.Error(), -1}, todo)
		return
	}
	m.endpoint = &e.Endpoint
	m.elastic.meet(e.Endpoint.Members)
	m.start(todo)
}

// maxMoves is how often a store is moved before the member gives up.
const maxMoves = 5

// moveStore has another port chosen, where this member is the store's host and
// nobody has met there yet.
func (m *Member) moveStore(todo *actions) bool {
	if !m.hosts() || m.met() || m.moves >= maxMoves {
		return false
	}
	m.moves++
	todo.tell(fmt.Sprintf("rendezvous port %d is taken; another one is chosen", m.planned.Port))
	m.elastic.move++
	todo.add(MoveStore{Launch: m.launch, Attempt: m.attempt, World: m.world().Name, Move: m.elastic.move, Members: m.elastic.members, Round: m.record.Round,
		Why: fmt.Sprintf("port %d was taken", m.planned.Port)})
	return true
}

// met says that this launch's ranks have met at the store: torchrun starts them
// only then; ranks that are started directly must have left a mark.
func (m *Member) met() bool {
	if m.setup.Config.Launcher == contract.LauncherRanks {
		return m.marks > 0
	}
	return m.state != contract.StateReady
}
