package command

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/planner/httpapi/client"
	"github.com/nomad-muster/muster/planner/view"
)

// name is a gang's exact name; stage is where it was when it was looked for.
type name struct {
	namespace, job string
	stage          contract.Stage
}

func (n name) String() string { return n.namespace + "/" + n.job }

// candidates are the gangs that an argument may mean: jobs whose id starts with
// it, and, where the namespace is not stated, namespace/job.
func (c *Call) candidates(api *client.Client, arg string) ([]view.Gang, error) {
	list, err := api.Gangs(c.Context, client.Filter{Prefix: arg, Ended: true})
	if err != nil {
		return nil, err
	}
	gangs := list.Gangs
	if ns, job, ok := strings.Cut(arg, "/"); ok {
		if _, stated := c.inNamespace(); !stated {
			more, err := api.Gangs(c.Context, client.Filter{Namespace: ns, Prefix: job, Ended: true})
			if err != nil {
				return nil, err
			}
			for _, g := range more.Gangs {
				if !slices.ContainsFunc(gangs, func(o view.Gang) bool { return o.ID == g.ID }) {
					gangs = append(gangs, g)
				}
			}
		}
	}
	return gangs, nil
}

// exact finds the one gang that has exactly this name. It never takes a longer
// one, nor one of another namespace than the stated or default one.
func (c *Call) exact(api *client.Client, operation, arg string) (name, error) {
	gangs, err := c.candidates(api, arg)
	if err != nil {
		return name{}, err
	}
	ns, stated := c.inNamespace()
	var found []view.Gang
	for _, g := range gangs {
		if g.Job == arg && (ns == "*" || g.Namespace == ns) || !stated && g.ID == arg {
			found = append(found, g)
		}
	}
	switch len(found) {
	case 0:
		return name{}, c.notFound(operation, arg, gangs)
	case 1:
		return name{found[0].Namespace, found[0].Job, found[0].Stage}, nil
	}
	return name{}, several(operation, arg, found)
}

// short finds the gang that a short name means, for commands that only look:
// an exact match in the namespace, else the only exact match anywhere where no
// namespace is stated, else the only gang of the namespace that starts so.
func (c *Call) short(api *client.Client, operation, arg string) (name, error) {
	gangs, err := c.candidates(api, arg)
	if err != nil {
		return name{}, err
	}
	ns, stated := c.inNamespace()
	in := func(g view.Gang) bool { return ns == "*" || g.Namespace == ns }
	for _, test := range []func(view.Gang) bool{
		func(g view.Gang) bool { return g.Job == arg && in(g) || !stated && g.ID == arg },
		func(g view.Gang) bool { return g.Job == arg && !stated },
		func(g view.Gang) bool { return strings.HasPrefix(g.Job, arg) && in(g) },
	} {
		var found []view.Gang
		for _, g := range gangs {
			if test(g) {
				found = append(found, g)
			}
		}
		switch {
		case len(found) == 1:
			return name{found[0].Namespace, found[0].Job, found[0].Stage}, nil
		case len(found) > 1:
			return name{}, several(operation, arg, found)
		}
	}
	return name{}, c.notFound(operation, arg, gangs)
}

func several(operation, arg string, found []view.Gang) error {
	ids := make([]string, len(found))
	spaces := map[string]bool{}
	for i, g := range found {
		ids[i] = g.ID
		spaces[g.Namespace] = true
	}
	slices.Sort(ids)
	cause := fmt.Sprintf("%q is several gangs: %s", arg, shorten(ids))
	if len(spaces) == len(found) {
		return errors.New(operation + ": " + cause + "; -namespace says which")
	}
	return errors.New(operation + ": " + cause + "; give one of these names")
}

func (c *Call) notFound(operation, arg string, near []view.Gang) error {
	ns, stated := c.inNamespace()
	where := "in namespace " + ns
	if ns == "*" {
		where = "in any namespace"
	}
	hint := "muster queue lists what there is; a job without a queue is no gang, nomad job status shows it"
	if len(near) > 0 {
		ids := make([]string, len(near))
		for i, g := range near {
			ids[i] = g.ID
		}
		slices.Sort(ids)
		hint = "there is " + shorten(ids) + "; give the exact name"
		if !stated {
			hint += ", with -namespace where it is not in the default one"
		}
	}
	return &view.Error{Code: view.CodeNotFound, Operation: operation, Object: arg, Cause: "no gang has this name " + where, Hint: hint}
}

func shorten(ids []string) string {
	const most = 5
	if len(ids) > most {
		return strings.Join(ids[:most], ", ") + fmt.Sprintf(" and %d more", len(ids)-most)
	}
	return strings.Join(ids, ", ")
}
