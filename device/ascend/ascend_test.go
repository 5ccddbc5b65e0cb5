package ascend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/pci"
	"github.com/nomad-muster/muster/device/sysfs/sysfstest"
	"github.com/nomad-muster/muster/internal/contract"
)

func file(t testing.TB, name string) string {
	text, err := os.ReadFile("testdata/" + name)
	must.NoError(t, err)
	return string(text)
}

func TestParseInfo(t *testing.T) {
	t.Parallel()
	got := ParseInfo(file(t, "info-910b4.txt"))
	must.Len(t, 1, got)
	must.Eq(t, "0000:c1:00.0", got[0].Bus.Sysfs())
	got[0].Bus = pci.Address{}
	must.Eq(t, Chip{Phy: -1, Name: "910B4", Health: "OK", Power: 88.2, Temperature: 30, Busy: 0, Used: 26838, Total: 32768}, got[0])
	got = ParseInfo(file(t, "info-910c.txt"))
	must.Len(t, 2, got) // the table of processes is none of chips
	must.Eq(t, 1, got[1].Phy)
	must.Eq(t, -1.0, got[1].Power)
	must.Eq(t, "Alarm", got[1].Health)
	must.Eq(t, 65536, got[1].Total)
}

func TestParseTopology(t *testing.T) {
	t.Parallel()
	got := ParseTopology(file(t, "topo-910b3.txt"))
	must.MapLen(t, 56, got)
	must.Eq(t, "HCCS", got[[2]int{6, 1}])
	got = ParseTopology(file(t, "topo-pcie.txt"))
	must.MapLen(t, 12, got)
	must.Eq(t, "SYS", got[[2]int{0, 2}])
}

// eight cards as the tool would print them.
func eight() string {
	var b strings.Builder
	for i := range 8 {
		fmt.Fprintf(&b, "| %d     910B3               | OK            | 91.0        40                0    / 0             |\n| 0                         | 0000:C%d:00.0  | 7           0    / 0          100  / 65536         |\n+---+\n", i, i)
	}
	return b.String()
}

func TestScan(t *testing.T) {
	t.Parallel()
	root := sysfstest.Tree(t, map[string]string{"dev/davinci3": "", "dev/davinci_manager": "", "dev/devmm_svm": "", "dev/hisi_hdc": ""})
	s := New(func(_ context.Context, args ...string) (string, error) {
		if len(args) == 1 {
			return eight(), nil
		}
		return file(t, "topo-910b3.txt"), nil
	}, root)
	scan, err := s.Scan(context.Background())
	must.NoError(t, err)
	must.Len(t, 8, scan.Cards)
	c := scan.Cards[3]
	must.Eq(t, card.Group{Vendor: "huawei", Type: contract.TypeNPU, Model: "Ascend 910B3"}, c.Group)
	must.MapLen(t, 7, c.Links)
	must.Eq(t, scan.Cards[0].Domain, c.Domain)
	must.Eq(t, "3", c.Grant.Lists["ASCEND_RT_VISIBLE_DEVICES"])
	must.Len(t, 4, c.Grant.Nodes)
	must.Eq(t, "/dev/davinci3", c.Grant.Nodes[0].HostPath)
	must.Eq(t, int64(65536), *c.Attributes[contract.AttrMemory].Int)
	samples, err := s.Sample(context.Background())
	must.NoError(t, err)
	must.Eq(t, 7.0, *samples[c.ID].GPUUtil)
}

func TestHealthWords(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{"OK": "", "Warning": health.VendorWarning, "Alarm": health.VendorFault, "Critical": health.VendorFault, "UNKNOWN": health.VendorFault, "": health.VendorFault, "Fine": health.VendorFault} {
		s := New(func(_ context.Context, args ...string) (string, error) {
			if len(args) > 1 {
				return "", errors.New("no topology")
			}
			return fmt.Sprintf("| 0 910B4 | %s | 88.2 30 0 / 0 |\n| 0 | 0000:C1:00.0 | 0 0 / 0 1/ 2 |\n", word), nil
		}, sysfstest.Tree(t, nil))
		scan, err := s.Scan(context.Background())
		must.NoError(t, err)
		must.Len(t, 1, scan.Notes)
		if want == "" {
			must.SliceEmpty(t, scan.Cards[0].Conditions)
			continue
		}
		must.True(t, scan.Cards[0].Has(want), must.Sprint(word))
	}
}

func TestNoTool(t *testing.T) {
	t.Parallel()
	scan, err := New(func(context.Context, ...string) (string, error) { return "", exec.ErrNotFound }, "").Scan(context.Background())
	must.NoError(t, err)
	must.SliceEmpty(t, scan.Cards)
	must.StrContains(t, scan.Absent, "npu-smi is not installed")
	_, err = New(func(context.Context, ...string) (string, error) {
		return "", errors.New("dcmi module initialize failed")
	}, "").Scan(context.Background())
	must.ErrorContains(t, err, "dcmi")
	_, err = New(func(context.Context, ...string) (string, error) { return "nothing that is a table", nil }, "").Scan(context.Background())
	must.Error(t, err) // cards that were there are not taken for gone without a word
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"info-910b4.txt", "info-910c.txt", "topo-910b3.txt", "topo-pcie.txt"} {
		f.Add(file(f, name))
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, c := range ParseInfo(text) {
			if c.NPU < 0 || c.Phy < -1 || c.Used > 1e9 || c.Bus.IsZero() && c.Health == "OK" && c.Name == "" {
				t.Fatalf("%+v", c)
			}
		}
		for pair := range ParseTopology(text) {
			if pair[0] < 0 || pair[1] < 0 {
				t.Fatal(pair)
			}
		}
	})
}
