package monitoring

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/cog/variants"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
	"github.com/grafana/grafana-foundation-sdk/go/units"
)

// panel is one plot or figure of a dashboard: queries, and how to name and
// count their series.
type panel struct {
	title, about string
	unit         string
	single       bool // one figure, the newest
	stacked      bool
	wide         uint32 // of 24; 0: 8
	queries      []query
}

type query struct{ expr, legend string }

// row is a heading with its panels.
type row struct {
	title  string
	panels []panel
}

// boards by the names of their files. A queue, a model or a node can be chosen
// at the top of each.
var boards = map[string]struct {
	title, about, tag string
	variables         []variable
	rows              []row
}{
	"muster-queues": {"Muster: queues", "Who waits, how long and for what; who holds what.", "queues", []variable{{"queue", "label_values(muster_queue_used, queue)"}, {"model", "label_values(muster_cards, model)"}}, []row{
		{"Now", []panel{
			{title: "Gangs that wait", single: true, wide: 4, queries: []query{{`sum(muster_pending_gangs{queue=~"$queue"})`, ""}}},
			{title: "The oldest waits for", single: true, wide: 4, unit: units.Seconds, queries: []query{{`max(muster_pending_oldest_seconds{queue=~"$queue"})`, ""}}},
			{title: "Cards they ask for", single: true, wide: 4, queries: []query{{`sum(muster_pending_cards{model=~"$model"})`, ""}}},
			{title: "Cards in use", single: true, wide: 4, unit: units.PercentUnit, queries: []query{{`sum(muster_cards{model=~"$model",state=~"used|other"}) / sum(muster_cards{model=~"$model"})`, ""}}},
			{title: "Activity of what gangs hold", single: true, wide: 4, unit: units.PercentUnit, queries: []query{{`sum(muster_queue_utilisation_ratio{queue=~"$queue",model=~"$model"} * muster_queue_sampled_cards) / sum(muster_queue_sampled_cards{queue=~"$queue",model=~"$model"})`, ""}}},
			{title: "Fragmented", about: "Share of the free cards that the gangs that wait cannot use.", single: true, wide: 4, unit: units.PercentUnit, queries: []query{{`max(muster_fragmentation_ratio{model=~"$model"})`, ""}}},
		}},
		{"Waiting", []panel{
			{title: "Gangs that wait, by what is in their way", wide: 12, stacked: true, queries: []query{{`sum by (reason) (muster_pending_gangs{queue=~"$queue"})`, "{{reason}}"}}},
			{title: "The oldest of each queue", wide: 12, unit: units.Seconds, queries: []query{{`max by (queue) (muster_pending_oldest_seconds{queue=~"$queue"})`, "{{queue}}"}}},
			{title: "Admission wait by size, median", wide: 12, unit: units.Seconds, queries: []query{{`histogram_quantile(0.5, sum by (size, le) (rate(muster_admission_wait_seconds_bucket{queue=~"$queue"}[1h])))`, "{{size}} cards"}}},
			{title: "Admission wait by size, 95 % below", wide: 12, unit: units.Seconds, queries: []query{{`histogram_quantile(0.95, sum by (size, le) (rate(muster_admission_wait_seconds_bucket{queue=~"$queue"}[1h])))`, "{{size}} cards"}}},
			{title: "Error of expected starts, 95 % below", wide: 12, unit: units.Seconds, queries: []query{{`histogram_quantile(0.95, sum by (side, le) (rate(muster_eta_error_seconds_bucket[6h])))`, "{{side}}"}}},
			{title: "Nodes that would let the gangs start that wait", about: "The demand signal for an autoscaler.", wide: 12, queries: []query{{`sum by (model, cards, pool) (muster_demand_nodes{model=~"$model"})`, "{{pool}}: {{cards}} x {{model}}"}}},
		}},
		{"Shares", []panel{
			{title: "Held", stacked: true, queries: []query{{`sum by (queue) (muster_queue_used{queue=~"$queue",model=~"$model"})`, "{{queue}}"}}},
			{title: "Borrowed", stacked: true, queries: []query{{`sum by (queue) (muster_queue_borrowed{queue=~"$queue",model=~"$model"})`, "{{queue}}"}}},
			{title: "Missing from the guarantee", queries: []query{{`clamp_min(sum by (queue) (muster_queue_guaranteed{queue=~"$queue",model=~"$model"}) - sum by (queue) (muster_queue_used{queue=~"$queue",model=~"$model"}), 0)`, "{{queue}}"}}},
			{title: "Evictions an hour", queries: []query{{`sum by (queue, kind) (increase(muster_evictions_total{queue=~"$queue"}[1h]))`, "{{queue}}: {{kind}}"}}},
			{title: "Budgets used", unit: units.PercentUnit, queries: []query{{`muster_queue_budget_used_card_seconds{queue=~"$queue"} / muster_queue_budget_card_seconds`, "{{queue}}"}}},
			{title: "Max", queries: []query{{`sum by (queue) (muster_queue_max{queue=~"$queue",model=~"$model"})`, "{{queue}}"}}},
		}},
	}},
	"muster-cards": {"Muster: cards", "What the cards are and do, from the planner and from each node's device plugin.", "cards", []variable{{"model", "label_values(muster_cards, model)"}, {"node", "label_values(muster_card_offered, Hostname)"}}, []row{
		{"The pool", []panel{
			{title: "Cards by use", wide: 12, stacked: true, queries: []query{{`sum by (state) (muster_cards{model=~"$model"})`, "{{state}}"}}},
			{title: "Cards by health", wide: 12, stacked: true, queries: []query{{`sum by (state) (muster_card_states{model=~"$model",state!="healthy"})`, "{{state}}"}}},
			{title: "Breaker", single: true, wide: 4, queries: []query{{`muster_card_breaker_open`, ""}}},
			{title: "Plugins that report", single: true, wide: 4, queries: []query{{`muster_card_reporters`, ""}}},
			{title: "Silent ones", single: true, wide: 4, queries: []query{{`muster_card_reporters_silent`, ""}}},
			{title: "Reports a second", wide: 12, queries: []query{{`sum by (result) (rate(muster_card_reports_total[5m]))`, "{{result}}"}}},
		}},
		{"Use", []panel{
			{title: "Activity by queue", unit: units.PercentUnit, queries: []query{{`muster_queue_utilisation_ratio{model=~"$model"}`, "{{queue}}: {{model}}"}}},
			{title: "Memory in use by queue", unit: units.PercentUnit, queries: []query{{`muster_queue_memory_ratio{model=~"$model"}`, "{{queue}}: {{model}}"}}},
			{title: "Held and idle", about: "Cards without any activity in the last period.", queries: []query{{`muster_queue_idle_cards{model=~"$model"}`, "{{queue}}: {{model}}"}}},
			{title: "Power by queue", unit: units.Watt, stacked: true, queries: []query{{`muster_queue_power_watts{model=~"$model"}`, "{{queue}}: {{model}}"}}},
			{title: "Fragmentation", unit: units.PercentUnit, queries: []query{{`muster_fragmentation_ratio{model=~"$model"}`, "{{model}}"}}},
		}},
		{"One node", []panel{
			{title: "GPU activity", unit: units.Percent, queries: []query{{`DCGM_FI_DEV_GPU_UTIL{Hostname=~"$node"}`, "{{Hostname}} {{gpu}} {{gang}}"}}},
			{title: "Memory used", unit: "mbytes", queries: []query{{`DCGM_FI_DEV_FB_USED{Hostname=~"$node"}`, "{{Hostname}} {{gpu}} {{gang}}"}}},
			{title: "Temperature", unit: units.Celsius, queries: []query{{`DCGM_FI_DEV_GPU_TEMP{Hostname=~"$node"}`, "{{Hostname}} {{gpu}}"}}},
			{title: "Power", unit: units.Watt, queries: []query{{`DCGM_FI_DEV_POWER_USAGE{Hostname=~"$node"}`, "{{Hostname}} {{gpu}}"}}},
			{title: "Xids an hour", queries: []query{{`sum by (Hostname, gpu, xid) (increase(muster_card_xids_total{Hostname=~"$node"}[1h])) > 0`, "{{Hostname}} {{gpu}}: {{xid}}"}}},
			{title: "Faults of devices that the node does not know", queries: []query{{`increase(muster_card_unattributed_faults_total[1h])`, "{{instance}}"}}},
		}},
	}},
	"muster-planner": {"Muster: the planner", "How the planner itself is.", "planner", nil, []row{
		{"Its view", []panel{
			{title: "Sees the cluster", single: true, wide: 4, queries: []query{{`muster_nomad_connected`, ""}}},
			{title: "Last heard of Nomad", single: true, wide: 4, unit: units.Seconds, queries: []query{{`time() - muster_nomad_last_contact_timestamp_seconds`, ""}}},
			{title: "Ledger", single: true, wide: 4, queries: []query{{`muster_ledger_up`, ""}}},
			{title: "Listed anew", wide: 12, queries: []query{{`increase(muster_nomad_resyncs_total[1h])`, "an hour"}}},
		}},
		{"Decisions", []panel{
			{title: "Length of a cycle", wide: 12, unit: units.Seconds, queries: []query{{`histogram_quantile(0.5, sum by (le) (rate(muster_cycle_seconds_bucket[5m])))`, "median"}, {`histogram_quantile(0.99, sum by (le) (rate(muster_cycle_seconds_bucket[5m])))`, "99 % below"}}},
			{title: "Decisions a minute", wide: 12, queries: []query{{`sum by (action) (rate(muster_decisions_total[5m])) * 60`, "{{action}}"}}},
			{title: "Gangs by phase", stacked: true, queries: []query{{`sum by (phase) (muster_gangs)`, "{{phase}}"}}},
			{title: "Ends an hour", queries: []query{{`sum by (outcome) (increase(muster_attempts_ended_total[1h]))`, "{{outcome}}"}}},
			{title: "Gangs that ended, an hour", queries: []query{{`sum by (stage) (increase(muster_gangs_ended_total[1h]))`, "{{stage}}"}}},
		}},
		{"Stages", []panel{
			{title: "Time in each stage, 95 % below", wide: 12, unit: units.Seconds, queries: []query{{`histogram_quantile(0.95, sum by (stage, le) (rate(muster_stage_seconds_bucket[1h])))`, "{{stage}}"}}},
			{title: "The longest in each stage now", wide: 12, unit: units.Seconds, queries: []query{{`max by (stage) (muster_stage_oldest_seconds)`, "{{stage}}"}}},
			{title: "Last member placed to ranks released", wide: 12, unit: units.Seconds, queries: []query{{`histogram_quantile(0.99, sum by (le) (rate(muster_release_seconds_bucket[15m])))`, "99 % below"}}},
			{title: "Lost, by cause", about: "Card-hours an hour.", wide: 12, queries: []query{{`sum by (cause) (increase(muster_lost_card_seconds_total[1h])) / 3600`, "{{cause}}"}}},
		}},
		{"Calls and queues of its own", []panel{
			{title: "Calls, 99 % below", unit: units.Seconds, queries: []query{{`histogram_quantile(0.99, sum by (service, operation, le) (rate(muster_api_call_seconds_bucket[5m])))`, "{{service}} {{operation}}"}}},
			{title: "Calls that fail, a second", queries: []query{{`sum by (service, operation) (rate(muster_api_errors_total[5m]))`, "{{service}} {{operation}}"}}},
			{title: "Card-hours booked, an hour", stacked: true, queries: []query{{`sum by (category) (increase(muster_card_seconds_total[1h])) / 3600`, "{{category}}"}}},
			{title: "Records that wait for the ledger", queries: []query{{`muster_ledger_pending_records`, "waiting"}, {`increase(muster_ledger_dropped_records_total[1h])`, "dropped an hour"}}},
			{title: "Events that wait for webhooks", queries: []query{{`muster_webhook_pending_events`, "{{webhook}}"}}},
			{title: "Contradictions", queries: []query{{`muster_contradictions`, "{{object}}"}}},
		}},
	}},
}

