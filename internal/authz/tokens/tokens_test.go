package tokens_test

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/missionweave/server/internal/authz/tokens"
	"github.com/missionweave/server/internal/protocol"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 678_901_000, time.UTC)

func key(name string) ed25519.PrivateKey {
	seed := sha256.Sum256([]byte(name))
	return ed25519.NewKeyFromSeed(seed[:])
}

func expect() tokens.Expect {
	return tokens.Expect{
		Typ: []string{tokens.TypCapability, tokens.TypMembership}, Audience: "urn:x:org", Now: now,
		Key: func(kid, issuer string, _ time.Time) (ed25519.PublicKey, bool) {
			return key("k").Public().(ed25519.PublicKey), kid == "k" && issuer == "urn:x:iss"
		},
	}
}

func membership() *tokens.Claims {
	return &tokens.Claims{
		Issuer: "urn:x:iss", Audience: "urn:x:org", Subject: "urn:x:a", ID: "urn:x:1", KeyID: "k", Typ: tokens.TypMembership,
		IssuedAt: tokens.NumericDate(now), ExpiresAt: tokens.NumericDate(now.Add(time.Microsecond)),
		Confirmation: tokens.Confirmation{JKT: "t"}, MissionID: "urn:x:m", GroupID: "urn:x:g", SessionEpoch: 1, MembershipEpoch: 1,
		Role: "worker", Scopes: []string{"work.execute"},
	}
}

func TestMembershipTokensReadBack(t *testing.T) {
	t.Parallel()
	token, err := tokens.Sign(membership(), key("k"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := tokens.Read(token, expect())
	if err != nil || c.Role != "worker" || !time.Time(c.ExpiresAt).Equal(now.Add(time.Microsecond)) || c.Typ != tokens.TypMembership {
		t.Fatalf("%+v %v", c, err)
	}
	if c.Allows("work.execute", "") || c.Allows("", "") {
		t.Error("a Membership Token permits an operation")
	}
	e := expect()
	e.Now = now.Add(time.Microsecond)
	if c, err := tokens.Read(token, e); !errors.Is(err, tokens.ErrExpired) || c == nil {
		t.Errorf("no leeway at the expiry: %v", err)
	}
	for rule, change := range map[string]func(*tokens.Claims){
		"a Membership Token with work":    func(c *tokens.Claims) { c.WorkItemID, c.OwnershipEpoch = "urn:x:w", 1 },
		"a Membership Token without role": func(c *tokens.Claims) { c.Role = "" },
		"no Group":                        func(c *tokens.Claims) { c.GroupID = "" },
		"no Membership Epoch":             func(c *tokens.Claims) { c.MembershipEpoch = 0 },
	} {
		m := membership()
		change(m)
		token, err := tokens.Sign(m, key("k"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tokens.Read(token, expect()); (err == nil) != (rule == "a Membership Token with work") {
			t.Errorf("%s: %v", rule, err)
		}
	}
}

func TestNumericDatesAreExactToTheMicrosecond(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		at := time.UnixMicro(rapid.Int64Range(0, 1<<52).Draw(t, "micros")).UTC()
		b, err := json.Marshal(tokens.NumericDate(at))
		if err != nil {
			t.Fatal(err)
		}
		var back tokens.NumericDate
		if err := json.Unmarshal(b, &back); err != nil || !time.Time(back).Equal(at) {
			t.Fatalf("%s became %s as %s: %v", at, time.Time(back), b, err)
		}
	})
	for _, text := range []string{`"1"`, `1e3`, `1/3`, `0x10`, `1_0`, `0.0000001`, `99999999999999999999`, `null`, `{}`, strings.Repeat("9", 100)} {
		var d tokens.NumericDate
		if err := json.Unmarshal([]byte(text), &d); err == nil && text != "null" {
			t.Errorf("%.40s was taken as %s", text, time.Time(d))
		}
	}
}

func TestThumbprintOfRFC8037(t *testing.T) {
	t.Parallel()
	// The key and thumbprint of RFC 8037, appendix A.
	const x, want = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo", "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"
	public, err := decode(x)
	if err != nil {
		t.Fatal(err)
	}
	if got := tokens.Thumbprint(public); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

func TestLimitsHaveSixDimensions(t *testing.T) {
	t.Parallel()
	money, n := protocol.Money(1_500_000), int64(7)
	b, err := json.Marshal(tokens.LimitsOf(protocol.Budget{Currency: "EUR", FinancialLimit: &money, ToolCallLimit: &n}))
	const want = `{"currency":"EUR","financialLimit":1.5,"modelTokenLimit":0,"toolCallLimit":7,"computeSecondsLimit":0,"wallClockSecondsLimit":0,"externalSideEffectLimit":0}`
	if err != nil || string(b) != want {
		t.Errorf("%s %v", b, err)
	}
}

// FuzzRead: whatever is sent, reading neither fails otherwise than with a fault nor
// takes what our key did not sign.
func FuzzRead(f *testing.F) {
	token, err := tokens.Sign(membership(), key("k"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(token)
	f.Add("a.b.c")
	f.Add("")
	f.Add(strings.Replace(token, ".", "..", 1))
	f.Fuzz(func(t *testing.T, s string) {
		c, err := tokens.Read(s, expect())
		if err == nil && s != token {
			t.Fatalf("taken: %q as %+v", s, c)
		}
		if _, err := tokens.ReadProof(s, token, membership(), "POST", "https://x", now); err == nil {
			t.Fatalf("a proof by nobody: %q", s)
		} else if !errors.Is(err, tokens.ErrProof) {
			t.Fatal(err)
		}
	})
}

func decode(x string) (ed25519.PublicKey, error) {
	b, err := base64.RawURLEncoding.DecodeString(x)
	return b, err
}

// A token has one spelling: whoever looks for it by its text finds it.
func TestATokenHasOneSpelling(t *testing.T) {
	t.Parallel()
	token, err := tokens.Sign(membership(), key("k"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tokens.Read(token, expect()); err != nil {
		t.Fatal(err)
	}
	dot := strings.LastIndexByte(token, '.')
	last := token[len(token)-1]
	for name, other := range map[string]string{
		"a line break at the end":           token + "\n",
		"a carriage return at the end":      token + "\r",
		"a line break in the signature":     token[:dot+9] + "\n" + token[dot+9:],
		"line breaks around the signature":  token[:dot+1] + "\r\n" + token[dot+1:] + "\r\n",
		"a line break in the claims":        token[:dot-4] + "\n" + token[dot-4:],
		"padding":                           token + "=",
		"a space":                           token + " ",
		"the other alphabet":                token[:dot+1] + strings.NewReplacer("-", "+", "_", "/").Replace(token[dot+1:]) + "+",
		"other bits that the bytes ignore":  token[:len(token)-1] + string(last+1),
		"a letter that is not of this page": token[:dot+1] + "\u00e9" + token[dot+1:],
	} {
		if _, err := tokens.Read(other, expect()); err == nil {
			t.Errorf("taken with %s", name)
		}
	}
	secret := key("holder")
	proof, err := tokens.Prove(secret, token, "POST", "https://x", "id", now)
	if err != nil {
		t.Fatal(err)
	}
	c := membership()
	c.Confirmation.JKT = tokens.Thumbprint(secret.Public().(ed25519.PublicKey))
	if _, err := tokens.ReadProof(proof, token, c, "POST", "https://x", now); err != nil {
		t.Fatal(err)
	}
	if _, err := tokens.ReadProof(proof+"\n", token, c, "POST", "https://x", now); !errors.Is(err, tokens.ErrProof) {
		t.Errorf("a proof with a line break: %v", err)
	}
}
