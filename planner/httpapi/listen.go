package httpapi

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"

	"github.com/nomad-muster/muster/planner/config"
)

// Listen opens the address of a configuration, with TLS where it has any.
func Listen(c config.API) (net.Listener, error) {
	var secure *tls.Config
	if c.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("listen for the API: api.tls: %w", err)
		}
		secure = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	if c.ClientCA != "" {
		pem, err := os.ReadFile(c.ClientCA)
		if err != nil {
			return nil, fmt.Errorf("listen for the API: api.tls.client_ca_file: %w", err)
		}
		secure.ClientCAs = x509.NewCertPool()
		if !secure.ClientCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("listen for the API: api.tls.client_ca_file: %s holds no certificate", c.ClientCA)
		}
		secure.ClientAuth = tls.RequireAndVerifyClientCert
	}
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for the API on %s: %w; api.listen in the configuration or -listen names another address", c.Listen, err)
	}
	if secure != nil {
		return tls.NewListener(l, secure), nil
	}
	return l, nil
}
