package protocol

import (
	_ "embed"
	"fmt"
	"sync"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Code is the code of a protocol error. It is itself an error so that callers
// can ask errors.Is(err, protocol.CodeRevisionConflict).
type Code string

// Error gives the code as it stands on the wire.
func (c Code) Error() string { return string(c) }

// The error codes of PROTOCOL.md 19. errors.json says what each discloses.
const (
	CodeUnsupportedVersion       Code = "UNSUPPORTED_VERSION"
	CodeAuthRequired             Code = "AUTH_REQUIRED"
	CodeAuthInvalidSignature     Code = "AUTH_INVALID_SIGNATURE"
	CodeAuthStaleSession         Code = "AUTH_STALE_SESSION"
	CodeAuthStaleCoordinator     Code = "AUTH_STALE_COORDINATOR"
	CodeAuthForbidden            Code = "AUTH_FORBIDDEN"
	CodeGroupNotFound            Code = "GROUP_NOT_FOUND"
	CodeMembershipRequired       Code = "MEMBERSHIP_REQUIRED"
	CodeMembershipStale          Code = "MEMBERSHIP_STALE"
	CodeSchemaValidationFailed   Code = "SCHEMA_VALIDATION_FAILED"
	CodeInvalidCommand           Code = "INVALID_COMMAND"
	CodeInvalidStateTransition   Code = "INVALID_STATE_TRANSITION"
	CodeRevisionConflict         Code = "REVISION_CONFLICT"
	CodeActionIDCollision        Code = "ACTION_ID_COLLISION"
	CodeUnknownCriticalExtension Code = "UNKNOWN_CRITICAL_EXTENSION"
	CodeWorkContractIncomplete   Code = "WORK_CONTRACT_INCOMPLETE"
	CodeWorkOfferExpired         Code = "WORK_OFFER_EXPIRED"
	CodeWorkAlreadyOwned         Code = "WORK_ALREADY_OWNED"
	CodeWorkLeaseExpired         Code = "WORK_LEASE_EXPIRED"
	CodeWorkStaleOwnership       Code = "WORK_STALE_OWNERSHIP"
	CodeApprovalRequired         Code = "APPROVAL_REQUIRED"
	CodeBudgetExceeded           Code = "BUDGET_EXCEEDED"
	CodeRateLimited              Code = "RATE_LIMITED"
	CodeBackpressure             Code = "BACKPRESSURE"
	CodeCursorTooOld             Code = "CURSOR_TOO_OLD"
	CodeProtocolViolation        Code = "PROTOCOL_VIOLATION"
	CodeInternalError            Code = "INTERNAL_ERROR"
)

// Retry says whether the identical signed bytes may be sent again and may
// succeed without anyone acting (COMMANDS.md 9).
type Retry string

// RetryAfter means: retryable exactly when a delay is named (retryAfterMs).
const (
	RetryNo    Retry = "no"
	RetryYes   Retry = "yes"
	RetryAfter Retry = "after"
)

// CodeInfo is one row of the error registry, errors.json.
type CodeInfo struct {
	Code      Code   `json:"code"`
	HTTP      int    `json:"http"`
	Retryable Retry  `json:"retryable"`
	Message   string `json:"message"`
	// Reason says whether details.reason may name the reason token.
	Reason bool `json:"reason"`
	// Details lists the other members that details may have.
	Details []string `json:"details"`
	// Close lists the WebSocket close codes that may follow the error as
	// fatal; empty when the code is never fatal (COMMANDS.md 8).
	Close []int `json:"close"`
}

//go:embed errors.json
var errorsJSON []byte

var errorRegistry = sync.OnceValue(func() map[Code]CodeInfo {
	doc, err := strictjson.Parse(errorsJSON)
	if err != nil {
		panic(fmt.Sprintf("protocol: errors.json: %v", err))
	}
	table := map[Code]CodeInfo{}
	for _, row := range doc.Root().Items() {
		var info CodeInfo
		if err := strictjson.Decode(row, &info); err != nil {
			panic(fmt.Sprintf("protocol: errors.json: %v", err))
		}
		table[info.Code] = info
	}
	return table
})

// Codes lists every error code in the order of the registry.
func Codes() []Code {
	return []Code{
		CodeUnsupportedVersion,
		CodeAuthRequired,
		CodeAuthInvalidSignature,
		CodeAuthStaleSession,
		CodeAuthStaleCoordinator,
		CodeAuthForbidden,
		CodeGroupNotFound,
		CodeMembershipRequired,
		CodeMembershipStale,
		CodeSchemaValidationFailed,
		CodeInvalidCommand,
		CodeInvalidStateTransition,
		CodeRevisionConflict,
		CodeActionIDCollision,
		CodeUnknownCriticalExtension,
		CodeWorkContractIncomplete,
		CodeWorkOfferExpired,
		CodeWorkAlreadyOwned,
		CodeWorkLeaseExpired,
		CodeWorkStaleOwnership,
		CodeApprovalRequired,
		CodeBudgetExceeded,
		CodeRateLimited,
		CodeBackpressure,
		CodeCursorTooOld,
		CodeProtocolViolation,
		CodeInternalError,
	}
}

// codeNames are the codes as strings, for the error shape.
func codeNames() (names []string) {
	for _, code := range Codes() {
		names = append(names, string(code))
	}
	return names
}

// InfoOf returns the registry row of a code; ok is false for an unknown one.
func InfoOf(code Code) (info CodeInfo, ok bool) {
	info, ok = errorRegistry()[code]
	return info, ok
}
