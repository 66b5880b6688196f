package protocol

import (
	"fmt"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// ParseFrame reads one WebSocket text message. Every error means that the
// frame's own structure is at fault (COMMANDS.md 8.12 counts those): what is
// inside a nested Command or Event is left to its verification, so its bytes
// come back exactly as sent, faulty or not. An error has relatedFrameId when
// the frame's id could be read.
//
// Codes: PROTOCOL_VIOLATION for what is not one strict JSON value,
// UNSUPPORTED_VERSION for a HELLO of another version (tested before the
// structure, COMMANDS.md 8.2), SCHEMA_VALIDATION_FAILED otherwise.
func ParseFrame(b []byte) (Frame, *Error) {
	outer, nested := b, []byte(nil)
	if start, end, ok := findNested(b); ok {
		nested = b[start:end:end]
		outer = make([]byte, 0, len(b)-len(nested)+2)
		outer = append(append(append(outer, b[:start]...), "{}"...), b[end:]...)
	}
	doc, err := strictjson.Parse(outer)
	if err != nil {
		return nil, NewError(CodeProtocolViolation, "").WithCause(err)
	}
	v := doc.Root()
	if refusal := frameVersion(v); refusal != nil {
		return nil, refusal.WithRelated(frameID(v), "")
	}
	if f := shapeOuterFrame.Check(v); f != nil {
		return nil, FaultError(f).WithRelated(frameID(v), "")
	}
	frame := newFrame(v)
	switch f := frame.(type) {
	case *CommandFrame:
		f.FrameID = frameID(v)
		if f.Command = nested; nested == nil {
			f.Command = v.Member("command").Raw()
		}
	case *EventFrame:
		f.FrameID = frameID(v)
		if f.Event = nested; nested == nil {
			f.Event = v.Member("event").Raw()
		}
	default:
		if err := strictjson.Decode(v, frame); err != nil {
			return nil, Internal(err).WithRelated(frameID(v), "")
		}
	}
	return frame, nil
}

// frameID is the frameId if it is fit to be repeated, else "".
func frameID(v strictjson.Value) string {
	if id, ok := v.Get("frameId"); ok && ShapeID.Accepts(id) {
		return id.Str()
	}
	return ""
}

// frameVersion refuses a HELLO that offers no version of ours.
func frameVersion(v strictjson.Value) *Error {
	if v.Member("frameType").Str() != string(FrameHello) {
		return nil
	}
	version := v.Member("protocolVersion")
	ours := version.Kind() != strictjson.String || version.Str() == Version
	if offered := v.Member("supportedVersions"); ours && offered.Kind() == strictjson.Array {
		ours = false
		for _, item := range offered.Items() {
			ours = ours || item.Str() == Version
		}
	}
	if ours {
		return nil
	}
	return NewError(CodeUnsupportedVersion, "").WithDetail("supportedVersions", []string{Version})
}

// newFrame makes the empty frame for a value that passed the frame shape.
func newFrame(v strictjson.Value) Frame {
	switch FrameType(v.Member("frameType").Str()) {
	case FrameSubscribe:
		return &Subscribe{}
	case FrameCommand:
		return &CommandFrame{}
	case FrameEvent:
		return &EventFrame{}
	case FrameAck:
		return &Ack{}
	case FramePing:
		return &Ping{}
	case FrameError:
		return &ErrorFrame{}
	}
	switch v.Member("phase").Str() {
	case PhaseClientInit:
		return &HelloClientInit{}
	case PhaseServerChallenge:
		return &HelloServerChallenge{}
	case PhaseClientResponse:
		return &HelloClientResponse{}
	}
	return &HelloServerAccept{}
}

// findNested gives the span of the container that is the value of the frame's
// own member command or event. It looks at brackets and quotes only, so it
// finds the span whatever is wrong inside; ok is false when there is no such
// member or the brackets do not close.
func findNested(b []byte) (start, end int, ok bool) {
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '{' {
		return 0, 0, false
	}
	for i++; ; i++ {
		i = skipSpace(b, i)
		if i >= len(b) || b[i] != '"' {
			return 0, 0, false
		}
		name := i
		if i = skipString(b, i); i < 0 {
			return 0, 0, false
		}
		key := string(b[name:i])
		if i = skipSpace(b, i); i >= len(b) || b[i] != ':' {
			return 0, 0, false
		}
		start = skipSpace(b, i+1)
		if end = skipValue(b, start); end < 0 {
			return 0, 0, false
		}
		container := b[start] == '{' || b[start] == '['
		if container && (key == `"command"` || key == `"event"`) {
			return start, end, true
		}
		if i = skipSpace(b, end); i >= len(b) || b[i] != ',' {
			return 0, 0, false
		}
	}
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// skipString returns the index after the string that opens at i, or -1.
func skipString(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '"':
			return i + 1
		case '\\':
			i++
		}
	}
	return -1
}

