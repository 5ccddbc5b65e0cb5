package nomadsim_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/internal/nomadsim"
)

// nomadCommand finds the real nomad command: $NOMAD_BIN, or nomad on the path.
func nomadCommand(t *testing.T) string {
	t.Helper()
	name := os.Getenv("NOMAD_BIN")
	if name == "" {
		name = "nomad"
	}
	bin, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("NOMAD_BIN") != "" {
			t.Fatalf("NOMAD_BIN: %v", err)
		}
		t.Skip("there is no nomad command here: set NOMAD_BIN to one to see that it works with the simulated cluster")
	}
	return bin
}

const webJob = `
job "web" {
  group "g" {
    count = 2
    network {
      port "http" {}
    }
    update {
      min_healthy_time = "10ms"
    }
    task "t" {
      driver = "mock_driver"
      config { run_for = "600s" }
      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}`

const sayJob = `
job "say" {
  type = "batch"
  group "g" {
    constraint {
      attribute = "${node.unique.name}"
      value     = "live"
    }
    task "t" {
      driver = "raw_exec"
      config {
        command = "/bin/sh"
        args    = ["-c", "echo hello; echo oops >&2; exec sleep 600"]
      }
      resources {
        cpu    = 100
        memory = 64
      }
    }
  }
}`

// TestNomadCommand drives a cluster with the real nomad command, as an operator does.
func TestNomadCommand(t *testing.T) {
	t.Parallel()
	bin := nomadCommand(t)
	sim := nomadsim.New(t, nomadsim.Options{Nodes: nodes(3, 4)})
	_, err := sim.AddNode(nomadsim.NodeConfig{Name: "live", ID: "11111111-0000-4000-8000-000000000001", Live: &nomadsim.LiveConfig{Dir: t.TempDir()}})
	must.NoError(t, err)
	dir := t.TempDir()
	for name, text := range map[string]string{"web.hcl": webJob, "say.hcl": sayJob, "three.hcl": strings.Replace(webJob, "count = 2", "count = 3", 1)} {
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	ask := func(command string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, bin, strings.Fields(command)...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "NOMAD_ADDR="+sim.URL(), "NOMAD_CLI_NO_COLOR=1")
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	names := map[string]string{}
	learn := func(name, format string) {
		out, err := ask(format)
		must.NoError(t, err, must.Sprint(out))
		id, _, _ := strings.Cut(strings.TrimSpace(out), "/")
		names["<"+name+">"] = id
	}
	say := func(command, fails string, want ...string) {
		t.Helper()
		for k, v := range names {
			command = strings.ReplaceAll(command, k, v)
		}
		out, err := ask(command)
		if fails == "" {
			must.NoError(t, err, must.Sprintf("nomad %s:\n%s", command, out))
		} else {
			must.Error(t, err, must.Sprintf("nomad %s:\n%s", command, out))
			must.StrContains(t, out, fails, must.Sprintf("nomad %s", command))
		}
		for _, w := range want {
			must.StrContains(t, strings.Join(strings.Fields(out), " "), w, must.Sprintf("nomad %s:\n%s", command, out))
		}
	}
	say("job validate web.hcl", "", "Job validation successful")
	say("job run web.hcl", "", `Allocation`, `finished with status "complete"`, "Deployment completed successfully")
	say("job run say.hcl", "", `finished with status "complete"`)
	learn("web", `job allocs -t {{range.}}{{.ID}}/{{end}} web`)
	learn("say", `job allocs -t {{range.}}{{.ID}}/{{end}} say`)
	say("job status", "", "web service 50 running")
	say("job status web", "", "g 0 0 2 0 0 0 0", "Status = successful")
	say("job inspect web", "", `"ID": "web"`)
	say("job plan web.hcl", "", `Task Group: "g" (2 ignore)`)
	say("job plan three.hcl", `Task Group: "g" (1 create, 2 in-place update)`, `+/- Count: "2" => "3" (forces create)`, "All tasks successfully allocated")
	say("job history web", "", "Version = 0 Stable = true")
	say("job deployments web", "", "successful")
	say("deployment list", "", "successful")
	say("job scale -detach web g 3", "")
	say("job tag apply -name=three web", "", `Job version 1 tagged with name "three"`)
	say("job history web", "", "Version = 1", "Tag Name = three")
	say("job tag unset -name three web", "", "removed")
	say("alloc status <say>", "", "Client Status = running", "Started Task started by client")
	say("alloc status -verbose -stats <web>", "", "Placement Metrics", "binpack")
	say("alloc logs <say>", "", "hello")
	say("alloc logs -stderr <say>", "", "oops")
	say("alloc fs <say>", "", "alloc/", "t/")
	say("alloc fs <say> alloc/logs/t.stdout.0", "", "hello")
	say("alloc fs -stat <say> alloc/logs", "", "logs/")
	say("alloc signal -s SIGUSR1 <web>", "")
	say("alloc restart <web>", "")
	say("alloc stop -detach <say>", "")
	say("node status", "", "default dc1 n1 <none> false eligible ready")
	say("node status -verbose 1111", "", "raw_exec true true Healthy", "Node registered")
	for _, command := range []string{"node status -verbose 1111", "node status -stats 1111", "node status", "node status -verbose"} {
		for k, v := range names {
			command = strings.ReplaceAll(command, k, v)
		}
		out, err := ask(command)
		must.NoError(t, err)
		must.StrNotContains(t, out, "v1:") // a computed class
	}
	say("node status -stats 1111", "", "CPU Stats", "Disk Stats")
	say("eval list", "", "job-register web", "alloc-stop say")
	learn("eval", `eval list -t {{range.}}{{.ID}}/{{end}} -job web`)
	say("eval status <eval>", "", "Status = complete", "Job ID = web")
	say("deployment list", "", "web")
	say("status we", "", "ID = web")
	say("server members", "", "server.global 127.0.0.1")
	say("operator raft list-peers", "", "leader true")
	say("operator scheduler get-config", "", "Preemption System Scheduler = true")
	say("namespace list", "", "Default shared namespace")
	say("node pool list", "", "Default node pool.")
	say("var put a/b x=1", "", `"x": "1"`)
	say("var get a/b", "", `"Path": "a/b"`)
	say("var list", "", `"Path": "a/b"`)
	say("var purge a/b", "", "Successfully purged")
	say("node eligibility -disable 1111", "", "ineligible for scheduling")
	say("node drain -enable -yes -force 1111", "", "have stopped")
	say("node drain -disable -yes 1111", "", "drain strategy unset")
	say("system reconcile summaries", "")
	say("system gc", "")
	say("job stop -detach web", "")
	say("job stop -purge web", "", `finished with status "complete"`)
	say("job status nosuch", "No job(s) with prefix or ID \"nosuch\" found")
	say("alloc status 99999999", "No allocation(s) with prefix or id \"99999999\" found")
	must.SliceEmpty(t, sim.Unmodelled())
}
