package lexical

import (
	"errors"
	"strings"
)

// ErrSemver says that a string is not a semantic version of common.schema.
var ErrSemver = errors.New("lexical: not a semantic version")

// Semver is a semantic version. Its numbers are kept as digits, because the
// schema bounds their length and not their value.
type Semver struct {
	major, minor, patch string
	pre                 string
}

// ParseSemver reads the semver of common.schema: three numbers without leading
// zeros, optionally -prerelease and +build of [0-9A-Za-z.-], 128 characters.
// Build metadata is checked and then has no meaning. The error is ErrSemver.
func ParseSemver(s string) (Semver, error) {
	v, ok := parseSemver(s)
	if !ok {
		return Semver{}, ErrSemver
	}
	return v, nil
}

// ValidSemver tells whether s satisfies the semver of common.schema.
func ValidSemver(s string) bool {
	_, ok := parseSemver(s)
	return ok
}

func parseSemver(s string) (Semver, bool) {
	var v Semver
	if len(s) > 128 {
		return v, false
	}
	var ok bool
	if v.major, s, ok = number(s); !ok || !strings.HasPrefix(s, ".") {
		return v, false
	}
	if v.minor, s, ok = number(s[1:]); !ok || !strings.HasPrefix(s, ".") {
		return v, false
	}
	if v.patch, s, ok = number(s[1:]); !ok {
		return v, false
	}
	if strings.HasPrefix(s, "-") {
		end := strings.IndexByte(s, '+')
		if end < 0 {
			end = len(s)
		}
		v.pre, s = s[1:end], s[end:]
		if v.pre == "" || !suffixText(v.pre) {
			return v, false
		}
	}
	if strings.HasPrefix(s, "+") {
		return v, len(s) > 1 && suffixText(s[1:])
	}
	return v, s == ""
}

// number cuts a decimal number without leading zeros off the front.
func number(s string) (digits, rest string, ok bool) {
	n := 0
	for n < len(s) && isDigit(s[n]) {
		n++
	}
	if n == 0 || n > 1 && s[0] == '0' {
		return "", s, false
	}
	return s[:n], s[n:], true
}

func suffixText(s string) bool {
	for i := range len(s) {
		if c := s[i]; class[c]&(classAlpha|classDigit) == 0 && c != '.' && c != '-' {
			return false
		}
	}
	return true
}

// Major is the major number in decimal digits.
func (v Semver) Major() string { return v.major }

// Minor is the minor number in decimal digits.
func (v Semver) Minor() string { return v.minor }

// Patch is the patch number in decimal digits.
func (v Semver) Patch() string { return v.patch }

// Prerelease is the pre-release text, empty for a release.
func (v Semver) Prerelease() string { return v.pre }

// Compare orders by Semantic Versioning precedence: -1, 0 or 1. The schema
// admits pre-release identifiers that Semantic Versioning does not (empty, or
// numeric with leading zeros); they compare as text.
func (v Semver) Compare(w Semver) int {
	if c := compareNumbers(v.major, w.major); c != 0 {
		return c
	}
	if c := compareNumbers(v.minor, w.minor); c != 0 {
		return c
	}
	if c := compareNumbers(v.patch, w.patch); c != 0 {
		return c
	}
	return comparePrerelease(v.pre, w.pre)
}

// Satisfies is the version half of the capability match (COMMANDS.md 3.5): the
// major numbers are equal, the minor ones too when major is 0, and v is not
// lower than required.
func (v Semver) Satisfies(required Semver) bool {
	if v.major != required.major || v.major == "0" && v.minor != required.minor {
		return false
	}
	return v.Compare(required) >= 0
}

// compareNumbers orders decimal numbers without leading zeros.
func compareNumbers(a, b string) int {
	if len(a) != len(b) {
		if len(a) < len(b) {
			return -1
		}
		return 1
	}
	return strings.Compare(a, b)
}

func comparePrerelease(a, b string) int {
	switch {
	case a == b:
		return 0
	case a == "":
		return 1
	case b == "":
		return -1
	}
	for {
		x, restA, moreA := strings.Cut(a, ".")
		y, restB, moreB := strings.Cut(b, ".")
		_, tailX, numX := number(x)
		_, tailY, numY := number(y)
		numX, numY = numX && tailX == "", numY && tailY == ""
		var c int
		switch {
		case numX && numY:
			c = compareNumbers(x, y)
		case numX:
			c = -1
		case numY:
			c = 1
		default:
			c = strings.Compare(x, y)
		}
		if c != 0 {
			return c
		}
		switch {
		case !moreA && !moreB:
			return 0
		case !moreA:
			return -1
		case !moreB:
			return 1
		}
		a, b = restA, restB
	}
}
