// Package proto is the home of the messages that Nomad and its plugins
// exchange. The .proto files beside the generated code are our own, with
// Nomad's packages, services, field numbers and types, which Nomad 1.8 to 2.0
// share; scripts/proto generate makes the code from them. Nothing outside
// internal/nomadplugin uses them: plugins are written against the packages
// device and driver.
package proto
