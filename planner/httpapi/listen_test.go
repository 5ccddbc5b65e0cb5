package httpapi_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/shoenig/test/must"

	"github.com/nomad-muster/muster/planner/config"
	"github.com/nomad-muster/muster/planner/httpapi"
	"github.com/nomad-muster/muster/planner/httpapi/client"
	"github.com/nomad-muster/muster/planner/httpapi/httpapitest"
)

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := httpapi.Listen(config.API{Listen: "127.0.0.1:0"})
	must.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// certificate writes one that signs itself, for servers and clients.
func certificate(t *testing.T, name string) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.NoError(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	must.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	must.NoError(t, err)
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	must.NoError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	must.NoError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	return cert, key
}

func TestTLS(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t, "planner")
	clientCert, clientKey := certificate(t, "client")
	otherCert, otherKey := certificate(t, "other")
	l, err := httpapi.Listen(config.API{Listen: "127.0.0.1:0", CertFile: cert, KeyFile: key, ClientCA: clientCert})
	must.NoError(t, err)
	p := httpapitest.New()
	api := httpapi.New(httpapi.Options{Config: httpapitest.Open, Gangs: p, Cluster: p, Jobs: p, Stopper: p, Feed: p.Feed})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- api.Serve(ctx, l) }()
	t.Cleanup(func() { cancel(); <-done })

	address := "https://" + l.Addr().String()
	tests := []struct {
		name string
		o    client.Options
		ok   bool
	}{
		{"both know each other", client.Options{CACert: cert, ClientCert: clientCert, ClientKey: clientKey}, true},
		{"the server is not checked, on purpose", client.Options{SkipVerify: true, ClientCert: clientCert, ClientKey: clientKey}, true},
		{"no certificate of the client's", client.Options{CACert: cert}, false},
		{"one of another authority", client.Options{CACert: cert, ClientCert: otherCert, ClientKey: otherKey}, false},
		{"the server is not known", client.Options{ClientCert: clientCert, ClientKey: clientKey}, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			test.o.Address = address
			c, err := client.New(test.o)
			must.NoError(t, err)
			_, err = c.Status(t.Context())
			if test.ok {
				must.NoError(t, err)
				return
			}
			var contact *client.ContactError
			must.True(t, errors.As(err, &contact), must.Sprint(err))
		})
	}
	_, err = httpapi.Listen(config.API{Listen: l.Addr().String()})
	must.ErrorContains(t, err, "api.listen")
	_, err = httpapi.Listen(config.API{Listen: "127.0.0.1:0", CertFile: key, KeyFile: key})
	must.ErrorContains(t, err, "api.tls")
	_, err = httpapi.Listen(config.API{Listen: "127.0.0.1:0", CertFile: cert, KeyFile: key, ClientCA: key})
	must.ErrorContains(t, err, "client_ca_file")
}
