package sessions

import (
	"time"

	"github.com/missionweave/server/internal/protocol"
)

// TokenKind says what a bearer credential is.
type TokenKind string

// A session token belongs to one Agent, key and Session Epoch; an access token
// belongs to any Principal and its key and carries no epoch (API.md, General).
const (
	SessionToken TokenKind = "session"
	AccessToken  TokenKind = "access"
)

// Identity is who a valid bearer credential stands for. It is true at the
// moment Authenticate answered and never later than ExpiresAt: whoever keeps
// serving on it (a stream, a connection) has to ask again.
type Identity struct {
	Principal    protocol.Actor
	KeyID        string
	Kind         TokenKind
	SessionEpoch int64 // 0 for an access token
	TokenID      string
	ExpiresAt    time.Time
}
