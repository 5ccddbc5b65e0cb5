// Package rules keeps the project's dependency rules, as tests that read the
// imports of every package: who may use which library, and that planner,
// driver and device meet in internal/contract alone. docs/architecture.md
// tells them in words.
package rules