type variable struct{ name, query string }

// Dashboards are the files' contents by name, without their ".json".
func Dashboards() (map[string][]byte, error) {
	out := map[string][]byte{}
	for name, b := range boards {
		//lint:ignore SA1019 every Grafana imports the first schema; the second needs the newest
		d := dashboard.NewDashboardBuilder(b.title).Uid(name).Description(b.about).Tags([]string{"muster", b.tag}).Timezone("browser").Refresh("30s").Time("now-6h", "now").
			Tooltip(dashboard.DashboardCursorSyncCrosshair).Readonly().
			WithVariable(dashboard.NewDatasourceVariableBuilder("source").Label("Prometheus").Type("prometheus"))
		for _, v := range b.variables {
			d.WithVariable(dashboard.NewQueryVariableBuilder(v.name).Label(v.name).Datasource(source()).Query(dashboard.StringOrMap{String: cog.ToPtr(v.query)}).
				Refresh(dashboard.VariableRefreshOnTimeRangeChanged).Multi(true).IncludeAll(true).AllValue(".*"))
		}
		for _, r := range b.rows {
			d.WithRow(dashboard.NewRowBuilder(r.title))
			for _, p := range r.panels {
				d.WithPanel(p.build())
			}
		}
		built, err := d.Build()
		if err != nil {
			return nil, fmt.Errorf("make dashboard %s: %w", name, err)
		}
		text, err := json.MarshalIndent(built, "", "  ")
		if err != nil {
			return nil, fmt.Errorf("make dashboard %s: %w", name, err)
		}
		out[name] = append(text, '\n')
	}
	return out, nil
}

