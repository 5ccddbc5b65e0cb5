//go:build e2e && linux

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/trial"
	"github.com/nomad-muster/muster/planner/view"
	"github.com/shoenig/test/must"
	"golang.org/x/sys/unix"
)

// standInNodes makes device nodes that open, in place of two cards': those of
// FUSE and of the tunnel driver under other names.
func standInNodes(t *testing.T) []string {
	t.Helper()
	if os.Geteuid() != 0 {
		skip(t, "private devices need root")
	}
	var out []string
	for i, minor := range []uint32{229, 200} {
		path := fmt.Sprintf("/dev/muster-e2e-%d-card%d", os.Getpid(), i)
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(10, minor))); err != nil {
			skip(t, "no device node may be made: %v", err)
		}
		t.Cleanup(func() { _ = os.Remove(path) })
		f, err := os.Open(path)
		if err != nil {
			skip(t, "no driver answers on %s: %v", path, err)
		}
		f.Close()
		out = append(out, path)
	}
	return out
}

// Two gangs share a node, each with one of its two cards: each opens its own and
// finds no other, and root may not make one.
func TestCardsOfOthersCannotBeOpened(t *testing.T) {
	scenario(t)
	nodes := standInNodes(t)
	ctx, l := own(t, trial.Options{Nodes: trial.Nodes(1, 2)})
	text := "node \"n1\" {\n"
	for i, path := range nodes {
		text += fmt.Sprintf("  gpu \"%d\" {\n    model  = \"NVIDIA H100 80GB HBM3\"\n    memory = 81559\n    uuid   = \"GPU-00000000-0000-0000-0000-00000000000%d\"\n    device_nodes = [%q]\n  }\n", i, i, path)
	}
	must.NoError(t, os.WriteFile(l.CardsFile("n1"), []byte(text+"}\n"), 0o644))
	poll(ctx, t, "wait for the cards with their nodes", func() error {
		p, err := l.published(ctx, "n1", "gpu")
		if err == nil && !p["GPU-00000000-0000-0000-0000-000000000001"] {
			err = fmt.Errorf("Nomad has %v", p)
		}
		return err
	})

	dir := folder(t)
	script := `n=0; for d in ` + strings.Join(nodes, " ") + `; do
  (exec 3<$d) 2>/dev/null && echo opened $n; (mknod /dev/x$n c 10 $(if [ $n = 0 ]; then echo 229; else echo 200; fi)) 2>/dev/null && echo made $n; n=1
done >$0/$NOMAD_JOB_NAME.part; echo "$CUDA_VISIBLE_DEVICES" >>$0/$NOMAD_JOB_NAME.part; mv $0/$NOMAD_JOB_NAME.part $0/$NOMAD_JOB_NAME; until [ -e $0/end ]; do sleep 0.1; done`
	config := fmt.Sprintf("        launcher = \"ranks\"\n        command = [\"/bin/sh\", \"-c\", %q, %q]\n        nproc_per_node = 1\n", script, dir)
	cards := map[string]bool{}
	for _, name := range []string{"one", "other"} {
		l.submit(ctx, t, gangJob{name: name, members: 1, cards: 1, config: config}.hcl())
	}
	for _, name := range []string{"one", "other"} {
		var said string
		poll(ctx, t, "wait for what "+name+" opened", func() error {
			data, err := os.ReadFile(filepath.Join(dir, name))
			said = string(data)
			return err
		})
		card := said[len(strings.TrimSpace(said))-1:][:1]
		must.Eq(t, fmt.Sprintf("opened %s\nGPU-00000000-0000-0000-0000-00000000000%s\n", card, card), said)
		cards[card] = true
	}
	must.MapLen(t, 2, cards)
	touch(t, dir, "end", "")
	for _, name := range []string{"one", "other"} {
		l.awaitStage(ctx, t, name, contract.StageComplete)
	}
}

