package tokens

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// A proof of possession is a small signed statement that the holder makes for one
// request: I have the key that this token names, and I ask you for this, now. Its
// form is that of RFC 9449 (DPoP), with EdDSA only.

// typProof is the typ header of a proof.
const typProof = "dpop+jwt"

// ProofWindow is how far a proof's time may lie from the verifier's.
const ProofWindow = 60 * time.Second

// ErrProof says that a proof is not one for this token and request.
var ErrProof = errors.New("tokens: no valid proof of the token's key")

// proofClaims are the claims of a proof. Times need no fraction.
type proofClaims struct {
	ID       string      `json:"jti"`
	Method   string      `json:"htm"`
	URI      string      `json:"htu"`
	Hash     string      `json:"ath"`
	IssuedAt NumericDate `json:"iat"`
}

func (c *proofClaims) GetExpirationTime() (*jwt.NumericDate, error) { return nil, nil } //nolint:nilnil // absent
func (c *proofClaims) GetIssuedAt() (*jwt.NumericDate, error)       { return c.IssuedAt.jwt() }
func (c *proofClaims) GetNotBefore() (*jwt.NumericDate, error)      { return nil, nil } //nolint:nilnil // absent
func (c *proofClaims) GetIssuer() (string, error)                   { return "", nil }
func (c *proofClaims) GetSubject() (string, error)                  { return "", nil }
func (c *proofClaims) GetAudience() (jwt.ClaimStrings, error)       { return nil, nil }

// Prove makes a proof of a token's key for one request. id must be fresh.
func Prove(key ed25519.PrivateKey, token, method, uri, id string, now time.Time) (string, error) {
	public, ok := key.Public().(ed25519.PublicKey)
	if !ok || len(key) != ed25519.PrivateKeySize {
		return "", ErrProof
	}
	proof := jwt.NewWithClaims(jwt.SigningMethodEdDSA, &proofClaims{
		ID: id, Method: method, URI: uri, Hash: hashOf(token), IssuedAt: NumericDate(now.UTC().Truncate(time.Microsecond)),
	})
	proof.Header["typ"] = typProof
	proof.Header["jwk"] = map[string]string{"kty": "OKP", "crv": "Ed25519", "x": base64.RawURLEncoding.EncodeToString(public)}
	return proof.SignedString(key)
}

// ReadProof checks a proof of the key that a token names, for one request, and
// returns the proof's id: the caller refuses an id that it has seen within twice
// the ProofWindow.
func ReadProof(proof, token string, c *Claims, method, uri string, now time.Time) (id string, err error) {
	if len(proof) > MaxLength || !oneSpelling(proof) {
		return "", ErrProof
	}
	parser := jwt.NewParser(
		jwt.WithValidMethods([]string{jwt.SigningMethodEdDSA.Alg()}), jwt.WithStrictDecoding(), jwt.WithoutClaimsValidation(),
	)
	var p proofClaims
	parsed, err := parser.ParseWithClaims(proof, &p, func(t *jwt.Token) (any, error) { return proofKey(t, c.Confirmation.JKT) })
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrProof, err)
	}
	at := time.Time(p.IssuedAt)
	switch {
	case parsed.Header["typ"] != typProof, parsed.Header["crit"] != nil:
	case p.ID == "" || p.Method != method || p.URI != uri:
	case subtle.ConstantTimeCompare([]byte(p.Hash), []byte(hashOf(token))) != 1:
	case at.IsZero() || at.Before(now.Add(-ProofWindow)) || at.After(now.Add(ProofWindow)):
	default:
		return p.ID, nil
	}
	return "", ErrProof
}

// proofKey is the key in a proof's header, if it has the thumbprint.
func proofKey(t *jwt.Token, thumbprint string) (any, error) {
	jwk, _ := t.Header["jwk"].(map[string]any)
	x, _ := jwk["x"].(string)
	key, err := base64.RawURLEncoding.Strict().DecodeString(x)
	if err != nil || len(key) != ed25519.PublicKeySize || jwk["kty"] != "OKP" || jwk["crv"] != "Ed25519" || jwk["d"] != nil {
		return nil, ErrProof
	}
	if subtle.ConstantTimeCompare([]byte(Thumbprint(key)), []byte(thumbprint)) != 1 {
		return nil, ErrProof
	}
	return ed25519.PublicKey(key), nil
}

func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}
