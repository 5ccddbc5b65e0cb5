// Package wire holds the objects of a simulated Nomad cluster in the shape in which a Nomad server keeps them and
// serves them as JSON: the same field names, null where a server says null, fields left out where a server leaves
// them out. Where package api of Nomad's client has pointers for "not given", the types here have values, because a
// server has filled in what was not given.
//
// Objects are never changed once they are in a store: copy, change the copy, put that.
//
// Durations are nanoseconds, times of objects Unix nanoseconds, sizes megabytes, processor shares MHz, unless a field says otherwise.
package wire

import (
	"bytes"
	"time"
)

// Time is a time that reads null in JSON while it is zero.
type Time struct{ time.Time }

// MarshalJSON writes null for the zero time.
func (t Time) MarshalJSON() ([]byte, error) {
	if t.IsZero() {
		return []byte("null"), nil
	}
	return t.Time.UTC().MarshalJSON()
}

// UnmarshalJSON reads null as the zero time.
func (t *Time) UnmarshalJSON(b []byte) error {
	if bytes.Equal(b, []byte("null")) {
		t.Time = time.Time{}
		return nil
	}
	return t.Time.UnmarshalJSON(b)
}
