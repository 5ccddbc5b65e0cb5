package command

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/nomad-muster/muster/planner/view"
)

// specFlags are the flags of commands that read a job specification.
type specFlags struct {
	vars, varFiles list
}

func (s *specFlags) declare(f *Flags) {
	f.Var(&s.vars, "var", "`name=value` of a variable of the job file; may be given several times.")
	f.Var(&s.varFiles, "var-file", "`File` with values of the job file's variables; may be given several times.")
}

// source is a specification with the file it is from.
type source struct {
	view.Spec
	path string
}

// named puts the file's name into what Nomad says of it: to Nomad every file is
// input.hcl.
func (s source) named(err error) error {
	var refused *view.Error
	if errors.As(err, &refused) && s.HCL != "" {
		named := *refused
		named.Cause = strings.ReplaceAll(refused.Cause, "input.hcl:", s.path+":")
		return &named
	}
	return err
}

// read makes the specification of a file in HCL or JSON; "-" is stdin. What is
// a JSON object is taken as Nomad's JSON.
func (s *specFlags) read(c *Call, path string) (source, error) {
	var content []byte
	var err error
	if path == "-" {
		content, err = io.ReadAll(c.Stdin)
	} else {
		content, err = os.ReadFile(path)
	}
	if err != nil {
		return source{}, fmt.Errorf("read job file: %w", err)
	}
	spec := source{path: path, Spec: view.Spec{Namespace: c.namespace}}
	if spec.Namespace == "" {
		spec.Namespace = c.Getenv("NOMAD_NAMESPACE")
	}
	if spec.Namespace == "*" {
		return source{}, fmt.Errorf("read job file %s: a job goes to one namespace, not to *", path)
	}
	if text := strings.TrimSpace(string(content)); strings.HasPrefix(text, "{") {
		if !json.Valid(content) {
			var v any
			return source{}, fmt.Errorf("read job file %s: it starts like JSON, but: %w", path, json.Unmarshal(content, &v))
		}
		spec.Job = content
		return spec, nil
	} else if text == "" {
		return source{}, fmt.Errorf("read job file %s: it is empty", path)
	}
	spec.HCL = string(content)
	var variables strings.Builder
	for _, file := range s.varFiles {
		text, err := os.ReadFile(file)
		if err != nil {
			return source{}, fmt.Errorf("read variables: %w", err)
		}
		variables.Write(text)
		variables.WriteByte('\n')
	}
	for _, v := range s.vars {
		key, value, ok := strings.Cut(v, "=")
		if !ok || key == "" {
			return source{}, fmt.Errorf("read variables: -var %q is not name=value", v)
		}
		variables.WriteString(key + " = " + literal(value) + "\n")
	}
	spec.Variables = variables.String()
	return spec, nil
}

// literal writes a variable's value in HCL: lists and objects as they are,
// anything else as a text, which HCL converts to the variable's type.
func literal(value string) string {
	if t := strings.TrimSpace(value); strings.HasPrefix(t, "[") || strings.HasPrefix(t, "{") {
		return value
	}
	quoted, err := json.Marshal(value)
	if err != nil {
		return `""`
	}
	// JSON writes what HTML could misread as \u escapes, which HCL knows too;
	// templates it does not escape.
	return strings.NewReplacer("${", "$${", "%{", "%%{").Replace(string(quoted))
}
