package lifecycle

import "github.com/nomad-muster/muster/planner/nomad/jobspec"

// unreadable: somebody registered a version that this planner cannot read. The
// attempt goes on by what is known; at its end the job is stopped, since what
// Nomad would run then is not known. A gang that waits is refused.
func (g *Gang) unreadable() []Effect {
	switch {
	case g.Saved.Phase == Over:
		return nil
	case g.User == nil && len(g.Saved.Text) > 0:
		if text, err := jobspec.Parse(g.Saved.Text); err == nil {
			g.setUser(text)
		}
	case g.User == nil:
		return []Effect{ReadUser{g.Saved.Version}}
	}
	if (g.Saved.Phase == Reserving || g.Saved.Phase == Released) && !g.Saved.Foreign {
		next := g.Saved
		next.Foreign = true
		return []Effect{Save{next}}
	}
	return nil
}

// Unreadable is what is wrong with the job's newest version, and what to do;
// empty: it can be read.
func (g *Gang) Unreadable() string { return g.unread }
