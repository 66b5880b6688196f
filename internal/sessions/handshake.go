package sessions

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/transcript"
)

// Challenge is step 2 of HELLO: it answers client_init with a challenge, alike
// for known and unknown Agents. protocol.ParseFrame has settled the version. Its
// refusals are SCHEMA_VALIDATION_FAILED (a nonce too long for a frame) and
// INTERNAL_ERROR.
func (s *Service) Challenge(ctx context.Context, init *protocol.HelloClientInit) (*protocol.HelloServerChallenge, *protocol.Error) {
	agent := protocol.Actor{Type: protocol.ActorAgent, ID: init.AgentID}
	t, challenge, perr := s.challenge(ctx, transcript.Session, agent, init.KeyID, init.ClientNonce)
	if perr != nil {
		return nil, perr
	}
	return &protocol.HelloServerChallenge{
		FrameID: s.cfg.Mint(), SelectedVersion: protocol.Version,
		ClientNonce: init.ClientNonce, ServerNonce: t.ServerNonce, Challenge: challenge,
	}, nil
}

// Answer is step 3 of HELLO with what the transport knows beside the frame.
type Answer struct {
	Response *protocol.HelloClientResponse
	// Challenge is the one that went out on this connection. REST, which has no
	// connection, leaves it nil: then the stored challenge alone decides.
	Challenge *protocol.HelloServerChallenge
	// Live is the Identity of a connection that repeats HELLO to renew its session.
	Live *Identity
	// Bearer is the credential of the upgrade request or the REST call, with which
	// a session is resumed; HasBearer tells a missing one from a malformed one.
	Bearer    string
	HasBearer bool
}

// Accept is step 4 of HELLO: it opens a session under the next epoch, or renews
// the living one (COMMANDS.md 8.4). Refusals:
//
//	AUTH_INVALID_SIGNATURE  unknown Agent or key, wrong signature, mismatching echo,
//	                        expired or reused challenge, card not alive, a session
//	                        token that is not ours or another Agent's
//	AUTH_STALE_SESSION      the session to be renewed was replaced
//	AUTH_REQUIRED           the session of the live connection has expired
//	PROTOCOL_VIOLATION      renewal on a connection of another Agent
//	RATE_LIMITED            too many handshakes of the Agent
//
// Whether a refusal ends the connection is the transport's to say.
func (s *Service) Accept(ctx context.Context, a Answer) (*protocol.HelloServerAccept, Identity, *protocol.Error) {
	r := a.Response
	agent := protocol.Actor{Type: protocol.ActorAgent, ID: r.AgentID}
	if a.Live != nil && a.Live.Principal != agent {
		return nil, Identity{}, protocol.NewError(protocol.CodeProtocolViolation, "other_agent")
	}
	if a.Challenge != nil && a.Challenge.ServerNonce != r.ServerNonce {
		return nil, Identity{}, unproven("server_nonce")
	}
	t, signed, perr := s.take(ctx, transcript.Session, r.ServerNonce)
	if perr != nil {
		return nil, Identity{}, perr
	}
	if t.Principal != agent || t.KeyID != r.KeyID || t.ClientNonce != r.ClientNonce {
		return nil, Identity{}, unproven("echo")
	}
	view, err := s.cfg.Directory.Current(ctx)
	if err != nil {
		return nil, Identity{}, protocol.Internal(err)
	}
	ends, perr := s.prove(view, t, signed, r.ChallengeSignature)
	if perr != nil {
		return nil, Identity{}, perr
	}
	resumed, perr := s.resumption(ctx, a, agent)
	if perr != nil {
		return nil, Identity{}, perr
	}
	if perr := s.countHandshake(ctx, r.AgentID); perr != nil {
		return nil, Identity{}, perr
	}
	signer, end, err := s.signing(ctx, view)
	if err != nil {
		return nil, Identity{}, protocol.Internal(err)
	}
	now := s.cfg.Now()
	id := Identity{
		Principal: agent, KeyID: r.KeyID, Kind: SessionToken, TokenID: s.cfg.Mint(),
		ExpiresAt: earliest(now.Add(s.cfg.Life), append(ends, end)...),
	}
	if resumed > 0 {
		id.SessionEpoch = resumed
		perr = s.renew(ctx, &id)
	} else {
		perr = s.open(ctx, &id)
	}
	if perr != nil {
		return nil, Identity{}, perr
	}
	token, err := mint(signer, view.OrganizationID, id, now)
	if err != nil {
		return nil, Identity{}, protocol.Internal(err)
	}
	switch {
	case resumed == 0:
		s.cfg.Opened(ctx, r.AgentID, id.SessionEpoch)
	case a.Live == nil:
		s.cfg.Resumed(ctx, r.AgentID, id.SessionEpoch)
	}
	return &protocol.HelloServerAccept{
		FrameID: s.cfg.Mint(), SelectedVersion: protocol.Version,
		SessionToken: token, SessionEpoch: id.SessionEpoch, ExpiresAt: formatInstant(id.ExpiresAt),
	}, id, nil
}

