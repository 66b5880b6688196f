package trust

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"sync"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Verified is what six successful stages establish about a Signed Document. It
// says who signed what and when, never that the signer was allowed to.
type Verified struct {
	Kind           protocol.DocumentKind
	Value          strictjson.Value
	OrganizationID string
	Revision       int64 // Registry revision of the evidence
	SigningHash    string
	KeyID          string
	Principal      protocol.Actor
	ProtectedTime  lexical.Instant
	ProtectedText  string // the spelling that was signed
	Key            *Key
	Interval       // effective validity of the key
}

// Binding is the Registry record of the key that verified the document.
func (v *Verified) Binding() Binding { return v.Key.Binding() }

// VerifyBytes runs all six stages on one JSON text. The Verified refers to b.
func VerifyBytes(kind protocol.DocumentKind, b []byte, ev *Evidence) (*Verified, *Failure) {
	doc, err := strictjson.Parse(b)
	if err != nil {
		return nil, parseFailure(err)
	}
	return Verify(kind, doc.Root(), ev)
}

func parseFailure(err error) *Failure {
	reason := "syntax"
	var syntax *strictjson.SyntaxError
	if errors.As(err, &syntax) {
		reason = syntax.Reason
	}
	return &Failure{Stage: StageParse, Reason: reason, Cause: err}
}

// Verify runs stages 2 to 6 on a strictly parsed value.
func Verify(kind protocol.DocumentKind, v strictjson.Value, ev *Evidence) (*Verified, *Failure) {
	if fault := protocol.Validate(kind, v); fault != nil {
		return nil, &Failure{Stage: StageSchema, Reason: fault.Keyword, Path: fault.Path, Keyword: fault.Keyword}
	}
	return VerifySigned(kind, v, ev)
}

// VerifySigned runs stages 3 to 6 on a value that is already known to have the
// structure of its kind, such as a document embedded in a validated Command.
//
// The proof that R lies in the prime-order subgroup costs as much as the
// signature itself and belongs to stage 3, but it is made last and only for a
// document that fails: with A proven, the equation recomputes R from points of
// that subgroup and compares encodings, so a signature that satisfies it cannot
// have any other R. A failure of stages 4 to 6 is reported as stage 3 when R
// turns out to be wrong.
func VerifySigned(kind protocol.DocumentKind, v strictjson.Value, ev *Evidence) (*Verified, *Failure) {
	signed, ok := protocol.SignedKinds[kind]
	if !ok {
		return nil, &Failure{Stage: StageEnvelope, Reason: ReasonUnknownKind}
	}
	return verifySigned(kind, v, ev, signed.ProtectedTime, signed.Signer(v))
}

// verifySigned is stages 3 to 6 for an object whose protected time is the member
// timeMember. A signer without an id stands for any Principal of its type.
func verifySigned(kind protocol.DocumentKind, v strictjson.Value, ev *Evidence, timeMember string, signer protocol.Actor) (*Verified, *Failure) {
	e, failure := readEnvelope(v, timeMember)
	if failure != nil {
		return nil, failure
	}
	e.signer = signer
	verified, failure := e.complete(kind, v, ev)
	if failure == nil {
		return verified, nil
	}
	if err := CheckR(e.signature[:32]); err != nil {
		return nil, &Failure{Stage: StageEnvelope, Reason: reasonRPrefix + faultOf(err), Cause: err}
	}
	return nil, failure
}

// envelope is a signature envelope bound back to the protected content.
type envelope struct {
	keyID     string
	signer    protocol.Actor
	timeText  string
	time      lexical.Instant
	signature [ed25519.SignatureSize]byte
}

