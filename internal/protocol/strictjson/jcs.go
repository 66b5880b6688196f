package strictjson

import "unicode/utf8"

// AppendJCS appends the value's RFC 8785 canonical form. The error is a
// *CanonicalError (stage 5) and dst then comes back at its old length.
func (v Value) AppendJCS(dst []byte) ([]byte, error) { return v.appendJCS(dst, "", false) }

// AppendJCSWithout is AppendJCS of an object less one of its own members;
// nested members of that name stay (PROTOCOL.md 6.4: only the top-level
// signature is omitted).
func (v Value) AppendJCSWithout(dst []byte, member string) ([]byte, error) {
	return v.appendJCS(dst, member, true)
}

// JCS is the canonical form as a Raw.
func (v Value) JCS() (Raw, error) {
	b, err := v.AppendJCS(make([]byte, 0, len(v.Text())))
	if err != nil {
		return nil, err
	}
	return b, nil
}

func (v Value) appendJCS(dst []byte, member string, without bool) ([]byte, error) {
	if v.d == nil {
		return dst, &CanonicalError{Reason: ReasonMissing}
	}
	n := len(dst)
	dst, reason := v.d.appendJCS(dst, v.i, member, without)
	if reason != "" {
		return dst[:n], &CanonicalError{Reason: reason}
	}
	return dst, nil
}

// appendJCS writes node i; a reason that is not empty says why it cannot be.
// An omitted member is not looked at, except by the parser.
func (t *tree[T]) appendJCS(dst []byte, i uint32, member string, without bool) ([]byte, string) {
	n := &t.nodes[i]
	switch n.kind {
	case Null, Bool:
		return append(dst, t.src[n.start:n.end]...), ""
	case Number:
		text := t.src[n.start:n.end]
		if n.flags&flagPlain != 0 {
			return append(dst, text...), ""
		}
		f := parseFloat(string(text))
		if !finite(f) {
			return dst, ReasonNonFinite
		}
		return appendNumber(dst, f), ""
	case String:
		return t.appendString(dst, n)
	case Array:
		dst = append(dst, '[')
		var reason string
		for k, first := i+1, true; k < n.a; k = after(t.nodes, k) {
			if !first {
				dst = append(dst, ',')
			}
			first = false
			if dst, reason = t.appendJCS(dst, k, "", false); reason != "" {
				return dst, reason
			}
		}
		return append(dst, ']'), ""
	default:
		dst = append(dst, '{')
		first := true
		var reason string
		for _, k := range t.order[n.c : n.c+n.b] {
			name := &t.nodes[k]
			if without && string(t.text(name)) == member {
				continue
			}
			if !first {
				dst = append(dst, ',')
			}
			first = false
			if dst, reason = t.appendString(dst, name); reason != "" {
				return dst, reason
			}
			dst = append(dst, ':')
			if dst, reason = t.appendJCS(dst, k+1, "", false); reason != "" {
				return dst, reason
			}
		}
		return append(dst, '}'), ""
	}
}

func (t *tree[T]) appendString(dst []byte, n *node) ([]byte, string) {
	if n.flags&flagEscaped == 0 {
		// Text without escapes holds nothing that the canonical form escapes.
		return append(dst, t.src[n.start:n.end]...), ""
	}
	if n.flags&flagLone != 0 {
		return dst, ReasonSurrogate
	}
	return appendQuoted(dst, t.text(n)), ""
}

// shortEscape maps what the canonical form escapes to its letter, or to u.
var shortEscape = func() (t [256]byte) {
	for i := range 0x20 {
		t[i] = 'u'
	}
	t['\b'], t['\t'], t['\n'], t['\f'], t['\r'] = 'b', 't', 'n', 'f', 'r'
	t['"'], t['\\'] = '"', '\\'
	return t
}()

// appendQuoted writes valid UTF-8 as a canonical JSON string.
func appendQuoted[T []byte | string](dst []byte, s T) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	from := 0
	for i := range len(s) {
		e := shortEscape[s[i]]
		if e == 0 {
			continue
		}
		dst = append(dst, s[from:i]...)
		dst = append(dst, '\\', e)
		if e == 'u' {
			dst = append(dst, '0', '0', hex[s[i]>>4], hex[s[i]&15])
		}
		from = i + 1
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}

// AppendString appends s as a canonical JSON string. A text that is not valid
// UTF-8 is a *CanonicalError.
func AppendString(dst []byte, s string) ([]byte, error) {
	if !utf8.ValidString(s) {
		return dst, &CanonicalError{Reason: ReasonText}
	}
	return appendQuoted(dst, s), nil
}

// AppendFloat appends f by the ECMAScript number rules. A non-finite number is
// a *CanonicalError.
func AppendFloat(dst []byte, f float64) ([]byte, error) {
	if !finite(f) {
		return dst, &CanonicalError{Reason: ReasonNonFinite}
	}
	return appendNumber(dst, f), nil
}

// Canonicalize parses b strictly and gives its canonical form. The error is a
// *SyntaxError or a *CanonicalError.
func Canonicalize(b []byte) ([]byte, error) {
	return AppendCanonical(make([]byte, 0, len(b)), b)
}

// AppendCanonical is Canonicalize onto dst. It allocates nothing of its own; on
// failure dst comes back as it was.
func AppendCanonical(dst, b []byte) ([]byte, error) {
	p := borrowParser(MaxDepth)
	defer p.giveBack()
	if err := p.parse(b); err != nil {
		return dst, err
	}
	n := len(dst)
	dst, reason := p.appendJCS(dst, 0, "", false)
	if reason != "" {
		return dst[:n], &CanonicalError{Reason: reason}
	}
	return dst, nil
}
