package groups

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Signed is a Signed Document inside a payload: its typed form together with
// the canonical bytes it was signed over. A typed document encoded again could
// lose a member the types leave out, so what came in is what goes out.
type Signed[T any] struct {
	Doc   T
	bytes protocol.Raw
}

// DecodeJSON keeps the canonical bytes beside the typed form.
func (s *Signed[T]) DecodeJSON(v strictjson.Value) error {
	b, err := v.AppendJCS(nil)
	if err != nil {
		return err
	}
	s.bytes = b
	return strictjson.Decode(v, &s.Doc)
}

// AppendJSON writes the bytes that were signed; a document that still waits
// for its signature is written from its typed form.
func (s *Signed[T]) AppendJSON(dst []byte) ([]byte, error) {
	if s.bytes == nil {
		return strictjson.AppendMarshal(dst, &s.Doc)
	}
	return append(dst, s.bytes...), nil
}

// Bytes returns the canonical bytes, nil while unsigned.
func (s *Signed[T]) Bytes() protocol.Raw { return s.bytes }

// SigningHash identifies the document whatever payload carries it: the hash of
// its canonical bytes without the signature (PROTOCOL.md 6.4).
func (s *Signed[T]) SigningHash() (string, error) {
	b, err := s.AppendJSON(nil)
	if err != nil {
		return "", err
	}
	doc, err := strictjson.Parse(b)
	if err != nil {
		return "", err
	}
	b, err = doc.Root().AppendJCSWithout(nil, "signature")
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// SignRequest asks the caller to sign a document the Authority itself issues.
// The document is shared with the Draft that embeds it: Seal must be called
// before the Draft is encoded.
type SignRequest struct {
	Kind protocol.DocumentKind
	// Signer is the Principal whose key signs.
	Signer protocol.Actor
	// Doc points to the typed document, with an empty signature.
	Doc any
	// Seal stores the signed canonical bytes.
	Seal func(signed protocol.Raw) error
}

// signRequest binds a document to the request that will complete it.
func signRequest[T any](kind protocol.DocumentKind, signer protocol.Actor, s *Signed[T]) SignRequest {
	return SignRequest{Kind: kind, Signer: signer, Doc: &s.Doc, Seal: func(b protocol.Raw) error {
		doc, err := strictjson.Parse(b)
		if err != nil {
			return err
		}
		return s.DecodeJSON(doc.Root())
	}}
}
