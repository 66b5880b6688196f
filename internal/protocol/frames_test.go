package protocol_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

const frameNonce = "bm9uY2Utb2YtYS10ZXN0"

// allFrames has one frame of each type, every optional member set.
func allFrames() []protocol.Frame {
	response := int64(250)
	return []protocol.Frame{
		&protocol.HelloClientInit{
			FrameID: "urn:x:f1", AgentID: "urn:x:agent:weaver", KeyID: "urn:x:key:1",
			ClientNonce: frameNonce, SupportedVersions: []string{"0.1"},
		},
		&protocol.HelloServerChallenge{
			FrameID: "urn:x:f2", SelectedVersion: "0.1", ClientNonce: frameNonce,
			ServerNonce: frameNonce, Challenge: "e30",
		},
		&protocol.HelloClientResponse{
			FrameID: "urn:x:f3", AgentID: "urn:x:agent:weaver", KeyID: "urn:x:key:1",
			ClientNonce: frameNonce, ServerNonce: frameNonce, ChallengeSignature: "c2ln",
		},
		&protocol.HelloServerAccept{
			FrameID: "urn:x:f4", SelectedVersion: "0.1", SessionToken: strings.Repeat("t", 16),
			SessionEpoch: 3, ExpiresAt: "2031-01-01T00:00:00Z",
		},
		&protocol.Subscribe{
			FrameID: "urn:x:f5", SubscriptionID: "urn:x:sub:1",
			Groups: []protocol.Subscription{
				{GroupID: "urn:x:g1", AfterSequence: 0},
				{GroupID: "urn:x:g2", AfterSequence: 9, Attention: &protocol.Attention{
					EventKinds: []string{}, ConversationIDs: []string{"urn:x:c1"},
					MentionsOnly: true, Announcements: true,
				}},
			},
		},
		&protocol.CommandFrame{FrameID: "urn:x:f6", Command: []byte(`{ "b":1.0 , "a":"\u0041" }`)},
		&protocol.EventFrame{FrameID: "urn:x:f7", Event: []byte(`{"sequence":1}`)},
		&protocol.Ack{
			FrameID: "urn:x:f8", SentAt: "2031-01-01T00:00:00.5Z",
			Acknowledgements: []protocol.Cursor{{GroupID: "urn:x:g1", Sequence: 7}},
		},
		&protocol.Ping{
			FrameID: "urn:x:f9", Nonce: frameNonce, ReplyToNonce: "cGluZw", SentAt: "2031-01-01T00:00:00Z",
			Presence: &protocol.PresenceRecord{
				AgentID: "urn:x:agent:weaver", SessionEpoch: 3, Status: "busy",
				Capacity:            protocol.PresenceCapacity{MaxSlots: 4, ActiveSlots: 1, AvailableSlots: 3},
				EstimatedResponseMs: &response, CapabilityAvailability: []protocol.CapabilityAvailability{},
				LastHeartbeat: "2031-01-01T00:00:00Z", ExpiresAt: "2031-01-01T00:01:00Z",
			},
		},
		&protocol.ErrorFrame{
			FrameID: "urn:x:f10",
			Error: func() *protocol.Error {
				e := protocol.NewError(protocol.CodeRevisionConflict, "").
					WithRevision(4, 5).WithGroup("urn:x:g1").WithRelated("urn:x:f6", "urn:x:action:1")
				e.OccurredAt = "2031-01-01T00:00:00.000000Z"
				return e
			}(),
		},
	}
}

