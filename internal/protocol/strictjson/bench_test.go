package strictjson_test

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/json"
	"testing"

	"github.com/gowebpki/jcs"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

func BenchmarkParse(b *testing.B) {
	text := []byte(command)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := strictjson.Parse(text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendJCSWithout(b *testing.B) {
	v := parse(b, command)
	dst := make([]byte, 0, 4096)
	b.SetBytes(int64(len(command)))
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if dst, err = v.AppendJCSWithout(dst[:0], "signature"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendCanonical(b *testing.B) {
	text, err := strictjson.Canonicalize([]byte(command))
	if err != nil {
		b.Fatal(err)
	}
	dst := make([]byte, 0, 4096)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if dst, err = strictjson.AppendCanonical(dst[:0], text); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLibraryCanonical is the independent library, for scale.
func BenchmarkLibraryCanonical(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := jcs.Transform([]byte(command)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeEnvelope(b *testing.B) {
	v := parse(b, command)
	b.ReportAllocs()
	for b.Loop() {
		var e envelope
		if err := strictjson.Decode(v, &e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMarshalEnvelope(b *testing.B) {
	var e envelope
	if err := strictjson.Decode(parse(b, command), &e); err != nil {
		b.Fatal(err)
	}
	dst := make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if dst, err = strictjson.AppendMarshal(dst[:0], &e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLibraryMarshalEnvelope(b *testing.B) {
	var e envelope
	if err := strictjson.Decode(parse(b, command), &e); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := json.Marshal(&e); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkParseToHash is what a verifier does around the signature equation.
func BenchmarkParseToHash(b *testing.B) {
	text := []byte(command)
	b.ReportAllocs()
	for b.Loop() {
		d, err := strictjson.Parse(text)
		if err != nil {
			b.Fatal(err)
		}
		signing, err := d.Root().AppendJCSWithout(make([]byte, 0, len(text)), "signature")
		if err != nil {
			b.Fatal(err)
		}
		_ = sha256.Sum256(signing)
	}
}

// BenchmarkBareVerify is the yardstick of the kernel's speed ratios.
func BenchmarkBareVerify(b *testing.B) {
	private := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize))
	public := private.Public().(ed25519.PublicKey)
	text := []byte(command)
	signature := ed25519.Sign(private, text)
	b.ReportAllocs()
	for b.Loop() {
		if !ed25519.Verify(public, text, signature) {
			b.Fatal("not verified")
		}
	}
}

// envelope mirrors the shape of a Command.
type envelope struct {
	ProtocolVersion  string         `json:"protocolVersion"`
	ActionID         string         `json:"actionId"`
	Actor            principal      `json:"actor"`
	SessionEpoch     int64          `json:"sessionEpoch,omitempty"`
	MembershipEpoch  int64          `json:"membershipEpoch,omitempty"`
	CoordinatorEpoch int64          `json:"coordinatorEpoch,omitempty"`
	GroupID          string         `json:"groupId,omitempty"`
	ConversationID   string         `json:"conversationId,omitempty"`
	WorkItemID       string         `json:"workItemId,omitempty"`
	Kind             string         `json:"kind"`
	ExpectedRevision *int64         `json:"expectedRevision,omitempty"`
	CorrelationID    string         `json:"correlationId"`
	IssuedAt         string         `json:"issuedAt"`
	Payload          strictjson.Raw `json:"payload"`
	Extensions       strictjson.Raw `json:"extensions,omitempty"`
	Signature        signature      `json:"signature,omitzero"`
}

type principal struct {
	Type string `json:"type"`
	ID   string `json:"id"`
}

type signature struct {
	Algorithm string `json:"algorithm"`
	KeyID     string `json:"keyId"`
	CreatedAt string `json:"createdAt"`
	Value     string `json:"value"`
}
