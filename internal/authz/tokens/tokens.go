// Package tokens is the form of the tokens that the Authorization Service signs:
// JSON Web Tokens (RFC 7519) with EdDSA, and how they are read.
//
// The hazards it guards against are those of every bearer format: one kind of
// token taken for another (each has its own typ), one service's for another's
// (issuer and audience are compared, the key must be one of the issuer), another
// algorithm than ours (there is one), a token without end (exp is required and
// has no leeway), and a token in other hands than those it was made for (it names
// the thumbprint of the Agent's key, and proof.go checks a proof of it).
//
// What a token says is true when it is signed. Whether it still is, is asked
// online, or of the revocation list, within the token's short life.
package tokens

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/missionweave/server/internal/protocol"
)

// The typ header of each kind.
const (
	TypCapability = "mw-capability+jwt"
	TypMembership = "mw-membership+jwt"
)

// MaxLength bounds a token in bytes: what is longer is not looked at.
const MaxLength = 16 << 10

// Confirmation names the key that the holder has to have (RFC 7800, RFC 9449).
type Confirmation struct {
	// JKT is the SHA-256 thumbprint of the Agent's public key (RFC 7638).
	JKT string `json:"jkt"`
}

// Access is one resource with what may be done to it. Resource may end in * and
// then stands for every resource with that beginning. Constraints are the Work
// Contract's, for the tool to keep.
type Access struct {
	Resource    string          `json:"resource"`
	Operations  []string        `json:"operations"`
	Constraints json.RawMessage `json:"constraints,omitempty"`
}

// Limits is a budget with all six dimensions.
type Limits struct {
	Currency                string      `json:"currency,omitempty"`
	FinancialLimit          json.Number `json:"financialLimit"`
	ModelTokenLimit         int64       `json:"modelTokenLimit"`
	ToolCallLimit           int64       `json:"toolCallLimit"`
	ComputeSecondsLimit     int64       `json:"computeSecondsLimit"`
	WallClockSecondsLimit   int64       `json:"wallClockSecondsLimit"`
	ExternalSideEffectLimit int64       `json:"externalSideEffectLimit"`
}

// LimitsOf writes a budget as claims; an absent dimension is zero.
func LimitsOf(b protocol.Budget) *Limits {
	l := &Limits{Currency: b.Currency, FinancialLimit: "0"}
	if b.FinancialLimit != nil {
		l.FinancialLimit = json.Number(b.FinancialLimit.String())
	}
	for _, d := range []struct {
		to   *int64
		from *int64
	}{
		{&l.ModelTokenLimit, b.ModelTokenLimit},
		{&l.ToolCallLimit, b.ToolCallLimit},
		{&l.ComputeSecondsLimit, b.ComputeSecondsLimit},
		{&l.WallClockSecondsLimit, b.WallClockSecondsLimit},
		{&l.ExternalSideEffectLimit, b.ExternalSideEffectLimit},
	} {
		if d.from != nil {
			*d.to = *d.from
		}
	}
	return l
}

// Claims are the claims of both kinds. The members from WorkItemID on belong to a
// Capability Token, Role and Scopes to a Membership Token.
type Claims struct {
	Issuer       string       `json:"iss"`
	Audience     string       `json:"aud"`
	Subject      string       `json:"sub"`
	ID           string       `json:"jti"`
	IssuedAt     NumericDate  `json:"iat"`
	ExpiresAt    NumericDate  `json:"exp"`
	Confirmation Confirmation `json:"cnf"`

	MissionID       string `json:"missionId"`
	GroupID         string `json:"groupId"`
	SessionEpoch    int64  `json:"sessionEpoch"`
	MembershipEpoch int64  `json:"membershipEpoch"`

	WorkItemID       string   `json:"workItemId,omitempty"`
	OwnershipEpoch   int64    `json:"ownershipEpoch,omitempty"`
	ExecutionLeaseID string   `json:"executionLeaseId,omitempty"`
	Operations       []string `json:"operations,omitempty"`
	Access           []Access `json:"access,omitempty"`
	Budget           *Limits  `json:"budget,omitempty"`
	// ApprovalID is the approval behind the token; OneShot and ArgumentsDigest
	// say that it covers one action with exactly these arguments.
	ApprovalID      string `json:"approvalId,omitempty"`
	OneShot         bool   `json:"oneShot,omitempty"`
	ArgumentsDigest string `json:"argumentsDigest,omitempty"`
	ManifestVersion string `json:"manifestVersion,omitempty"`

	Role   string   `json:"role,omitempty"`
	Scopes []string `json:"scopes,omitempty"`

	// Typ is the header's, KeyID the signing key's. They are no claims.
	Typ   string `json:"-"`
	KeyID string `json:"-"`
}

