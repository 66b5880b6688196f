package protocol

import (
	"fmt"

	"github.com/missionweave/server/internal/protocol/shape"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Validate checks a complete document against the structure of its kind
// (verification stage 2) and returns the first fault, or nil. Formats are
// assertions: uri is an absolute RFC 3986 URI, date-time the base timestamp
// profile of PROTOCOL.md 2.
func Validate(kind DocumentKind, v strictjson.Value) *shape.Fault {
	return Shapes(kind).Check(v)
}

// ValidateBytes parses one document strictly and validates it. The error is a
// *strictjson.SyntaxError (stage 1) or a *shape.Fault (stage 2).
func ValidateBytes(kind DocumentKind, b []byte) (*strictjson.Document, error) {
	doc, err := strictjson.Parse(b)
	if err != nil {
		return nil, err
	}
	if f := Validate(kind, doc.Root()); f != nil {
		return nil, f
	}
	return doc, nil
}

// Shapes gives the shape of a document kind. It panics on a kind that is not
// one of DocumentKinds; KindOf tests text that came from outside.
func Shapes(kind DocumentKind) *shape.Shape {
	if s := documentShapes[kind]; s != nil {
		return s
	}
	panic(fmt.Sprintf("protocol: no document kind %q", string(kind)))
}

// KindOf reads a document kind; ok is false when there is no such kind.
func KindOf(name string) (kind DocumentKind, ok bool) {
	_, ok = documentShapes[DocumentKind(name)]
	return DocumentKind(name), ok
}

var documentShapes = map[DocumentKind]*shape.Shape{
	KindAgentCard:            ShapeAgentCard,
	KindApproval:             ShapeApproval,
	KindArtifact:             ShapeArtifact,
	KindCommand:              ShapeCommand,
	KindCommon:               shape.Any,
	KindContextPackage:       ShapeContextPackage,
	KindConversation:         ShapeConversation,
	KindError:                ShapeError,
	KindEvent:                ShapeEvent,
	KindEvidence:             ShapeEvidence,
	KindExtensionProfile:     ShapeExtensionProfile,
	KindFirstAdmissionRecord: ShapeFirstAdmissionRecord,
	KindGroup:                ShapeGroup,
	KindGroupSnapshot:        ShapeGroupSnapshot,
	KindLease:                ShapeLease,
	KindMembership:           ShapeMembership,
	KindMessage:              ShapeMessage,
	KindMission:              ShapeMission,
	KindPresenceRecord:       ShapePresenceRecord,
	KindWebSocketFrame:       ShapeWebSocketFrame,
	KindWorkContract:         ShapeWorkContract,
	KindWorkItem:             ShapeWorkItem,
}
