package hang

import (
	"testing"
	"time"

	"github.com/shoenig/test/must"
)

var start = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func at(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }

func TestJudge(t *testing.T) {
	marks := func(number, second int, step int64) Rank {
		return Rank{Number: number, Marked: at(second), Step: step, State: 'S'}
	}
	prints := func(number, second int) Rank { return Rank{Number: number, Printed: at(second), Step: -1} }
	silent := func(number int) Rank { return Rank{Number: number, Step: -1} }
	for name, c := range map[string]struct {
		now   int
		ranks []Rank
		peers bool
		hung  bool
		rank  int
	}{
		"nothing yet, in time":                 {59, []Rank{silent(0)}, false, false, -1},
		"nothing at all":                       {60, []Rank{silent(0), silent(1)}, false, true, -1},
		"silent, but another member marks":     {600, []Rank{silent(8)}, true, false, -1},
		"prints before its first mark":         {100, []Rank{prints(0, 50), silent(1)}, false, false, -1},
		"printed long ago":                     {120, []Rank{prints(0, 50)}, false, true, -1},
		"prints, but another member marks":     {120, []Rank{prints(8, 50)}, true, false, -1},
		"output counts no more after a mark":   {120, []Rank{marks(0, 50, 3), prints(1, 119)}, false, true, -1},
		"one of many marks":                    {120, []Rank{marks(0, 100, 3), marks(1, 50, 3)}, false, false, -1},
		"all stopped marking, one is behind":   {200, []Rank{marks(0, 100, 7), marks(1, 99, 6), marks(2, 100, 7)}, false, true, 1},
		"all stopped at one step":              {200, []Rank{marks(0, 100, 7), marks(1, 100, 7)}, false, true, -1},
		"a stopped process is the one":         {200, []Rank{marks(0, 100, 7), {Number: 3, Marked: at(100), Step: 7, State: 'T'}, marks(1, 99, 6)}, false, true, 3},
		"one that waits in the kernel, if any": {200, []Rank{marks(0, 100, 7), {Number: 2, Marked: at(100), Step: 7, State: 'D'}}, false, true, 2},
		"no rank":                              {200, nil, false, false, -1},
	} {
		v := Judge(at(c.now), start, time.Minute, c.ranks, c.peers)
		must.Eq(t, c.hung, v.Hung, must.Sprint(name))
		must.Eq(t, c.rank, v.Rank, must.Sprint(name))
		must.Eq(t, v.Hung, v.Text != "", must.Sprint(name))
	}
	must.False(t, Judge(at(9999), start, 0, []Rank{silent(0)}, false).Hung, must.Sprint("hangs are not looked for"))
}
