// Package monitoring holds what an operator loads into Prometheus and Grafana:
//
//	alerts/muster.rules.yml   alerting rules, with their tests beside them
//	dashboards/*.json         dashboards
//
// The dashboards are made by Dashboards, with Grafana's own library; the files
// are written anew with
//
//	go test ./planner/monitoring -rewrite
//
// and tests hold them to the code, every query to Prometheus's own parser, and
// every series in a query or a rule to those that somebody exports
// (docs/metrics.md). docs/monitoring.md tells how to load them.
package monitoring

import "embed"

// Alerts are the rules and their tests.
//
//go:embed alerts
var Alerts embed.FS