// Allows reports that the token permits an operation on a resource. A resource of
// "" asks for an operation that is about none.
func (c *Claims) Allows(operation, resource string) bool {
	if !slices.Contains(c.Operations, operation) {
		return false
	}
	if resource == "" {
		return len(c.Access) == 0
	}
	return slices.ContainsFunc(c.Access, func(a Access) bool {
		return covers(a.Resource, resource) && slices.Contains(a.Operations, operation)
	})
}

// covers is the rule of a Work Contract's allowedResources.
func covers(pattern, resource string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(resource, prefix)
	}
	return pattern == resource
}

// NumericDate is a NumericDate of RFC 7519 with microseconds.
type NumericDate time.Time

// MarshalJSON writes whole seconds without a fraction.
func (d NumericDate) MarshalJSON() ([]byte, error) {
	t := time.Time(d)
	text := fmt.Sprintf("%d", t.Unix())
	if micros := t.Nanosecond() / 1000; micros != 0 {
		text += strings.TrimRight(fmt.Sprintf(".%06d", micros), "0")
	}
	return []byte(text), nil
}

// UnmarshalJSON takes at most microseconds, exactly.
func (d *NumericDate) UnmarshalJSON(b []byte) error {
	value, ok := new(big.Rat).SetString(string(b))
	if !ok || len(b) > 32 || strings.ContainsAny(string(b), "/eE_xXoOpP") {
		return fmt.Errorf("not a NumericDate: %.32q", b)
	}
	micros := value.Mul(value, big.NewRat(1_000_000, 1))
	if !micros.IsInt() || !micros.Num().IsInt64() {
		return fmt.Errorf("not a NumericDate: %.32q", b)
	}
	*d = NumericDate(time.UnixMicro(micros.Num().Int64()).UTC())
	return nil
}

func (d NumericDate) jwt() (*jwt.NumericDate, error) {
	if time.Time(d).IsZero() {
		return nil, nil //nolint:nilnil // the library's way to say absent
	}
	return &jwt.NumericDate{Time: time.Time(d)}, nil
}

// The methods of jwt.Claims.

// GetExpirationTime is exp.
func (c *Claims) GetExpirationTime() (*jwt.NumericDate, error) { return c.ExpiresAt.jwt() }

// GetIssuedAt is iat.
func (c *Claims) GetIssuedAt() (*jwt.NumericDate, error) { return c.IssuedAt.jwt() }

// GetNotBefore is absent.
func (c *Claims) GetNotBefore() (*jwt.NumericDate, error) { return nil, nil } //nolint:nilnil // absent

// GetIssuer is iss.
func (c *Claims) GetIssuer() (string, error) { return c.Issuer, nil }

// GetSubject is sub.
func (c *Claims) GetSubject() (string, error) { return c.Subject, nil }

// GetAudience is aud.
func (c *Claims) GetAudience() (jwt.ClaimStrings, error) { return jwt.ClaimStrings{c.Audience}, nil }

// Sign makes the compact form with the headers typ and kid.
func Sign(c *Claims, key ed25519.PrivateKey) (string, error) {
	token := jwt.NewWithClaims(jwt.SigningMethodEdDSA, c)
	token.Header["typ"], token.Header["kid"] = c.Typ, c.KeyID
	return token.SignedString(key)
}

