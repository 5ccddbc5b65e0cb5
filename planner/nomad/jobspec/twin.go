package jobspec

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
)

// Children of parameterised and periodic jobs cannot be registered again as
// they are: that they were dispatched is read-only, a payload is refused and
// the parent is dropped. So a held child stays as the handle of its gang, and
// the gang runs as a twin: the same text under the child's id and "/run", with
// the payload as a template where the task wants its file.

// twinSuffix follows a child's id in its twin's.
const twinSuffix = "/run"

// IsChild tells whether a parameterised or periodic job made the job.
func (j *Job) IsChild() bool { return j.Dispatched || j.ParentID != "" }

// TwinID is the id of the job that the gang of a child runs as.
func TwinID(child string) string { return child + twinSuffix }

// TwinOf is the child that a job would be the twin of; "": none.
func TwinOf(id string) string {
	if n := len(id) - len(twinSuffix); n > 0 && id[n:] == twinSuffix {
		return id[:n]
	}
	return ""
}

// Twin makes the text of a child's twin out of one of the child's.
func Twin(raw json.RawMessage) (json.RawMessage, error) {
	j, err := Parse(raw)
	if err != nil {
		return nil, err
	}
	payload, err := unsnap(j.Payload)
	if err != nil {
		return nil, fmt.Errorf("read payload of job %s: %w", j.ID, err)
	}
	t := j.bare()
	t["ID"] = TwinID(j.ID)
	for _, of := range []string{"ParentID", "Payload", "ParameterizedJob", "Periodic"} {
		delete(t, of)
	}
	for _, g := range list(t["TaskGroups"]) {
		for _, item := range list(object(g)["Tasks"]) {
			task := object(item)
			file, _ := object(task["DispatchPayload"])["File"].(string)
			delete(task, "DispatchPayload")
			if file == "" || len(payload) == 0 {
				continue
			}
			// Encoded, no byte of it is taken for the template's own.
			task["Templates"] = append(list(task["Templates"]), map[string]any{
				"DestPath": "local/" + file, "ChangeMode": "noop", "Perms": "0644",
				"EmbeddedTmpl": fmt.Sprintf("{{ base64Decode %q }}", base64.StdEncoding.EncodeToString(payload)),
			})
		}
	}
	return encode(t), nil
}

var errSnappy = errors.New("it is not in the snappy format that Nomad keeps payloads in")

// payloadMost is Nomad's limit of a payload, with room.
const payloadMost = 1 << 20

// unsnap undoes the snappy block format: the length, then literals and copies
// of what came before.
func unsnap(b []byte) ([]byte, error) {
	if len(b) == 0 {
		return nil, nil
	}
	size, n := binary.Uvarint(b)
	if n <= 0 || size > payloadMost {
		return nil, errSnappy
	}
	out := make([]byte, 0, size)
	for b = b[n:]; len(b) > 0; {
		tag := b[0]
		length, offset, used := int(tag>>2)+1, 0, 1
		extra := 0
		switch tag & 3 {
		case 0: // a literal, whose length may follow
			if extra = length - 60; extra < 0 {
				extra = 0
			}
		case 1:
			length, extra = int(tag>>2&7)+4, 1
		case 2:
			extra = 2
		case 3:
			extra = 4
		}
		if len(b) < used+extra {
			return nil, errSnappy
		}
		var number uint64
		for i := range extra {
			number |= uint64(b[used+i]) << (8 * i)
		}
		used += extra
		switch {
		case tag&3 == 0:
			if extra > 0 {
				length = int(min(number, payloadMost)) + 1
			}
			if len(b) < used+length {
				return nil, errSnappy
			}
			out = append(out, b[used:used+length]...)
			used += length
		default:
			if tag&3 == 1 {
				number |= uint64(tag>>5) << 8
			}
			if number > payloadMost {
				return nil, errSnappy
			}
			if offset = int(number); offset == 0 || offset > len(out) {
				return nil, errSnappy
			}
			for range length {
				out = append(out, out[len(out)-offset])
			}
		}
		if uint64(len(out)) > size {
			return nil, errSnappy
		}
		b = b[used:]
	}
	if uint64(len(out)) != size {
		return nil, errSnappy
	}
	return out, nil
}
