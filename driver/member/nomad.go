package member

import (
	"golang.org/x/sys/unix"

	"github.com/nomad-muster/muster/internal/contract"
)

// NomadCode is how an exit is told to Nomad: 0 only where the member is
// complete. A code of -1 stands for an exit that nobody saw.
func NomadCode(e contract.Exit) (code, signal int) {
	switch e.Outcome {
	case contract.OutcomeComplete:
		return 0, 0
	case contract.OutcomeCheckpointed, contract.OutcomeYielded, contract.OutcomeKilled:
		return contract.CodeAsked, 0
	case contract.OutcomePeer:
		return contract.CodePeer, 0
	case contract.OutcomeRefused:
		return contract.CodeRefused, 0
	case contract.OutcomeHung:
		return contract.CodeHung, 0
	case contract.OutcomeFailed:
		if e.Signal != 0 {
			return 128 + e.Signal, e.Signal
		}
		if e.Code > 0 {
			return e.Code, 0
		}
		return 1, 0
	}
	return -1, 0
}

func signalName(n int) string {
	if name := unix.SignalName(unix.Signal(n)); name != "" {
		return name
	}
	return "unknown"
}
