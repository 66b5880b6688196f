package wsapi

import (
	"crypto/sha1" //nolint:gosec // RFC 6455 names it; nothing secret depends on it
	"encoding/base64"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
)

// acceptKey answers Sec-WebSocket-Key (RFC 6455, section 4.2.2).
func acceptKey(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // see the import
	return base64.StdEncoding.EncodeToString(sum[:])
}

// checkUpgrade holds a request against RFC 6455, section 4.2.1. A page of another
// origin is refused: a browser would send it along with the user's network place.
func checkUpgrade(w http.ResponseWriter, r *http.Request) (key string, refusal error) {
	problem := func(status int) error { return httpkit.Problem(status, "upgrade") }
	keys := r.Header.Values("Sec-WebSocket-Key")
	switch {
	case !r.ProtoAtLeast(1, 1) || !hasToken(r.Header, "Connection", "upgrade") || !hasToken(r.Header, "Upgrade", "websocket"):
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		return "", problem(http.StatusUpgradeRequired)
	case r.Method != http.MethodGet:
		return "", problem(http.StatusMethodNotAllowed)
	case r.Header.Get("Sec-WebSocket-Version") != "13":
		w.Header().Set("Sec-WebSocket-Version", "13")
		return "", problem(http.StatusBadRequest)
	case len(keys) != 1:
		return "", problem(http.StatusBadRequest)
	}
	key = strings.TrimSpace(keys[0])
	if b, err := base64.StdEncoding.DecodeString(key); err != nil || len(b) != 16 {
		return "", problem(http.StatusBadRequest)
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		if u, err := url.Parse(origin); err != nil || !strings.EqualFold(u.Host, r.Host) {
			return "", problem(http.StatusForbidden)
		}
	}
	return key, nil
}

func hasToken(h http.Header, name, token string) bool {
	for _, line := range h.Values(name) {
		for field := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(field), token) {
				return true
			}
		}
	}
	return false
}

// accept takes the connection over from the HTTP server. early is what the
// client sent before it saw the answer.
func accept(w http.ResponseWriter, r *http.Request) (conn net.Conn, early []byte, refusal error) {
	key, refusal := checkUpgrade(w, r)
	if refusal != nil {
		return nil, nil, refusal
	}
	h := w.Header()
	h.Set("Upgrade", "websocket")
	h.Set("Connection", "Upgrade")
	h.Set("Sec-WebSocket-Accept", acceptKey(key))
	w.WriteHeader(http.StatusSwitchingProtocols)
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, protocol.Internal(fmt.Errorf("wsapi: hijack: %w", err))
	}
	if n := buffered.Reader.Buffered(); n > 0 {
		b, _ := buffered.Reader.Peek(n)
		early = append(early, b...)
	}
	return conn, early, nil
}
