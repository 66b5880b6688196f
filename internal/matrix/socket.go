package matrix

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// socket is an Agent's session over the WebSocket binding. It is not the public
// client: it reads only when it has asked something, holds every frame against the
// frame schema, and sends bytes that no client would send. It renews its session
// at half its life.
type socket struct {
	id   client.Identity
	stop context.CancelFunc
	done chan struct{}

	mu      sync.Mutex
	conn    *websocket.Conn
	epoch   int64
	expires time.Time
	// broken is why the connection is of no use any more.
	broken error
}

// openSocket opens a new session, whose epoch is above every earlier one's.
func (s *stand) openSocket(ctx context.Context, id client.Identity) (*socket, error) {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	k := &socket{id: id, stop: stop, done: make(chan struct{})}
	for {
		retry, err := k.connect(ctx, s)
		if err == nil {
			break
		}
		if retry == 0 {
			stop()
			return nil, fmt.Errorf("open a session: %w", err)
		}
		if err := pause(ctx, retry); err != nil {
			stop()
			return nil, err
		}
	}
	go k.renewals(life)
	return k, nil
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// connect dials and completes the handshake; retry is not 0 when the server asks
// to come back later.
func (k *socket) connect(ctx context.Context, s *stand) (retry time.Duration, err error) {
	conn, _, err := websocket.Dial(ctx, s.stack.WSURL, &websocket.DialOptions{HTTPClient: s.http}) //nolint:bodyclose // the library says never to close it
	if err != nil {
		return 0, err
	}
	conn.SetReadLimit(64 << 20)
	k.conn = conn
	if err = k.hello(ctx); err == nil {
		return 0, nil
	}
	_ = conn.CloseNow()
	var refused *refusedFrame
	if errors.As(err, &refused) {
		if ms, ok := refused.object.Member("retryAfterMs").Int(); ok {
			return time.Duration(ms) * time.Millisecond, err
		}
	}
	return 0, err
}

// refusedFrame is an ERROR frame where something else was expected.
type refusedFrame struct{ object strictjson.Value }

func (r *refusedFrame) Error() string { return "ERROR frame: " + string(r.object.Raw()) }

// hello is the four-step handshake (COMMANDS.md 8.1). What it signs it has looked
// at first: the transcript of exactly the seven members, in JCS.
func (k *socket) hello(ctx context.Context) error {
	own := nonce()
	agent, key := k.id.Principal.ID, k.id.KeyID
	if err := k.write(ctx, map[string]any{
		"frameType": "HELLO", "phase": "client_init", "agentId": agent, "keyId": key, "clientNonce": own, "supportedVersions": []string{"0.1"},
	}); err != nil {
		return err
	}
	challenge, err := k.phase(ctx, "server_challenge")
	if err != nil {
		return err
	}
	transcript, err := lexical.DecodeBase64URL(challenge.Member("challenge").Str())
	if err != nil {
		return fmt.Errorf("challenge: %w", err)
	}
	var says map[string]string
	if err := json.Unmarshal(transcript, &says); err != nil {
		return fmt.Errorf("challenge: %w", err)
	}
	canonical, err := strictjson.Canonicalize(transcript)
	if err != nil || !bytes.Equal(canonical, transcript) || len(says) != 7 || says["agentId"] != agent || says["keyId"] != key ||
		says["clientNonce"] != own || says["protocolVersion"] != "0.1" || says["serverNonce"] != challenge.Member("serverNonce").Str() {
		return fmt.Errorf("the challenge is not one: %s", transcript)
	}
	if err := k.write(ctx, map[string]any{
		"frameType": "HELLO", "phase": "client_response", "agentId": agent, "keyId": key, "clientNonce": own,
		"serverNonce":        says["serverNonce"],
		"challengeSignature": lexical.EncodeBase64URL(ed25519.Sign(k.id.Key, transcript)),
	}); err != nil {
		return err
	}
	accepted, err := k.phase(ctx, "server_accept")
	if err != nil {
		return err
	}
	ends, err := lexical.ParseTimestamp(accepted.Member("expiresAt").Str())
	if err != nil {
		return err
	}
	k.epoch, _ = accepted.Member("sessionEpoch").Int()
	k.expires = ends.Time()
	return nil
}

// phase reads up to the HELLO frame of a phase.
func (k *socket) phase(ctx context.Context, phase string) (strictjson.Value, error) {
	for {
		v, err := k.read(ctx)
		switch {
		case err != nil:
			return v, err
		case v.Member("frameType").Str() == "ERROR":
			return v, &refusedFrame{v.Member("error")}
		case v.Member("phase").Str() == phase:
			return v, nil
		}
	}
}

func (k *socket) write(ctx context.Context, frame map[string]any) error {
	frame["protocolVersion"], frame["frameId"] = protocol.Version, client.NewID()
	b, err := strictjson.Marshal(frame)
	if err != nil {
		return err
	}
	return k.conn.Write(ctx, websocket.MessageText, b)
}

// read reads one frame and holds it against the frame schema.
func (k *socket) read(ctx context.Context) (strictjson.Value, error) {
	_, b, err := k.conn.Read(ctx)
	if err != nil {
		return strictjson.Value{}, err
	}
	if _, fault := protocol.ParseFrame(b); fault != nil {
		return strictjson.Value{}, fmt.Errorf("a frame of the server breaks the schema: %w: %s", fault, b)
	}
	doc, err := strictjson.Parse(b)
	if err != nil {
		return strictjson.Value{}, err
	}
	return doc.Root(), nil
}

// framed is what a COMMAND was answered with, up to the answer to a PING behind it.
type framed struct {
	frameID string
	events  []strictjson.Value
	errors  []strictjson.Value
}

// command sends exact bytes in a COMMAND frame and a PING, and reads up to the
// PING's answer, which comes after everything the Command caused.
func (k *socket) command(ctx context.Context, bytes []byte) (framed, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := framed{frameID: client.NewID()}
	if k.broken != nil {
		return out, k.broken
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err := func() error {
		frame := fmt.Appendf(nil, `{"protocolVersion":"0.1","frameType":"COMMAND","frameId":%q,"command":%s}`, out.frameID, bytes)
		if err := k.conn.Write(ctx, websocket.MessageText, frame); err != nil {
			return err
		}
		barrier := nonce()
		if err := k.write(ctx, map[string]any{"frameType": "PING", "nonce": barrier, "sentAt": client.Timestamp(time.Now())}); err != nil {
			return err
		}
		for {
			v, err := k.read(ctx)
			if err != nil {
				return err
			}
			switch v.Member("frameType").Str() {
			case "EVENT":
				out.events = append(out.events, v.Member("event"))
			case "ERROR":
				out.errors = append(out.errors, v.Member("error"))
			case "PING":
				if v.Member("replyToNonce").Str() == barrier {
					return nil
				}
			}
		}
	}()
	if err != nil {
		k.broken = err
	}
	return out, err
}

// renewals keeps the session alive, as a client would, until it is closed.
func (k *socket) renewals(ctx context.Context) {
	defer close(k.done)
	for {
		k.mu.Lock()
		half := time.Until(k.expires) / 2
		k.mu.Unlock()
		if pause(ctx, max(half, 50*time.Millisecond)) != nil {
			return
		}
		k.mu.Lock()
		if k.broken == nil {
			k.broken = k.hello(ctx)
		}
		over := k.broken != nil
		k.mu.Unlock()
		if over {
			return
		}
	}
}

// Epoch is the Session Epoch.
func (k *socket) Epoch() int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.epoch
}

// Close ends the connection; the session lives on until it expires.
func (k *socket) Close() {
	k.stop()
	_ = k.conn.CloseNow()
	<-k.done
}

// nonce is 18 random bytes as base64url.
func nonce() string {
	var b [18]byte
	_, _ = rand.Read(b[:])
	return lexical.EncodeBase64URL(b[:])
}

// overSocket sends a Command over the connection of an Agent, and answers as REST
// would: the status of the error's code with the error object, or 201 with a
// receipt that has the Events of the frames.
func (s *stand) overSocket(ctx context.Context, k *socket, command []byte) (answer, error) {
	got, err := k.command(ctx, command)
	if err != nil {
		return answer{}, fmt.Errorf("over WebSocket: %w", err)
	}
	switch {
	case len(got.errors) == 1 && len(got.events) == 0:
		e := got.errors[0]
		if e.Member("fatal").Bool() || e.Member("relatedFrameId").Str() != got.frameID {
			return answer{}, fmt.Errorf("the ERROR frame is fatal or not about the COMMAND: %s", e.Raw())
		}
		info, ok := protocol.InfoOf(protocol.Code(e.Member("code").Str()))
		if !ok {
			return answer{}, fmt.Errorf("no code of the protocol: %s", e.Raw())
		}
		return answer{status: info.HTTP, body: e.Raw()}, nil
	case len(got.errors) > 0 || len(got.events) == 0:
		return answer{}, fmt.Errorf("%d ERROR and %d EVENT frames answer one COMMAND", len(got.errors), len(got.events))
	}
	var refs []any
	for _, e := range got.events {
		sequence, _ := e.Member("sequence").Int()
		refs = append(refs, map[string]any{
			"eventId": e.Member("eventId").Str(), "groupId": e.Member("groupId").Str(), "sequence": sequence, "kind": e.Member("kind").Str(),
		})
	}
	body, err := strictjson.Marshal(map[string]any{"events": refs})
	return answer{status: http.StatusCreated, body: body}, err
}
