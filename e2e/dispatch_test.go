//go:build e2e && linux

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/api"
	"github.com/nomad-muster/muster/internal/contract"
	"github.com/shoenig/test/must"
)

// A gang that is dispatched with a payload waits as its held child and runs as
// a twin of it, whose ranks find the payload; a second one of the same job
// waits its turn, and when both have ended nothing of them is left to run.
func TestDispatchedGangFindsItsPayload(t *testing.T) {
	ctx, l := shared(t)
	dir := folder(t)
	config := fmt.Sprintf("        launcher = \"ranks\"\n        command = [\"/bin/sh\", \"-c\", \"cp $NOMAD_TASK_DIR/input.txt %s/$NOMAD_META_part.$RANK\"]\n        nproc_per_node = 1\n", dir)
	hcl := gangJob{name: "dispatched", members: 4, cards: 4, config: config}.hcl()
	hcl = strings.Replace(hcl, "  meta {", "  parameterized {\n    payload       = \"required\"\n    meta_required = [\"part\"]\n  }\n  meta {", 1)
	hcl = strings.Replace(hcl, "driver = \"torchrun\"", "driver = \"torchrun\"\n      dispatch_payload {\n        file = \"input.txt\"\n      }", 1)
	l.register(ctx, t, hcl)
	payload := "{{ this is no template }} \x00\xff" + strings.Repeat("again and again ", 200)
	var children []string
	for i := range 2 {
		r, _, err := l.nomad.Jobs().Dispatch("dispatched", map[string]string{"part": fmt.Sprint("p", i)}, []byte(payload), "", (&api.WriteOptions{}).WithContext(ctx))
		must.NoError(t, err)
		children = append(children, r.DispatchedJobID)
	}
	for i, child := range children {
		g := l.awaitStage(ctx, t, child, contract.StageComplete)
		must.Eq(t, 1, g.Attempt)
		for rank := range 4 {
			got, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("p%d.%d", i, rank)))
			must.NoError(t, err)
			must.Eq(t, payload, string(got))
		}
	}
	for _, id := range []string{children[0], children[0] + "/run", children[1], children[1] + "/run"} {
		poll(ctx, t, id+" is stopped", func() error {
			job, _, err := l.nomad.Jobs().Info(id, (&api.QueryOptions{}).WithContext(ctx))
			if err == nil && !*job.Stop {
				err = fmt.Errorf("it is %s", *job.Status)
			}
			return err
		})
	}
}
