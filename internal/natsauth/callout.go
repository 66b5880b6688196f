package natsauth

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/sessions"
)

// calloutSubject is where NATS asks who a client is; answerWithin is less than
// the time it waits, 2 s by default.
const (
	calloutSubject = "$SYS.REQ.USER.AUTH"
	answerWithin   = 1400 * time.Millisecond
)

// errRefused is all that a refused client is told.
var errRefused = errors.New("refused")

// asked answers one question of NATS. A credential of another Organization that
// uses the same NATS is not for this Service to judge.
func (s *Service) asked(m *nats.Msg) {
	request, err := jwt.DecodeAuthorizationRequestClaims(string(m.Data))
	if err != nil || !nkeys.IsValidPublicServerKey(request.Issuer) || request.Subject != s.public {
		return
	}
	if sent := request.ConnectOptions.Token; strings.HasPrefix(sent, tokenKind) && !strings.HasPrefix(sent, s.prefix) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), answerWithin)
	defer cancel()
	answer := jwt.NewAuthorizationResponseClaims(request.UserNkey)
	answer.Audience = request.Server.ID
	user, err := s.admit(ctx, request)
	if err == nil {
		answer.Jwt, err = user.Encode(s.issuer)
	}
	if err != nil {
		answer.Jwt, answer.Error = "", errRefused.Error()
		s.refused.Add(1)
		if !errors.Is(err, errRefused) {
			s.options.Log.Warn("a subscriber of NATS could not be checked", "err", err)
		}
	}
	encoded, err := answer.Encode(s.issuer)
	if err != nil {
		s.options.Log.Error("answer to NATS not encodable", "err", err)
		return
	}
	_ = m.Respond([]byte(encoded)) // an answer that is lost is a refusal
	if answer.Jwt != "" {
		s.admitted.Add(1)
	}
}

// admit decides what the bearer of a credential may hear now. The connection is
// on record before that is read the last time: whatever changes later finds it.
func (s *Service) admit(ctx context.Context, request *jwt.AuthorizationRequestClaims) (*jwt.UserClaims, error) {
	if !strings.HasPrefix(request.ConnectOptions.Token, s.prefix) {
		return nil, errRefused
	}
	id := sessions.Identity{Principal: protocol.Actor{Type: protocol.ActorAgent}, Kind: sessions.SessionToken}
	var among []string
	err := s.options.Pool.QueryRow(ctx, `
		SELECT agent_id, key_id, session_epoch, group_ids, expires_at FROM nats_credentials
		WHERE token_hash = $1 AND expires_at > clock_timestamp()`, hashOf(request.ConnectOptions.Token)).Scan(
		&id.Principal.ID, &id.KeyID, &id.SessionEpoch, &among, &id.ExpiresAt)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, errRefused
	}
	if err != nil {
		return nil, fmt.Errorf("natsauth: credential: %w", err)
	}
	first, err := s.mayFollow(ctx, id.Principal.ID, among)
	if err != nil {
		return nil, err
	}
	if len(first.ids) == 0 {
		return nil, errRefused
	}
	connection := []any{request.Server.ID, int64(request.ClientInformation.ID)} //nolint:gosec // NATS counts from 1
	_, err = s.options.Pool.Exec(ctx, `
		INSERT INTO nats_connections (server_id, client_id, agent_id, key_id, session_epoch, group_ids, membership_epochs, expires_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
		ON CONFLICT (server_id, client_id) DO UPDATE SET agent_id = excluded.agent_id, key_id = excluded.key_id,
			session_epoch = excluded.session_epoch, group_ids = excluded.group_ids,
			membership_epochs = excluded.membership_epochs, expires_at = excluded.expires_at`,
		append(connection, id.Principal.ID, id.KeyID, id.SessionEpoch, first.ids, first.epochs, id.ExpiresAt)...)
	if err != nil {
		return nil, fmt.Errorf("natsauth: connection: %w", err)
	}
	may, err := s.settled(ctx, id, among, first)
	if err != nil {
		_, _ = s.options.Pool.Exec(ctx, `DELETE FROM nats_connections WHERE server_id = $1 AND client_id = $2`, connection...)
		return nil, err
	}
	return s.user(request.UserNkey, id, may), nil
}

// settled looks once more, with the connection on record.
func (s *Service) settled(ctx context.Context, id sessions.Identity, among []string, first follows) (follows, error) {
	again, err := s.mayFollow(ctx, id.Principal.ID, among)
	if err != nil {
		return follows{}, err
	}
	may := first.common(again)
	if len(may.ids) == 0 || len(may.ids) < len(first.ids) {
		return follows{}, errRefused // it changed just now: the client may ask again
	}
	if refusal := s.sessions.Check(ctx, id); refusal != nil {
		if refusal.Code == protocol.CodeInternalError {
			return follows{}, refusal
		}
		return follows{}, errRefused
	}
	return may, nil
}

// user is what NATS may let the client do.
func (s *Service) user(key string, id sessions.Identity, may follows) *jwt.UserClaims {
	u := jwt.NewUserClaims(key)
	u.Name = "agent-" + token(id.Principal.ID) // shows up in logs and monitoring
	u.Audience = s.options.Account
	u.Expires = id.ExpiresAt.Unix()
	u.Pub.Deny.Add(">")
	for _, groupID := range may.ids {
		u.Sub.Allow.Add(events.Subject(groupID))
	}
	u.Limits.Subs = int64(2 * len(may.ids))
	u.Limits.Payload = 1 << 10
	u.AllowedConnectionTypes.Add(jwt.ConnectionTypeStandard, jwt.ConnectionTypeWebsocket)
	return u
}

// token names an Agent where ids must not show.
func token(agentID string) string {
	sum := sha256.Sum256([]byte(agentID))
	return hex.EncodeToString(sum[:8])
}
