package lexical

import (
	"encoding/hex"
	"time"
)

// UUIDv7 makes the identifier urn:uuid: + lower-case UUID of version 7
// (RFC 9562, COMMANDS.md D6) from the millisecond of t and ten bytes of
// randomness, of which 74 bits are used. Identifiers order by time to the
// millisecond.
func UUIDv7(t time.Time, rnd [10]byte) string {
	ms := uint64(t.UnixMilli())
	var u [16]byte
	for i := range 6 {
		u[i] = byte(ms >> (40 - 8*i))
	}
	copy(u[6:], rnd[:])
	u[6] = u[6]&0x0F | 0x70
	u[8] = u[8]&0x3F | 0x80
	const prefix = "urn:uuid:"
	var b [len(prefix) + 36]byte
	out := append(b[:0], prefix...)
	for i, end := range [...]int{4, 6, 8, 10, 16} {
		if i > 0 {
			out = append(out, '-')
		}
		start := [...]int{0, 4, 6, 8, 10}[i]
		out = hex.AppendEncode(out, u[start:end])
	}
	return string(out)
}