func TestFramesEncodeValidAndReadBackEqual(t *testing.T) {
	seen := map[protocol.FrameType]bool{}
	for _, frame := range allFrames() {
		t.Run(frame.ID(), func(t *testing.T) {
			seen[frame.Type()] = true
			b, err := protocol.AppendFrame(nil, frame)
			if err != nil {
				t.Fatal(err)
			}
			got, refusal := protocol.ParseFrame(b)
			if refusal != nil {
				t.Fatalf("ParseFrame(%s): %v", b, refusal)
			}
			if diff := cmp.Diff(frame, got); diff != "" {
				t.Error(diff)
			}
			if nested := frame.Type() == protocol.FrameCommand || frame.Type() == protocol.FrameEvent; nested {
				return
			}
			if _, err := protocol.ValidateBytes(protocol.KindWebSocketFrame, b); err != nil {
				t.Errorf("%s: %v", b, err)
			}
			canonical, err := strictjson.Canonicalize(b)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(canonical, b) {
				t.Errorf("frame is not canonical:\n%s\n%s", b, canonical)
			}
		})
	}
	if len(seen) != 7 {
		t.Errorf("%d frame types covered, want 7", len(seen))
	}
}

func TestEventFrameCarriesTheStoredBytesUnread(t *testing.T) {
	event := []byte("{\"not\" : \"canonical\", \"n\":1e2}")
	b, err := protocol.AppendEventFrame([]byte("x"), "urn:x:f", event)
	if err != nil {
		t.Fatal(err)
	}
	want := `x{"event":` + string(event) + `,"frameId":"urn:x:f","frameType":"EVENT","protocolVersion":"0.1"}`
	if string(b) != want {
		t.Errorf("got %s", b)
	}
}

// A Command's faults are the Command's: the frame around it is read and the
// bytes come back as they were sent.
func TestParseFramePreservesNestedCommandBytes(t *testing.T) {
	nested := []string{
		`{}`,
		"{ \"z\" : [ 1 , 2.50e0 ],\n\t\"a\" : \"\\u00e9 } ] \\\" \" }",
		`{"a":1,"a":2}`,
		`{"a":"\ud800"}`,
		`{"n":1e400}`,
		`{"a":01}`,
		`{"open":[}]`,
		`[]`,
		`{"command":{"command":{}}}`,
		`{"a":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`,
		"{\"bad\":\"\xff\"}",
	}
	frames := []string{
		`{"protocolVersion":"0.1","frameId":"urn:x:f","frameType":"COMMAND","command":%}`,
		" {\n\"command\" :\t% , \"frameType\":\"COMMAND\",\"frameId\":\"urn:x:f\",\"protocolVersion\":\"0.1\"}\r\n",
	}
	for _, command := range nested {
		for _, frame := range frames {
			got, refusal := protocol.ParseFrame([]byte(strings.Replace(frame, "%", command, 1)))
			if refusal != nil {
				t.Errorf("%s: %v", command, refusal)
				continue
			}
			f, ok := got.(*protocol.CommandFrame)
			if !ok || string(f.Command) != command || f.FrameID != "urn:x:f" {
				t.Errorf("%s: got %#v", command, got)
			}
		}
	}
}

