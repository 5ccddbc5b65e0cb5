package nomadsim

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// nullIn finds a null in a list of v, and says where; "" if there is none. A real server does not stand one: it closes
// the connection.
func nullIn(v reflect.Value, path string) string {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return nullIn(v.Elem(), path)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				if at := nullIn(v.Field(i), path+"."+f.Name); at != "" {
					return at
				}
			}
		}
	case reflect.Slice, reflect.Array:
		for i := range v.Len() {
			e, at := v.Index(i), fmt.Sprintf("%s[%d]", path, i)
			if e.Kind() == reflect.Pointer && e.IsNil() {
				return at
			}
			if at := nullIn(e, at); at != "" {
				return at
			}
		}
	}
	return ""
}

// jobFromAPI turns a job as a client sends it into one as a server keeps it: what was not given is filled in, what is
// empty is null.
func (c *Cluster) jobFromAPI(in *api.Job, namespace string) (*wire.Job, error) {
	if in.Namespace == nil || *in.Namespace == "" {
		in.Namespace = &namespace
	}
	if in.Region == nil || *in.Region == "" {
		in.Region = &c.opts.Region
	}
	if at := nullIn(reflect.ValueOf(in), "Job"); at != "" {
		return nil, fail(http.StatusBadRequest, "%s is null", at)
	}
	own := make([]bool, len(in.TaskGroups)) // which groups ask for an update block themselves
	for i, g := range in.TaskGroups {
		own[i] = g != nil && g.Update != nil
	}
	in.Canonicalize()
	b, err := json.Marshal(in)
	if err != nil {
		return nil, fmt.Errorf("encode job: %w", err)
	}
	var j wire.Job
	if err := json.Unmarshal(b, &j); err != nil {
		return nil, fmt.Errorf("decode job: %w", err)
	}
	nilEmpty(reflect.ValueOf(&j))
	if j.NodePool == "" {
		j.NodePool = "default"
	}
	if len(j.Datacenters) == 0 {
		j.Datacenters = []string{"*"}
	}
	// Of a job's own update block a server keeps only these; the groups have the rest.
	j.Update = wire.UpdateStrategy{Stagger: j.Update.Stagger, MaxParallel: j.Update.MaxParallel}
	for i, g := range j.TaskGroups {
		if j.Type == wire.TypeBatch || j.Type == wire.TypeSysBatch {
			if !own[i] {
				g.Update = nil
			}
		}
		for _, n := range g.Networks {
			for _, ports := range [][]wire.Port{n.ReservedPorts, n.DynamicPorts} {
				for i := range ports {
					ports[i].HostNetwork = cmp.Or(ports[i].HostNetwork, "default")
				}
			}
		}
		if g.Scaling != nil {
			g.Scaling.ID, g.Scaling.CreateIndex, g.Scaling.ModifyIndex = "", 0, 0
			g.Scaling.Target = map[string]string{"Namespace": j.Namespace, "Job": j.ID, "Group": g.Name}
			if g.Scaling.Type == "" {
				g.Scaling.Type = "horizontal"
			}
		}
		for _, t := range g.Tasks {
			if t.RestartPolicy == nil {
				t.RestartPolicy = g.RestartPolicy
			}
			if t.Identity == nil {
				t.Identity = &wire.Identity{Name: "default", Audience: []string{"nomadproject.io"}}
			}
			if len(t.Env) == 0 {
				t.Env = nil
			}
		}
	}
	j.Status, j.StatusDescription, j.Stable, j.Version = "", "", false, 0
	j.CreateIndex, j.ModifyIndex, j.JobModifyIndex = 0, 0, 0
	j.VersionTag = nil
	return &j, nil
}

// nilEmpty makes empty lists and maps nil, all the way down.
func nilEmpty(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() && v.Kind() == reflect.Pointer {
			nilEmpty(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).Name == "Config" { // of a task: an empty block is not the same as none
				continue
			}
			nilEmpty(v.Field(i))
		}
	case reflect.Slice:
		if v.Len() == 0 && v.CanSet() {
			v.SetZero()
			return
		}
		for i := range v.Len() {
			nilEmpty(v.Index(i))
		}
	case reflect.Map:
		if v.Len() == 0 && v.CanSet() {
			v.SetZero()
			return
		}
		for _, k := range v.MapKeys() {
			if e := v.MapIndex(k); e.Kind() == reflect.Pointer {
				nilEmpty(e)
			}
		}
	}
}

// specChanged says whether registering a job makes a new version.
func specChanged(old, job *wire.Job) bool {
	j := *job
	j.Status, j.StatusDescription, j.Stable, j.Version = old.Status, old.StatusDescription, old.Stable, old.Version
	j.CreateIndex, j.ModifyIndex, j.JobModifyIndex, j.SubmitTime = old.CreateIndex, old.ModifyIndex, old.JobModifyIndex, old.SubmitTime
	j.VersionTag, j.NomadTokenID = old.VersionTag, old.NomadTokenID
	return !reflect.DeepEqual(old, &j)
}
