package jobspec_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/nomad/api"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/nomadsim/jobspec"
)

func parse(t *testing.T, src string) *api.Job {
	t.Helper()
	j, err := jobspec.Parse(jobspec.Config{Source: []byte(src)})
	must.NoError(t, err)
	return j
}

// group wraps text as the inside of a task group with one task.
func group(s string) string {
	return "job \"j\" {\n group \"g\" {\n" + s + "\n }\n}"
}

func task(s string) string { return group("task \"t\" {\n driver = \"raw_exec\"\n" + s + "\n }") }

// TestAsRecorded compares with what a real server made of the same file.
func TestAsRecorded(t *testing.T) {
	t.Parallel()
	src, err := os.ReadFile("testdata/finetune.hcl")
	must.NoError(t, err)
	b, err := os.ReadFile("../testdata/recordings/parse.json")
	must.NoError(t, err)
	var rec struct {
		Exchanges []struct {
			Request  struct{ Canonicalize bool }
			Response json.RawMessage
		}
	}
	must.NoError(t, json.Unmarshal(b, &rec))
	for _, e := range rec.Exchanges[:2] {
		j, err := jobspec.Parse(jobspec.Config{Source: src})
		must.NoError(t, err)
		if e.Request.Canonicalize {
			j.Canonicalize()
		}
		var want, got any
		must.NoError(t, json.Unmarshal(e.Response, &want))
		ours, err := json.Marshal(j)
		must.NoError(t, err)
		must.NoError(t, json.Unmarshal(ours, &got))
		must.Eq(t, "", cmp.Diff(want, got))
	}
}

func TestForms(t *testing.T) {
	t.Parallel()
	j := parse(t, `
variable "count" {
  type    = number
  default = 3
}
variables { pool = "gpu" }
locals {
  name = "${local.base}-x"
  base = upper("a")
}
job "j" {
  name      = local.name
  node_pool = var.pool
  meta = {
    a = "1"
    "b.c" = "${attr.kernel.name} on ${node.unique.name}"
  }
  constraint {
    distinct_hosts = true
  }
  constraint {
    attribute = "${meta.rack}"
    regexp    = "r[0-9]+"
  }
  constraint {
    attribute = "${attr.nomad.version}"
    version   = ">= 1.8"
  }
  affinity {
    attribute = "${node.datacenter}"
    value     = "dc1"
    weight    = -20
  }
  spread {
    attribute = "${meta.leaf}"
    target "l1" { percent = 70 }
  }
  periodic {
    crons = ["@daily"]
  }
  group "g" {
    count = var.count
    network {
      port "http" { static = 8080 }
      port "any" { to = 80 }
    }
    volume "data" {
      type   = "host"
      source = "d"
    }
    dynamic "task" {
      for_each = ["x", "y"]
      labels   = [task.value]
      content {
        driver = "raw_exec"
        config {
          command = "run-${task.value}"
          n       = 2
          half    = 0.5
          labels {
            a = "b"
          }
          mount {
            p = 1
          }
          mount {
            p = 2
          }
        }
      }
    }
    task "t" {
      driver         = "raw_exec"
      kill_timeout   = "90s"
      shutdown_delay = 1000000
      env            = { HOME = env["HOME"], DIR = "${NOMAD_TASK_DIR}/x" }
      template {
        data        = <<EOF
{{ env "X" }} $${y}
EOF
        destination = "local/a"
      }
      resources {
        cores = 2
        device "nvidia/gpu" {
          count = 4
          constraint {
            attribute    = "${device.ids}"
            set_contains = "a,b"
          }
        }
      }
      artifact {
        source = "https://x/y.tgz"
        options {
          checksum = "md5:1"
        }
      }
    }
  }
}`)
	must.Eq(t, "A-x", *j.Name)
	must.Eq(t, "gpu", *j.NodePool)
	must.Eq(t, map[string]string{"a": "1", "b.c": "${attr.kernel.name} on ${node.unique.name}"}, j.Meta)
	must.Eq(t, []*api.Constraint{{Operand: "distinct_hosts", RTarget: "true"}, {LTarget: "${meta.rack}", Operand: "regexp", RTarget: "r[0-9]+"},
		{LTarget: "${attr.nomad.version}", Operand: "version", RTarget: ">= 1.8"}}, j.Constraints)
	must.Eq(t, int8(-20), *j.Affinities[0].Weight)
	must.Eq(t, "l1", j.Spreads[0].SpreadTarget[0].Value)
	must.Eq(t, "cron", *j.Periodic.SpecType)
	g := j.TaskGroups[0]
	must.Eq(t, 3, *g.Count)
	must.Eq(t, []api.Port{{Label: "http", Value: 8080}}, g.Networks[0].ReservedPorts)
	must.Eq(t, []api.Port{{Label: "any", To: 80}}, g.Networks[0].DynamicPorts)
	must.Eq(t, "d", g.Volumes["data"].Source)
	must.Len(t, 3, g.Tasks)
	must.Eq(t, "y", g.Tasks[1].Name)
	must.Eq(t, map[string]any{"command": "run-y", "n": 2, "half": 0.5, "labels": []map[string]any{{"a": "b"}},
		"mount": []map[string]any{{"p": 1}, {"p": 2}}}, g.Tasks[1].Config)
	tk := g.Tasks[2]
	must.Eq(t, 90*time.Second, *tk.KillTimeout)
	must.Eq(t, time.Millisecond, tk.ShutdownDelay)
	must.Eq(t, map[string]string{"HOME": `${env["HOME"]}`, "DIR": "${NOMAD_TASK_DIR}/x"}, tk.Env)
	must.Eq(t, "{{ env \"X\" }} ${y}\n", *tk.Templates[0].EmbeddedTmpl)
	must.Eq(t, 2, *tk.Resources.Cores)
	must.Eq(t, &api.Constraint{LTarget: "${device.ids}", Operand: "set_contains", RTarget: "a,b"}, tk.Resources.Devices[0].Constraints[0])
	must.Eq(t, "md5:1", tk.Artifacts[0].GetterOptions["checksum"])
}

