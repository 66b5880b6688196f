package transcript_test

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/transcript"
)

var agent = protocol.Actor{Type: protocol.ActorAgent, ID: "urn:missionweaveprotocol:agent:developer-one"}

const keyID = "urn:missionweaveprotocol:key:crypto-vector-developer-one"

func example() transcript.Transcript {
	var nonce [32]byte
	var id [18]byte
	for i := range nonce {
		nonce[i] = byte(i)
	}
	copy(id[:], nonce[:])
	return transcript.New(transcript.Session, agent, keyID, lexical.EncodeBase64URL([]byte("client-nonce-0001")),
		nonce, id, time.Date(2026, 7, 15, 8, 0, 36, 0, time.UTC))
}

// The worked example of COMMANDS.md 8.1: size, hash and signature of the
// transcript are the published ones.
func TestWorkedExample(t *testing.T) {
	b, err := example().Bytes()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	if len(b) != 330 || hex.EncodeToString(sum[:]) != "1f582192b1f289b712845c178535829f7b04a94df0039f15096879dc37d465f8" {
		t.Fatalf("%d bytes, sha256 %x:\n%s", len(b), sum, b)
	}
	public, err := lexical.DecodeBase64URL("7D-keB5WWULuPx53Zwf9j2JVLLTq4btqsJE1ubL66Vk")
	if err != nil {
		t.Fatal(err)
	}
	signature, err := lexical.DecodeBase64URL("NO6M5FFrRo7RpOAounGm7BLz2XmiIPZPhER5vhnHycJextOKVLQVQOv7qEJ7pGXVJt_g_3VJaNGVCFDvnwXPDw")
	if err != nil {
		t.Fatal(err)
	}
	if !ed25519.Verify(public, b, signature) {
		t.Error("the published signature does not verify")
	}
}

func TestExpiryHasMicrosecondsOnlyWhenThereAreAny(t *testing.T) {
	at := time.Date(2026, 7, 15, 10, 0, 36, 0, time.FixedZone("", 2*3600))
	for _, tc := range []struct {
		t    time.Time
		want string
	}{
		{at, "2026-07-15T08:00:36+00:00"},
		{at.Add(999 * time.Nanosecond), "2026-07-15T08:00:36+00:00"},
		{at.Add(1500 * time.Nanosecond), "2026-07-15T08:00:36.000001+00:00"},
		{at.Add(250 * time.Millisecond), "2026-07-15T08:00:36.250000+00:00"},
	} {
		if got := transcript.FormatExpiry(tc.t); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.t, got, tc.want)
		}
	}
}

func TestWhatIsReadIsWhatWasMade(t *testing.T) {
	access := example()
	access.Purpose, access.Principal = transcript.Access, protocol.Actor{Type: protocol.ActorHuman, ID: "urn:x:human"}
	for _, want := range []transcript.Transcript{example(), access} {
		b, err := want.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		got, err := transcript.Read(want.Purpose, b)
		if err != nil || got != want {
			t.Errorf("%+v, %v; want %+v", got, err, want)
		}
	}
}

func TestAClientSignsOnlyAChallengeForItself(t *testing.T) {
	good := example()
	b, err := good.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	signed, err := transcript.Check(transcript.Session, lexical.EncodeBase64URL(b), agent, keyID, good.ClientNonce)
	if err != nil || string(signed) != string(b) {
		t.Fatalf("own challenge: %v", err)
	}
	text := string(b)
	access := good
	access.Purpose = transcript.Access
	accessBytes, err := access.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	for name, forged := range map[string]string{
		"other Agent":       strings.Replace(text, "developer-one\",", "developer-two\",", 1),
		"other key":         strings.Replace(text, "crypto-vector-developer-one", "crypto-vector-developer-two", 1),
		"other nonce":       strings.Replace(text, good.ClientNonce, lexical.EncodeBase64URL([]byte("client-nonce-0002")), 1),
		"another member":    strings.Replace(text, `{`, `{"actionId":"urn:x:y",`, 1),
		"a member less":     strings.Replace(text, `"protocolVersion":"0.1",`, ``, 1),
		"white space":       text + " ",
		"other order":       `{"serverNonce":"` + good.ServerNonce + `",` + strings.Replace(text[1:], `,"serverNonce":"`+good.ServerNonce+`"`, "", 1),
		"a Command":         `{"actionId":"urn:x:y","actor":{"id":"urn:x:a","type":"agent"}}`,
		"not JSON":          "hello",
		"an access one":     string(accessBytes),
		"time without zone": strings.Replace(text, "+00:00", "", 1),
	} {
		_, err := transcript.Check(transcript.Session, lexical.EncodeBase64URL([]byte(forged)), agent, keyID, good.ClientNonce)
		if !errors.Is(err, transcript.ErrNotChallenge) {
			t.Errorf("%s is signed: %v", name, err)
		}
	}
	if _, err := transcript.Check(transcript.Session, lexical.EncodeBase64URL(b)+"=", agent, keyID, good.ClientNonce); err == nil {
		t.Error("padding is accepted")
	}
}

func FuzzRead(f *testing.F) {
	b, err := example().Bytes()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"principalId":"urn:x:y"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, purpose := range []transcript.Purpose{transcript.Session, transcript.Access} {
			read, err := transcript.Read(purpose, b)
			if err != nil {
				continue
			}
			again, err := read.Bytes()
			if err != nil || string(again) != string(b) {
				t.Errorf("%q is read and written as %q", b, again)
			}
		}
	})
}
