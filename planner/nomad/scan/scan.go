// Package scan walks JSON without reading it: it only looks for where values
// end, so that a reader who wants a few fields of a large text pays for one
// look at each byte and for the values that it wants. Values are handed out as
// pieces of the text. What is skipped is not checked, so a piece that is wanted
// is to be read by encoding/json; a text that cannot be followed is an error.
package scan

import (
	"bytes"
	"encoding/json"
	"errors"
)

// ErrNotJSON says that a text cannot be followed.
var ErrNotJSON = errors.New("it is not JSON")

// Object walks the object that b begins with, null being one without members,
// and gives its length. For each member f gets the name, as it is written
// between its quotes, and the text from the value on, and says how long the
// value is: End of it, or what a walk into it gave.
func Object(b []byte, f func(name, rest []byte) (int, error)) (int, error) {
	return walk(b, '{', '}', func(rest []byte) (int, error) {
		n := End(rest)
		if n < 2 || rest[0] != '"' {
			return 0, ErrNotJSON
		}
		name := rest[1 : n-1]
		n += spaces(rest[n:])
		if n >= len(rest) || rest[n] != ':' {
			return 0, ErrNotJSON
		}
		n++
		n += spaces(rest[n:])
		size, err := f(name, rest[n:])
		if err == nil && size == 0 {
			err = ErrNotJSON
		}
		return n + size, err
	})
}

// Array walks the array that b begins with, null being an empty one, and gives
// its length. For each element f gets the text from it on and says how long it
// is.
func Array(b []byte, f func(rest []byte) (int, error)) (int, error) {
	return walk(b, '[', ']', func(rest []byte) (int, error) {
		n, err := f(rest)
		if err == nil && n == 0 {
			err = ErrNotJSON
		}
		return n, err
	})
}

// Whole walks an object that is the whole text, but for white space, and gives
// each value's piece.
func Whole(b []byte, f func(name, value []byte) error) error {
	b = bytes.TrimSpace(b)
	n, err := Object(b, func(name, rest []byte) (int, error) {
		n := End(rest)
		if n == 0 {
			return 0, ErrNotJSON
		}
		return n, f(name, rest[:n:n])
	})
	if err == nil && n != len(b) {
		err = ErrNotJSON
	}
	return err
}

// walk goes through what stands between two brackets, with commas between:
// take says how long the next part is.
func walk(b []byte, open, shut byte, take func(rest []byte) (int, error)) (int, error) {
	if bytes.HasPrefix(b, []byte("null")) {
		return 4, nil
	}
	if len(b) == 0 || b[0] != open {
		return 0, ErrNotJSON
	}
	at := 1 + spaces(b[1:])
	if at < len(b) && b[at] == shut {
		return at + 1, nil
	}
	for {
		n, err := take(b[at:])
		if err != nil {
			return 0, err
		}
		at += n
		at += spaces(b[at:])
		if at >= len(b) || b[at] != ',' && b[at] != shut {
			return 0, ErrNotJSON
		}
		if at++; b[at-1] == shut {
			return at, nil
		}
		at += spaces(b[at:])
	}
}

func spaces(b []byte) int {
	n := 0
	for n < len(b) && (b[n] == ' ' || b[n] == '\t' || b[n] == '\n' || b[n] == '\r') {
		n++
	}
	return n
}

// End is the length of the value that b begins with; 0: it begins with none, or
// the value does not end. What is inside is not checked.
func End(b []byte) int {
	if len(b) == 0 {
		return 0
	}
	switch b[0] {
	case '"':
		return stringEnd(b)
	case '{', '[':
		depth := 0
		for i := 0; i < len(b); i++ {
			switch b[i] {
			case '"':
				n := stringEnd(b[i:])
				if n == 0 {
					return 0
				}
				i += n - 1
			case '{', '[':
				depth++
			case '}', ']':
				if depth--; depth == 0 {
					return i + 1
				}
			}
		}
		return 0
	}
	n := bytes.IndexAny(b, ",]} \t\r\n")
	if n < 0 {
		n = len(b)
	}
	return n
}

// stringEnd is the length of the string that b begins with; 0: it does not end.
func stringEnd(b []byte) int {
	for i := 1; i < len(b); i++ {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return 0
		}
		i += n
		slashes := 0
		for k := i - 1; k > 0 && b[k] == '\\'; k-- {
			slashes++
		}
		if slashes%2 == 0 {
			return i + 1
		}
	}
	return 0
}

// Read reads a value as encoding/json does, and plain strings and numbers
// without its detours.
func Read(value []byte, into any) error {
	switch into := into.(type) {
	case *string:
		if text, ok := plain(value); ok {
			*into = text
			return nil
		}
	case *uint64:
		if n, ok := number(value); ok {
			*into = n
			return nil
		}
	case *int64:
		if n, ok := number(value); ok && n < 1<<63 {
			*into = int64(n)
			return nil
		}
	}
	return json.Unmarshal(value, into)
}

// plain is a string without escapes and of ASCII alone.
func plain(value []byte) (string, bool) {
	if len(value) < 2 || value[0] != '"' || value[len(value)-1] != '"' {
		return "", false
	}
	text := value[1 : len(value)-1]
	for _, c := range text {
		if c < ' ' || c > '~' || c == '\\' || c == '"' {
			return "", false
		}
	}
	return string(text), true
}

// number is one of at most 19 digits.
func number(value []byte) (uint64, bool) {
	if len(value) == 0 || len(value) > 19 || value[0] == '0' && len(value) > 1 {
		return 0, false
	}
	var n uint64
	for _, c := range value {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + uint64(c-'0')
	}
	return n, true
}