// readEnvelope is stage 3 less the decompression of R.
func readEnvelope(v strictjson.Value, timeMember string) (envelope, *Failure) {
	fail := func(reason string, cause error) (envelope, *Failure) {
		return envelope{}, &Failure{Stage: StageEnvelope, Reason: reason, Cause: cause}
	}
	sig := v.Member("signature")
	e := envelope{
		keyID:    sig.Member("keyId").Str(),
		timeText: v.Member(timeMember).Str(),
	}
	createdAt := sig.Member("createdAt").Str()
	if !lexical.IsUTCZ(e.timeText) || !lexical.IsUTCZ(createdAt) {
		return fail(ReasonTimeNotUTC, nil)
	}
	if createdAt != e.timeText {
		return fail(ReasonTimeMismatch, nil)
	}
	var err error
	if e.time, err = lexical.ParseTimestamp(e.timeText); err != nil {
		return fail(ReasonTimeNotUTC, err)
	}
	raw, err := lexical.DecodeBase64URL(sig.Member("value").Str())
	if err != nil {
		return fail(ReasonSignatureEncoding, err)
	}
	if len(raw) != ed25519.SignatureSize {
		return fail(ReasonSignatureLength, nil)
	}
	e.signature = [ed25519.SignatureSize]byte(raw)
	if err := checkPointForm(e.signature[:32]); err != nil {
		return fail(reasonRPrefix+faultOf(err), err)
	}
	if err := CheckS(e.signature[32:]); err != nil {
		return fail(reasonSPrefix+faultOf(err), err)
	}
	return e, nil
}

// complete is stages 4 to 6.
func (e *envelope) complete(kind protocol.DocumentKind, v strictjson.Value, ev *Evidence) (*Verified, *Failure) {
	key, reason := ev.resolve(e.keyID, e.signer, e.time)
	if key == nil {
		return nil, &Failure{Stage: StageKey, Reason: reason, Cause: ev.usable()}
	}
	buf := buffers.Get().(*[]byte)
	defer putBuffer(buf)
	signing, err := v.AppendJCSWithout((*buf)[:0], "signature")
	*buf = signing
	if err != nil {
		return nil, canonicalFailure(err)
	}
	if !ed25519.Verify(key.public, signing, e.signature[:]) {
		return nil, &Failure{Stage: StageSignature, Reason: ReasonEquation}
	}
	return &Verified{
		Kind:           kind,
		Value:          v,
		OrganizationID: ev.organizationID,
		Revision:       ev.revision,
		SigningHash:    hashOf(signing),
		KeyID:          key.binding.KeyID,
		Principal:      key.binding.Principal,
		ProtectedTime:  e.time,
		ProtectedText:  e.timeText,
		Key:            key,
		Interval:       key.interval,
	}, nil
}

func canonicalFailure(err error) *Failure {
	reason := "data-model"
	var canonical *strictjson.CanonicalError
	if errors.As(err, &canonical) {
		reason = canonical.Reason
	}
	return &Failure{Stage: StageCanonical, Reason: reason, Cause: err}
}

func faultOf(err error) string {
	var fault PointFault
	if errors.As(err, &fault) {
		return string(fault)
	}
	return "malformed"
}

// SigningBytes returns the exact bytes that the signature of a document covers:
// the JCS form of the object without its top-level signature member. The error
// is a *strictjson.CanonicalError (stage 5).
func SigningBytes(v strictjson.Value) ([]byte, error) {
	return v.AppendJCSWithout(nil, "signature")
}

// SigningHash returns "sha256:" and the lower-case hexadecimal SHA-256 of
// SigningBytes. It proves nothing about the signature.
func SigningHash(v strictjson.Value) (string, error) {
	buf := buffers.Get().(*[]byte)
	defer putBuffer(buf)
	signing, err := v.AppendJCSWithout((*buf)[:0], "signature")
	*buf = signing
	if err != nil {
		return "", err
	}
	return hashOf(signing), nil
}

func hashOf(signing []byte) string {
	const prefix = "sha256:"
	sum := sha256.Sum256(signing)
	text := make([]byte, len(prefix), len(prefix)+2*len(sum))
	copy(text, prefix)
	return string(hex.AppendEncode(text, sum[:]))
}

// buffers keeps the scratch space of signing bytes, which no result refers to.
var buffers = sync.Pool{New: func() any { return new(make([]byte, 0, 4096)) }}

// pooledBuffer bounds what one large document can leave behind in the pool.
const pooledBuffer = 64 << 10

func putBuffer(b *[]byte) {
	if cap(*b) <= pooledBuffer {
		buffers.Put(b)
	}
}