// Queries are all of the dashboards', by the names of their files, with every
// choice at the top left open.
func Queries() map[string][]string {
	open := strings.NewReplacer("$queue", ".*", "$model", ".*", "$node", ".*")
	out := map[string][]string{}
	for name, b := range boards {
		for _, r := range b.rows {
			for _, p := range r.panels {
				for _, q := range p.queries {
					out[name] = append(out[name], open.Replace(q.expr))
				}
			}
		}
	}
	return out
}

func source() common.DataSourceRef {
	return common.DataSourceRef{Type: cog.ToPtr("prometheus"), Uid: cog.ToPtr("${source}")}
}

func (p panel) build() cog.Builder[dashboard.Panel] {
	wide := p.wide
	if wide == 0 {
		wide = 8
	}
	unit := p.unit
	if unit == "" {
		unit = units.Short
	}
	var targets []cog.Builder[variants.Dataquery]
	for i, q := range p.queries {
		target := prometheus.NewDataqueryBuilder().RefId(string(rune('A' + i))).Datasource(source()).Expr(q.expr).LegendFormat(q.legend)
		if p.single {
			target.Instant()
		} else {
			target.Range()
		}
		targets = append(targets, target)
	}
	if p.single {
		return stat.NewPanelBuilder().Title(p.title).Description(p.about).Datasource(source()).Span(wide).Height(4).Unit(unit).Targets(targets).
			ReduceOptions(common.NewReduceDataOptionsBuilder().Calcs([]string{"lastNotNull"}))
	}
	b := timeseries.NewPanelBuilder().Title(p.title).Description(p.about).Datasource(source()).Span(wide).Height(8).Unit(unit).Min(0).Targets(targets).
		Legend(common.NewVizLegendOptionsBuilder().DisplayMode(common.LegendDisplayModeList).Placement(common.LegendPlacementBottom).ShowLegend(true)).
		Tooltip(common.NewVizTooltipOptionsBuilder().Mode(common.TooltipDisplayModeMulti))
	if p.stacked {
		b.FillOpacity(40).Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNormal))
	}
	return b
}