func TestVariablesGiven(t *testing.T) {
	t.Parallel()
	src := `variable "n" { type = number }
variable "s" {}
job "j" { group "g" {
  count = var.n
  meta { s = var.s }
} }`
	src = strings.ReplaceAll(src, "job \"j\" { group \"g\" {", "job \"j\" {\n group \"g\" {\n")
	src = strings.ReplaceAll(src, "} }", "}\n}")
	j, err := jobspec.Parse(jobspec.Config{Source: []byte(src), Variables: map[string]string{"n": "7"}, VarFile: `s = "x"`})
	must.NoError(t, err)
	must.Eq(t, 7, *j.TaskGroups[0].Count)
	must.Eq(t, "x", j.TaskGroups[0].Meta["s"])
	_, err = jobspec.Parse(jobspec.Config{Source: []byte(src), Variables: map[string]string{"n": "7", "other": "1"}})
	must.ErrorContains(t, err, `A "other" variable was set`)
	must.ErrorContains(t, err, `Unset variable "s"`)
}

func TestFaults(t *testing.T) {
	t.Parallel()
	for src, want := range map[string]string{
		`job "x" { group "a" { bogus = 1 } }`:           `input.hcl:1,11-18: Argument definition required; A single-line block definition can contain only a single argument.`,
		group("bogus = 1"):                              `input.hcl:3,1-6: Unsupported argument; An argument named "bogus" is not expected here.`,
		group("bogus {\n}"):                             `Unsupported block type; Blocks of type "bogus" are not expected here.`,
		group("count = \"many\""):                       `a number is required`,
		task("kill_timeout = \"soon\""):                 `Unsuitable duration value`,
		task("config {\n a = nope()\n}"):                `There is no function named "nope"`,
		task("config {\n a = file(\"/etc/passwd\")\n}"): `filesystem function disabled`,
		group("task {\n driver = \"x\"\n}"):             `All task blocks must have 1 labels`,
		task("lifecycle {\n sidecar = true\n}"):         `The argument "hook" is required`,
		group("constraint {\n a = 1\n}"):                `An argument named "a" is not expected here`,
		"x = 1":                                         `An argument named "x" is not expected here`,
		"":                                              `A job block is required`,
		"job \"a\" {\n}\njob \"b\" {\n}":                `Only one block of type "job" is allowed`,
		"locals {\n a = local.b\n b = local.a\n}\njob \"j\" {\n}": `refers to itself`,
	} {
		_, err := jobspec.Parse(jobspec.Config{Source: []byte(src)})
		must.ErrorContains(t, err, want)
	}
	// All of them, not only the first.
	_, err := jobspec.Parse(jobspec.Config{Source: []byte(group("one = 1\ntwo = 2"))})
	must.ErrorContains(t, err, `"one"`)
	must.ErrorContains(t, err, `"two"`)
}

func TestAttributes(t *testing.T) {
	t.Parallel()
	m, err := jobspec.Attributes("path = \"/x\"\nn = 3\nlist = [\"a\", true]\nretry {\n max = 2\n}")
	must.NoError(t, err)
	must.Eq(t, map[string]any{"path": "/x", "n": 3, "list": []any{"a", true}, "retry": []map[string]any{{"max": 2}}}, m)
}

func FuzzParse(f *testing.F) {
	src, err := os.ReadFile("testdata/finetune.hcl")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(src))
	f.Add(task("env { A = \"${b.c[0].d}\" }"))
	f.Add(group("dynamic \"task\" {\n for_each = [1]\n labels = [task.value]\n content {\n driver = task.key\n }\n}"))
	f.Add("locals {\n a = [for x in [1,2] : x if x > local.b]\n b = 1\n}\njob \"j\" {\n}")
	f.Fuzz(func(t *testing.T, src string) {
		j, err := jobspec.Parse(jobspec.Config{Source: []byte(src)})
		if (j == nil) == (err == nil) {
			t.Fatalf("job %v, error %v", j, err)
		}
		if err == nil {
			j.Canonicalize()
			if _, err := json.Marshal(j); err != nil {
				t.Fatal(err)
			}
		}
	})
}
