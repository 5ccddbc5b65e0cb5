//go:build linux

package trial

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/shoenig/test/must"
)

func TestPluginConfigurationIsOneForBothClusters(t *testing.T) {
	t.Parallel()
	b := block{"path": "/a:/b", "consul": block{"address": "http://127.0.0.1:1"}}
	must.Eq(t, "  consul {\n    address = \"http://127.0.0.1:1\"\n  }\n  path = \"/a:/b\"\n", b.hcl("  "))
	must.Eq(t, map[string]any{"path": "/a:/b", "consul": map[string]any{"address": "http://127.0.0.1:1"}}, b.plain())
}

// A client's whole configuration and its cards parse, and two nodes share no
// port.
func TestNodesAreConfigured(t *testing.T) {
	t.Parallel()
	dynamic := map[string]bool{}
	for _, n := range Nodes(4, 2) {
		first, err := portBlock()
		must.NoError(t, err)
		made := &node{Node: n, dir: t.TempDir(), firstPort: first, consul: "http://127.0.0.1:1", python: "/usr/bin/python3", programs: "/opt/muster"}
		text, err := made.clientConfig(4647)
		must.NoError(t, err)
		for what, source := range map[string]string{"agent": text, "cards": made.cards()} {
			_, diags := hclsyntax.ParseConfig([]byte(source), what, hcl.InitialPos)
			must.False(t, diags.HasErrors(), must.Sprintf("%s: %s\n%s", what, diags, source))
		}
		must.StrContains(t, text, fmt.Sprintf("leaf  = %q", n.Leaf))
		key := fmt.Sprintf("min_dynamic_port  = %d", first)
		must.StrContains(t, text, key)
		must.False(t, dynamic[key])
		dynamic[key] = true
		must.StrContains(t, made.driverConfig()["port_range"].(string), fmt.Sprint(first+portsPerNode/2))
	}
}

func TestPluginsSeeNoOtherCluster(t *testing.T) {
	t.Setenv("CONSUL_HTTP_TOKEN", "secret")
	t.Setenv("NOMAD_ADDR", "elsewhere")
	out := shadowed()
	must.SliceContains(t, out, "CONSUL_HTTP_TOKEN=")
	must.SliceContains(t, out, "NOMAD_ADDR=")
	must.False(t, slices.ContainsFunc(out, func(v string) bool { return strings.HasPrefix(v, "PATH=") }))
}

func TestDevSaysWhatIsMissing(t *testing.T) {
	empty := t.TempDir()
	t.Setenv("NOMAD_BIN", "")
	t.Setenv("PATH", empty)
	said := ""
	say := func(format string, args ...any) { said += fmt.Sprintf(format, args...) }
	_, _, err := devBinaries(t.Context(), DevOptions{Mode: DevReal}, say)
	must.ErrorContains(t, err, "NOMAD_BIN")
	must.ErrorContains(t, err, empty)
	_, _, err = devBinaries(t.Context(), DevOptions{Mode: "both"}, say)
	must.ErrorContains(t, err, "it is real, sim or auto")
	t.Setenv("NOMAD_BIN", filepath.Join(empty, "gone"))
	_, _, err = devBinaries(t.Context(), DevOptions{}, say)
	must.ErrorContains(t, err, filepath.Join(empty, "gone"))
	must.Eq(t, "", said)
}
