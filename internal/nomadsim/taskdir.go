package nomadsim

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/template"

	"github.com/nomad-muster/muster/internal/nomadsim/wire"
)

// taskDirs are the folders of a task, laid out as by Nomad's client.
type taskDirs struct {
	alloc   string // of the allocation
	shared  string // alloc: what its tasks share
	logs    string
	task    string
	local   string
	secrets string
}

func (l *liveClient) dirs(alloc, task string) taskDirs {
	root := filepath.Join(l.cfg.Dir, "alloc", alloc)
	shared := filepath.Join(root, "alloc")
	dir := filepath.Join(root, task)
	return taskDirs{alloc: root, shared: shared, logs: filepath.Join(shared, "logs"), task: dir, local: filepath.Join(dir, "local"), secrets: filepath.Join(dir, "secrets")}
}

func (d taskDirs) build() error {
	for _, p := range []struct {
		path string
		mode os.FileMode
	}{{d.alloc, 0o711}, {d.shared, 0o777}, {filepath.Join(d.shared, "data"), 0o777}, {d.logs, 0o777}, {filepath.Join(d.shared, "tmp"), 0o777},
		{d.task, 0o777}, {d.local, 0o777}, {d.secrets, 0o777}, {filepath.Join(d.task, "private"), 0o777}, {filepath.Join(d.task, "tmp"), 0o777 | os.ModeSticky}} {
		if err := os.MkdirAll(p.path, p.mode); err != nil {
			return fmt.Errorf("make the task's folder: %w", err)
		}
		if err := os.Chmod(p.path, p.mode); err != nil { // whatever the umask is: tasks may run as other users
			return fmt.Errorf("open the task's folder to its task: %w", err)
		}
	}
	return nil
}

// inTask resolves a path of the job within the task's folder; one that leads out of the allocation is refused.
func (d taskDirs) inTask(path string) (string, error) {
	full := filepath.Join(d.task, path)
	for prefix, dir := range map[string]string{"${NOMAD_TASK_DIR}": d.local, "${NOMAD_SECRETS_DIR}": d.secrets, "${NOMAD_ALLOC_DIR}": d.shared} {
		if rest, ok := strings.CutPrefix(path, prefix); ok {
			full = filepath.Join(dir, rest)
		}
	}
	if filepath.IsAbs(path) && strings.HasPrefix(path, d.alloc+string(filepath.Separator)) {
		full = path
	}
	if full != d.alloc && !strings.HasPrefix(full, d.alloc+string(filepath.Separator)) {
		return "", fmt.Errorf("path %q escapes the allocation's folder", path)
	}
	return full, nil
}

// render writes a task's templates. It knows what can be answered without Consul or Vault: env and its kin.
func (d taskDirs) render(list []*wire.Template, env taskEnv) (vars map[string]string, err error) {
	vars = map[string]string{}
	for _, t := range list {
		text := t.EmbeddedTmpl
		if t.SourcePath != "" {
			src, err := d.inTask(interpolate(t.SourcePath, env.vars))
			if err != nil {
				return nil, err
			}
			b, err := os.ReadFile(src)
			if err != nil {
				return nil, fmt.Errorf("read template: %w", err)
			}
			text = string(b)
		}
		tmpl, err := template.New(t.DestPath).Delims(t.LeftDelim, t.RightDelim).Option("missingkey=zero").Funcs(templateFuncs(env.env)).Parse(text)
		if err != nil {
			return nil, fmt.Errorf("template for %s: %w", t.DestPath, err)
		}
		var b bytes.Buffer
		if err := tmpl.Execute(&b, nil); err != nil {
			return nil, fmt.Errorf("template for %s: %w", t.DestPath, err)
		}
		dest, err := d.inTask(interpolate(t.DestPath, env.vars))
		if err != nil {
			return nil, err
		}
		mode := os.FileMode(0o644)
		if p, err := strconv.ParseUint(t.Perms, 8, 32); t.Perms != "" && err == nil {
			mode = os.FileMode(p)
		}
		if err := os.MkdirAll(filepath.Dir(dest), 0o777); err != nil {
			return nil, fmt.Errorf("template for %s: %w", t.DestPath, err)
		}
		if err := os.WriteFile(dest, b.Bytes(), mode); err != nil {
			return nil, fmt.Errorf("template for %s: %w", t.DestPath, err)
		}
		if err := os.Chmod(dest, mode); err != nil {
			return nil, fmt.Errorf("template for %s: %w", t.DestPath, err)
		}
		if t.Envvars {
			for line := range strings.Lines(b.String()) {
				line = strings.TrimSpace(line)
				if k, v, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
					vars[strings.TrimSpace(k)] = strings.Trim(strings.TrimSpace(v), `"`)
				}
			}
		}
	}
	return vars, nil
}

func templateFuncs(env map[string]string) template.FuncMap {
	return template.FuncMap{
		"env": func(k string) string { return env[k] },
		"envOrDefault": func(k, def string) string {
			if v := env[k]; v != "" {
				return v
			}
			return def
		},
		"mustEnv": func(k string) (string, error) {
			if v, ok := env[k]; ok {
				return v, nil
			}
			return "", fmt.Errorf("mustEnv: %s is not set", k)
		},
		"base64Decode": func(s string) (string, error) {
			raw, err := base64.StdEncoding.DecodeString(s)
			return string(raw), err
		},
		"toLower": strings.ToLower, "toUpper": strings.ToUpper, "trimSpace": strings.TrimSpace,
		"join": func(sep string, list []string) string { return strings.Join(list, sep) }, "split": func(sep, s string) []string { return strings.Split(s, sep) },
		"parseInt": func(s string) (int64, error) { return strconv.ParseInt(s, 10, 64) },
		"add":      func(b, a int64) int64 { return a + b }, "subtract": func(b, a int64) int64 { return a - b },
	}
}
