package manifest

import (
	"strings"
	"unicode"
)

// Sanitized is what an Agent may see of an input: the channel decides trust and
// taint, never the text. Hidden parts are taken out; that they were there taints
// the input whatever its channel, because somebody wanted them read and not seen.
type Sanitized struct {
	Source  string
	Trust   Trust
	Tainted bool
	Payload string
	// Hidden reports parts that were taken out because they were hidden, Invisible
	// characters that do not show.
	Hidden, Invisible bool
}

// Virtualize makes the visible part of a Semantic Event.
func (m *Manifest) Virtualize(source, payload string) Sanitized {
	out := Sanitized{Source: source, Trust: m.Channel(source)}
	text := strings.ToValidUTF8(payload, "\uFFFD")
	shown := strings.Map(func(r rune) rune {
		if invisible(r) {
			return -1
		}
		return r
	}, text)
	out.Invisible = len(shown) != len(text)
	var b strings.Builder
	for {
		open := strings.Index(shown, "[[")
		if open < 0 {
			break
		}
		end := strings.Index(shown[open+2:], "]]")
		if end < 0 {
			break
		}
		out.Hidden = true
		b.WriteString(shown[:open])
		shown = shown[open+2+end+2:]
	}
	b.WriteString(shown)
	out.Payload = strings.TrimSpace(b.String())
	// Data of a derived channel that enters from outside has no parent here.
	out.Tainted = out.Trust != Trusted || out.Hidden
	return out
}

// invisible are characters that a reader does not see and a model may: controls
// without effect on the layout, formats such as zero-width and bidirectional ones,
// tags, and selectors of variants.
func invisible(r rune) bool {
	switch {
	case r == '\n' || r == '\t' || r == '\r':
		return false
	case unicode.Is(unicode.Cc, r), unicode.Is(unicode.Cf, r):
		return true
	case r >= 0xFE00 && r <= 0xFE0F, r >= 0xE0100 && r <= 0xE01EF:
		return true
	case r == 0x034F, r == 0x115F, r == 0x1160, r == 0x3164, r == 0xFFA0:
		return true
	}
	return false
}
