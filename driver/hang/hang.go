// Package hang judges whether a member's ranks still get on. It is pure.
//
// Life is a progress mark. Before the member's first mark, output is life too:
// a script that does not know of marks is judged by what it prints. Once it has
// marked, output no longer counts: a rank that logs "still waiting" is not
// alive. A member that neither marks nor prints, while another member of the
// gang marks, is not judged here: in many scripts rank 0 speaks for all, and a
// hang of any rank stops it too.
//
// Whom to name: the rank that is furthest behind, where marks tell; else one
// that is stopped, or waits in the kernel; else nobody.
package hang

import (
	"fmt"
	"slices"
	"time"
)

// Rank is what is known of one running rank.
type Rank struct {
	Number  int
	Marked  time.Time // last mark; zero: never
	Printed time.Time // last output; zero: never
	Step    int64     // last step marked; -1: none
	State   byte      // of its process: R, S, D, T, ...; 0: not known
}

// Verdict of a look.
type Verdict struct {
	Hung bool
	Rank int // -1: nobody in particular
	Text string
}

// Judge looks at a member's running ranks, which were launched at a time.
// peersMark says that another member of the gang has marked progress.
func Judge(now, launched time.Time, timeout time.Duration, ranks []Rank, peersMark bool) Verdict {
	if timeout <= 0 || len(ranks) == 0 {
		return Verdict{Rank: -1}
	}
	marked := false
	last := launched
	for _, r := range ranks {
		marked = marked || !r.Marked.IsZero()
	}
	for _, r := range ranks {
		if r.Marked.After(last) {
			last = r.Marked
		}
		if !marked && r.Printed.After(last) {
			last = r.Printed
		}
	}
	if !marked && peersMark || now.Sub(last) < timeout {
		return Verdict{Rank: -1}
	}
	what := "no progress mark"
	if !marked {
		what = "no mark and no output"
	}
	v := Verdict{Hung: true, Rank: -1, Text: fmt.Sprintf("%s from any rank of this member for %v", what, now.Sub(last).Round(time.Second))}
	if number, why := Suspect(ranks); number >= 0 {
		v.Rank, v.Text = number, fmt.Sprintf("rank %d hangs (%s): %s", number, why, v.Text)
	}
	return v
}

// Suspect names the rank that the others probably wait for.
func Suspect(ranks []Rank) (number int, why string) {
	for _, state := range []byte{'T', 't'} {
		if i := slices.IndexFunc(ranks, func(r Rank) bool { return r.State == state }); i >= 0 {
			return ranks[i].Number, "its process is stopped"
		}
	}
	least, behind, ahead := int64(-1), 0, int64(-1)
	number = -1
	for _, r := range ranks {
		if r.Step < 0 {
			continue
		}
		ahead = max(ahead, r.Step)
		switch {
		case least < 0 || r.Step < least:
			least, behind, number = r.Step, 1, r.Number
		case r.Step == least:
			behind++
		}
	}
	if behind == 1 && ahead > least {
		return number, fmt.Sprintf("at step %d, while others are at %d", least, ahead)
	}
	if i := slices.IndexFunc(ranks, func(r Rank) bool { return r.State == 'D' }); i >= 0 {
		return ranks[i].Number, "its process waits in the kernel"
	}
	return -1, ""
}
