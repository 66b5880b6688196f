package lexical

import (
	"strings"
	"unicode/utf8"
)

// The functions below are the string patterns of the normative schemas, named
// after the definition or member that has them. Length bounds that a schema
// states beside a pattern are included.

func lower(c byte) bool      { return c-'a' <= 'z'-'a' }
func upper(c byte) bool      { return c-'A' <= 'Z'-'A' }
func lowerDigit(c byte) bool { return lower(c) || isDigit(c) }
func alnum(c byte) bool      { return class[c]&(classAlpha|classDigit) != 0 }

// ValidSHA256 is common.schema sha256: "sha256:" and 64 lower-case hexadecimal
// digits.
func ValidSHA256(s string) bool {
	if len(s) != 71 || s[:7] != "sha256:" {
		return false
	}
	for i := 7; i < len(s); i++ {
		if c := s[i]; !isDigit(c) && c-'a' > 'f'-'a' {
			return false
		}
	}
	return true
}

// ValidKind is common.schema kind: two or more dotted words of [a-z0-9_] that
// begin with a letter, 160 characters.
func ValidKind(s string) bool {
	words := 0
	for len(s) <= 160 {
		word, rest, more := strings.Cut(s, ".")
		if word == "" || !lower(word[0]) {
			return false
		}
		for i := 1; i < len(word); i++ {
			if c := word[i]; !lowerDigit(c) && c != '_' {
				return false
			}
		}
		words++
		if !more {
			return words >= 2
		}
		s = rest
	}
	return false
}

// ValidExtensionKind is the extension branch of a Command or Event kind: "ext"
// and three or more dotted words of [a-z0-9_-] that begin with a letter or
// digit, 160 characters.
func ValidExtensionKind(s string) bool {
	if len(s) > 160 || !strings.HasPrefix(s, "ext.") {
		return false
	}
	s = s[4:]
	for words := 1; ; words++ {
		word, rest, more := strings.Cut(s, ".")
		if word == "" || !lowerDigit(word[0]) {
			return false
		}
		for i := 1; i < len(word); i++ {
			if c := word[i]; !lowerDigit(c) && c != '_' && c != '-' {
				return false
			}
		}
		if !more {
			return words >= 3
		}
		s = rest
	}
}

// ValidCapabilityID is common.schema capabilityRef.id: two or more words of
// [a-z0-9] joined by single dots or hyphens, 200 characters.
func ValidCapabilityID(s string) bool {
	if len(s) > 200 {
		return false
	}
	joined, previous := false, byte('.')
	for i := range len(s) {
		c := s[i]
		switch {
		case lowerDigit(c):
		case c == '.' || c == '-':
			if !lowerDigit(previous) {
				return false
			}
			joined = true
		default:
			return false
		}
		previous = c
	}
	return joined && lowerDigit(previous)
}

// ValidCriterionID is acceptanceCriterion.criterionId and deliverableId: a
// letter or digit, then up to 127 of [A-Za-z0-9._-].
func ValidCriterionID(s string) bool {
	if s == "" || len(s) > 128 || !alnum(s[0]) {
		return false
	}
	for i := 1; i < len(s); i++ {
		if c := s[i]; !alnum(c) && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// ValidOperation is the pattern of resourceGrant.operations and of membership
// scopes: a lower-case letter, then [a-z0-9._:-], 128 characters.
func ValidOperation(s string) bool {
	if s == "" || len(s) > 128 || !lower(s[0]) {
		return false
	}
	for i := 1; i < len(s); i++ {
		if c := s[i]; !lowerDigit(c) && c != '.' && c != '_' && c != ':' && c != '-' {
			return false
		}
	}
	return true
}

// ValidFailureCode is retryPolicy.retryableFailures: an upper-case letter, then
// 1 to 127 of [A-Z0-9_].
func ValidFailureCode(s string) bool {
	if len(s) < 2 || len(s) > 128 || !upper(s[0]) {
		return false
	}
	for i := 1; i < len(s); i++ {
		if c := s[i]; !upper(c) && !isDigit(c) && c != '_' {
			return false
		}
	}
	return true
}

// ValidCurrency is budget.currency: three upper-case letters.
func ValidCurrency(s string) bool {
	return len(s) == 3 && upper(s[0]) && upper(s[1]) && upper(s[2])
}

// ValidMediaType is the mediaType of artifacts and deliverables: two parts of
// [A-Za-z0-9!#$&^_.+-] around one slash. It sets no length bound.
func ValidMediaType(s string) bool {
	kind, sub, ok := strings.Cut(s, "/")
	return ok && mediaPart(kind) && mediaPart(sub)
}

func mediaPart(s string) bool {
	for i := range len(s) {
		if !alnum(s[i]) && strings.IndexByte("!#$&^_.+-", s[i]) < 0 {
			return false
		}
	}
	return s != ""
}

// ValidDuration is common.schema duration: P with days, and T with hours,
// minutes and seconds in that order; a fraction only in the seconds; "P" alone
// and "T" without a digit are not durations. 64 characters.
func ValidDuration(s string) bool {
	if len(s) < 2 || len(s) > 64 || s[0] != 'P' {
		return false
	}
	s = s[1:]
	if n := digits(s); n > 0 {
		if n == len(s) || s[n] != 'D' {
			return false
		}
		s = s[n+1:]
	}
	if s == "" {
		return true
	}
	if s[0] != 'T' || len(s) == 1 {
		return false
	}
	s = s[1:]
	for units := "HMS"; s != ""; {
		n := digits(s)
		if n == 0 || n == len(s) {
			return false
		}
		fraction := s[n] == '.'
		if fraction {
			m := digits(s[n+1:])
			if n += 1 + m; m == 0 || n == len(s) {
				return false
			}
		}
		at := strings.IndexByte(units, s[n])
		if at < 0 || fraction && s[n] != 'S' {
			return false
		}
		units, s = units[at+1:], s[n+1:]
	}
	return true
}

func digits(s string) int {
	n := 0
	for n < len(s) && isDigit(s[n]) {
		n++
	}
	return n
}

// NotBlank tells whether s has a character that is not white space, with white
// space as ECMAScript patterns have it (lease.schema closureReason; text(n) of
// COMMANDS.md 3.1).
func NotBlank(s string) bool {
	for i := 0; i < len(s); {
		if c := s[i]; c < utf8.RuneSelf {
			if c != ' ' && c-'\t' > '\r'-'\t' {
				return true
			}
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == 0xA0, r == 0x1680, 0x2000 <= r && r <= 0x200A, r == 0x2028, r == 0x2029,
			r == 0x202F, r == 0x205F, r == 0x3000, r == 0xFEFF:
		default:
			return true
		}
		i += size
	}
	return false
}