// needImage builds an image of the example rank and a shell with podman; no
// registry is needed.
func needImage(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		skip(t, "images with podman need root")
	}
	for _, program := range []string{"podman", "crun", "/bin/busybox"} {
		if _, err := exec.LookPath(program); err != nil {
			skip(t, "images need podman, crun and busybox-static: %v", err)
		}
	}
	dir := t.TempDir()
	for from, to := range map[string]string{suite.binaries.Rank: "rank", "/bin/busybox": "busybox"} {
		data, err := os.ReadFile(from)
		must.NoError(t, err)
		must.NoError(t, os.WriteFile(filepath.Join(dir, to), data, 0o755))
	}
	recipe := "FROM scratch\nCOPY busybox /bin/busybox\nCOPY busybox /bin/sh\nCOPY busybox /bin/sleep\nCOPY rank /opt/rank\nENV PATH=/opt:/bin OF_IMAGE=yes\nENTRYPOINT [\"/not/there\"]\n"
	must.NoError(t, os.WriteFile(filepath.Join(dir, "Containerfile"), []byte(recipe), 0o644))
	name := fmt.Sprintf("localhost/muster-e2e-%d", os.Getpid())
	if out, err := exec.Command("podman", "build", "--network=none", "--layers=false", "--tag", name, dir).CombinedOutput(); err != nil {
		skip(t, "podman does not work here: %v: %s", err, bytes.TrimSpace(out))
	}
	t.Cleanup(func() { _ = exec.Command("podman", "rmi", "--force", name).Run() })
	return name
}

// containers lists the image's containers.
func containers(t *testing.T, image string) string {
	t.Helper()
	out, err := exec.Command("podman", "ps", "--all", "--quiet", "--filter", "ancestor="+image).CombinedOutput()
	must.NoError(t, err, must.Sprint(string(out)))
	return strings.TrimSpace(string(out))
}

// A gang trains in an image; a person looks into it; stopped, it leaves no
// container. One whose image is not there is not released, and says so.
func TestGangInAnImage(t *testing.T) {
	ctx, l := shared(t)
	image := needImage(t)
	config := func(image, command string) string {
		return fmt.Sprintf("        launcher = \"ranks\"\n        image = %q\n        command = [%s]\n        nproc_per_node = 1\n", image, command)
	}
	l.submit(ctx, t, gangJob{name: "in-image", members: 2, cards: 1, config: config(image, `"rank", "-steps", "5", "-step-time", "1ms"`)}.hcl())
	g := l.awaitStage(ctx, t, "in-image", contract.StageComplete)
	must.Eq(t, 1, g.Attempt)

	l.submit(ctx, t, gangJob{name: "looked-into", members: 1, cards: 1, config: config(image, `"sh", "-c", "trap 'exit 0' USR1; while :; do sleep 0.1; done"`)}.hcl())
	l.awaitStage(ctx, t, "looked-into", contract.StageStarted)
	if suite.kind != trial.Simulated { // which has no such call
		code, out := l.exec(ctx, t, "looked-into", "sh", "-c", "echo image $OF_IMAGE; read line; echo read $line; exit 3")
		must.Eq(t, 3, code)
		must.StrContains(t, out, "image yes")
		must.StrContains(t, out, "read typed")
	}
	must.NotEq(t, "", containers(t, image))
	l.stop(ctx, t, "looked-into")
	l.awaitStage(ctx, t, "looked-into", contract.StageCancelled)
	poll(ctx, t, "wait until no container is left", func() error {
		if left := containers(t, image); left != "" {
			return fmt.Errorf("%s are there", left)
		}
		return nil
	})

	l.submit(ctx, t, gangJob{name: "no-image", members: 1, cards: 1, config: config("localhost/muster-not-there:1", `"true"`)}.hcl())
	l.await(ctx, t, "no-image", "that its image is named", func(g *view.Gang) bool {
		return strings.Contains(describe(g), "localhost/muster-not-there:1")
	})
	l.stop(ctx, t, "no-image")
}

// exec runs a command in a gang's one member on a terminal, as nomad alloc exec
// does, and types a line.
func (l *lab) exec(ctx context.Context, t *testing.T, job string, command ...string) (int, string) {
	t.Helper()
	list, _, err := l.nomad.Jobs().Allocations(job, false, (&api.QueryOptions{}).WithContext(ctx))
	must.NoError(t, err)
	live := alive(list)
	must.Len(t, 1, live)
	alloc, _, err := l.nomad.Allocations().Info(live[0].ID, (&api.QueryOptions{}).WithContext(ctx))
	must.NoError(t, err)
	var out bytes.Buffer
	stdin, typed := io.Pipe()
	go func() { _, _ = typed.Write([]byte("typed\n")) }()
	defer typed.Close()
	sizes := make(chan api.TerminalSize, 1)
	sizes <- api.TerminalSize{Height: 40, Width: 100}
	code, err := l.nomad.Allocations().Exec(ctx, alloc, "train", true, command, stdin, &out, &out, sizes, nil)
	must.NoError(t, err)
	return code, out.String()
}
