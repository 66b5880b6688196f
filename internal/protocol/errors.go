package protocol

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Error is a refusal: the error object of the protocol (error.schema) and, in
// the members marked so, what only the server's audit may see.
//
// Only what the registry allows for the code reaches the wire. A reason or a
// detail that the code does not disclose stays in the struct for the audit
// record and is left out by AppendJSON; so a handler can always say what it
// knows, and cannot leak by saying it.
type Error struct {
	Code                 Code
	Retryable            bool
	Fatal                bool
	RelatedFrameID       string
	RelatedActionID      string
	GroupID              string
	ExpectedRevision     *int64
	CurrentRevision      *int64
	RetryAfterMs         *int64
	SnapshotArtifactHash string
	Details              map[string]any
	// OccurredAt is set by the transport that sends the error.
	OccurredAt string

	// Reason is the token behind details.reason. Off the wire unless the code
	// discloses reasons.
	Reason string
	// Step is the pipeline step that refused, P1 to P25 (audit only).
	Step string
	// Stage is the semantic stage of a failed verification, "1" to "6" or
	// "admission" (audit only).
	Stage string
	// Cause is the internal error behind the refusal (audit only).
	Cause error
	// Close is the WebSocket close code that follows a fatal error (transport
	// only).
	Close int
	// Status overrides the registry's HTTP status when not 0 (transport only).
	Status int
}

// NewError makes a fresh refusal with the registry's retryability. reason is a
// token of lower-case letters, digits and underscores, or "".
// An unknown code becomes INTERNAL_ERROR.
func NewError(code Code, reason string) *Error {
	info, ok := InfoOf(code)
	if !ok {
		return &Error{
			Code:      CodeInternalError,
			Retryable: true,
			Reason:    "unknown_code",
			Cause:     fmt.Errorf("protocol: no error code %q", string(code)),
		}
	}
	return &Error{Code: code, Reason: reason, Retryable: info.Retryable == RetryYes}
}

// Internal wraps an unexpected failure as INTERNAL_ERROR; nothing of cause is
// disclosed.
func Internal(cause error) *Error {
	return NewError(CodeInternalError, "").WithCause(cause)
}

// WithRevision sets expectedRevision and currentRevision.
func (e *Error) WithRevision(expected, current int64) *Error {
	e.ExpectedRevision, e.CurrentRevision = &expected, &current
	return e
}

// WithDetail adds a member to details. It travels only if the registry lists
// it for the code. v is anything strictjson.Marshal takes.
func (e *Error) WithDetail(name string, v any) *Error {
	if e.Details == nil {
		e.Details = map[string]any{}
	}
	e.Details[name] = v
	return e
}

// WithGroup names the Group. Callers set it only where the reader may know the
// Group, or sent its id themselves (SUBSCRIBE, ACK).
func (e *Error) WithGroup(groupID string) *Error {
	e.GroupID = groupID
	return e
}

// WithRetryAfter names a delay in milliseconds and makes the error retryable
// if its code can be.
func (e *Error) WithRetryAfter(ms int64) *Error {
	e.RetryAfterMs = &ms
	if info, ok := InfoOf(e.Code); ok && info.Retryable != RetryNo {
		e.Retryable = true
	}
	return e
}

// WithRelated names the frame and the Command that the error answers; an empty
// string leaves the member out.
func (e *Error) WithRelated(frameID, actionID string) *Error {
	e.RelatedFrameID, e.RelatedActionID = frameID, actionID
	return e
}

// WithSnapshot names the snapshot Artifact of CURSOR_TOO_OLD.
func (e *Error) WithSnapshot(hash string) *Error {
	e.SnapshotArtifactHash = hash
	return e
}

// WithStep records the pipeline step, for the audit.
func (e *Error) WithStep(step string) *Error {
	e.Step = step
	return e
}

// WithStage records the verification stage, for the audit.
func (e *Error) WithStage(stage string) *Error {
	e.Stage = stage
	return e
}

// WithCause records the internal error behind the refusal, for the audit.
func (e *Error) WithCause(cause error) *Error {
	e.Cause = cause
	return e
}

// WithHTTPStatus overrides the HTTP status, for refusals that no code fits
// (unknown route, media type, size).
func (e *Error) WithHTTPStatus(status int) *Error {
	e.Status = status
	return e
}

// AsFatal marks an error after which the connection closes with closeCode.
func (e *Error) AsFatal(closeCode int) *Error {
	e.Fatal, e.Close = true, closeCode
	return e
}

// At returns a copy with occurredAt set, in the form of Event times.
func (e *Error) At(now time.Time) *Error {
	c := *e
	c.OccurredAt = lexical.FormatMicros(now)
	return &c
}

// HTTPStatus is the status of COMMANDS.md section 9, or the override.
func (e *Error) HTTPStatus() int {
	if e.Status != 0 {
		return e.Status
	}
	if info, ok := InfoOf(e.Code); ok {
		return info.HTTP
	}
	return 500
}

// Message is the fixed text of the code, with the reason token where the code
// discloses it. It never contains input.
func (e *Error) Message() string {
	info, ok := InfoOf(e.Code)
	if !ok {
		info, _ = InfoOf(CodeInternalError)
	}
	if info.Reason && isReasonToken(e.Reason) {
		return info.Message + " [" + e.Reason + "]"
	}
	return info.Message
}

