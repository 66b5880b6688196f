package wsapi

import (
	"context"
	"errors"
	mathrand "math/rand/v2"
	"time"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/sessions"
)

// handshake is the four-step HELLO (COMMANDS.md 8.1). It reports whether the
// connection is logged in.
func (c *conn) handshake() bool {
	admitted := c.server.admit(c.peer)
	defer c.server.known(c.peer)
	if !admitted {
		c.turnAway(fatal(protocol.NewError(protocol.CodeRateLimited, "unauthenticated_connections").
			WithDetail("policyName", "unauthenticatedConnections").
			WithDetail("limit", int64(c.server.UnauthenticatedPerPeer)).
			WithRetryAfter(jittered(time.Second))))
		return false
	}
	limit := time.NewTimer(c.server.Timing.Handshake)
	defer limit.Stop()

	frame, ok := c.awaitHello(limit)
	if !ok {
		return false
	}
	init, ok := frame.(*protocol.HelloClientInit)
	if !ok {
		return c.outOfTurn(frame)
	}
	refusal := c.counted()
	var challenge *protocol.HelloServerChallenge
	if refusal == nil {
		challenge, refusal = c.server.Sessions.Challenge(c.ctx, init)
	}
	if refusal != nil {
		c.turnAway(fatal(refusal.WithRelated(frame.ID(), "")))
		return false
	}
	if !c.send(challenge) {
		return false
	}
	if frame, ok = c.awaitHello(limit); !ok {
		return false
	}
	response, ok := frame.(*protocol.HelloClientResponse)
	if !ok {
		return c.outOfTurn(frame)
	}
	if response.AgentID != init.AgentID || response.KeyID != init.KeyID || response.ClientNonce != init.ClientNonce {
		c.turnAway(fatal(protocol.NewError(protocol.CodeAuthInvalidSignature, "echo").WithRelated(frame.ID(), "")))
		return false
	}
	accept, id, refusal := c.server.Sessions.Accept(context.WithValue(c.ctx, resuming{}, true), sessions.Answer{
		Response: response, Challenge: challenge, Bearer: c.bearer, HasBearer: c.hasBearer,
	})
	if refusal == nil {
		refusal = c.enroll(id)
	}
	if refusal != nil {
		c.turnAway(fatal(refusal.WithRelated(frame.ID(), "")))
		return false
	}
	if !c.send(accept) {
		c.server.Connections.remove(c)
		return false
	}
	return true
}

// enroll makes the connection the one of its session. A newer session that was
// opened in the meantime, here or elsewhere, wins.
func (c *conn) enroll(id sessions.Identity) *protocol.Error {
	c.mu.Lock()
	c.id = id
	c.mu.Unlock()
	stale := protocol.NewError(protocol.CodeAuthStaleSession, "").WithDetail("receivedSessionEpoch", id.SessionEpoch)
	if !c.server.Connections.register(c.ctx, c) {
		return stale
	}
	if refusal := c.server.Sessions.Check(c.ctx, id); refusal != nil {
		c.server.Connections.remove(c)
		return refusal
	}
	return nil
}

// counted takes a HELLO from the peer's share, which REST draws on as well.
func (c *conn) counted() *protocol.Error {
	err := c.server.Hellos.Check(c.peer)
	if refusal, ok := errors.AsType[*protocol.Error](err); ok {
		return refusal
	}
	return nil
}

// spread adds up to a second, or half as much again, to a retry hint: clients
// that were turned away together must not come back together.
func spread(refusal *protocol.Error) {
	if refusal.Code == protocol.CodeRateLimited && refusal.RetryAfterMs != nil {
		ms := *refusal.RetryAfterMs
		refusal.WithRetryAfter(ms + mathrand.Int64N(max(1000, ms/2)))
	}
}

// turnAway ends a handshake.
func (c *conn) turnAway(refusal *protocol.Error) {
	if refusal.Code == protocol.CodeRateLimited {
		c.server.metrics.turnedAway.Inc()
		spread(refusal)
	}
	if c.server.Denied != nil && refusal.Code != protocol.CodeInternalError {
		c.server.Denied(c.peer, refusal)
	}
	c.end(refusal)
}

// awaitHello reads one frame of the handshake.
func (c *conn) awaitHello(limit *time.Timer) (protocol.Frame, bool) {
	var b []byte
	select {
	case <-c.told:
		return nil, false
	case <-c.server.draining:
		c.goAway()
		return nil, false
	case <-limit.C:
		c.turnAway(protocol.NewError(protocol.CodeAuthRequired, "handshake_timeout").AsFatal(4408))
		return nil, false
	case frame, ok := <-c.frames:
		if !ok {
			return nil, false
		}
		b = frame
	}
	frame, refusal := protocol.ParseFrame(b)
	if refusal == nil {
		return frame, true
	}
	// What is not HELLO is out of turn, whatever else may be wrong with it.
	if doc, err := strictjson.Parse(b); err == nil && doc.Root().Kind() == strictjson.Object &&
		doc.Root().Member("frameType").Str() != string(protocol.FrameHello) {
		refusal = protocol.NewError(protocol.CodeAuthRequired, "frame_out_of_turn").WithRelated(refusal.RelatedFrameID, "")
	}
	c.turnAway(fatal(refusal))
	return nil, false
}

func (c *conn) outOfTurn(frame protocol.Frame) bool {
	c.turnAway(fatal(protocol.NewError(protocol.CodeAuthRequired, "frame_out_of_turn").WithRelated(frame.ID(), "")))
	return false
}

// renewInit and renewResponse are HELLO on a connection that is logged in
// (COMMANDS.md 8.4).
func (c *conn) renewInit(init *protocol.HelloClientInit) bool {
	if init.AgentID != c.identity().Principal.ID {
		return c.refuse(protocol.NewError(protocol.CodeProtocolViolation, "other_agent").WithRelated(init.FrameID, ""))
	}
	refusal := c.counted()
	var challenge *protocol.HelloServerChallenge
	if refusal == nil {
		challenge, refusal = c.server.Sessions.Challenge(c.ctx, init)
	}
	if refusal != nil {
		spread(refusal)
		return c.refuse(refusal.WithRelated(init.FrameID, ""))
	}
	c.challenge = challenge
	return c.send(challenge)
}

func (c *conn) renewResponse(response *protocol.HelloClientResponse) bool {
	challenge := c.challenge
	c.challenge = nil
	live := c.identity()
	var refusal *protocol.Error
	switch {
	case response.AgentID != live.Principal.ID:
		refusal = protocol.NewError(protocol.CodeProtocolViolation, "other_agent")
	case challenge == nil:
		refusal = protocol.NewError(protocol.CodeAuthInvalidSignature, "no_challenge")
	}
	if refusal != nil {
		return c.refuse(refusal.WithRelated(response.FrameID, ""))
	}
	accept, id, refusal := c.server.Sessions.Accept(c.ctx, sessions.Answer{
		Response: response, Challenge: challenge, Live: &live,
	})
	if refusal != nil {
		refusal = refusal.WithRelated(response.FrameID, "")
		spread(refusal)
		if refusal.Code == protocol.CodeAuthStaleSession || refusal.Code == protocol.CodeAuthRequired {
			c.end(fatal(refusal))
			return false
		}
		return c.refuse(refusal)
	}
	c.mu.Lock()
	if id.ExpiresAt.Before(c.id.ExpiresAt) {
		id.ExpiresAt = c.id.ExpiresAt // the session expires with its latest token
	}
	c.id = id
	c.mu.Unlock()
	return c.send(accept)
}
