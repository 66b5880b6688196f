package client

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/trust"
)

// Identity is a Principal with one of its signing keys.
type Identity struct {
	Principal Actor
	KeyID     string
	Key       ed25519.PrivateKey
}

// NewIdentity makes a Principal's first key. The key id is fresh.
func NewIdentity(principal Actor) (Identity, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return Identity{}, fmt.Errorf("client: make a key: %w", err)
	}
	return Identity{Principal: principal, KeyID: NewID(), Key: key}, nil
}

// PublicKey is the public half as base64url.
func (i Identity) PublicKey() string {
	return lexical.EncodeBase64URL(i.Key.Public().(ed25519.PublicKey))
}

// String leaves the private key out, so that an Identity may be logged.
func (i Identity) String() string {
	return i.Principal.Type + " " + i.Principal.ID + " with key " + i.KeyID
}

// GoString leaves the private key out too.
func (i Identity) GoString() string { return "client.Identity{" + i.String() + "}" }

func (i Identity) check() error {
	if i.Principal.ID == "" || i.KeyID == "" || len(i.Key) != ed25519.PrivateKeySize {
		return errors.New("client: an Identity needs a Principal, a key id and a private key")
	}
	return nil
}

func (i Identity) signer() trust.Signer {
	return trust.Signer{KeyID: i.KeyID, Principal: i.Principal, Private: i.Key}
}

// NewID returns a fresh urn:uuid: UUIDv7.
func NewID() string {
	var random [10]byte
	_, _ = rand.Read(random[:])
	return lexical.UUIDv7(time.Now(), random)
}

// Timestamp spells t as a protected time: UTC with Z.
func Timestamp(t time.Time) string { return lexical.FormatMicros(t) }

// SignApproval signs an Approval and returns its bytes.
func (i Identity) SignApproval(d Approval) (Raw, error) { return i.sign(protocol.KindApproval, &d) }

// SignArtifact signs an Artifact manifest and returns its bytes.
func (i Identity) SignArtifact(d Artifact) (Raw, error) { return i.sign(protocol.KindArtifact, &d) }

// SignEvidence signs Evidence and returns its bytes.
func (i Identity) SignEvidence(d Evidence) (Raw, error) { return i.sign(protocol.KindEvidence, &d) }

// SignContextPackage signs a Context Package and returns its bytes.
func (i Identity) SignContextPackage(d ContextPackage) (Raw, error) {
	return i.sign(protocol.KindContextPackage, &d)
}

// SignSnapshot signs a Group Snapshot, as the server drafted it, and returns its
// bytes.
func (i Identity) SignSnapshot(d GroupSnapshot) (Raw, error) {
	return i.sign(protocol.KindGroupSnapshot, &d)
}

func (i Identity) sign(kind protocol.DocumentKind, document any) (Raw, error) {
	signed, _, err := trust.SignDocument(kind, document, i.signer())
	if err != nil {
		return nil, fmt.Errorf("client: sign the %s: %w", kind, err)
	}
	return signed, nil
}

func signCommand(cmd *Command, i Identity) ([]byte, string, error) {
	signed, hash, err := trust.SignDocument(protocol.KindCommand, cmd, i.signer())
	if err != nil {
		return nil, "", fmt.Errorf("client: sign the Command: %w", err)
	}
	return signed, hash, nil
}
