package wire

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/nomad-muster/muster/internal/nomadplugin/proto/structspb"
)

// ErrExited is the client half's error of a call to a plugin whose process is
// gone.
var ErrExited = errors.New("the plugin process has exited")

// maxErrorText is in bytes. A status travels in an HTTP/2 header, for which
// the receiver has a limit: a longer text would break the whole connection.
const maxErrorText = 8 << 10

// recoverable is what base.RecoverableError implements.
type recoverable interface{ IsRecoverable() bool }

// Status turns an error of a plugin's code into the gRPC status that Nomad
// understands. ctx is the call's.
func Status(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	text := ErrorText(err)
	if ctx.Err() != nil {
		return status.Error(status.FromContextError(ctx.Err()).Code(), text)
	}
	var r recoverable
	if errors.As(err, &r) && r.IsRecoverable() {
		st, detailErr := status.New(codes.FailedPrecondition, text).WithDetails(&structspb.RecoverableError{Recoverable: true})
		if detailErr == nil {
			return st.Err()
		}
	}
	if st, ok := err.(interface{ GRPCStatus() *status.Status }); ok && st.GRPCStatus().Code() == codes.Unimplemented {
		return err // generated code's own, for a call that the server half leaves out
	}
	var call *CallError
	if errors.As(err, &call) && (call.Code == codes.Unimplemented || call.Code == codes.InvalidArgument) {
		return status.Error(call.Code, text)
	}
	return status.Error(codes.Unknown, text)
}

// ErrorText is the text of an error as it is sent: never empty, not too long, valid.
func ErrorText(err error) string {
	text := err.Error()
	if text == "" {
		text = fmt.Sprintf("error without a text (%T)", err)
	}
	if len(text) > maxErrorText {
		text = text[:maxErrorText] + " ... (cut)"
	}
	return Text(text)
}

// exitWait is how long a process whose connection broke may take to end.
const exitWait = 3 * time.Second

// CallError is an error that a plugin answered, or is to answer, to a call.
type CallError struct {
	Code codes.Code
	Text string
}

func (e *CallError) Error() string { return e.Text }

// Unimplemented is the answer to a call that the plugin does not offer.
func Unimplemented(format string, args ...any) error {
	return &CallError{codes.Unimplemented, fmt.Sprintf(format, args...)}
}

// Invalid refuses a call that no plugin's code should see.
func Invalid(format string, args ...any) error {
	return &CallError{codes.InvalidArgument, fmt.Sprintf(format, args...)}
}

// FromStatus is the client half: it tells the caller's own cancellation, the
// plugin's death (ErrExited) and an answered error (*CallError) apart. done
// ends with the plugin's process. recoverable tells that the error carried
// Nomad's detail.
func FromStatus(ctx, done context.Context, err error) (_ error, recoverable bool) {
	if err == nil {
		return nil, false
	}
	st := status.Convert(err)
	if ctx.Err() != nil {
		return context.Cause(ctx), false
	}
	switch st.Code() {
	case codes.Unavailable: // the process is dying: wait until it is dead
		select {
		case <-done.Done():
		case <-ctx.Done():
		case <-time.After(exitWait):
		}
		return fmt.Errorf("%w (%s)", ErrExited, st.Message()), false
	case codes.Canceled: // not by the caller: the connection was closed
		return fmt.Errorf("%w (%s)", ErrExited, st.Message()), false
	}
	if done.Err() != nil {
		return fmt.Errorf("%w (%s)", ErrExited, st.Message()), false
	}
	for _, detail := range st.Details() {
		if r, ok := detail.(*structspb.RecoverableError); ok && r.GetRecoverable() {
			recoverable = true
		}
	}
	return &CallError{Code: st.Code(), Text: st.Message()}, recoverable
}

// Marshals tells whether a message can be sent at all: the last check before a
// stream, which a message that cannot be encoded would end.
func Marshals(m proto.Message) error {
	if _, err := proto.Marshal(m); err != nil {
		return fmt.Errorf("encode %s: %w", m.ProtoReflect().Descriptor().Name(), err)
	}
	return nil
}
