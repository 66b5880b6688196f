package evidence

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// protoName is dropped by every emitter of v0.1 to v0.3: a member of that name
// is never covered by a signature, whatever it holds.
const protoName = "__proto__"

// Members that a record's own signature cannot cover.
const (
	memberSignature = "signature"
	memberDSSE      = "dsse_envelope"
	memberTimestamp = "timestamp_proof"
	memberVersion   = "schema_version"
)

// Canonical is the form that v0.1 to v0.3 emitters sign. It differs from
// RFC 8785 in four places: names that are array indices (0 to 4294967294) come
// first, in numeric order; __proto__ members are dropped; lone surrogates are
// written as lower-case escapes; overflowing numbers become null. Of duplicate
// members the last wins. without names top-level members to leave out.
func Canonical(v *Value, without ...string) []byte {
	return appendCanonical(nil, v, without)
}

// SigningBytes are the bytes that the record's inline signature covers.
func SigningBytes(record *Value) []byte {
	return Canonical(record, memberSignature, memberDSSE)
}

// RecordHash is what the next record of the chain names: lower-case hexadecimal
// SHA-256 of [SigningBytes].
func RecordHash(record *Value) string {
	sum := sha256.Sum256(SigningBytes(record))
	return hex.EncodeToString(sum[:])
}

func appendCanonical(dst []byte, v *Value, without []string) []byte {
	switch v.Kind() {
	case Missing, Null:
		return append(dst, "null"...)
	case Bool:
		return strconv.AppendBool(dst, v.truth)
	case Number:
		f, ok := v.Float()
		if !ok {
			return append(dst, "null"...)
		}
		dst, _ = strictjson.AppendFloat(dst, f) // finite, so it cannot fail
		return dst
	case String:
		return appendString(dst, v.text)
	case Array:
		dst = append(dst, '[')
		for i, item := range v.items {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendCanonical(dst, item, nil)
		}
		return append(dst, ']')
	}
	dst = append(dst, '{')
	for i, m := range sorted(v.members, without) {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(appendString(dst, m.name), ':')
		dst = appendCanonical(dst, m.value, nil)
	}
	return append(dst, '}')
}

// sortable is a member with its sort key: an array index, or the UTF-16 form.
type sortable struct {
	name    string
	value   *Value
	index   int64 // -1 when the name is not an array index
	units   []uint16
	ordinal int
}

// sorted are the members that count, in canonical order.
func sorted(members []Member, without []string) []sortable {
	list := make([]sortable, 0, len(members))
	for i, m := range members {
		if m.Name == protoName || slices.Contains(without, m.Name) {
			continue
		}
		list = append(list, sortable{name: m.Name, value: m.Value, index: arrayIndex(m.Name), units: utf16Units(m.Name), ordinal: i})
	}
	slices.SortFunc(list, func(a, b sortable) int {
		switch {
		case a.index >= 0 && b.index >= 0 && a.index != b.index:
			if a.index < b.index {
				return -1
			}
			return 1
		case a.index >= 0 && b.index < 0:
			return -1
		case a.index < 0 && b.index >= 0:
			return 1
		}
		if c := slices.Compare(a.units, b.units); c != 0 {
			return c
		}
		return b.ordinal - a.ordinal // the last of equal names first, so that it stays
	})
	return slices.CompactFunc(list, func(a, b sortable) bool { return a.name == b.name })
}

// arrayIndex is the value of a name that is a canonical decimal from 0 to
// 2^32-2, else -1.
func arrayIndex(name string) int64 {
	if len(name) == 0 || len(name) > 10 || (name[0] == '0' && len(name) > 1) {
		return -1
	}
	var n int64
	for _, c := range []byte(name) {
		if c < '0' || c > '9' {
			return -1
		}
		n = n*10 + int64(c-'0')
	}
	if n > 1<<32-2 {
		return -1
	}
	return n
}

// nextRune decodes one code point of WTF-8; a lone surrogate is a code point.
func nextRune(s string) (rune, int) {
	r, n := utf8.DecodeRuneInString(s)
	if r == utf8.RuneError && n == 1 && len(s) >= 3 {
		return rune(s[0]&0x0f)<<12 | rune(s[1]&0x3f)<<6 | rune(s[2]&0x3f), 3
	}
	return r, n
}

func utf16Units(s string) []uint16 {
	units := make([]uint16, 0, len(s))
	for len(s) > 0 {
		r, n := nextRune(s)
		s = s[n:]
		if r >= 0x10000 {
			r -= 0x10000
			units = append(units, uint16(0xd800+r>>10), uint16(0xdc00+r&0x3ff))
			continue
		}
		units = append(units, uint16(r))
	}
	return units
}

const hexDigits = "0123456789abcdef"

func appendString(dst []byte, s string) []byte {
	dst = append(dst, '"')
	for len(s) > 0 {
		r, n := nextRune(s)
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r >= 0x20 && (r < 0xd800 || r > 0xdfff):
			dst = append(dst, s[:n]...)
		case r == '\b':
			dst = append(dst, `\b`...)
		case r == '\t':
			dst = append(dst, `\t`...)
		case r == '\n':
			dst = append(dst, `\n`...)
		case r == '\f':
			dst = append(dst, `\f`...)
		case r == '\r':
			dst = append(dst, `\r`...)
		default:
			dst = append(dst, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
		}
		s = s[n:]
	}
	return append(dst, '"')
}

// WithMember gives the canonical form of the record with a top-level string
// member set to another value: what a tamper check needs.
func WithMember(raw []byte, name, value string) ([]byte, error) {
	v, err := ParseValue(raw)
	if err != nil {
		return nil, err
	}
	out := &Value{kind: Object}
	for _, m := range v.Members() {
		if m.Name != name {
			out.members = append(out.members, m)
		}
	}
	out.members = append(out.members, Member{Name: name, Value: &Value{kind: String, text: value}})
	return Canonical(out), nil
}
