package sessions

import (
	"errors"
	"fmt"
	"math/big"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/trust"
)

// The typ header of our tokens: explicit, so that one kind can never be taken
// for another, nor for a token that somebody else's service signs.
const (
	typSession = "mw-session+jwt"
	typAccess  = "mw-access+jwt"
)

// errExpired is a token that was good and is past its expiry: the one fault that
// HELLO treats as no token at all (COMMANDS.md 8.4).
var errExpired = errors.New("token expired")

// claims are the claims of both kinds. Times are NumericDates with microseconds
// where they are not whole: a session's expiresAt and its token's exp are one
// instant.
type claims struct {
	Issuer        string      `json:"iss"`
	Audience      string      `json:"aud"`
	Subject       string      `json:"sub"`
	PrincipalType string      `json:"mw_typ"`
	KeyID         string      `json:"mw_kid"`
	SessionEpoch  int64       `json:"mw_epoch,omitempty"`
	ID            string      `json:"jti"`
	IssuedAt      numericDate `json:"iat"`
	ExpiresAt     numericDate `json:"exp"`
}

// numericDate is a NumericDate of RFC 7519 with microseconds.
type numericDate time.Time

func (d numericDate) MarshalJSON() ([]byte, error) {
	t := time.Time(d)
	text := fmt.Sprintf("%d", t.Unix())
	if micros := t.Nanosecond() / 1000; micros != 0 {
		text += strings.TrimRight(fmt.Sprintf(".%06d", micros), "0")
	}
	return []byte(text), nil
}

func (d *numericDate) UnmarshalJSON(b []byte) error {
	value, ok := new(big.Rat).SetString(string(b))
	if !ok || len(b) > 32 || strings.ContainsAny(string(b), "/eE") {
		return fmt.Errorf("not a NumericDate: %.32s", b)
	}
	micros := value.Mul(value, big.NewRat(1_000_000, 1))
	if !micros.IsInt() || !micros.Num().IsInt64() {
		return fmt.Errorf("not a NumericDate: %.32s", b)
	}
	*d = numericDate(time.UnixMicro(micros.Num().Int64()).UTC())
	return nil
}

func (d numericDate) jwt() (*jwt.NumericDate, error) {
	if time.Time(d).IsZero() {
		return nil, nil //nolint:nilnil // the library's way to say absent
	}
	return &jwt.NumericDate{Time: time.Time(d)}, nil
}

// The methods of jwt.Claims.

func (c *claims) GetExpirationTime() (*jwt.NumericDate, error) { return c.ExpiresAt.jwt() }
func (c *claims) GetIssuedAt() (*jwt.NumericDate, error)       { return c.IssuedAt.jwt() }
func (c *claims) GetNotBefore() (*jwt.NumericDate, error)      { return nil, nil } //nolint:nilnil // absent
func (c *claims) GetIssuer() (string, error)                   { return c.Issuer, nil }
func (c *claims) GetSubject() (string, error)                  { return c.Subject, nil }
func (c *claims) GetAudience() (jwt.ClaimStrings, error)       { return jwt.ClaimStrings{c.Audience}, nil }

// mint signs a token of the identity service.
func mint(signer trust.Signer, organizationID string, id Identity, issuedAt time.Time) (string, error) {
	typ := typAccess
	if id.Kind == SessionToken {
		typ = typSession
	}
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, &claims{
		Issuer: signer.Principal.ID, Audience: organizationID,
		Subject: id.Principal.ID, PrincipalType: id.Principal.Type,
		KeyID: id.KeyID, SessionEpoch: id.SessionEpoch, ID: id.TokenID,
		IssuedAt: numericDate(issuedAt.UTC().Truncate(time.Microsecond)), ExpiresAt: numericDate(id.ExpiresAt),
	})
	token.Header["typ"], token.Header["kid"] = typ, signer.KeyID
	return token.SignedString(signer.Private)
}

