package image

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/driver/isolation"
)

var everything = Container{
	Name: "muster-a", Task: "alloc/train/1", Image: "/cache/x", Argv: []string{"/opt/driver", "inside", "/alloc/s"},
	Mounts:    []isolation.Mount{{Host: "/alloc/a,b", Path: "/alloc/a,b"}, {Host: "/data", Path: "/mnt/data", ReadOnly: true}},
	Devices:   []isolation.Device{{Host: "/dev/nvidia3", Path: "/dev/nvidia0", Access: "rw"}, {Host: "/dev/infiniband/uverbs1"}},
	Libraries: "nv", Limits: map[string][2]string{"nofile": {"1024", "4096"}, "memlock": {"-1", "-1"}},
}

// The argument lists, as the engines' manuals have them.
func TestRun(t *testing.T) {
	podman := strings.Join(Engine{Name: Podman, Path: "podman"}.Run(everything), " ")
	must.Eq(t, "podman run --detach --rm --name muster-a --label muster.task=alloc/train/1 --pull=never --cgroups=disabled --runtime=crun --log-driver=none "+
		"--network=host --uts=host --user=0:0 --workdir=/ --stop-signal=SIGKILL --security-opt=no-new-privileges --security-opt=label=disable --cap-drop=all "+
		"--cap-add=CHOWN --cap-add=DAC_OVERRIDE --cap-add=FOWNER --cap-add=FSETID --cap-add=IPC_LOCK --cap-add=KILL --cap-add=NET_BIND_SERVICE --cap-add=NET_RAW "+
		"--cap-add=SETFCAP --cap-add=SETGID --cap-add=SETPCAP --cap-add=SETUID --cap-add=SYS_CHROOT --cap-add=SYS_NICE --ipc=private --shm-size=0 "+
		"--ulimit=memlock=-1:-1 --ulimit=nofile=1024:4096 "+
		`--mount=type=bind,"src=/alloc/a,b","dst=/alloc/a,b",bind-propagation=rslave --mount=type=bind,src=/data,dst=/mnt/data,bind-propagation=rslave,ro=true `+
		"--device=/dev/nvidia3:/dev/nvidia0:rw --device=/dev/infiniband/uverbs1:/dev/infiniband/uverbs1:rw --entrypoint /opt/driver /cache/x inside /alloc/s", podman)

	c := everything
	c.SharedIPC, c.Injected = true, []string{"nvidia.com/gpu=GPU-1"}
	podman = strings.Join(Engine{Name: Podman, Path: "podman"}.Run(c), " ")
	must.StrContains(t, podman, "--ipc=host")
	must.StrContains(t, podman, "--device=nvidia.com/gpu=GPU-1 --entrypoint")
	must.StrNotContains(t, podman, "/dev/nvidia3")

	must.Eq(t, `apptainer exec --no-home --pid --writable-tmpfs --pwd / --nv --mount type=bind,"source=/alloc/a,b","destination=/alloc/a,b" --mount type=bind,source=/data,destination=/mnt/data,ro /cache/x /opt/driver inside /alloc/s`,
		strings.Join(Engine{Name: Apptainer, Path: "apptainer"}.Run(everything), " "))
	must.Eq(t, "enroot start --root --rw --mount /alloc/a,b:/alloc/a,b:none:x-create=auto,rbind,rw --mount /data:/mnt/data:none:x-create=auto,rbind,ro /cache/x /opt/driver inside /alloc/s",
		strings.Join(Engine{Name: Enroot, Path: "enroot"}.Run(everything), " "))
}

