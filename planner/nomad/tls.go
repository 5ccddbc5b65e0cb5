package nomad

import (
	"crypto/tls"
	"net/http"

	"github.com/hashicorp/nomad/api"
)

// tlsTransport is the TLS configuration that Nomad's own client makes of the
// given settings.
func tlsTransport(settings *api.TLSConfig) (*tls.Config, error) {
	transport := &http.Transport{TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
	if err := api.ConfigureTLS(&http.Client{Transport: transport}, settings); err != nil {
		return nil, err
	}
	return transport.TLSClientConfig, nil
}
