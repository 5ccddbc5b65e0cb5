package command

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/nomad-muster/muster/internal/contract"
	jobfile "github.com/nomad-muster/muster/internal/nomadsim/jobspec"
	"github.com/nomad-muster/muster/planner/nomad/jobspec"
	"github.com/nomad-muster/muster/planner/submit"
	"github.com/nomad-muster/muster/planner/view"
)

func jobValidate() Command {
	var o specFlags
	var offline bool
	return Command{
		Synopsis: "Report everything that is wrong with a job",
		Usage:    "job validate [options] <file>",
		About: "Reports everything that is wrong with the job of a file, at once: what Nomad cannot parse, Muster's keys in its meta block, the config blocks of its torchrun tasks, its queue, and whether the cluster could ever run it. " +
			"Nothing changes.\n\n" +
			"-offline asks no planner and checks what can be checked without one: queue and cluster are not looked at, and HCL is read by muster itself, which knows all of Nomad's blocks but not all of its functions.",
		API: true, Data: true, Least: 1, Most: 1,
		Flags: func(f *Flags) {
			o.declare(f)
			f.BoolVar(&offline, "offline", false, "Ask no planner.")
		},
		Run: func(c *Call, args []string) error {
			spec, err := o.read(c, args[0])
			if err != nil {
				return err
			}
			var v view.Validation
			if offline {
				v, err = validateOffline(spec)
			} else if api, e := c.client(); e != nil {
				err = e
			} else {
				v, err = api.Validate(c.Context, spec.Spec)
			}
			if err != nil {
				return spec.named(err)
			}
			c.warn(v.Warnings)
			if err := c.print(v, func(w *screen) {
				for _, a := range v.Added {
					w.line("Submitting adds %s", a)
				}
				if v.Valid {
					text := "Nothing is wrong with job " + v.Namespace + "/" + v.Job
					if v.Queue != "" {
						text += ", which goes to queue " + v.Queue
					}
					w.line("%s.", text)
				}
			}); err != nil {
				return err
			}
			if v.Valid {
				return nil
			}
			lines := make([]string, len(v.Faults))
			for i, f := range v.Faults {
				lines[i] = "\n  " + f.String()
			}
			return &Exit{ExitRejected, fmt.Errorf("job %s/%s: %s:%s", v.Namespace, v.Job, count(len(lines), "fault"), strings.Join(lines, ""))}
		},
	}
}

// validateOffline checks what needs no server. HCL is read by this build's own
// reader of job files instead of Nomad's.
func validateOffline(spec source) (view.Validation, error) {
	raw := spec.Job
	if spec.HCL != "" {
		job, err := jobfile.Parse(jobfile.Config{Source: []byte(spec.HCL), Filename: spec.path, VarFile: spec.Variables})
		if err == nil {
			raw, err = json.Marshal(job)
		}
		if err != nil {
			return view.Validation{}, &view.Error{Code: view.CodeRejected, Operation: "validate job", Cause: err.Error(), Hint: "without -offline Nomad itself reads the file"}
		}
	}
	rejected := func(err error) (view.Validation, error) {
		return view.Validation{}, &view.Error{Code: view.CodeRejected, Operation: "validate job", Cause: err.Error(), Hint: "this is no job as Nomad's API writes one"}
	}
	raw, err := submit.Unwrap(raw)
	if err != nil {
		return rejected(err)
	}
	c, err := submit.Complete(raw, spec.Namespace)
	if err != nil {
		return rejected(err)
	}
	job, err := jobspec.Parse(c.Job)
	if err != nil {
		return rejected(err)
	}
	meta, faults := job.Want([]string{contract.TypeGPU, contract.TypeMIG, contract.TypeNPU})
	return view.Validation{Valid: len(faults) == 0, Namespace: job.Namespace, Job: job.ID, Queue: meta.Queue, Faults: view.FromFaults(faults),
		Warnings: append([]string{}, c.Warnings...), Added: append([]string{}, c.Added...)}, nil
}
