package testkit

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Socket is a WebSocket connection without any cleverness. Every frame that the
// server sends is held against websocket-frame.schema.
type Socket struct {
	// Epoch, Token and ExpiresAt are those of the last server_accept.
	Epoch     int64
	Token     string
	ExpiresAt time.Time

	t     testing.TB
	agent *client.Client
	conn  *websocket.Conn
}

// frame is what a client sends: members beside protocolVersion and frameId.
type frame map[string]any

// Dial connects an Agent without a handshake. token resumes a session, "" does
// not.
func (s *Stack) Dial(url string, agent *client.Client, token string) *Socket {
	s.t.Helper()
	header := http.Header{}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, url, &websocket.DialOptions{ //nolint:bodyclose // the library says never to close it
		HTTPHeader: header, HTTPClient: plain,
	})
	if err != nil {
		s.t.Fatalf("dial: %v", err)
	}
	conn.SetReadLimit(16 << 20)
	k := &Socket{t: s.t, agent: agent, conn: conn}
	s.t.Cleanup(func() { _ = conn.CloseNow() })
	return k
}

// Login connects an Agent and opens a new session.
func (s *Stack) Login(agent *client.Client) *Socket {
	s.t.Helper()
	return s.LoginAt(s.AuthorityURL, agent)
}

// LoginAt connects an Agent to the Authority at a URL and opens a new session.
func (s *Stack) LoginAt(url string, agent *client.Client) *Socket {
	s.t.Helper()
	k := s.Dial(WebSocketURL(url), agent, "")
	k.Handshake()
	return k
}

// Close ends the connection and waits until the server has agreed.
func (k *Socket) Close() { _ = k.conn.Close(websocket.StatusNormalClosure, "") }

// Drop breaks the connection.
func (k *Socket) Drop() { _ = k.conn.CloseNow() }

// Send sends one frame with its head filled in, and returns its frameId.
func (k *Socket) Send(frameType string, members map[string]any) string {
	k.t.Helper()
	id := client.NewID()
	f := frame{"protocolVersion": "0.1", "frameId": id, "frameType": frameType}
	for name, value := range members {
		f[name] = value
	}
	b, err := strictjson.Marshal(map[string]any(f))
	if err != nil {
		k.t.Fatal(err)
	}
	k.Write(websocket.MessageText, b)
	return id
}

// Write sends bytes as they are.
func (k *Socket) Write(kind websocket.MessageType, b []byte) {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := k.conn.Write(ctx, kind, b); err != nil {
		k.t.Fatalf("write: %v", err)
	}
}

// Command sends a signed Command and returns the frameId.
func (k *Socket) Command(command []byte) string {
	k.t.Helper()
	return k.Send("COMMAND", map[string]any{"command": protocol.Raw(command)})
}

// Subscribe asks for a Group's Events after a sequence. attention may be nil.
func (k *Socket) Subscribe(groupID string, after int64, attention map[string]any) string {
	k.t.Helper()
	g := map[string]any{"groupId": groupID, "afterSequence": after}
	if attention != nil {
		g["attention"] = attention
	}
	return k.Send("SUBSCRIBE", map[string]any{"subscriptionId": client.NewID(), "groups": []any{g}})
}

// Read returns the next frame, or the close code when the connection has ended.
func (k *Socket) Read() (v strictjson.Value, closed int) {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	kind, b, err := k.conn.Read(ctx)
	var end websocket.CloseError
	switch {
	case errors.As(err, &end):
		return strictjson.Value{}, int(end.Code)
	case err != nil:
		k.t.Fatalf("read: %v", err)
	case kind != websocket.MessageText:
		k.t.Fatal("the server sent a binary message")
	}
	doc, err := strictjson.Parse(b)
	if err != nil {
		k.t.Fatalf("the server sent a frame that is not strict JSON (%v): %s", err, b)
	}
	if fault := protocol.Validate(protocol.KindWebSocketFrame, doc.Root()); fault != nil {
		k.t.Fatalf("the server sent a frame with another structure: %v in %s", fault, b)
	}
	return doc.Root(), 0
}

// Next returns the next frame; server PINGs are answered and passed over.
func (k *Socket) Next() strictjson.Value {
	k.t.Helper()
	for {
		v, closed := k.Read()
		if closed != 0 {
			k.t.Fatalf("the connection was closed with %d", closed)
		}
		if v.Member("frameType").Str() == "PING" && !v.Member("replyToNonce").Exists() {
			k.Send("PING", map[string]any{
				"nonce": nonce(), "replyToNonce": v.Member("nonce").Str(), "sentAt": client.Timestamp(time.Now()),
			})
			continue
		}
		return v
	}
}

