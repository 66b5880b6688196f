package strictjson

import "strconv"

// Reasons of a SyntaxError. They are fixed texts: input never reaches an error.
const (
	ReasonEmpty      = "no JSON value"
	ReasonTruncated  = "input ends inside a value"
	ReasonBOM        = "byte-order mark"
	ReasonTrailing   = "data after the value"
	ReasonUTF8       = "invalid UTF-8"
	ReasonDuplicate  = "duplicate member name"
	ReasonDepth      = "nesting beyond the limit"
	ReasonControl    = "control character in a string"
	ReasonEscape     = "invalid escape sequence"
	ReasonNumber     = "invalid number"
	ReasonLiteral    = "invalid literal"
	ReasonUnexpected = "unexpected byte"
	ReasonTooLarge   = "input too large"
)

// SyntaxError is a stage-1 failure: the bytes are not exactly one strict JSON
// value. Offset is the byte at which the reader gave up, for a duplicate the
// opening quote of the later name.
type SyntaxError struct {
	Offset int
	Reason string
}

func (e *SyntaxError) Error() string {
	return "strictjson: " + e.Reason + " at byte " + strconv.Itoa(e.Offset)
}

// Reasons of a CanonicalError.
const (
	ReasonNonFinite = "number outside binary64"
	ReasonSurrogate = "unpaired surrogate"
	ReasonText      = "string is not valid UTF-8"
	ReasonUnsafe    = "integer outside the safe range"
	ReasonMissing   = "no value"
)

// CanonicalError is a stage-5 failure: the value is JSON but has no place in
// the RFC 8785 data model.
type CanonicalError struct {
	Reason string
}

func (e *CanonicalError) Error() string { return "strictjson: " + e.Reason }

// DecodeError says that a value does not fit the Go type it is decoded into.
// Path is a JSON Pointer made of member names of the type and of array
// indexes; a member of a map shows as *, because its name is input. Cause is
// what a DecodeJSON returned; it is for errors.Is and not part of the text.
type DecodeError struct {
	Path   string
	Reason string
	Cause  error
}

func (e *DecodeError) Unwrap() error { return e.Cause }

func (e *DecodeError) Error() string {
	if e.Path == "" {
		return "strictjson: decode: " + e.Reason
	}
	return "strictjson: decode " + e.Path + ": " + e.Reason
}

// TypeError says that a Go type has no JSON form here. It is a programming
// fault, found the first time the type is used.
type TypeError struct {
	Type   string
	Reason string
}

func (e *TypeError) Error() string { return "strictjson: type " + e.Type + ": " + e.Reason }