// Error says code and reason; it is for logs, not for peers.
func (e *Error) Error() string {
	s := string(e.Code)
	if e.Reason != "" {
		s += ":" + e.Reason
	}
	if e.Step != "" {
		s += " at " + e.Step
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap gives the internal cause.
func (e *Error) Unwrap() error { return e.Cause }

// Is reports whether target is this error's Code, or an *Error of the same
// code whose reason is empty or the same.
func (e *Error) Is(target error) bool {
	switch t := target.(type) {
	case Code:
		return t == e.Code
	case *Error:
		return t.Code == e.Code && (t.Reason == "" || t.Reason == e.Reason)
	}
	return false
}

// wireError has the members of error.schema.
type wireError struct {
	Code                 Code           `json:"code"`
	Message              string         `json:"message"`
	Retryable            bool           `json:"retryable"`
	Fatal                *bool          `json:"fatal,omitempty"`
	RelatedFrameID       string         `json:"relatedFrameId,omitempty"`
	RelatedActionID      string         `json:"relatedActionId,omitempty"`
	GroupID              string         `json:"groupId,omitempty"`
	ExpectedRevision     *int64         `json:"expectedRevision,omitempty"`
	CurrentRevision      *int64         `json:"currentRevision,omitempty"`
	RetryAfterMs         *int64         `json:"retryAfterMs,omitempty"`
	SnapshotArtifactHash string         `json:"snapshotArtifactHash,omitempty"`
	Details              map[string]any `json:"details,omitempty"`
	OccurredAt           string         `json:"occurredAt"`
}

// AppendJSON writes the error object of error.schema as JCS bytes. The error
// must have OccurredAt; see At.
func (e *Error) AppendJSON(dst []byte) ([]byte, error) {
	fatal := e.Fatal
	return strictjson.AppendMarshal(dst, wireError{
		Code:                 e.Code,
		Message:              e.Message(),
		Retryable:            e.Retryable,
		Fatal:                &fatal,
		RelatedFrameID:       e.RelatedFrameID,
		RelatedActionID:      e.RelatedActionID,
		GroupID:              e.GroupID,
		ExpectedRevision:     e.ExpectedRevision,
		CurrentRevision:      e.CurrentRevision,
		RetryAfterMs:         e.RetryAfterMs,
		SnapshotArtifactHash: e.SnapshotArtifactHash,
		Details:              e.disclosed(),
		OccurredAt:           e.OccurredAt,
	})
}

// MarshalJSON is AppendJSON for callers of encoding/json.
func (e *Error) MarshalJSON() ([]byte, error) { return e.AppendJSON(nil) }

// DecodeJSON reads an error object that a peer sent; it must already have
// passed the error shape.
func (e *Error) DecodeJSON(v strictjson.Value) error {
	var w struct {
		Code                 Code   `json:"code"`
		Retryable            bool   `json:"retryable"`
		Fatal                bool   `json:"fatal"`
		RelatedFrameID       string `json:"relatedFrameId"`
		RelatedActionID      string `json:"relatedActionId"`
		GroupID              string `json:"groupId"`
		ExpectedRevision     *int64 `json:"expectedRevision"`
		CurrentRevision      *int64 `json:"currentRevision"`
		RetryAfterMs         *int64 `json:"retryAfterMs"`
		SnapshotArtifactHash string `json:"snapshotArtifactHash"`
		OccurredAt           string `json:"occurredAt"`
	}
	if err := strictjson.Decode(v, &w); err != nil {
		return err
	}
	*e = Error{
		Code: w.Code, Retryable: w.Retryable, Fatal: w.Fatal,
		RelatedFrameID: w.RelatedFrameID, RelatedActionID: w.RelatedActionID,
		GroupID: w.GroupID, ExpectedRevision: w.ExpectedRevision,
		CurrentRevision: w.CurrentRevision, RetryAfterMs: w.RetryAfterMs,
		SnapshotArtifactHash: w.SnapshotArtifactHash, OccurredAt: w.OccurredAt,
	}
	details, ok := v.Get("details")
	if !ok {
		return nil
	}
	for name, member := range details.Members() {
		if name == "reason" && member.Kind() == strictjson.String {
			e.Reason = member.Str()
			continue
		}
		raw, err := member.AppendJCS(nil)
		if err != nil {
			return err
		}
		e.WithDetail(name, Raw(raw))
	}
	return nil
}

// disclosed filters details by the registry row of the code.
func (e *Error) disclosed() map[string]any {
	info, ok := InfoOf(e.Code)
	if !ok {
		return nil
	}
	out := maps.Clone(e.Details)
	maps.DeleteFunc(out, func(name string, _ any) bool {
		return !slices.Contains(info.Details, name)
	})
	if info.Reason && isReasonToken(e.Reason) {
		if out == nil {
			out = map[string]any{}
		}
		out["reason"] = e.Reason
	}
	return out
}

// isReasonToken guards the wire: a reason with any other character could be a
// piece of input.
func isReasonToken(s string) bool {
	if s == "" || len(s) > 64 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' {
			return false
		}
	}
	return true
}
