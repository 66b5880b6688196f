package testkit

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Connections that may break at any moment: here an error means only that the
// connection is gone, unless it is ErrRefused.

// ErrRefused is a fatal refusal of the server.
var ErrRefused = errors.New("the server refused")

// tryWithin bounds one step over a connection that may be broken.
const tryWithin = 10 * time.Second

// TryDial is Dial.
func (s *Stack) TryDial(url string, agent *client.Client, token string) (*Socket, error) {
	s.t.Helper()
	header := http.Header{}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	ctx, cancel := context.WithTimeout(context.Background(), tryWithin)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{HTTPHeader: header, HTTPClient: plain}) //nolint:bodyclose // the library says never to close it
	if err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	conn.SetReadLimit(16 << 20)
	k := &Socket{t: s.t, agent: agent, conn: conn}
	s.t.Cleanup(func() { _ = conn.CloseNow() })
	return k, nil
}

func (k *Socket) trySend(frameType string, members map[string]any) error {
	k.t.Helper()
	f := frame{"protocolVersion": "0.1", "frameId": client.NewID(), "frameType": frameType}
	for name, value := range members {
		f[name] = value
	}
	b, err := strictjson.Marshal(map[string]any(f))
	if err != nil {
		k.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), tryWithin)
	defer cancel()
	return k.conn.Write(ctx, websocket.MessageText, b) //nolint:wrapcheck // gone
}

// TryRead returns the next frame. A frame that came whole is held against the
// schema as in Read; a fatal ERROR is ErrRefused.
func (k *Socket) TryRead() (strictjson.Value, error) {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), tryWithin)
	defer cancel()
	_, b, err := k.conn.Read(ctx)
	if err != nil {
		return strictjson.Value{}, fmt.Errorf("read: %w", err)
	}
	doc, err := strictjson.Parse(b)
	if err != nil {
		k.t.Fatalf("the server sent a frame that is not strict JSON (%v): %s", err, b)
	}
	v := doc.Root()
	if fault := protocol.Validate(protocol.KindWebSocketFrame, v); fault != nil {
		k.t.Fatalf("the server sent a frame with another structure: %v in %s", fault, b)
	}
	if e := v.Member("error"); e.Member("fatal").Bool() {
		return v, fmt.Errorf("%w: %s", ErrRefused, e.Raw())
	}
	return v, nil
}

// TryHandshake is Handshake.
func (k *Socket) TryHandshake() error {
	k.t.Helper()
	id, own := k.agent.Identity(), nonce()
	err := k.trySend("HELLO", map[string]any{
		"phase": "client_init", "agentId": id.Principal.ID, "keyId": id.KeyID, "clientNonce": own, "supportedVersions": []string{"0.1"},
	})
	if err != nil {
		return err
	}
	challenge, err := k.TryRead()
	if err != nil {
		return err
	}
	err = k.trySend("HELLO", map[string]any{
		"phase": "client_response", "agentId": id.Principal.ID, "keyId": id.KeyID, "clientNonce": own,
		"serverNonce":        challenge.Member("serverNonce").Str(),
		"challengeSignature": SignChallenge(k.t, k.agent, challenge.Member("challenge").Str()),
	})
	if err != nil {
		return err
	}
	v, err := k.TryRead()
	if err != nil {
		return err
	}
	k.Accepted(v)
	return nil
}

// TrySubscribe is Subscribe.
func (k *Socket) TrySubscribe(groupID string, after int64) error {
	return k.trySend("SUBSCRIBE", map[string]any{
		"subscriptionId": client.NewID(), "groups": []any{map[string]any{"groupId": groupID, "afterSequence": after}},
	})
}

// RawConn is an upgraded connection without a WebSocket library.
type RawConn struct {
	net.Conn
	in *bufio.Reader
}

// Upgrade connects and upgrades, nothing more.
func (s *Stack) Upgrade(address string) *RawConn {
	s.t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		s.t.Fatal(err)
	}
	conn, err := (&net.Dialer{}).DialContext(s.t.Context(), "tcp", u.Host)
	if err != nil {
		s.t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(Patience))
	_, err = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n", u.Path, u.Host)
	if err != nil {
		s.t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusSwitchingProtocols || res.Header.Get("Sec-WebSocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		s.t.Fatalf("upgrade: %s %v", res.Status, res.Header)
	}
	return &RawConn{conn, in}
}

// Read returns the next n bytes.
func (c *RawConn) Read(t testing.TB, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(c.in, b); err != nil {
		t.Fatalf("read: %v", err)
	}
	return b
}

// CloseCode reads frames until the close frame and returns its code, 0 for none.
func (c *RawConn) CloseCode(t testing.TB) int {
	t.Helper()
	for {
		head := c.Read(t, 2)
		length := int(head[1])
		if length == 126 {
			length = int(binary.BigEndian.Uint16(c.Read(t, 2)))
		}
		payload := c.Read(t, length)
		if head[0]&0x0f != 8 {
			continue
		}
		if len(payload) < 2 {
			return 0
		}
		return int(binary.BigEndian.Uint16(payload))
	}
}

// HeapInUse is the memory of this process, servers included, in bytes.
func HeapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse) //nolint:gosec // far below the limit
}
