package trust

import (
	"bytes"
	"crypto/ed25519"
	"errors"
	"fmt"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Errors of SignDocument.
var (
	ErrNotSignable = errors.New("trust: not a Signed Document of this kind")
	ErrSignerKey   = errors.New("trust: unusable signing key")
	ErrSigner      = errors.New("trust: signer is not the Principal that the document names")
	ErrTime        = errors.New("trust: protected time is not in UTC Z form")
)

// Signer is a Principal's private key under its registered key id. Printing one
// shows no key material.
type Signer struct {
	KeyID     string
	Principal protocol.Actor
	Private   ed25519.PrivateKey
}

// NewSigner makes a Signer from a 32-byte Ed25519 seed.
func NewSigner(keyID string, principal protocol.Actor, seed []byte) (Signer, error) {
	if len(seed) != ed25519.SeedSize {
		return Signer{}, ErrSignerKey
	}
	return Signer{KeyID: keyID, Principal: principal, Private: ed25519.NewKeyFromSeed(seed)}, nil
}

// PublicKey is the 32-byte public half, base64url without padding, as a Binding
// wants it.
func (s Signer) PublicKey() string {
	if len(s.Private) != ed25519.PrivateKeySize {
		return ""
	}
	return lexical.EncodeBase64URL(s.Private[ed25519.SeedSize:])
}

// Binding is the Registry record under which the Signer's documents verify.
func (s Signer) Binding(validFrom string) Binding {
	return Binding{
		KeyID: s.KeyID, Principal: s.Principal, Algorithm: Algorithm,
		PublicKey: s.PublicKey(), ValidFrom: validFrom,
	}
}

func (s Signer) usable() bool {
	return len(s.Private) == ed25519.PrivateKeySize && lexical.ValidID(s.KeyID)
}

// sign makes the envelope over exactly these signing bytes.
func (s Signer) sign(createdAt string, signing []byte) protocol.Signature {
	return protocol.Signature{
		Algorithm: Algorithm,
		KeyID:     s.KeyID,
		CreatedAt: createdAt,
		Value:     lexical.EncodeBase64URL(ed25519.Sign(s.Private, signing)),
	}
}

// String names the key.
func (s Signer) String() string { return "signer " + s.KeyID }

// GoString is String.
func (s Signer) GoString() string { return s.String() }

// SignDocument signs a document and returns its complete canonical (JCS) bytes
// and its signing hash. doc is one of the nine Signed Document types, a pointer
// to one (whose Signature member is then set), or JSON as strictjson.Value,
// protocol.Raw or []byte. A signature that doc already has is replaced.
// createdAt is made byte-equal to the protected time of the kind.
//
// The caller answers for the structure of doc: nothing is validated here beyond
// what the signature binds (signer, time, key).
func SignDocument(kind protocol.DocumentKind, doc any, s Signer) ([]byte, string, error) {
	return AppendSigned(nil, kind, doc, s)
}

// AppendSigned is SignDocument onto dst.
func AppendSigned(dst []byte, kind protocol.DocumentKind, doc any, s Signer) ([]byte, string, error) {
	if !s.usable() {
		return dst, "", ErrSignerKey
	}
	buf := buffers.Get().(*[]byte)
	defer putBuffer(buf)
	u, err := readUnsigned((*buf)[:0], kind, doc)
	*buf = u.signing
	if err != nil {
		return dst, "", err
	}
	if u.signer.Type != s.Principal.Type || u.signer.ID != "" && u.signer.ID != s.Principal.ID {
		return dst, "", ErrSigner
	}
	if !lexical.IsUTCZ(u.time) {
		return dst, "", ErrTime
	}
	signature := s.sign(u.time, u.signing)
	if u.signature != nil {
		*u.signature = signature
	}
	signed, err := splice(dst, u.signing, signature)
	if err != nil {
		return dst, "", err
	}
	return signed, hashOf(u.signing), nil
}

// unsigned is a document ready to be signed.
type unsigned struct {
	kind      protocol.DocumentKind
	signing   []byte
	time      string
	signer    protocol.Actor
	signature *protocol.Signature // the document's own member; nil for JSON
}

func readUnsigned(buf []byte, kind protocol.DocumentKind, doc any) (unsigned, error) {
	switch d := doc.(type) {
	case strictjson.Value:
		return unsignedValue(buf, kind, d)
	case protocol.Raw:
		return unsignedBytes(buf, kind, d)
	case []byte:
		return unsignedBytes(buf, kind, d)
	}
	u, typed := unsignedTyped(doc)
	if typed == nil || u.kind != kind {
		return unsigned{signing: buf}, fmt.Errorf("%w: %T as %s", ErrNotSignable, doc, kind)
	}
	*u.signature = protocol.Signature{}
	var err error
	u.signing, err = strictjson.AppendMarshal(buf, typed)
	return u, err
}

func unsignedBytes(buf []byte, kind protocol.DocumentKind, b []byte) (unsigned, error) {
	doc, err := strictjson.Parse(b)
	if err != nil {
		return unsigned{signing: buf}, err
	}
	return unsignedValue(buf, kind, doc.Root())
}

func unsignedValue(buf []byte, kind protocol.DocumentKind, v strictjson.Value) (unsigned, error) {
	rule, ok := protocol.SignedKinds[kind]
	if !ok || v.Kind() != strictjson.Object {
		return unsigned{signing: buf}, fmt.Errorf("%w: %s", ErrNotSignable, kind)
	}
	signing, err := v.AppendJCSWithout(buf, "signature")
	return unsigned{
		kind: kind, signing: signing,
		time: v.Member(rule.ProtectedTime).Str(), signer: rule.Signer(v),
	}, err
}

// unsignedTyped returns the envelope inputs of a typed document and a pointer to
// it (to a copy when doc is no pointer); nil for any other type.
func unsignedTyped(doc any) (unsigned, any) {
	agent := func(id string) protocol.Actor { return protocol.Actor{Type: protocol.ActorAgent, ID: id} }
	switch d := doc.(type) {
	case *protocol.Event:
		return unsigned{kind: protocol.KindEvent, time: d.OccurredAt, signer: d.AcceptedBy, signature: &d.Signature}, d
	case *protocol.Command:
		return unsigned{kind: protocol.KindCommand, time: d.IssuedAt, signer: d.Actor, signature: &d.Signature}, d
	case *protocol.AgentCard:
		return unsigned{kind: protocol.KindAgentCard, time: d.IssuedAt, signer: protocol.Actor{Type: protocol.ActorService}, signature: &d.Signature}, d
	case *protocol.Approval:
		return unsigned{kind: protocol.KindApproval, time: d.OccurredAt, signer: d.Approver, signature: &d.Signature}, d
	case *protocol.Artifact:
		return unsigned{kind: protocol.KindArtifact, time: d.CreatedAt, signer: agent(d.Producer.AgentID), signature: &d.Signature}, d
	case *protocol.ContextPackage:
		return unsigned{kind: protocol.KindContextPackage, time: d.GeneratedAt, signer: d.GeneratedBy, signature: &d.Signature}, d
	case *protocol.Evidence:
		return unsigned{kind: protocol.KindEvidence, time: d.CreatedAt, signer: d.GeneratedBy, signature: &d.Signature}, d
	case *protocol.ExtensionProfile:
		return unsigned{kind: protocol.KindExtensionProfile, time: d.ApprovedAt, signer: d.ApprovedBy, signature: &d.Signature}, d
	case *protocol.GroupSnapshot:
		return unsigned{kind: protocol.KindGroupSnapshot, time: d.CreatedAt, signer: d.CreatedBy, signature: &d.Signature}, d
	case protocol.Event:
		return unsignedTyped(&d)
	case protocol.Command:
		return unsignedTyped(&d)
	case protocol.AgentCard:
		return unsignedTyped(&d)
	case protocol.Approval:
		return unsignedTyped(&d)
	case protocol.Artifact:
		return unsignedTyped(&d)
	case protocol.ContextPackage:
		return unsignedTyped(&d)
	case protocol.Evidence:
		return unsignedTyped(&d)
	case protocol.ExtensionProfile:
		return unsignedTyped(&d)
	case protocol.GroupSnapshot:
		return unsignedTyped(&d)
	}
	return unsigned{}, nil
}

// splice writes the canonical object jcs to dst with its signature member in the
// place that canonical order gives it. jcs must be a canonical object without a
// signature member; then the result is canonical as well, and no byte of what
// was signed is produced a second time.
func splice(dst, jcs []byte, signature protocol.Signature) ([]byte, error) {
	at, first := signaturePlace(jcs)
	dst = append(dst, jcs[:at]...)
	if at == len(jcs)-1 && !first {
		dst = append(dst, ',')
	}
	dst = append(dst, `"signature":`...)
	dst, err := strictjson.AppendMarshal(dst, signature)
	if err != nil {
		return nil, err
	}
	if at < len(jcs)-1 {
		dst = append(dst, ',')
	}
	return append(dst, jcs[at:]...), nil
}

// signaturePlace is the offset of the first top-level member of a canonical
// object that sorts after "signature", or of the closing brace; first says that
// the object has no member before it. Names are compared in their escaped
// spelling, which orders them against an all-lower-case ASCII name as the
// UTF-16 order of the decoded names does.
func signaturePlace(jcs []byte) (at int, first bool) {
	i := 1
	for i < len(jcs) && jcs[i] == '"' {
		end := skipString(jcs, i)
		if bytes.Compare(jcs[i+1:end-1], []byte("signature")) > 0 {
			return i, i == 1
		}
		i = skipValue(jcs, end+1)
		if i < len(jcs) && jcs[i] == ',' {
			i++
		}
	}
	return len(jcs) - 1, len(jcs) == 2
}

// skipString returns the offset after the JSON string that begins at i.
func skipString(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return i
}

// skipValue returns the offset after the JSON value that begins at i, which is
// the comma or brace that follows it.
func skipValue(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			i = skipString(b, i)
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return i
			}
			depth--
		case ',':
			if depth == 0 {
				return i
			}
		}
		i++
	}
	return i
}
