package protocol

// DocumentKind names one of the 22 normative document schemas; the value is
// the schema's file name without its suffix, as documentKind of a
// First-Admission Record spells it.
type DocumentKind string

// The 22 document kinds (PROTOCOL.md 21). KindCommon has definitions only and
// no document of its own.
const (
	KindAgentCard            DocumentKind = "agent-card"
	KindApproval             DocumentKind = "approval"
	KindArtifact             DocumentKind = "artifact"
	KindCommand              DocumentKind = "command"
	KindCommon               DocumentKind = "common"
	KindContextPackage       DocumentKind = "context-package"
	KindConversation         DocumentKind = "conversation"
	KindError                DocumentKind = "error"
	KindEvent                DocumentKind = "event"
	KindEvidence             DocumentKind = "evidence"
	KindExtensionProfile     DocumentKind = "extension-profile"
	KindFirstAdmissionRecord DocumentKind = "first-admission-record"
	KindGroup                DocumentKind = "group"
	KindGroupSnapshot        DocumentKind = "group-snapshot"
	KindLease                DocumentKind = "lease"
	KindMembership           DocumentKind = "membership"
	KindMessage              DocumentKind = "message"
	KindMission              DocumentKind = "mission"
	KindPresenceRecord       DocumentKind = "presence-record"
	KindWebSocketFrame       DocumentKind = "websocket-frame"
	KindWorkContract         DocumentKind = "work-contract"
	KindWorkItem             DocumentKind = "work-item"
)

// DocumentKinds lists all 22 kinds in alphabetical order.
func DocumentKinds() []DocumentKind {
	return []DocumentKind{
		KindAgentCard, KindApproval, KindArtifact, KindCommand, KindCommon,
		KindContextPackage, KindConversation, KindError, KindEvent, KindEvidence,
		KindExtensionProfile, KindFirstAdmissionRecord, KindGroup, KindGroupSnapshot,
		KindLease, KindMembership, KindMessage, KindMission, KindPresenceRecord,
		KindWebSocketFrame, KindWorkContract, KindWorkItem,
	}
}
