package nomadsim

import (
	"net/http"

	"github.com/nomad-muster/muster/internal/nomadsim/jobspec"
)

// parse turns a job file into the job that the API takes.
func (q *request) parse(string) (any, error) {
	if err := q.write(); err != nil {
		return nil, err
	}
	var body struct {
		JobHCL       string
		Variables    string
		Canonicalize bool
	}
	if err := q.decode(&body); err != nil {
		return nil, err
	}
	if body.JobHCL == "" {
		return nil, fail(http.StatusBadRequest, "Job spec is empty")
	}
	j, err := jobspec.Parse(jobspec.Config{Source: []byte(body.JobHCL), VarFile: body.Variables})
	if err != nil {
		return nil, fail(http.StatusBadRequest, "Failed to parse job: %v", err)
	}
	if body.Canonicalize {
		j.Canonicalize()
	}
	return j, nil
}
