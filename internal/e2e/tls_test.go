package e2e

import (
	"context"
	"crypto/tls"
	"net/http"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// The WebSocket binding is there over TLS 1.3 and over nothing older
// (PROTOCOL.md 17.1).
func TestWebSocketNeedsTLS13(t *testing.T) {
	o := startOutage(t)
	roots, err := o.stack.RootCAs()
	if err != nil {
		t.Fatal(err)
	}
	dial := func(version uint16) error {
		h := &http.Client{Transport: &http.Transport{
			DisableKeepAlives: true,
			TLSClientConfig:   &tls.Config{RootCAs: roots, MinVersion: version, MaxVersion: version}, //nolint:gosec // the old one must be refused
		}}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		conn, _, err := websocket.Dial(ctx, o.File.WSURL, &websocket.DialOptions{HTTPClient: h})
		if err == nil {
			_ = conn.CloseNow()
		}
		return err //nolint:wrapcheck // looked at by the test
	}
	if err := dial(tls.VersionTLS13); err != nil {
		t.Errorf("TLS 1.3: %v", err)
	}
	if dial(tls.VersionTLS12) == nil {
		t.Error("TLS 1.2 is let in")
	}
}
