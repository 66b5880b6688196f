package strictjson

import (
	"unicode/utf16"
	"unicode/utf8"
)

// escaped reads the rest of a string from its first backslash at i and keeps
// the decoded text in p.dec.
//
// An unpaired surrogate is kept as the three bytes UTF-8 would use for it, so
// that names stay distinguishable and the failure can be reported at stage 5.
// Raw source bytes of that form are invalid UTF-8 and never get here, so the
// spelling is unambiguous.
func (p *parser) escaped(start, i int, flags uint8) bool {
	src := p.src
	from := len(p.dec)
	p.dec = append(p.dec, src[start+1:i]...)
	for i < len(src) {
		c := src[i]
		switch {
		case c == '"':
			p.i = i + 1
			p.nodes = append(p.nodes, node{
				start: uint32(start), end: uint32(p.i), kind: String, flags: flags | flagEscaped,
				a: uint32(from), b: uint32(len(p.dec) - from),
			})
			return true
		case c < 0x20:
			return p.fail(i, ReasonControl)
		case c != '\\' && c < utf8.RuneSelf:
			p.dec = append(p.dec, c)
			i++
		case c != '\\':
			_, size := utf8.DecodeRune(src[i:])
			if size == 1 {
				return p.fail(i, ReasonUTF8)
			}
			p.dec = append(p.dec, src[i:i+size]...)
			flags |= flagNonASCII
			i += size
		default:
			if i+1 >= len(src) {
				return p.fail(len(src), ReasonTruncated)
			}
			if src[i+1] != 'u' {
				d := unescape[src[i+1]]
				if d == 0 {
					return p.fail(i+1, ReasonEscape)
				}
				p.dec = append(p.dec, d)
				i += 2
				continue
			}
			r, at := hex4(src, i+2)
			if at >= 0 {
				return p.fail(at, ReasonEscape)
			}
			i += 6
			if utf16.IsSurrogate(r) {
				if i+1 < len(src) && src[i] == '\\' && src[i+1] == 'u' {
					// A broken second escape is reported when it is reached.
					if low, bad := hex4(src, i+2); bad < 0 {
						if full := utf16.DecodeRune(r, low); full != utf8.RuneError {
							p.dec = utf8.AppendRune(p.dec, full)
							flags |= flagNonASCII
							i += 6
							continue
						}
					}
				}
				p.dec = append(p.dec, 0xED, 0x80|byte(r>>6&0x3F), 0x80|byte(r&0x3F))
				flags |= flagNonASCII | flagLone
				continue
			}
			if r >= utf8.RuneSelf {
				flags |= flagNonASCII
			}
			p.dec = utf8.AppendRune(p.dec, r)
		}
	}
	return p.fail(i, ReasonTruncated)
}

var unescape = [256]byte{
	'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t',
}

// hex4 reads four hexadecimal digits at i. bad is the offset of the first byte
// that is none, or -1.
func hex4(src []byte, i int) (r rune, bad int) {
	for j := i; j < i+4; j++ {
		if j >= len(src) {
			return 0, len(src)
		}
		switch c := src[j]; {
		case '0' <= c && c <= '9':
			r = r<<4 | rune(c-'0')
		case 'a' <= c && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case 'A' <= c && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, j
		}
	}
	return r, -1
}
