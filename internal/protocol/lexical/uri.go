package lexical

import "strings"

// MaxID is the greatest length of an identifier in bytes (common.schema id).
const MaxID = 512

// Character classes of RFC 3986.
const (
	classAlpha      = 1 << iota // ALPHA
	classDigit                  // DIGIT
	classHex                    // HEXDIG in either case
	classUnreserved             // unreserved
	classSubDelim               // sub-delims
	classColon
	classAt
	classPath // "/" and "?", free in a query and a fragment
)

const (
	classRegName  = classUnreserved | classSubDelim
	classUserinfo = classRegName | classColon
	classPchar    = classUserinfo | classAt
)

var class = func() (t [256]uint8) {
	for c := 'a'; c <= 'z'; c++ {
		t[c] |= classAlpha | classUnreserved
		t[c-'a'+'A'] |= classAlpha | classUnreserved
	}
	for c := '0'; c <= '9'; c++ {
		t[c] |= classDigit | classHex | classUnreserved
	}
	for c := 'a'; c <= 'f'; c++ {
		t[c] |= classHex
		t[c-'a'+'A'] |= classHex
	}
	for _, c := range "-._~" {
		t[c] |= classUnreserved
	}
	for _, c := range "!$&'()*+,;=" {
		t[c] |= classSubDelim
	}
	t[':'] |= classColon
	t['@'] |= classAt
	t['/'] |= classPath
	t['?'] |= classPath
	return t
}()

// ValidID tells whether s is an identifier: an absolute RFC 3986 URI of at
// most MaxID bytes. Raw Unicode, white space, control characters and relative
// references are not (PROTOCOL.md 2).
func ValidID(s string) bool { return len(s) <= MaxID && ValidURI(s) }

// ValidURI tells whether the complete string is an RFC 3986 URI: a scheme, a
// hierarchical part, and optionally a query and a fragment.
func ValidURI(s string) bool {
	i := 0
	for i < len(s) && (class[s[i]]&(classAlpha|classDigit) != 0 || s[i] == '+' || s[i] == '-' || s[i] == '.') {
		i++
	}
	if i == 0 || i == len(s) || s[i] != ':' || class[s[0]]&classAlpha == 0 {
		return false
	}
	rest := s[i+1:]
	if strings.HasPrefix(rest, "//") {
		rest = rest[2:]
		end := strings.IndexAny(rest, "/?#")
		if end < 0 {
			end = len(rest)
		}
		if !validAuthority(rest[:end]) {
			return false
		}
		rest = rest[end:]
	}
	// What is left is path, query and fragment. Without an authority a path
	// cannot begin with two slashes, and one that does was read as having one.
	i = span(rest, classPchar, '/')
	if i >= 0 && i < len(rest) && rest[i] == '?' {
		rest = rest[i+1:]
		i = span(rest, classPchar|classPath, '/')
	}
	if i >= 0 && i < len(rest) && rest[i] == '#' {
		rest = rest[i+1:]
		i = span(rest, classPchar|classPath, '/')
	}
	return i == len(rest)
}

// span is the length of the prefix of s made of characters of the classes,
// percent escapes, and the character also; -1 when an escape is malformed.
func span(s string, classes uint8, also byte) int {
	i := 0
	for i < len(s) {
		c := s[i]
		if class[c]&classes != 0 || c == also {
			i++
			continue
		}
		if c != '%' {
			return i
		}
		if i+2 >= len(s) || class[s[i+1]]&classHex == 0 || class[s[i+2]]&classHex == 0 {
			return -1
		}
		i += 3
	}
	return i
}

// validAuthority checks [ userinfo "@" ] host [ ":" port ].
func validAuthority(s string) bool {
	if at := strings.IndexByte(s, '@'); at >= 0 {
		if span(s[:at], classUserinfo, ':') != at {
			return false
		}
		s = s[at+1:]
	}
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 || !validIPLiteral(s[1:end]) {
			return false
		}
		s = s[end+1:]
	} else {
		// An IPv4 address is also a registered name, so there is nothing more
		// to check for one: 999.1.1.1 is a name.
		end := span(s, classRegName, '!')
		if end < 0 {
			return false
		}
		s = s[end:]
	}
	if s == "" {
		return true
	}
	return s[0] == ':' && all(s[1:], classDigit)
}

func all(s string, classes uint8) bool {
	for i := range len(s) {
		if class[s[i]]&classes == 0 {
			return false
		}
	}
	return true
}

// validIPLiteral checks IPv6address / IPvFuture. Zone identifiers are not part
// of RFC 3986.
func validIPLiteral(s string) bool {
	if s != "" && s[0]|0x20 == 'v' {
		version, address, ok := strings.Cut(s[1:], ".")
		return ok && version != "" && address != "" && all(version, classHex) && all(address, classUserinfo)
	}
	return validIPv6(s)
}

// validIPv6 checks IPv6address: eight groups of one to four hexadecimal digits,
// the last two possibly as an IPv4 address; one "::" stands for one or more
// groups.
func validIPv6(s string) bool {
	groups, compressed := 0, false
	if strings.HasPrefix(s, "::") {
		compressed = true
		s = s[2:]
		if s == "" {
			return true
		}
	}
	for {
		n := 0
		for n < len(s) && class[s[n]]&classHex != 0 {
			n++
		}
		if n < len(s) && s[n] == '.' {
			groups += 2
			return validIPv4(s) && complete(groups, compressed)
		}
		if n < 1 || n > 4 {
			return false
		}
		groups++
		s = s[n:]
		if s == "" {
			return complete(groups, compressed)
		}
		if s[0] != ':' || groups == 8 {
			return false
		}
		s = s[1:]
		if strings.HasPrefix(s, ":") {
			if compressed {
				return false
			}
			compressed = true
			s = s[1:]
			if s == "" {
				return complete(groups, compressed)
			}
		}
	}
}

func complete(groups int, compressed bool) bool {
	if compressed {
		return groups < 8
	}
	return groups == 8
}

// validIPv4 checks four decimal octets without leading zeros.
func validIPv4(s string) bool {
	for i := range 4 {
		octet := s
		if i < 3 {
			var ok bool
			if octet, s, ok = strings.Cut(s, "."); !ok {
				return false
			}
		}
		if len(octet) == 0 || len(octet) > 3 || !all(octet, classDigit) || len(octet) > 1 && octet[0] == '0' ||
			len(octet) == 3 && octet > "255" {
			return false
		}
	}
	return true
}
