package exposition

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/device"
	"github.com/nomad-muster/muster/device/card"
	"github.com/nomad-muster/muster/device/health"
	"github.com/nomad-muster/muster/device/pci"
	"github.com/nomad-muster/muster/internal/contract"
)

type node struct{}

func (node) Status() []device.Status {
	s := health.State{Xids: map[int]uint64{31: 2, 48: 1, 901: 3, 902: 4}, LastXid: 48}
	return []device.Status{
		{Card: card.Card{ID: "GPU-a", Index: 3, Bus: pci.Address{Bus: 0x3b}, GI: -1, Group: card.Group{Vendor: "nvidia", Type: "gpu", Model: "NVIDIA H100"}}, Verdict: health.Verdict{Level: health.Draining}, Health: s},
		{Card: card.Card{ID: "RDMA-1", Name: "mlx5_0", GI: -1, Group: card.Group{Vendor: "mellanox", Type: contract.TypeNIC, Model: "MT4129"}, Hidden: "no"}, Verdict: health.Verdict{Level: health.Healthy}},
	}
}

func (node) Sample(context.Context) map[string]card.Sample {
	util, energy, rate := 55.0, uint64(7), 400.0
	return map[string]card.Sample{"GPU-a": {GPUUtil: &util, Energy: &energy}, "RDMA-1": {Rate: &rate}}
}

func (node) Unattributed() uint64 { return 2 }

func collector() *Collector {
	return New(node{}, func() map[string]contract.CardHolder {
		return map[string]contract.CardHolder{"GPU-a": {Gang: "default/train", Queue: "research", Attempt: 2}}
	}, "n1")
}

func TestNamesAndLabels(t *testing.T) {
	t.Parallel()
	const gpu = `UUID="GPU-a",attempt="2",device="nvidia3",gang="default/train",gpu="3",modelName="NVIDIA H100",pci_bus_id="00000000:3B:00.0",queue="research"`
	const with = `GPU_I_ID="",Hostname="n1",`
	want := `
# HELP DCGM_FI_DEV_GPU_UTIL share of time in which a kernel ran
# TYPE DCGM_FI_DEV_GPU_UTIL gauge
DCGM_FI_DEV_GPU_UTIL{` + with + gpu + `} 55
# HELP DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION energy since the driver started
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{` + with + gpu + `} 7
# HELP DCGM_FI_DEV_XID_ERRORS the last Xid that was told
# TYPE DCGM_FI_DEV_XID_ERRORS gauge
DCGM_FI_DEV_XID_ERRORS{` + with + gpu + `} 48
# HELP muster_card_xids_total Xids that were told; codes that no catalogue lists have xid="unlisted"
# TYPE muster_card_xids_total counter
muster_card_xids_total{` + with + gpu + `,xid="31"} 2
muster_card_xids_total{` + with + gpu + `,xid="48"} 1
muster_card_xids_total{` + with + gpu + `,xid="unlisted"} 7
# HELP muster_card_unattributed_faults_total faults of devices that this node does not know
# TYPE muster_card_unattributed_faults_total counter
muster_card_unattributed_faults_total 2
`
	registry := prometheus.NewPedanticRegistry()
	must.NoError(t, registry.Register(collector()))
	recorder := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, line := range strings.Split(strings.TrimSpace(want), "\n") {
		must.StrContains(t, recorder.Body.String(), line+"\n")
	}
}

// Every series has a name of its own, and the collector is consistent.
func TestRegistry(t *testing.T) {
	t.Parallel()
	r := prometheus.NewPedanticRegistry()
	must.NoError(t, r.Register(collector()))
	families, err := r.Gather()
	must.NoError(t, err)
	must.Greater(t, 7, len(families))
}

func TestServe(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	address := taken.Addr().String()
	taken.Close()
	go func() { defer close(done); Serve(ctx, address, collector(), hclog.NewNullLogger()) }()
	var body []byte
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		resp, err := http.Get("http://" + address + "/metrics")
		if err != nil {
			time.Sleep(20 * time.Millisecond) // it is not up yet
			continue
		}
		body, err = io.ReadAll(resp.Body)
		resp.Body.Close()
		must.NoError(t, err)
		break
	}
	must.StrContains(t, string(body), "DCGM_FI_DEV_GPU_UTIL{")
	must.StrContains(t, string(body), `muster_card_state{`)
	cancel()
	<-done
}
