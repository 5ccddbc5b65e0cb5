// Package nomadplugin holds Nomad's plugin wire protocol, without any code of
// Nomad: base, device and driver are what a plugin's author sees, hclspec its
// configuration, host the agent's side, plugintest the two of them in memory.
// docs/nomadplugin.md is the guide.
package nomadplugin