func TestParseFrameRefusals(t *testing.T) {
	hello := func(s string) string {
		return `{"frameType":"HELLO","phase":"client_init","frameId":"urn:x:f","agentId":"urn:x:a",` +
			`"keyId":"urn:x:k","clientNonce":"bm9uY2U",` + s + `}`
	}
	tests := map[string]struct {
		frame   string
		code    protocol.Code
		path    string
		frameID string
	}{
		"not JSON":                {`{"frameType":`, protocol.CodeProtocolViolation, "", ""},
		"empty":                   {``, protocol.CodeProtocolViolation, "", ""},
		"two values":              {`{}{}`, protocol.CodeProtocolViolation, "", ""},
		"byte-order mark":         {"\ufeff{}", protocol.CodeProtocolViolation, "", ""},
		"repeated member":         {`{"frameType":"PING","frameType":"PING"}`, protocol.CodeProtocolViolation, "", ""},
		"command twice":           {`{"command":{},"command":{}}`, protocol.CodeProtocolViolation, "", ""},
		"command twice, escaped":  {`{"command":{},"c\u006fmmand":{}}`, protocol.CodeProtocolViolation, "", ""},
		"unclosed command":        {`{"command":{"a":"}`, protocol.CodeProtocolViolation, "", ""},
		"command brackets open":   {`{"command":{"a":[}}`, protocol.CodeProtocolViolation, "", ""},
		"array":                   {`[]`, protocol.CodeSchemaValidationFailed, "", ""},
		"no frame type":           {`{"frameId":"urn:x:f"}`, protocol.CodeSchemaValidationFailed, "/frameType", "urn:x:f"},
		"streaming frame":         {`{"frameType":"DELTA","frameId":"urn:x:f"}`, protocol.CodeSchemaValidationFailed, "/frameType", "urn:x:f"},
		"bad frame id not echoed": {`{"frameType":"DELTA","frameId":"no uri"}`, protocol.CodeSchemaValidationFailed, "/frameType", ""},
		"unknown phase":           {`{"frameType":"HELLO","phase":"x"}`, protocol.CodeSchemaValidationFailed, "/phase", ""},
		"command and event": {
			`{"protocolVersion":"0.1","frameId":"urn:x:f","frameType":"COMMAND","command":{},"event":{}}`,
			protocol.CodeSchemaValidationFailed, "/event", "urn:x:f",
		},
		"missing command": {
			`{"protocolVersion":"0.1","frameId":"urn:x:f","frameType":"COMMAND"}`,
			protocol.CodeSchemaValidationFailed, "/command", "urn:x:f",
		},
		"other protocol version": {hello(`"protocolVersion":"0.2","supportedVersions":["0.1"]`), protocol.CodeUnsupportedVersion, "", "urn:x:f"},
		"no common version":      {hello(`"protocolVersion":"0.1","supportedVersions":["0.2"]`), protocol.CodeUnsupportedVersion, "", "urn:x:f"},
		"ours among others":      {hello(`"protocolVersion":"0.1","supportedVersions":["0.1","0.2"]`), protocol.CodeSchemaValidationFailed, "/supportedVersions/1", "urn:x:f"},
		"versions repeated":      {hello(`"protocolVersion":"0.1","supportedVersions":["0.1","0.1"]`), protocol.CodeSchemaValidationFailed, "/supportedVersions/1", "urn:x:f"},
		"no versions member":     {hello(`"protocolVersion":"0.1"`), protocol.CodeSchemaValidationFailed, "/supportedVersions", "urn:x:f"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, refusal := protocol.ParseFrame([]byte(tt.frame))
			if refusal == nil {
				t.Fatalf("accepted as %#v", got)
			}
			if refusal.Code != tt.code || refusal.RelatedFrameID != tt.frameID {
				t.Errorf("got %s for frame %q (%v)", refusal.Code, refusal.RelatedFrameID, refusal)
			}
			if path, _ := refusal.Details["path"].(string); path != tt.path {
				t.Errorf("path %q, want %q", path, tt.path)
			}
		})
	}
}

// The nested bytes are what a strict reader of the whole frame would see,
// whenever such a reader accepts the frame.
func FuzzParseFrame(f *testing.F) {
	for _, frame := range allFrames() {
		b, err := protocol.AppendFrame(nil, frame)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(`{"command":{"a":[}]},"event":{}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		frame, refusal := protocol.ParseFrame(b)
		if (frame == nil) == (refusal == nil) {
			t.Fatal("neither or both of frame and refusal")
		}
		doc, err := strictjson.Parse(b)
		if err != nil || refusal != nil {
			return
		}
		switch f := frame.(type) {
		case *protocol.CommandFrame:
			if want := doc.Root().Member("command").Raw(); !bytes.Equal(f.Command, want) {
				t.Errorf("command %q, want %q", f.Command, want)
			}
		case *protocol.EventFrame:
			if want := doc.Root().Member("event").Raw(); !bytes.Equal(f.Event, want) {
				t.Errorf("event %q, want %q", f.Event, want)
			}
		default:
			again, err := protocol.AppendFrame(nil, frame)
			if err != nil {
				t.Fatal(err)
			}
			if _, refusal := protocol.ParseFrame(again); refusal != nil {
				t.Errorf("re-encoded frame refused: %v\n%s", refusal, again)
			}
		}
	})
}