func TestPull(t *testing.T) {
	for want, c := range map[string]struct {
		engine Engine
		name   string
	}{
		"podman pull quay.io/a/b:1":                                {Engine{Name: Podman, Path: "podman"}, "quay.io/a/b:1"},
		"podman pull --authfile /etc/auth oci-archive:/x.tar":      {Engine{Name: Podman, Path: "podman", AuthFile: "/etc/auth"}, "oci-archive:/x.tar"},
		"apptainer pull --force FILE docker://quay.io/a/b:1":       {Engine{Name: Apptainer, Path: "apptainer"}, "quay.io/a/b:1"},
		"apptainer pull --force FILE library://a/b":                {Engine{Name: Apptainer, Path: "apptainer"}, "library://a/b"},
		"enroot import --output FILE docker://nvcr.io#nvidia/py:1": {Engine{Name: Enroot, Path: "enroot"}, "nvcr.io/nvidia/py:1"},
		"enroot import --output FILE docker://library/ubuntu":      {Engine{Name: Enroot, Path: "enroot"}, "library/ubuntu"},
		"enroot import --output FILE docker://localhost:5000#a":    {Engine{Name: Enroot, Path: "enroot"}, "localhost:5000/a"},
	} {
		must.Eq(t, want, strings.Join(c.engine.Pull(c.name, "FILE"), " "))
	}
	must.Eq(t, []string{"podman", "rm", "--force", "--ignore", "--time=0", "n"}, Engine{Name: Podman, Path: "podman"}.Remove("n"))
	must.Nil(t, Engine{Name: Enroot}.Remove("n"))
}

// engine is a scripted one.
type engine struct {
	calls []string
	do    func(argv []string, line func(string)) (string, error)
}

func (e *engine) run(ctx context.Context, argv []string, line func(string)) ([]byte, error) {
	e.calls = append(e.calls, strings.Join(argv, " "))
	out, err := e.do(argv, line)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return []byte(out), err
}

func TestFetchWithPodman(t *testing.T) {
	podman := Engine{Name: Podman, Path: "podman"}
	quiet := func(string) {}
	here := &engine{do: func([]string, func(string)) (string, error) { return "", nil }}
	local, err := podman.Fetch(t.Context(), here.run, "a/b:1", time.Minute, func() { t.Error("it is here already") }, quiet)
	must.NoError(t, err)
	must.Eq(t, "a/b:1", local)

	absent := errors.New("exit status 1")
	pulled, said := false, ""
	pulls := &engine{do: func(argv []string, line func(string)) (string, error) {
		if argv[1] == "image" {
			return "", absent
		}
		line("Copying blob 1")
		return "Trying\nsha256:abc\n", nil
	}}
	local, err = podman.Fetch(t.Context(), pulls.run, "a/b:1", time.Minute, func() { pulled = true }, func(l string) { said = l })
	must.NoError(t, err)
	must.Eq(t, "sha256:abc", local)
	must.True(t, pulled)
	must.Eq(t, "Copying blob 1", said)
	must.Eq(t, []string{"podman image exists a/b:1", "podman pull a/b:1"}, pulls.calls)

	refused := &engine{do: func(argv []string, _ func(string)) (string, error) { return "", errors.New("manifest unknown") }}
	_, err = podman.Fetch(t.Context(), refused.run, "oci:/x", time.Minute, func() {}, quiet)
	must.EqError(t, err, "pull it: manifest unknown")
	must.Eq(t, []string{"podman pull oci:/x"}, refused.calls)

	ctx, cancel := context.WithCancel(t.Context())
	late := &engine{do: func(argv []string, line func(string)) (string, error) {
		if argv[1] == "pull" {
			line("Copying blob 2")
			time.Sleep(20 * time.Millisecond)
		}
		return "", absent
	}}
	_, err = podman.Fetch(ctx, late.run, "a", 10*time.Millisecond, func() {}, quiet)
	must.ErrorContains(t, err, `not here within 10ms (image_pull_timeout); the last that podman said: "Copying blob 2"`)
	cancel()
	_, err = podman.Fetch(ctx, late.run, "a", time.Minute, func() {}, quiet)
	must.ErrorIs(t, err, context.Canceled)

	_, err = podman.Fetch(t.Context(), (&engine{do: func(argv []string, _ func(string)) (string, error) {
		if argv[1] == "pull" {
			return "\n", nil
		}
		return "", absent
	}}).run, "a", time.Minute, func() {}, quiet)
	must.ErrorContains(t, err, "named no image")
}