// Expect returns the next frame, which must be of a type.
func (k *Socket) Expect(frameType string) strictjson.Value {
	k.t.Helper()
	v := k.Next()
	if v.Member("frameType").Str() != frameType {
		k.t.Fatalf("frame %s, want %s", v.Raw(), frameType)
	}
	return v
}

// ExpectEvent returns the next frame's Event, which must be of a kind.
func (k *Socket) ExpectEvent(kind string) strictjson.Value {
	k.t.Helper()
	e := k.Expect("EVENT").Member("event")
	if e.Member("kind").Str() != kind {
		k.t.Fatalf("Event %s, want %s", e.Member("kind").Str(), kind)
	}
	return e
}

// ExpectError returns the error object of the next frame, which must have a code
// and name the frame it answers; "" names none.
func (k *Socket) ExpectError(code client.Code, relatedFrameID string) strictjson.Value {
	k.t.Helper()
	e := k.Expect("ERROR").Member("error")
	if e.Member("code").Str() != string(code) || relatedFrameID != "" && e.Member("relatedFrameId").Str() != relatedFrameID {
		k.t.Fatalf("error %s, want %s for frame %s", e.Raw(), code, relatedFrameID)
	}
	return e
}

// ExpectEnd reads a fatal error and then the close code.
func (k *Socket) ExpectEnd(code client.Code, closeCode int) {
	k.t.Helper()
	e := k.ExpectError(code, "")
	if !e.Member("fatal").Bool() {
		k.t.Errorf("the last error is not fatal: %s", e.Raw())
	}
	k.ExpectClose(closeCode)
}

// ExpectClose reads the close code.
func (k *Socket) ExpectClose(closeCode int) {
	k.t.Helper()
	for {
		v, closed := k.Read()
		if closed == closeCode {
			return
		}
		if closed != 0 {
			k.t.Fatalf("closed with %d, want %d", closed, closeCode)
		}
		if v.Member("frameType").Str() != "PING" {
			k.t.Fatalf("frame %s, want close %d", v.Raw(), closeCode)
		}
	}
}

// Barrier sends a PING and returns every frame up to its answer.
func (k *Socket) Barrier() []strictjson.Value {
	k.t.Helper()
	own := nonce()
	k.Send("PING", map[string]any{"nonce": own, "sentAt": client.Timestamp(time.Now())})
	var before []strictjson.Value
	for {
		v := k.Next()
		if v.Member("frameType").Str() == "PING" && v.Member("replyToNonce").Str() == own {
			return before
		}
		before = append(before, v)
	}
}

// Init sends step 1 of HELLO and returns step 2.
func (k *Socket) Init(clientNonce string) strictjson.Value {
	k.t.Helper()
	id := k.agent.Identity()
	k.Send("HELLO", map[string]any{
		"phase": "client_init", "agentId": id.Principal.ID, "keyId": id.KeyID, "clientNonce": clientNonce,
		"supportedVersions": []string{"0.1"},
	})
	return k.Expect("HELLO")
}

// Respond sends step 3.
func (k *Socket) Respond(clientNonce string, challenge strictjson.Value) string {
	k.t.Helper()
	id := k.agent.Identity()
	return k.Send("HELLO", map[string]any{
		"phase": "client_response", "agentId": id.Principal.ID, "keyId": id.KeyID, "clientNonce": clientNonce,
		"serverNonce":        challenge.Member("serverNonce").Str(),
		"challengeSignature": SignChallenge(k.t, k.agent, challenge.Member("challenge").Str()),
	})
}

// Handshake does all four steps, or renews on a connection that is logged in.
func (k *Socket) Handshake() {
	k.t.Helper()
	own := nonce()
	k.Respond(own, k.Init(own))
	k.Accepted(k.Expect("HELLO"))
}

// Accepted takes step 4.
func (k *Socket) Accepted(v strictjson.Value) {
	k.t.Helper()
	if v.Member("phase").Str() != "server_accept" {
		k.t.Fatalf("step 4 of HELLO is %s", v.Raw())
	}
	k.Token = v.Member("sessionToken").Str()
	k.Epoch, _ = v.Member("sessionEpoch").Int()
	ends, err := lexical.ParseTimestamp(v.Member("expiresAt").Str())
	if err != nil {
		k.t.Fatal(err)
	}
	k.ExpiresAt = ends.Time()
}

func nonce() string { return lexical.EncodeBase64URL([]byte(client.NewID()[9:])) }

// Nonce is a fresh nonce.
func Nonce() string { return nonce() }
