package wsapi

import (
	"strings"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
)

// isReply tells that a message is an answer to a PING and nothing else, in the
// form in which programs write it: the members of the frame, once each, without
// white space or escapes. Whatever else is left to protocol.ParseFrame. Such an
// answer asks for nothing, and idle connections send no other frame: so many of
// them are not worth a parser's stack and a hand-over each.
func isReply(message []byte) bool {
	const (
		frameID = 1 << iota
		frameType
		nonce
		version
		replyToNonce
		sentAt
		all = 1<<iota - 1
	)
	if len(message) < 2 || len(message) > 1024 || message[0] != '{' || message[len(message)-1] != '}' {
		return false
	}
	seen := 0
	for rest := string(message[1 : len(message)-1]); ; {
		name, after, ok := plainString(rest)
		if !ok || !strings.HasPrefix(after, ":") {
			return false
		}
		value, after, ok := plainString(after[1:])
		if !ok {
			return false
		}
		member := 0
		switch name {
		case "frameId":
			member, ok = frameID, len(value) <= lexical.MaxID && lexical.ValidURI(value)
		case "frameType":
			member, ok = frameType, value == string(protocol.FramePing)
		case "nonce":
			member, ok = nonce, len(value) >= 2 && lexical.ValidBase64URL(value)
		case "protocolVersion":
			member, ok = version, value == protocol.Version
		case "replyToNonce":
			member, ok = replyToNonce, len(value) >= 2 && lexical.ValidBase64URL(value)
		case "sentAt":
			member, ok = sentAt, lexical.ValidTimestamp(value)
		}
		if !ok || member == 0 || seen&member != 0 {
			return false
		}
		seen |= member
		if after == "" {
			return seen == all
		}
		if after[0] != ',' {
			return false
		}
		rest = after[1:]
	}
}

// plainString takes a JSON string of printable ASCII without escapes off s.
func plainString(s string) (value, rest string, ok bool) {
	if s == "" || s[0] != '"' {
		return "", "", false
	}
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return s[1:i], s[i+1:], true
		case c == '\\' || c < ' ' || c > '~':
			return "", "", false
		}
	}
	return "", "", false
}
