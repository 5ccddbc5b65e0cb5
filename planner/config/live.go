package config

import (
	"reflect"
	"sync"
	"sync/atomic"
)

// Live is the configuration in force. Reload replaces it as a whole, or leaves
// it alone.
type Live struct {
	paths   []string
	current atomic.Pointer[Config]
	mu      sync.Mutex // one reload at a time
}

// Open loads the configuration of paths.
func Open(paths ...string) (*Live, error) {
	c, err := Load(paths...)
	if err != nil {
		return nil, err
	}
	l := &Live{paths: paths}
	l.current.Store(c)
	return l, nil
}

// Fixed is a configuration that a reload does not change.
func Fixed(c *Config) *Live {
	l := &Live{}
	l.current.Store(c)
	return l
}

// Current is the configuration in force; its user must not change it.
func (l *Live) Current() *Config { return l.current.Load() }

// Reload reads the files again. A configuration with faults changes nothing.
// Restart lists what changed and takes effect at the next start only; until
// then the old setting is in force.
func (l *Live) Reload() (restart []string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.current.Load()
	if l.paths == nil {
		return nil, nil
	}
	c, err := Load(l.paths...)
	if err != nil {
		return nil, err
	}
	keep := func(name string, old, new any, restore func()) {
		if !reflect.DeepEqual(old, new) {
			restart = append(restart, name)
			restore()
		}
	}
	// A token of Nomad or Consul that is rotated in its file goes into force.
	oldNomad, newNomad := old.Nomad, c.Nomad
	oldNomad.Token, newNomad.Token = "", ""
	keep("nomad", oldNomad, newNomad, func() { c.Nomad = old.Nomad })
	oldConsul, newConsul := old.Consul, c.Consul
	oldConsul.Token, newConsul.Token = "", ""
	keep("consul", oldConsul, newConsul, func() { c.Consul = old.Consul })
	oldAPI, newAPI := old.API, c.API
	oldAPI.Anonymous, newAPI.Anonymous = "", ""
	oldAPI.URL, newAPI.URL = "", ""
	keep("api", oldAPI, newAPI, func() {
		anonymous, url := c.API.Anonymous, c.API.URL
		c.API = old.API
		c.API.Anonymous, c.API.URL = anonymous, url
	})
	keep("webhook", old.Webhooks, c.Webhooks, func() { c.Webhooks = old.Webhooks })
	keep("data_dir", old.DataDir, c.DataDir, func() { c.DataDir = old.DataDir })
	keep("log_json", old.LogJSON, c.LogJSON, func() { c.LogJSON = old.LogJSON })
	l.current.Store(c)
	return restart, nil
}
