package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// ConsulConfig says how Consul is reached. Empty fields are taken from
// Consul's own environment variables (CONSUL_HTTP_ADDR, CONSUL_HTTP_TOKEN,
// CONSUL_CACERT and so on) by FromEnvironment.
type ConsulConfig struct {
	Address    string `json:"address,omitempty"` // host:port, http(s)://..., unix://...
	Token      string `json:"token,omitempty"`
	TokenFile  string `json:"token_file,omitempty"`
	Auth       string `json:"auth,omitempty"` // user:password of HTTP's basic authentication
	Datacenter string `json:"datacenter,omitempty"`
	Namespace  string `json:"namespace,omitempty"` // Consul Enterprise
	Partition  string `json:"partition,omitempty"` // Consul Enterprise
	TLS        bool   `json:"tls,omitempty"`
	CAFile     string `json:"ca_file,omitempty"`
	CAPath     string `json:"ca_path,omitempty"`
	CertFile   string `json:"cert_file,omitempty"`
	KeyFile    string `json:"key_file,omitempty"`
	ServerName string `json:"tls_server_name,omitempty"`
	NoVerify   bool   `json:"tls_skip_verify,omitempty"`
}

// FromEnvironment fills what c leaves open from Consul's environment variables.
func (c ConsulConfig) FromEnvironment() ConsulConfig {
	fill := func(field *string, names ...string) {
		for _, name := range names {
			if *field == "" {
				*field = os.Getenv(name)
			}
		}
	}
	fill(&c.Address, api.HTTPAddrEnvName)
	if c.TokenFile == "" { // a file that the configuration names goes before a token from the environment
		fill(&c.Token, api.HTTPTokenEnvName)
	}
	if c.Token == "" {
		fill(&c.TokenFile, api.HTTPTokenFileEnvName)
	}
	fill(&c.Auth, api.HTTPAuthEnvName)
	fill(&c.Namespace, api.HTTPNamespaceEnvName)
	fill(&c.Partition, api.HTTPPartitionEnvName)
	fill(&c.CAFile, api.HTTPCAFile)
	fill(&c.CAPath, api.HTTPCAPath)
	fill(&c.CertFile, api.HTTPClientCert)
	fill(&c.KeyFile, api.HTTPClientKey)
	fill(&c.ServerName, api.HTTPTLSServerName)
	c.TLS = c.TLS || truth(os.Getenv(api.HTTPSSLEnvName))
	if v := os.Getenv(api.HTTPSSLVerifyEnvName); v != "" && !truth(v) {
		c.NoVerify = true
	}
	return c
}

func truth(s string) bool { return s == "1" || strings.EqualFold(s, "true") }

// Where names the address for messages.
func (c ConsulConfig) Where() string {
	if c.Address == "" {
		return "127.0.0.1:8500 (neither the plugin's consul block nor CONSUL_HTTP_ADDR names another)"
	}
	return c.Address
}

// client makes an API client of exactly this configuration: the process's own
// environment is not read again.
//
// Whoever is done with it calls close: Consul counts connections by address, and
// by default refuses those beyond 200.
func (c ConsulConfig) client() (client *api.Client, close func(), err error) {
	// Few members, long-lived queries: no idle connections beyond them.
	transport := &http.Transport{MaxIdleConnsPerHost: 2, IdleConnTimeout: 90 * time.Second, ForceAttemptHTTP2: false, Proxy: http.ProxyFromEnvironment}
	cfg := &api.Config{
		Address: c.Address, Scheme: "http", Token: c.Token, TokenFile: c.TokenFile, Datacenter: c.Datacenter, Namespace: c.Namespace, Partition: c.Partition,
		TLSConfig: api.TLSConfig{CAFile: c.CAFile, CAPath: c.CAPath, CertFile: c.CertFile, KeyFile: c.KeyFile, Address: c.ServerName, InsecureSkipVerify: c.NoVerify},
		Transport: transport,
	}
	if c.Address == "" {
		cfg.Address = "127.0.0.1:8500"
	}
	if c.TLS {
		cfg.Scheme = "https"
	}
	if c.Auth != "" {
		user, password, _ := strings.Cut(c.Auth, ":")
		cfg.HttpAuth = &api.HttpBasicAuth{Username: user, Password: password}
	}
	if client, err = api.NewClient(cfg); err != nil {
		return nil, nil, fmt.Errorf("set up Consul at %s: %w", c.Where(), err)
	}
	return client, transport.CloseIdleConnections, nil
}

// Check asks Consul whether it is there and has a leader.
func (c ConsulConfig) Check(timeout time.Duration) error {
	client, done, err := c.client()
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	leader, err := client.Status().LeaderWithQueryOptions((&api.QueryOptions{}).WithContext(ctx))
	if err == nil && leader == "" {
		err = errors.New("it has no leader")
	}
	if err != nil {
		return fmt.Errorf("reach Consul at %s: %w", c.Where(), err)
	}
	return nil
}
