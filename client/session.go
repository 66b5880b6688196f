package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"

	"github.com/missionweave/server/internal/protocol/lexical"
)

// Close codes after which coming back would be wrong: another runtime of this
// Agent has taken over, or the server will never accept this one.
const (
	closeRefused  = 4403
	closeVersion  = 4406
	closeReplaced = 4409
)

// ErrReplaced ends a Session that another runtime of the same Agent took over.
var ErrReplaced = errors.New("client: another runtime of this Agent took the session over")

// Session is an Agent's session over the WebSocket binding. It renews itself
// at half its life, comes back by itself after a broken connection under the
// same Session Epoch while its token lives, and subscribes every Group again
// after the last Event that was handed over.
type Session struct {
	c      *Client
	life   context.Context
	cancel context.CancelFunc
	done   chan struct{}
	// closing is closed when the session has ended, before done.
	closing chan struct{}
	pumps   sync.WaitGroup

	// sending keeps a SUBSCRIBE and its PINGs together, without a COMMAND in
	// between.
	sending sync.Mutex

	// received counts EVENT frames, repeated those whose Event a Subscription had
	// handed over before.
	received, repeated atomic.Int64

	mu        sync.Mutex
	conn      *websocket.Conn
	connected chan struct{} // closed while conn is usable
	token     string
	epoch     int64
	expires   time.Time
	subs      map[string]*Subscription // by Group id
	waiting   map[string]*waiter
	renewal   chan helloFrame
	err       error
}

// waiter is a Command that has been sent and not been answered.
type waiter struct {
	signed *SignedCommand
	answer chan commandAnswer // capacity 1
}

type commandAnswer struct {
	event Event
	err   error
}

// OpenSession opens a new session: the Agent's Session Epoch rises, and older
// sessions of the Agent end. The session lives until Close, ctx, or a refusal.
func (c *Client) OpenSession(ctx context.Context) (*Session, error) {
	if c.opt.WebSocketURL == "" {
		return nil, errNoURL
	}
	if c.Principal().Type != Agent {
		return nil, errors.New("client: only Agents have sessions")
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s := &Session{
		c: c, life: life, cancel: cancel, done: make(chan struct{}), closing: make(chan struct{}),
		connected: make(chan struct{}), subs: map[string]*Subscription{}, waiting: map[string]*waiter{},
	}
	var conn *websocket.Conn
	for attempt := 0; ; attempt++ {
		var err error
		if conn, err = s.dial(ctx); err == nil {
			break
		}
		if _, ok := again(err); !ok {
			cancel()
			return nil, err
		}
		if slept := sleep(ctx, c.opt.Retry.wait(attempt)); slept != nil {
			cancel()
			return nil, errors.Join(slept, err)
		}
	}
	go s.run(life, conn)
	return s, nil
}

// Client is whose session it is.
func (s *Session) Client() *Client { return s.c }

// Epoch is the present Session Epoch.
func (s *Session) Epoch() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.epoch
}

// Token is the present session token, a bearer for reads.
func (s *Session) Token() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.token
}

// Received counts the Events that came over the session's connections, and how
// many of them were dropped because they had been handed over before. Delivery is
// at least once, so repetitions are nothing unusual.
func (s *Session) Received() (events, repeated int64) {
	return s.received.Load(), s.repeated.Load()
}

// Done is closed when the session has ended.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err is why the session ended; nil after Close or before its end.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close ends the session's connection.
func (s *Session) Close() {
	s.cancel()
	<-s.done
}

// dial connects and completes the handshake. With a token that has not expired
// it resumes the session, otherwise it opens a new one.
func (s *Session) dial(ctx context.Context) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	header := http.Header{}
	s.mu.Lock()
	if s.token != "" && s.c.opt.Now().Before(s.expires) {
		header.Set("Authorization", "Bearer "+s.token)
	}
	s.mu.Unlock()
	conn, res, err := websocket.Dial(ctx, s.c.opt.WebSocketURL, &websocket.DialOptions{ //nolint:bodyclose // the library says never to close it
		HTTPClient: s.c.http, HTTPHeader: header,
	})
	if err != nil {
		if res != nil && res.StatusCode >= 400 && res.StatusCode < 500 && res.StatusCode != http.StatusTooManyRequests {
			return nil, fmt.Errorf("client: the server refused the connection with status %d", res.StatusCode)
		}
		return nil, &unreachable{err}
	}
	conn.SetReadLimit(maxEventLine)
	if err := s.handshake(ctx, conn); err != nil {
		_ = conn.CloseNow()
		return nil, err
	}
	return conn, nil
}

// handshake is the four-step HELLO of COMMANDS.md 8.1.
func (s *Session) handshake(ctx context.Context, conn *websocket.Conn) error {
	own := nonce()
	if err := s.sendInit(ctx, conn, own); err != nil {
		return err
	}
	challenge, err := readHello(ctx, conn)
	if err != nil {
		return err
	}
	if err := s.sendResponse(ctx, conn, own, challenge); err != nil {
		return err
	}
	accepted, err := readHello(ctx, conn)
	if err != nil {
		return err
	}
	return s.accept(accepted)
}

func (s *Session) sendInit(ctx context.Context, conn *websocket.Conn, own string) error {
	id := s.c.opt.Identity
	return send(ctx, conn, map[string]any{
		"protocolVersion": "0.1", "frameId": NewID(), "frameType": "HELLO", "phase": "client_init",
		"agentId": id.Principal.ID, "keyId": id.KeyID, "clientNonce": own, "supportedVersions": []string{"0.1"},
	})
}

func (s *Session) sendResponse(ctx context.Context, conn *websocket.Conn, own string, challenge helloFrame) error {
	id := s.c.opt.Identity
	if challenge.Phase != "server_challenge" || challenge.ClientNonce != own {
		return errChallenge
	}
	signature, err := signChallenge(challenge.Challenge, map[string]string{
		"agentId": id.Principal.ID, "keyId": id.KeyID, "clientNonce": own, "protocolVersion": "0.1",
	}, id.Key)
	if err != nil {
		return err
	}
	return send(ctx, conn, map[string]any{
		"protocolVersion": "0.1", "frameId": NewID(), "frameType": "HELLO", "phase": "client_response",
		"agentId": id.Principal.ID, "keyId": id.KeyID, "clientNonce": own,
		"serverNonce": challenge.ServerNonce, "challengeSignature": signature,
	})
}

func (s *Session) accept(accepted helloFrame) error {
	if accepted.Phase != "server_accept" {
		return errors.New("client: the handshake ended with another frame")
	}
	ends, err := lexical.ParseTimestamp(accepted.ExpiresAt)
	if err != nil {
		return fmt.Errorf("client: the session's expiry: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token, s.epoch, s.expires = accepted.SessionToken, accepted.SessionEpoch, ends.Time()
	return nil
}