// Apptainer and Enroot make files; a pull that was cut short leaves none.
func TestFetchIntoFiles(t *testing.T) {
	dir := t.TempDir()
	e := Engine{Name: Apptainer, Path: "apptainer", Cache: filepath.Join(dir, "cache")}
	quiet := func(string) {}
	fails := &engine{do: func(argv []string, _ func(string)) (string, error) {
		must.NoError(t, os.WriteFile(argv[3], []byte("half"), 0o600))
		return "", errors.New("no space left on device")
	}}
	_, err := e.Fetch(t.Context(), fails.run, "a/b:1", time.Minute, func() {}, quiet)
	must.ErrorContains(t, err, "no space left")
	left, err := os.ReadDir(e.Cache)
	must.NoError(t, err)
	must.SliceEmpty(t, left)

	makes := &engine{do: func(argv []string, _ func(string)) (string, error) {
		return "", os.WriteFile(argv[3], []byte("whole"), 0o600)
	}}
	local, err := e.Fetch(t.Context(), makes.run, "a/b:1", time.Minute, func() {}, quiet)
	must.NoError(t, err)
	must.Eq(t, e.Cache, filepath.Dir(local))
	again, err := e.Fetch(t.Context(), makes.run, "a/b:1", time.Minute, func() {}, quiet)
	must.NoError(t, err)
	must.Eq(t, local, again)
	must.SliceLen(t, 1, makes.calls, must.Sprint("what is here is not pulled again"))
	other, err := e.Fetch(t.Context(), makes.run, "a/b:2", time.Minute, func() {}, quiet)
	must.NoError(t, err)
	must.NotEq(t, local, other)

	_, err = e.Fetch(t.Context(), makes.run, filepath.Join(dir, "absent.sif"), time.Minute, func() {}, quiet)
	must.ErrorContains(t, err, "there is no file")
	own := filepath.Join(dir, "own.sif")
	must.NoError(t, os.WriteFile(own, nil, 0o600))
	local, err = e.Fetch(t.Context(), makes.run, own, time.Minute, func() {}, quiet)
	must.NoError(t, err)
	must.Eq(t, own, local)
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"enroot", "apptainer"} {
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o755))
	}
	must.NoError(t, os.WriteFile(filepath.Join(dir, "podman"), nil, 0o644)) // no program
	e, err := Find(Auto, "/none:"+dir)
	must.NoError(t, err)
	must.Eq(t, Engine{Name: Apptainer, Path: filepath.Join(dir, "apptainer")}, e)
	e, err = Find(Enroot, dir)
	must.NoError(t, err)
	must.Eq(t, Enroot, e.Name)
	_, err = Find(Podman, dir)
	must.ErrorContains(t, err, "this node has no podman on "+dir)
}

// A second try clears what the first could not, until there is no more time.
func TestClear(t *testing.T) {
	tries := 0
	flaky := &engine{do: func([]string, func(string)) (string, error) {
		if tries++; tries < 3 {
			return "", errors.New("container is stopping")
		}
		return "", nil
	}}
	must.NoError(t, Clear(t.Context(), flaky.run, []string{"podman", "rm", "n"}))
	must.Eq(t, 3, tries)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	never := &engine{do: func([]string, func(string)) (string, error) { return "", errors.New("stuck") }}
	must.Error(t, Clear(ctx, never.run, []string{"podman", "rm", "n"}))
}

func TestInjected(t *testing.T) {
	dir := t.TempDir()
	must.NoError(t, os.WriteFile(filepath.Join(dir, "nvidia.yaml"), []byte("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: GPU-1\n- name: GPU-2\n"), 0o600))
	must.NoError(t, os.WriteFile(filepath.Join(dir, "other.txt"), []byte("nvidia.com/gpu GPU-3"), 0o600))
	folders := []string{"/none", dir}
	must.Eq(t, []string{"nvidia.com/gpu=GPU-1", "nvidia.com/gpu=GPU-2"}, Injected(folders, []string{"GPU-1", "GPU-2"}))
	must.SliceEmpty(t, Injected(folders, []string{"GPU-1", "GPU-3"}), must.Sprint("all or none"))
	must.SliceEmpty(t, Injected(folders, []string{""}))
	must.SliceEmpty(t, Injected(nil, []string{"GPU-1"}))
}
