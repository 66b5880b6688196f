package httpkit

import (
	"errors"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/go-chi/chi/v5"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/shape"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/sessions"
)

// Call is one request on its way through a Handler.
type Call struct {
	W http.ResponseWriter
	R *http.Request
	// Caller is set on routes that need a bearer credential.
	Caller sessions.Identity
	// Query holds the declared query parameters that were sent.
	Query Query
	// Peer is the address that rate limits and audit records name.
	Peer      string
	RequestID string

	base        string
	router      *Router
	pattern     string
	contentType string
	maxBody     int64
}

// Param returns a path parameter, unescaped once. Its escaping is refused with
// SCHEMA_VALIDATION_FAILED where it is broken.
func (c *Call) Param(name string) (string, error) {
	value, err := url.PathUnescape(chi.URLParam(c.R, name))
	if err != nil || !isText(value) {
		return "", badValue(name, "format")
	}
	return value, nil
}

// ParamID is Param for an id: anything else is SCHEMA_VALIDATION_FAILED.
func (c *Call) ParamID(name string) (string, error) {
	value, err := c.Param(name)
	if err != nil {
		return "", err
	}
	if !lexical.ValidID(value) {
		return "", badValue(name, "format")
	}
	return value, nil
}

// AllowBody sets the body limit of this call, for callers that may send more
// than others.
func (c *Call) AllowBody(limit int64) { c.maxBody = limit }

// LimitBody replaces the route's bound of the body, in bytes, for this call.
func (c *Call) LimitBody(n int64) { c.maxBody = n }

// Body reads the whole request body. Errors: 415 for another media type or a
// content coding, 413 past the limit (PROTOCOL_VIOLATION each), 408 for a
// sender that was too slow or went away.
func (c *Call) Body() ([]byte, error) {
	if err := c.checkMediaType(); err != nil {
		return nil, err
	}
	if c.maxBody > 0 && c.R.ContentLength > c.maxBody {
		return nil, Problem(http.StatusRequestEntityTooLarge, "body_too_large")
	}
	body := c.R.Body
	if c.maxBody > 0 {
		body = http.MaxBytesReader(c.W, c.R.Body, c.maxBody)
	}
	b, err := io.ReadAll(body)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, Problem(http.StatusRequestEntityTooLarge, "body_too_large")
	case err != nil:
		return nil, Problem(http.StatusRequestTimeout, "body_incomplete").WithCause(err)
	}
	return b, nil
}

func (c *Call) checkMediaType() error {
	if c.contentType == "*" {
		return nil
	}
	got, params, err := mime.ParseMediaType(c.R.Header.Get("Content-Type"))
	charset, hasCharset := params["charset"]
	if err != nil || got != c.contentType || hasCharset && !strings.EqualFold(charset, "utf-8") {
		return Problem(http.StatusUnsupportedMediaType, "content_type")
	}
	if coding := c.R.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		return Problem(http.StatusUnsupportedMediaType, "content_encoding")
	}
	return nil
}

// JSON reads the body and holds it against a shape: PROTOCOL_VIOLATION where it
// is not one strict JSON value or has no canonical form, SCHEMA_VALIDATION_FAILED where it is another
// one than asked for.
func (c *Call) JSON(s *shape.Shape) (*strictjson.Document, error) {
	body, err := c.Body()
	if err != nil {
		return nil, err
	}
	return ParseJSON(body, s)
}

// ParseJSON is Call.JSON for bytes that were read already.
func ParseJSON(body []byte, s *shape.Shape) (*strictjson.Document, error) {
	doc, err := strictjson.Parse(body)
	if err != nil {
		return nil, protocol.NewError(protocol.CodeProtocolViolation, "json").WithCause(err)
	}
	if fault := s.Check(doc.Root()); fault != nil {
		return nil, protocol.FaultError(fault)
	}
	// What has no canonical form (a lone surrogate, a number beyond binary64) can
	// be neither hashed nor stored, wherever in the body it stands.
	if _, err := doc.Root().AppendJCS(nil); err != nil {
		return nil, protocol.NewError(protocol.CodeProtocolViolation, "canonical_form").WithCause(err)
	}
	return doc, nil
}

// Send answers with a JSON document: the bytes as they are.
func (c *Call) Send(status int, document []byte) error {
	return c.SendAs(status, "application/json", document)
}

// SendAs answers with bytes of a media type.
func (c *Call) SendAs(status int, contentType string, body []byte) error {
	h := c.W.Header()
	h.Set("Content-Type", contentType)
	if h.Get("Cache-Control") == "" {
		h.Set("Cache-Control", "no-store")
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.W.WriteHeader(status)
	if c.R.Method == http.MethodHead {
		return nil
	}
	// The status is out; a client that went away cannot be told anything.
	_, _ = c.W.Write(body)
	return nil
}

// SendValue answers with v encoded as canonical JSON.
func (c *Call) SendValue(status int, v any) error {
	b, err := strictjson.Marshal(v)
	if err != nil {
		return err
	}
	return c.Send(status, b)
}

// SendList answers {items, next?}. Items are documents as they are stored; next
// is the cursor of the following page, "" on the last one.
func (c *Call) SendList(items [][]byte, next string) error {
	size := len(`{"items":[],"next":""}`) + len(next)
	for _, item := range items {
		size += len(item) + 1
	}
	b := append(make([]byte, 0, size), `{"items":[`...)
	for i, item := range items {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, item...)
	}
	b = append(b, ']')
	if next != "" {
		b = append(b, `,"next":`...)
		b = strconv.AppendQuote(b, next)
	}
	return c.Send(http.StatusOK, append(b, '}'))
}