// skipValue returns the index after the value that begins at i, or -1.
func skipValue(b []byte, i int) int {
	for depth := 0; i < len(b); i++ {
		switch b[i] {
		case '"':
			if i = skipString(b, i); i < 0 {
				return -1
			}
			if depth == 0 {
				return i
			}
			i--
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth < 0 {
				return i
			}
			if depth == 0 {
				return i + 1
			}
		case ',', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return i
			}
		}
	}
	return -1
}

type frameHead struct {
	ProtocolVersion string    `json:"protocolVersion"`
	FrameType       FrameType `json:"frameType"`
}

type helloHead struct {
	ProtocolVersion string    `json:"protocolVersion"`
	FrameType       FrameType `json:"frameType"`
	Phase           string    `json:"phase"`
}

// AppendFrame writes a frame as canonical JSON. A nested Command or Event is
// written as the bytes it has.
func AppendFrame(dst []byte, frame Frame) ([]byte, error) {
	head := frameHead{Version, frame.Type()}
	hello := func(phase string) helloHead { return helloHead{Version, FrameHello, phase} }
	switch f := frame.(type) {
	case *CommandFrame:
		return appendNested(dst, "command", f.Command, f.FrameID, FrameCommand)
	case *EventFrame:
		return AppendEventFrame(dst, f.FrameID, f.Event)
	case *HelloClientInit:
		return strictjson.AppendMarshal(dst, &struct {
			helloHead
			HelloClientInit
		}{hello(PhaseClientInit), *f})
	case *HelloServerChallenge:
		return strictjson.AppendMarshal(dst, &struct {
			helloHead
			HelloServerChallenge
		}{hello(PhaseServerChallenge), *f})
	case *HelloClientResponse:
		return strictjson.AppendMarshal(dst, &struct {
			helloHead
			HelloClientResponse
		}{hello(PhaseClientResponse), *f})
	case *HelloServerAccept:
		return strictjson.AppendMarshal(dst, &struct {
			helloHead
			HelloServerAccept
		}{hello(PhaseServerAccept), *f})
	case *Subscribe:
		return strictjson.AppendMarshal(dst, &struct {
			frameHead
			Subscribe
		}{head, *f})
	case *Ack:
		return strictjson.AppendMarshal(dst, &struct {
			frameHead
			Ack
		}{head, *f})
	case *Ping:
		return strictjson.AppendMarshal(dst, &struct {
			frameHead
			Ping
		}{head, *f})
	case *ErrorFrame:
		return strictjson.AppendMarshal(dst, &struct {
			frameHead
			ErrorFrame
		}{head, *f})
	}
	return dst, fmt.Errorf("protocol: no frame type %T", frame)
}

// AppendEventFrame writes an EVENT frame around the stored bytes of an Event,
// which are neither read nor changed: they are the bytes that were signed.
func AppendEventFrame(dst []byte, frameID string, event []byte) ([]byte, error) {
	return appendNested(dst, "event", event, frameID, FrameEvent)
}

// appendNested relies on the names command and event coming before frameId in
// canonical order.
func appendNested(dst []byte, name string, nested []byte, frameID string, frameType FrameType) ([]byte, error) {
	n := len(dst)
	dst = append(append(append(dst, `{"`...), name...), `":`...)
	dst = append(dst, nested...)
	dst = append(dst, `,"frameId":`...)
	dst, err := strictjson.AppendString(dst, frameID)
	if err != nil {
		return dst[:n], err
	}
	dst = append(append(dst, `,"frameType":"`...), frameType...)
	return append(dst, `","protocolVersion":"`+Version+`"}`...), nil
}
