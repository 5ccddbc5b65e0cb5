package device_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/device"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/xid"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
)

// parse reads the inside of a config block as Nomad would hand it over.
func parse(t *testing.T, text string) (device.Config, error) {
	t.Helper()
	packed, err := hclspec.EncodeHCL(device.New(nil, nil).ConfigSchema(), []byte(text), nil)
	must.NoError(t, err, must.Sprint(text))
	return device.ParseConfig(packed)
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	c, err := parse(t, "")
	must.NoError(t, err)
	must.Eq(t, []string{"nvml", "rdma", "amd", "ascend", "intel"}, c.Sources)
	must.Eq(t, 10*time.Second, c.Period)
	must.Eq(t, health.Default().Classes, c.Policy.Classes)
	must.False(t, c.TrustUserspace)
	must.NotEq(t, "", c.StateDir)
	c, err = parse(t, "simulated {\n file = \"/x/cards.hcl\"\n node = \"n7\"\n}")
	must.NoError(t, err)
	must.Eq(t, []string{"simulated"}, c.Sources) // a trial does not look at the machine's own cards
	must.Eq(t, "/x/cards.hcl.state/n7", c.StateDir)
	_, err = device.ParseConfig(nil) // Nomad's client sends nothing where there is no block
	must.NoError(t, err)
}

func TestPolicyBlock(t *testing.T) {
	t.Parallel()
	c, err := parse(t, `health {
  probation     = "1h"
  strikes       = 5
  in_a_row      = 0
  off_bus_grace = "0s"
  first_strike  = [119]
  xid {
    codes = [31, 48]
    level = "draining"
  }
  class {
    name  = "degraded"
    level = "healthy"
  }
  condition {
    name  = "nic down"
    level = "suspect"
  }
  counter {
    name   = "nvlink_crc"
    max    = 7
    window = "2h"
    level  = "draining"
  }
}`)
	must.NoError(t, err)
	p := c.Policy
	must.Eq(t, time.Hour, p.Probation)
	must.Eq(t, 5, p.Strikes)
	must.Eq(t, 0, p.InARow)
	must.Eq(t, 0, p.OffBusGrace)
	must.True(t, p.FirstStrike[119])
	must.Eq(t, health.Rule{Level: health.Draining, Until: health.UntilReset}, p.Codes[31])
	must.Eq(t, health.Rule{Level: health.Draining, Until: health.UntilReset, Probation: true}, p.Codes[48])
	must.Eq(t, health.Healthy, p.Classes[xid.Degraded].Level)
	must.Eq(t, health.Rule{Level: health.Suspect, Until: health.UntilGone}, p.Conditions[health.NICDown])
	must.Eq(t, health.CounterRule{Max: 7, Window: 2 * time.Hour, Level: health.Draining}, p.Counters[health.NVLinkCRC])
	must.Eq(t, health.Draining, health.Default().Conditions[health.NICDown].Level) // the defaults are not shared
}

// Every fault is named, with its place.
func TestConfigFaults(t *testing.T) {
	t.Parallel()
	_, err := parse(t, `
sources            = ["nvml", "nvml", "abacus", "simulated"]
state_dir          = "relative"
fingerprint_period = "0s"
scan_timeout       = "never"
shared {
  replicas           = 1
  mps_pipe_directory = "/x"
}
report {
  address    = "planner:4700"
  token      = "a"
  token_file = "/b"
}
prometheus {
  address = "9400"
}
self_test {
  command = ["relative"]
  timeout = "x"
}
health {
  probation    = "-1h"
  strikes      = 1
  in_a_row     = 99
  first_strike = [0]
  xid {
    codes = []
    level = "ill"
    until = "never"
  }
  xid {
    codes = [-3]
    level = "suspect"
  }
  class {
    name  = "nonsense"
    level = "suspect"
  }
  condition {
    name  = "nonsense"
    level = "suspect"
  }
  counter {
    name   = "nonsense"
    max    = 1
    window = "x"
    level  = "y"
  }
}`)
	must.Error(t, err)
	for _, want := range []string{"abacus", "each source once", "simulated: a block", "state_dir", "fingerprint_period", "scan_timeout", "shared[0].replicas", "shared[0].mps_pipe_directory", "report.address", "report.token_file",
		"prometheus.address", "self_test.command", "self_test.timeout", "health.probation", "health.strikes", "health.in_a_row", "health.first_strike", "health.xid[0].codes", "health.xid[0].level", "health.xid[0].until",
		"health.xid[1].codes", "health.class[0].name", "health.condition[0].name", "health.counter[0].name", "health.counter[0].window", "health.counter[0].level"} {
		must.StrContains(t, err.Error(), want)
	}
}

// The agent's configuration as the pages for operators show it.
func TestDocumentedAgents(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"../README.md", "../docs/install.md"} {
		text, err := os.ReadFile(file)
		must.NoError(t, err)
		found := 0
		for _, m := range regexp.MustCompile("(?s)```hcl\n(.*?)```").FindAllSubmatch(text, -1) {
			parsed, diags := hclsyntax.ParseConfig(m[1], file, hcl.InitialPos)
			must.False(t, diags.HasErrors(), must.Sprint(diags))
			for _, b := range parsed.Body.(*hclsyntax.Body).Blocks {
				if b.Type != "plugin" || b.Labels[0] != "nomad-device-gpu" || len(b.Body.Blocks) == 0 {
					continue
				}
				config := b.Body.Blocks[0]
				_, err := parse(t, string(m[1][config.OpenBraceRange.End.Byte:config.CloseBraceRange.Start.Byte]))
				must.NoError(t, err)
				found++
			}
		}
		must.Eq(t, 1, found, must.Sprint(file))
	}
}

// What the documentation shows is what the plugin takes.
func TestDocumentedBlocks(t *testing.T) {
	t.Parallel()
	found := 0
	for _, file := range []string{"../docs/devices.md", "../docs/health.md"} {
		text, err := os.ReadFile(file)
		must.NoError(t, err)
		for _, m := range regexp.MustCompile("(?s)```hcl\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
			block := m[1]
			if i := strings.Index(block, "config {\n"); i >= 0 {
				block = block[i+len("config {\n"):]
				block = block[:strings.LastIndex(block[:strings.LastIndex(block, "}")], "}")]
			}
			_, err := parse(t, block)
			must.NoError(t, err, must.Sprint(block))
			found++
		}
	}
	must.Eq(t, 3, found)
}
