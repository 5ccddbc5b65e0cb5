// Package wire keeps what our plugins send to Nomad harmless, whatever the
// code behind them does. It knows no message type; base, device and driver
// build on it.
//
//   - Text: human text is made fit for protobuf (valid UTF-8, no NUL); names
//     are checked instead (CheckName), since a changed name is another name. A
//     string that is not valid UTF-8 ends a stream, and with it the devices.
//   - Faults: everything wrong with a value in one error.
//   - Status, FromStatus: errors in both directions. Only the caller's own
//     cancellation is reported as such: Nomad takes Canceled and Unavailable as
//     the death of the plugin. Recoverable errors carry Nomad's detail.
//   - KeepOpen: a stream that the plugin's code leaves early stays open towards
//     Nomad, and the code is started again.
//   - ServerOptions: a panic becomes an error of its call.
package wire

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text makes human text fit to send: invalid UTF-8 and NUL become U+FFFD.
func Text(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	return strings.ReplaceAll(s, "\x00", "\uFFFD")
}

// TextMap is Text for keys and values; nil stays nil.
func TextMap(m map[string]string) map[string]string {
	if m == nil {
		return nil
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[Text(k)] = Text(v)
	}
	return out
}

// CheckName says what is wrong with an identifier: it is not empty, valid
// UTF-8, and has no control characters.
func CheckName(s string) error {
	switch {
	case s == "":
		return errors.New("is empty")
	case !utf8.ValidString(s):
		return fmt.Errorf("%q is not valid UTF-8", s)
	case strings.ContainsFunc(s, unicode.IsControl):
		return fmt.Errorf("%q has control characters", s)
	}
	return nil
}

// CheckString says what is wrong with a value that is sent as it is: it is
// valid UTF-8 without NUL.
func CheckString(s string) error {
	switch {
	case !utf8.ValidString(s):
		return fmt.Errorf("%q is not valid UTF-8", s)
	case strings.ContainsRune(s, 0):
		return fmt.Errorf("%q has a NUL byte", s)
	}
	return nil
}

// CheckEnvironment adds what is wrong with environment variables: a name is
// not empty and has no "=", neither name nor value has a NUL.
func (f *Faults) CheckEnvironment(what string, env map[string]string) {
	for name, value := range env {
		f.Check(fmt.Sprintf("%s name", what), CheckName(name))
		if strings.Contains(name, "=") {
			f.Add("%s name %q contains %q", what, name, "=")
		}
		f.Check(fmt.Sprintf("%s %q", what, name), CheckString(value))
	}
}

// CheckNumber refuses NaN and the infinities: the first makes a Nomad server
// panic when it compares an attribute, and JSON has none of them.
func CheckNumber(v float64) error {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return fmt.Errorf("%v is not a finite number", v)
	}
	return nil
}

// Faults collects everything that is wrong with one value.
type Faults struct{ list []error }

// Add adds a fault.
func (f *Faults) Add(format string, args ...any) {
	f.list = append(f.list, fmt.Errorf(format, args...))
}

// Check adds "what err" where err is not nil.
func (f *Faults) Check(what string, err error) {
	if err != nil {
		f.list = append(f.list, fmt.Errorf("%s %w", what, err))
	}
}

// Err is nil without faults, else one error with a line for each.
func (f *Faults) Err() error { return errors.Join(f.list...) }