// resumption is the epoch that the answer asks to renew, 0 for a new one. The
// token is judged here for form and age; whether its epoch is still the current
// one is judged under the lock.
func (s *Service) resumption(ctx context.Context, a Answer, agent protocol.Actor) (epoch int64, perr *protocol.Error) {
	if a.Live != nil {
		return a.Live.SessionEpoch, nil
	}
	if !a.HasBearer {
		return 0, nil
	}
	view, err := s.cfg.Directory.View(ctx)
	if err != nil {
		return 0, protocol.Internal(err)
	}
	id, err := read(view, a.Bearer, s.cfg.Now())
	if err != nil && !errors.Is(err, errExpired) {
		return 0, unproven("session_token").WithCause(err)
	}
	if id.Kind != SessionToken || id.Principal != agent {
		return 0, unproven("session_token_of_another")
	}
	if err != nil {
		return 0, nil // past its expiry: an ordinary HELLO
	}
	if _, ended := s.holder(view, id.Principal, id.KeyID); ended == "" {
		return id.SessionEpoch, nil
	}
	// Its key has ended and the token with it: an ordinary HELLO, unless it comes
	// from a runtime that was fenced.
	current, _, err := s.Current(ctx, agent.ID)
	if err != nil {
		return 0, protocol.Internal(err)
	}
	if current.Epoch > id.SessionEpoch {
		return 0, stale(id.SessionEpoch)
	}
	return 0, nil
}

func (s *Service) open(ctx context.Context, id *Identity) *protocol.Error {
	if s.cfg.Opener == nil {
		return protocol.Internal(errors.New("sessions: this service opens none"))
	}
	epoch, perr := s.cfg.Opener.Open(ctx, id.Principal.ID, id.KeyID, id.ExpiresAt)
	if perr != nil {
		if perr.Code == protocol.CodeInvalidCommand {
			// Agent, card or key ended between the proof and the Command.
			return unproven("session_open_refused").WithCause(perr)
		}
		return perr
	}
	id.SessionEpoch = epoch
	return nil
}

// renew extends the session of id.SessionEpoch to id.ExpiresAt under the Agent's
// session lock, which every commit of the Agent holds shared.
func (s *Service) renew(ctx context.Context, id *Identity) *protocol.Error {
	var refusal *protocol.Error
	err := pgx.BeginFunc(ctx, s.cfg.Pool, func(tx pgx.Tx) error {
		agentID := id.Principal.ID
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, s.cfg.AgentLock(agentID)); err != nil {
			return err
		}
		var epoch int64
		var expiresAt time.Time
		err := tx.QueryRow(ctx, `
			SELECT session_epoch, expires_at FROM agent_sessions WHERE agent_id = $1 FOR UPDATE`, agentID).Scan(&epoch, &expiresAt)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		switch {
		case epoch > id.SessionEpoch:
			refusal = stale(id.SessionEpoch)
			return nil
		case epoch < id.SessionEpoch || !s.cfg.Now().Before(expiresAt):
			refusal = protocol.NewError(protocol.CodeAuthRequired, "session_expired")
			return nil
		}
		_, err = tx.Exec(ctx, `
			UPDATE agent_sessions SET expires_at = greatest(expires_at, $2) WHERE agent_id = $1`, agentID, id.ExpiresAt)
		return err
	})
	if err != nil {
		return protocol.Internal(err)
	}
	return refusal
}

// countHandshake counts a completed proof and refuses when the Agent had its
// share of the last minute. The lock makes the count exact over all replicas.
func (s *Service) countHandshake(ctx context.Context, agentID string) *protocol.Error {
	limit := s.cfg.HellosPerMinute
	if limit <= 0 {
		return nil
	}
	now := s.cfg.Now()
	var wait time.Duration
	err := pgx.BeginFunc(ctx, s.cfg.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('handshakes' || $1, 0))`, agentID); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `
			DELETE FROM session_handshakes WHERE agent_id = $1 AND completed_at <= $2`, agentID, now.Add(-handshakeFrame)); err != nil {
			return err
		}
		var count int
		var oldest *time.Time
		err := tx.QueryRow(ctx, `
			SELECT count(*), min(completed_at) FROM session_handshakes WHERE agent_id = $1`, agentID).Scan(&count, &oldest)
		if err != nil {
			return err
		}
		if count >= limit {
			wait = max(oldest.Add(handshakeFrame).Sub(now), time.Millisecond)
			return nil
		}
		_, err = tx.Exec(ctx, `INSERT INTO session_handshakes (agent_id, completed_at) VALUES ($1, $2)`, agentID, now)
		return err
	})
	if err != nil {
		return protocol.Internal(err)
	}
	if wait > 0 {
		return protocol.NewError(protocol.CodeRateLimited, "hellos_per_minute").
			WithDetail("policyName", "hellosPerMinute").WithDetail("limit", int64(limit)).
			WithRetryAfter(wait.Milliseconds())
	}
	return nil
}
