package lexical

import (
	"encoding/base64"
	"errors"
)

// ErrBase64URL says that a string is not canonical unpadded base64url.
var ErrBase64URL = errors.New("lexical: not canonical base64url")

const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

var sextet = func() (t [256]uint8) {
	for i := range t {
		t[i] = 0xFF
	}
	for i := range len(alphabet) {
		t[alphabet[i]] = uint8(i)
	}
	return t
}()

// DecodeBase64URL decodes canonical base64url (RFC 4648 sections 3.2, 3.5, 5):
// the URL-safe alphabet only, no padding, no line breaks, unused bits zero.
// Each byte string therefore has exactly one spelling. The error is
// ErrBase64URL; the empty string decodes to no bytes.
func DecodeBase64URL(s string) ([]byte, error) {
	return AppendBase64URL(make([]byte, 0, len(s)*3/4), s)
}

// AppendBase64URL is DecodeBase64URL onto dst; on failure dst comes back as it
// was.
func AppendBase64URL(dst []byte, s string) ([]byte, error) {
	if len(s)%4 == 1 {
		return dst, ErrBase64URL
	}
	n, acc, filled := len(dst), uint32(0), 0
	for i := range len(s) {
		v := sextet[s[i]]
		if v == 0xFF {
			return dst[:n], ErrBase64URL
		}
		acc = acc<<6 | uint32(v)
		if filled += 6; filled >= 8 {
			filled -= 8
			dst = append(dst, byte(acc>>filled))
			acc &= 1<<filled - 1
		}
	}
	if acc != 0 {
		return dst[:n], ErrBase64URL
	}
	return dst, nil
}

// EncodeBase64URL is the canonical base64url spelling of b.
func EncodeBase64URL(b []byte) string { return base64.RawURLEncoding.EncodeToString(b) }

// ValidBase64URL checks the spelling that schemas demand of base64url members:
// 2 to 4096 characters of the alphabet (common.schema). It says nothing about
// unused bits or decoded length, which are failures of a later stage.
func ValidBase64URL(s string) bool {
	if len(s) < 2 || len(s) > 4096 {
		return false
	}
	for i := range len(s) {
		if sextet[s[i]] == 0xFF {
			return false
		}
	}
	return true
}
