package lexical_test

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/missionweave/server/internal/protocol/lexical"
)

var acceptedURIs = []string{
	"urn:uuid:018f2f5e-7c1a-7cc3-98c4-dc0c0c07398f", "example:", "example:/", "example:/path", "example:path", "example:a:b@c",
	"x-1+2.3:y", "X:y", "urn:example:%E2%82%AC", "urn:example:%e2%82%ac", "x:%00", "x:?", "x:#", "x:?a/b?c#d/e?f", "x://", "x:///path", "x://a//b",
	"file:///etc/hosts", "mailto:someone@example.com", "https://example.com", "https://example.com:", "https://example.com:65536/", "https://user:pa:ss@host:1/p?q#f",
	"https://@host", "https://:80", "https://%41", "https://999.999.999.999/", "https://1.2.3", "https://a!$&'()*+,;=b/",
	"https://[2001:db8::1]/path", "https://[::]", "https://[::1]:443/", "https://[1:2:3:4:5:6:7:8]", "https://[1:2:3:4:5:6:7::]",
	"https://[::2:3:4:5:6:7:8]", "https://[1::3:4:5:6:7:8]", "https://[ABCD:ef01::]", "x://[::ffff:192.168.1.1]/", "x://[1:2:3:4:5:6:1.2.3.4]",
	"x://[::1.2.3.4]", "x://[1::1.2.3.4]", "x://[::255.249.199.0]", "x://[1:2:3:4:5::1.2.3.4]",
	"x://[v1.a]", "x://[V01.a]/", "x://[vFf.a:b!$&'()*+,;=-._~]", "x://u@[::1]", "https://example.com/" + strings.Repeat("a", 513),
}

var refusedURIs = []string{
	"", ":", "relative/path", "organizations/acme", "//host/path", "/path", "#fragment", "?query", "path:with/colon but blank", "1example:path", "-x:y", "+x:y", ".x:y",
	"x_y:z", "x", "x%41:y", "ex ample:path", "https://例え.テスト/", "urn:exämple:a", "urn:example:é", "urn:example:%GG", "urn:example:%4", "urn:example:%",
	"x:?%G0", "x:#%0", "x://%zz", "x://a%@b", "example:/path\n", "example:/path\r\n", "\nexample:/path", "example:/path ", " example:/path", "example:\x00", "example:\x7f",
	"x:a\tb", "x:<a>", `x:"`, "x:{a}", "x:a|b", `x:a\b`, "x:a^b", "x:a`b", "x:[a]", "x:/[a]", "x:?[", "x:#]", "x:#a#b", "x://a#b#c", "x://a@b@c", "x://a:b:c", "x://a:80x",
	"x://a:-1", "x://[::1", "x://::1]", "x://[::1]x", "x://[::1]:x", "x://[]", "x://[:]", "x://[:::]", "x://[::1::]", "x://[1:2:3:4:5:6:7]", "x://[1:2:3:4:5:6:7:8:9]",
	"x://[1::2:3:4:5:6:7:8]", "x://[1:2:3:4:5:6:7:8::]", "x://[::1:2:3:4:5:6:7:8]", "x://[:1:2:3:4:5:6:7:8]", "x://[1:2:3:4:5:6:7:]", "x://[12345::]", "x://[g::]", "x://[fe80::1%25eth0]",
	"x://[fe80::1%eth0]", "x://[1.2.3.4]", "x://[::1.2.3]", "x://[::1.2.3.4.5]", "x://[::1.2.3.256]", "x://[::ffff:192.168.001.1]/", "x://[::ffff:192.168.01.1]/",
	"x://[::ffff:192.168.1.01]/", "x://[::00.1.1.1]", "x://[::1.2.3.4:5]", "x://[1:2:3:4:5:6:7:1.2.3.4]", "x://[::1:2:3:4:5:6:1.2.3.4]", "x://[::1.2.3.]", "x://[::.1.2.3]", "x://[1.2.3.4::]",
	"https://[not-an-ip]/", "x://[v.a]", "x://[v1]", "x://[v1.]", "x://[vg.a]", "x://[v1.a@b]", "x://[v1.a/b]", "x://[v1.%41]", "x://[v1.[]]", "x://[w1.a]", "x://a[b]", "x://[::1]@h",
}

func TestURIs(t *testing.T) {
	for _, s := range acceptedURIs {
		if !lexical.ValidURI(s) {
			t.Errorf("refused %q", s)
		}
		if !uriOracle(s) {
			t.Errorf("the grammar refuses %q", s)
		}
	}
	for _, s := range refusedURIs {
		if lexical.ValidURI(s) {
			t.Errorf("accepted %q", s)
		}
		if uriOracle(s) {
			t.Errorf("the grammar accepts %q", s)
		}
	}
}

func TestIdentifiersHaveAtMost512Bytes(t *testing.T) {
	for n, want := range map[int]bool{511: true, 512: true, 513: false} {
		id := "urn:example:" + strings.Repeat("a", n-len("urn:example:"))
		if got := lexical.ValidID(id); got != want {
			t.Errorf("%d bytes: %v", n, got)
		}
		if !lexical.ValidURI(id) {
			t.Errorf("%d bytes: not a URI", n)
		}
	}
	if lexical.ValidID("urn:example:a\n") || lexical.ValidID("") || !lexical.ValidID("urn:x:y") {
		t.Error("an identifier is a URI")
	}
}