// read verifies a token's form, signature and times. It says nothing about
// epoch, key and card, which are facts of now. The error is errExpired for a
// token that is good but for its age.
func read(view *registry.View, bearer string, now time.Time) (Identity, error) {
	parser := jwt.NewParser(
		jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}),
		jwt.WithStrictDecoding(),
		jwt.WithAudience(view.OrganizationID),
		jwt.WithExpirationRequired(),
		jwt.WithLeeway(0),
		jwt.WithTimeFunc(func() time.Time { return now }),
	)
	var c claims
	token, err := parser.ParseWithClaims(bearer, &c, func(token *jwt.Token) (any, error) {
		return identityKey(view, token, &c, now)
	})
	expired := errors.Is(err, jwt.ErrTokenExpired)
	if err != nil && (!expired || !onlyExpired(err)) {
		return Identity{}, err
	}
	kind, err := kindOf(token)
	if err != nil {
		return Identity{}, err
	}
	id := Identity{
		Principal: protocol.Actor{Type: c.PrincipalType, ID: c.Subject},
		KeyID:     c.KeyID, Kind: kind, SessionEpoch: c.SessionEpoch, TokenID: c.ID,
		ExpiresAt: time.Time(c.ExpiresAt),
	}
	switch {
	case c.ID == "" || c.Subject == "" || c.KeyID == "" || time.Time(c.IssuedAt).IsZero():
		return Identity{}, errors.New("token lacks a claim")
	case (kind == SessionToken) != (c.SessionEpoch > 0):
		return Identity{}, errors.New("token kind and epoch do not fit")
	case kind == SessionToken && c.PrincipalType != protocol.ActorAgent:
		return Identity{}, errors.New("session token of a Principal that is no Agent")
	case expired:
		return id, errExpired
	}
	return id, nil
}

// onlyExpired reports whether expiry is all that is wrong: the library joins the
// claim errors.
func onlyExpired(err error) bool {
	for _, other := range []error{
		jwt.ErrTokenMalformed, jwt.ErrTokenUnverifiable, jwt.ErrTokenSignatureInvalid,
		jwt.ErrTokenInvalidAudience, jwt.ErrTokenRequiredClaimMissing,
	} {
		if errors.Is(err, other) {
			return false
		}
	}
	return true
}

func kindOf(token *jwt.Token) (TokenKind, error) {
	switch token.Header["typ"] {
	case typSession:
		return SessionToken, nil
	case typAccess:
		return AccessToken, nil
	}
	return "", errors.New("token of an unknown typ")
}

// identityKey finds the key that a token names, if it is one of an identity
// service of the Organization and valid: when the token was made, and now, for
// whoever has the key after its revocation can date tokens back. The issuer claim
// has to name that service. How far iat lies ahead is not judged: replicas' clocks
// differ, and exp bounds what the token is good for.
func identityKey(view *registry.View, token *jwt.Token, c *claims, now time.Time) (any, error) {
	keyID, _ := token.Header["kid"].(string)
	key, ok := view.Evidence.Key(keyID)
	if !ok || !view.HasRole(key.Principal(), registry.RoleIdentity) {
		return nil, errors.New("token signed by no identity service")
	}
	if key.Principal().ID != c.Issuer {
		return nil, errors.New("token names another issuer")
	}
	valid := key.Interval()
	if !valid.Contains(lexical.InstantOf(time.Time(c.IssuedAt))) || !valid.Contains(lexical.InstantOf(now)) {
		return nil, errors.New("token's key is not valid")
	}
	return key.PublicKey(), nil
}

// earliest returns the first of the ends that exist.
func earliest(end time.Time, others ...optionalTime) time.Time {
	for _, o := range others {
		if o.ok && o.t.Before(end) {
			end = o.t
		}
	}
	return end.UTC().Truncate(time.Microsecond)
}

type optionalTime struct {
	t  time.Time
	ok bool
}

func optional(t time.Time, ok bool) optionalTime { return optionalTime{t, ok} }
