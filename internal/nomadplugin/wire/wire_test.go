package wire

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"unicode/utf8"

	_ "github.com/nomad-muster/muster/internal/draws"
	"github.com/shoenig/test/must"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"
)

// Whatever bytes a text has, it can be sent, and good text stays as it is.
func TestText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		raw := string(rapid.SliceOf(rapid.Byte()).Draw(t, "bytes"))
		sent := Text(raw)
		if _, err := proto.Marshal(wrapperspb.String(sent)); err != nil {
			t.Fatalf("%q: %v", raw, err)
		}
		if strings.ContainsRune(sent, 0) {
			t.Fatalf("%q: NUL is left in %q", raw, sent)
		}
		if utf8.ValidString(raw) && !strings.ContainsRune(raw, 0) && sent != raw {
			t.Fatalf("%q became %q", raw, sent)
		}
	})
	must.Eq(t, map[string]string{"a\uFFFD": "b\uFFFD"}, TextMap(map[string]string{"a\xff": "b\x00"}))
	must.Nil(t, TextMap(nil))
}

func TestChecks(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"name", CheckName("nvidia H100/80GB"), ""},
		{"empty name", CheckName(""), "is empty"},
		{"name with NUL", CheckName("a\x00"), "control characters"},
		{"name with newline", CheckName("a\nb"), "control characters"},
		{"name not UTF-8", CheckName("\xff"), "not valid UTF-8"},
		{"string", CheckString("a\nb"), ""},
		{"empty string", CheckString(""), ""},
		{"string with NUL", CheckString("\x00"), "NUL"},
		{"string not UTF-8", CheckString("\xff"), "not valid UTF-8"},
		{"number", CheckNumber(-0.1), ""},
		{"NaN", CheckNumber(math.NaN()), "not a finite number"},
		{"infinity", CheckNumber(math.Inf(-1)), "not a finite number"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.want == "" {
				must.NoError(t, c.err)
			} else {
				must.ErrorContains(t, c.err, c.want)
			}
		})
	}
}

func TestCheckEnvironmentListsAllFaults(t *testing.T) {
	t.Parallel()
	var f Faults
	f.CheckEnvironment("variable", map[string]string{"GOOD": "x=y\n", "": "x", "A=B": "x", "NUL": "\x00", "\xff": "x"})
	err := f.Err()
	for _, want := range []string{"variable name is empty", `variable name "A=B" contains "="`, `variable "NUL" "\x00" has a NUL`, "not valid UTF-8"} {
		must.ErrorContains(t, err, want)
	}
	must.StrNotContains(t, err.Error(), "GOOD")
}

type marked struct{ error }

func (marked) IsRecoverable() bool { return true }

// Nomad takes Unavailable and Canceled for the death of the plugin, and looks
// for its detail beside FailedPrecondition.
func TestStatus(t *testing.T) {
	t.Parallel()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name        string
		ctx         context.Context
		err         error
		code        codes.Code
		text        string
		recoverable bool
	}{
		{"plain", t.Context(), errors.New("no card"), codes.Unknown, "no card", false},
		{"without text", t.Context(), errors.New(""), codes.Unknown, "error without a text", false},
		{"bad text", t.Context(), errors.New("a\xff\x00b"), codes.Unknown, "a\uFFFD\uFFFDb", false},
		{"recoverable", t.Context(), marked{errors.New("try again")}, codes.FailedPrecondition, "try again", true},
		{"wrapped recoverable", t.Context(), fmt.Errorf("start: %w", marked{errors.New("try")}), codes.FailedPrecondition, "start: try", true},
		{"somebody's unavailable", t.Context(), status.Error(codes.Unavailable, "consul"), codes.Unknown, "consul", false},
		{"somebody's canceled", t.Context(), context.Canceled, codes.Unknown, "context canceled", false},
		{"somebody's deadline", t.Context(), context.DeadlineExceeded, codes.Unknown, "deadline", false},
		{"somebody's precondition", t.Context(), status.Error(codes.FailedPrecondition, "x"), codes.Unknown, "x", false},
		{"not offered", t.Context(), Unimplemented("no exec"), codes.Unimplemented, "no exec", false},
		{"refused", t.Context(), Invalid("no id"), codes.InvalidArgument, "no id", false},
		{"the caller's end", canceled, errors.New("stopped"), codes.Canceled, "stopped", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			sent := Status(c.ctx, c.err)
			st := status.Convert(sent)
			must.Eq(t, c.code, st.Code())
			must.StrContains(t, st.Message(), c.text)
			_, err := proto.Marshal(st.Proto())
			must.NoError(t, err)
			back, recoverable := FromStatus(t.Context(), t.Context(), sent)
			must.Error(t, back)
			must.Eq(t, c.recoverable, recoverable)
		})
	}
	must.NoError(t, Status(t.Context(), nil))
}

// A status travels in a header, and the receiver has a limit for those.
func TestStatusCutsLongText(t *testing.T) {
	t.Parallel()
	text := status.Convert(Status(t.Context(), errors.New(strings.Repeat("ä", 1<<20)))).Message()
	must.Less(t, 2*maxErrorText, len(text))
	must.True(t, utf8.ValidString(text))
}

func TestFromStatus(t *testing.T) {
	t.Parallel()
	dead, kill := context.WithCancel(t.Context())
	kill()
	gone, leave := context.WithCancelCause(t.Context())
	cause := errors.New("agent stops")
	leave(cause)

	err, _ := FromStatus(t.Context(), dead, status.Error(codes.Unavailable, "reset"))
	must.ErrorIs(t, err, ErrExited)
	err, _ = FromStatus(t.Context(), dead, status.Error(codes.Unknown, "half an answer"))
	must.ErrorIs(t, err, ErrExited)
	err, _ = FromStatus(t.Context(), t.Context(), status.Error(codes.Canceled, "the client connection is closing"))
	must.ErrorIs(t, err, ErrExited)
	err, _ = FromStatus(gone, t.Context(), status.Error(codes.Canceled, "context canceled"))
	must.ErrorIs(t, err, cause)
	err, _ = FromStatus(t.Context(), t.Context(), status.Error(codes.Unknown, "no card"))
	var call *CallError
	must.True(t, errors.As(err, &call))
	must.Eq(t, CallError{codes.Unknown, "no card"}, *call)
	err, _ = FromStatus(t.Context(), t.Context(), nil)
	must.NoError(t, err)
}