// uriOracle is the grammar of RFC 3986 appendix A, written out as one pattern.
func uriOracle(s string) bool { return uriGrammar.MatchString(s) }

var uriGrammar = func() *regexp.Regexp {
	const (
		pct      = `%[0-9A-Fa-f]{2}`
		unres    = `A-Za-z0-9\-._~`
		sub      = `!$&'()*+,;=`
		pchar    = `(?:[` + unres + sub + `:@]|` + pct + `)`
		scheme   = `[A-Za-z][A-Za-z0-9+\-.]*`
		userinfo = `(?:[` + unres + sub + `:]|` + pct + `)*`
		regName  = `(?:[` + unres + sub + `]|` + pct + `)*`
		octet    = `(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9][0-9]|[0-9])`
		ipv4     = octet + `\.` + octet + `\.` + octet + `\.` + octet
		h16      = `[0-9A-Fa-f]{1,4}`
		h16c     = `(?:` + h16 + `:)`
		ls32     = `(?:` + h16 + `:` + h16 + `|` + ipv4 + `)`
		future   = `[vV][0-9A-Fa-f]+\.[` + unres + sub + `:]+`
	)
	ipv6 := strings.Join([]string{
		h16c + `{6}` + ls32,
		`::` + h16c + `{5}` + ls32,
		`(?:` + h16 + `)?::` + h16c + `{4}` + ls32,
		`(?:` + h16c + `{0,1}` + h16 + `)?::` + h16c + `{3}` + ls32,
		`(?:` + h16c + `{0,2}` + h16 + `)?::` + h16c + `{2}` + ls32,
		`(?:` + h16c + `{0,3}` + h16 + `)?::` + h16c + ls32,
		`(?:` + h16c + `{0,4}` + h16 + `)?::` + ls32,
		`(?:` + h16c + `{0,5}` + h16 + `)?::` + h16,
		`(?:` + h16c + `{0,6}` + h16 + `)?::`,
	}, "|")
	host := `(?:\[(?:` + ipv6 + `|` + future + `)\]|` + ipv4 + `|` + regName + `)`
	authority := `(?:` + userinfo + `@)?` + host + `(?::[0-9]*)?`
	abempty := `(?:/` + pchar + `*)*`
	hier := `(?://` + authority + abempty + `|/(?:` + pchar + `+` + abempty + `)?|` + pchar + `+` + abempty + `|)`
	return regexp.MustCompile(`\A` + scheme + `:` + hier + `(?:\?(?:` + pchar + `|[/?])*)?(?:#(?:` + pchar + `|[/?])*)?\z`)
}()

func TestAddressesFollowTheGrammar(t *testing.T) {
	piece := rapid.SampledFrom([]string{"0", "1", "ab", "CDEF", "12345", ":", ":", "::", "1.2.3.4", "256", "01", ".", "v1.", "%25", "g"})
	rapid.Check(t, func(t *rapid.T) {
		var s string
		if rapid.Bool().Draw(t, "plausible") {
			// Mostly groups and colons, so that the counts are tested.
			s = strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"0", "a1", "FFFF", "", "1.2.3.4"}), 1, 10).Draw(t, "groups"), ":")
		} else {
			s = strings.Join(rapid.SliceOfN(piece, 0, 12).Draw(t, "pieces"), "")
		}
		s = "x://[" + s + "]"
		if got, want := lexical.ValidURI(s), uriOracle(s); got != want {
			t.Fatalf("%q: %v, the grammar says %v", s, got, want)
		}
	})
}

func TestPiecesOfURIsFollowTheGrammar(t *testing.T) {
	piece := rapid.SampledFrom([]string{
		"x", "1", ":", "/", "//", "?", "#", "[", "]", "@", "%41", "%", "%4", "[::1]", ":80", "a", "é", "\n", " ", "!", "'", "~", "\\", "\"", "<", "", "+", "-", ".",
	})
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SampledFrom([]string{"x:", "x://", "", "1:"}).Draw(t, "start") + strings.Join(rapid.SliceOfN(piece, 0, 10).Draw(t, "pieces"), "")
		if got, want := lexical.ValidURI(s), uriOracle(s); got != want {
			t.Fatalf("%q: %v, the grammar says %v", s, got, want)
		}
	})
}

func FuzzURI(f *testing.F) {
	for _, s := range acceptedURIs {
		f.Add(s)
	}
	for _, s := range refusedURIs {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		want := uriOracle(s)
		if got := lexical.ValidURI(s); got != want {
			t.Fatalf("%q: %v, the grammar says %v", s, got, want)
		}
		if got := lexical.ValidID(s); got != (want && len(s) <= 512) {
			t.Fatalf("%q: ValidID %v", s, got)
		}
	})
}

func BenchmarkValidID(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if !lexical.ValidID("urn:uuid:018f2f5e-7c1a-7cc3-98c4-dc0c0c07398f") {
			b.Fatal("refused")
		}
	}
}
