package httpkit_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/missionweave/server/internal/httpkit"
)

// A server speaks TLS 1.3 and nothing older, whatever its configuration allows
// (PROTOCOL.md 17.1).
func TestServersSpeakNothingOlderThanTLS13(t *testing.T) {
	lender := httptest.NewTLSServer(http.NotFoundHandler()) // has a certificate for loopback
	defer lender.Close()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{Certificates: lender.TLS.Certificates, MinVersion: tls.VersionTLS12}
	srv := httpkit.NewServer(http.NotFoundHandler(), config, time.Second, nil)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ctx, ln) }()
	roots := x509.NewCertPool()
	roots.AddCert(lender.Certificate())
	dial := func(highest uint16) error {
		d := tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12, MaxVersion: highest}}
		conn, err := d.DialContext(t.Context(), "tcp", ln.Addr().String())
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	if err := dial(tls.VersionTLS12); err == nil {
		t.Error("TLS 1.2 was spoken")
	}
	if err := dial(tls.VersionTLS13); err != nil {
		t.Errorf("TLS 1.3: %v", err)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}