// Faults of a token. ErrExpired is a token that was good and is past its expiry.
var (
	ErrMalformed = errors.New("tokens: malformed token")
	ErrKey       = errors.New("tokens: signed by no key of the issuer that is valid")
	ErrSignature = errors.New("tokens: signature does not verify")
	ErrTyp       = errors.New("tokens: token of another kind")
	ErrIssuer    = errors.New("tokens: token of another issuer")
	ErrAudience  = errors.New("tokens: token for another audience")
	ErrExpired   = errors.New("tokens: token has expired")
	ErrClaims    = errors.New("tokens: token lacks a claim")
)

// Expect is what a token has to be.
type Expect struct {
	// Typ lists the kinds that are taken.
	Typ []string
	// Audience is required; Issuer is compared unless "", for Key may know better.
	Audience, Issuer string
	Now              time.Time
	// Key returns the public key of a kid that may sign for an issuer at a time.
	Key func(kid, issuer string, issuedAt time.Time) (ed25519.PublicKey, bool)
}

// Read verifies a token. The error is one of the faults above.
func Read(token string, e Expect) (*Claims, error) {
	if len(token) > MaxLength || !oneSpelling(token) {
		return nil, ErrMalformed
	}
	parser := jwt.NewParser(
		jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}),
		jwt.WithStrictDecoding(),
		jwt.WithoutClaimsValidation(), // done below, each fault by its name
	)
	c := &Claims{}
	parsed, err := parser.ParseWithClaims(token, c, func(token *jwt.Token) (any, error) {
		c.Typ, _ = token.Header["typ"].(string)
		c.KeyID, _ = token.Header["kid"].(string)
		key, ok := e.Key(c.KeyID, c.Issuer, time.Time(c.IssuedAt))
		if !ok {
			return nil, ErrKey
		}
		return key, nil
	})
	switch {
	case errors.Is(err, ErrKey):
		return nil, ErrKey
	case errors.Is(err, jwt.ErrTokenSignatureInvalid):
		return nil, fmt.Errorf("%w: %w", ErrSignature, err)
	case err != nil || !parsed.Valid:
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	case parsed.Header["crit"] != nil:
		return nil, ErrMalformed // RFC 7515: an extension that must be understood
	case !slices.Contains(e.Typ, c.Typ):
		return nil, ErrTyp
	case e.Issuer != "" && c.Issuer != e.Issuer || c.Issuer == "":
		return nil, ErrIssuer
	case e.Audience == "" || c.Audience != e.Audience:
		return nil, ErrAudience
	}
	if err := c.complete(); err != nil {
		return nil, err
	}
	if !e.Now.Before(time.Time(c.ExpiresAt)) {
		return c, ErrExpired
	}
	return c, nil
}

// oneSpelling tells whether a compact form is written with its alphabet alone. The
// decoder passes over line breaks, and a token that can be spelt in several ways is
// not found by its text.
func oneSpelling(token string) bool {
	for i := range len(token) {
		switch c := token[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_', c == '.':
		default:
			return false
		}
	}
	return true
}

// complete tells whether the claims of the kind are there.
func (c *Claims) complete() error {
	common := c.ID != "" && c.Subject != "" && c.Confirmation.JKT != "" && c.GroupID != "" &&
		c.SessionEpoch > 0 && c.MembershipEpoch > 0 &&
		!time.Time(c.IssuedAt).IsZero() && !time.Time(c.ExpiresAt).IsZero()
	capability := c.WorkItemID != "" && c.OwnershipEpoch > 0 && c.ExecutionLeaseID != "" &&
		len(c.Operations) > 0 && c.Budget != nil
	if !common || (c.Typ == TypCapability) != capability || c.Typ == TypMembership && c.Role == "" {
		return ErrClaims
	}
	return nil
}

// Thumbprint is the RFC 7638 thumbprint of an Ed25519 public key (RFC 8037).
func Thumbprint(key ed25519.PublicKey) string {
	x := base64.RawURLEncoding.EncodeToString(key)
	sum := sha256.Sum256([]byte(`{"crv":"Ed25519","kty":"OKP","x":"` + x + `"}`))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}
