package wsapi

import (
	"testing"

	"github.com/missionweave/server/internal/protocol"
)

const plainReply = `{"frameId":"urn:uuid:01a22e68-e87e-7dea-bcc0-1be13056dbec","frameType":"PING","nonce":"AAAA",` +
	`"protocolVersion":"0.1","replyToNonce":"BBBB","sentAt":"2026-11-30T21:42:36.980662Z"}`

func TestAnswersToPingsAreKnownWithoutAParser(t *testing.T) {
	b, err := protocol.AppendFrame(nil, &protocol.Ping{
		FrameID: "urn:f:1", Nonce: "AAAA", ReplyToNonce: "BBBB", SentAt: "2026-11-30T21:42:36Z",
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, reply := range []string{string(b), plainReply} {
		if !isReply([]byte(reply)) {
			t.Errorf("not known: %s", reply)
		}
	}
}

// FuzzReply holds the short way against the parser: what passes as an answer is
// one, and is nothing that the processor would have to act on.
func FuzzReply(f *testing.F) {
	for _, seed := range []string{
		plainReply, `{}`, `{"frameId":"urn:f:1"}`,
		`{"frameId":"urn:f:1","frameType":"PING","nonce":"AAAA","nonce":"AAAA","protocolVersion":"0.1","replyToNonce":"BBBB","sentAt":"2026-11-30T21:42:36Z"}`,
		`{"frameId":"f","frameType":"PING","nonce":"A","protocolVersion":"0.1","replyToNonce":"","sentAt":"now"}`,
		`{"frameId":"urn:f:1","frameType":"PING","nonce":"AAAA","protocolVersion":"0.1","replyToNonce":"BBBB","sentAt":"2026-11-30T21:42:36Z",}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		if !isReply(message) {
			return
		}
		frame, refusal := protocol.ParseFrame(message)
		if refusal != nil {
			t.Fatalf("%q passes as an answer and is refused: %v", message, refusal)
		}
		ping, ok := frame.(*protocol.Ping)
		if !ok || ping.ReplyToNonce == "" || ping.Presence != nil {
			t.Fatalf("%q passes as an answer and is %+v", message, frame)
		}
	})
}
