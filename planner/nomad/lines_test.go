package nomad

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/shoenig/test/must"
)

var someLines = []string{
	`{}`,
	`{"Index":7,"Events":[]}`,
	`{"Error":"event dropped from buffer"}`,
	`{"Index":12,"Events":[{"Topic":"Node","Type":"NodeRegistration","Key":"n","Namespace":"","FilterKeys":null,"Index":12,"Payload":{"Node":{"ID":"n","Meta":{"a":"}\"]\\"}}}},` +
		`{"Topic":"Allocation","Type":"PlanResult","Key":"a","Namespace":"default","FilterKeys":["j",""],"Index":12,"Payload":{"Allocation":{"ID":"a","JobID":"j","Name":"[\\\\"}}}]}`,
	"{ \"Index\" : 3 ,\t\"Events\" : [ { \"Topic\" : \"Job\" , \"Index\" : 3 , \"Payload\" : { \"Job\" : { \"ID\" : \"x\" } , \"Deleted\" : true } } ] }\n",
	`{"Index":4,"Events":[{"Topic":"Evaluation","Payload":{"Evaluation":{"ID":"e","FailedTGAllocs":{"g":null}}}},{"Topic":"Job","Payload":null}]}`,
	`{"Index":5,"Events":null}`,
	`{"Index":1e3}`,
	`{"Index":1,}`,
	`{"Index" 1}`,
	`[1]`,
	`{"Index":9,"Events":[{"Topic":"Node","Payload":{"Node":{"ID":"n"}}}`,
	`"x"`,
	`{"Events":[{"Topic":"unterminated]}`,
}

// reference reads a line as encoding/json does.
func reference(line []byte) (index uint64, events []wireEvent, err error) {
	var w struct {
		Index  uint64
		Events []struct {
			Topic, Type, Key, Namespace string
			Index                       uint64
			Payload                     struct {
				Node, Allocation, Job, Evaluation json.RawMessage
				Deleted                           bool
			}
		}
	}
	err = json.Unmarshal(line, &w)
	for _, e := range w.Events {
		p := e.Payload
		events = append(events, wireEvent{e.Topic, e.Type, e.Key, e.Namespace, e.Index, p.Node, p.Allocation, p.Job, p.Evaluation, p.Deleted})
	}
	return w.Index, events, err
}

func TestLinesAreReadAsJSON(t *testing.T) {
	t.Parallel()
	for _, line := range someLines {
		got, err := decodeLine([]byte(line))
		index, events, wrong := reference([]byte(line))
		switch {
		case wrong != nil:
			must.Error(t, err, must.Sprint(line))
		case bytes.Contains([]byte(line), []byte(`"Error"`)):
			must.ErrorContains(t, err, "dropped")
		case index == 0 && len(events) == 0:
			must.NoError(t, err, must.Sprint(line))
			must.Nil(t, got)
		default:
			must.NoError(t, err, must.Sprint(line))
			must.Eq(t, index, got.Index)
			must.Eq(t, events, got.Events, must.Sprint(line))
		}
	}
}

// What is no JSON may be taken for some, but nothing stops the planner; and
// what is JSON is cut where its values end.
func FuzzDecodeLine(f *testing.F) {
	for _, line := range someLines {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		e, err := decodeLine(line)
		if err != nil || e == nil || !json.Valid(line) {
			return
		}
		for _, event := range e.Events {
			for _, part := range []json.RawMessage{event.Node, event.Allocation, event.Job, event.Evaluation} {
				if part != nil && !json.Valid(part) {
					t.Fatalf("cut in the wrong place: %q of %q", part, line)
				}
			}
		}
	})
}
