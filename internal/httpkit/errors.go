package httpkit

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Problem is what API.md answers where no code fits: PROTOCOL_VIOLATION with
// the HTTP status that says it (404, 405, 408, 413, 415).
func Problem(status int, reason string) *protocol.Error {
	return protocol.NewError(protocol.CodeProtocolViolation, reason).WithHTTPStatus(status)
}

// NotFound is the one answer for what does not exist and for what the caller
// may not know of.
func NotFound() *protocol.Error { return Problem(http.StatusNotFound, "not_found") }

// SchemaError is SCHEMA_VALIDATION_FAILED at a JSON Pointer. It carries no
// values: path and keyword come from our own shapes.
func SchemaError(path, keyword string) *protocol.Error {
	return protocol.NewError(protocol.CodeSchemaValidationFailed, "").
		WithDetail("path", path).WithDetail("keyword", keyword)
}

// badValue refuses a path or query parameter that the route declares.
func badValue(name, keyword string) *protocol.Error { return SchemaError("/"+name, keyword) }

// Fail answers with the error object where a handler that was added with AddRaw
// refuses.
func (c *Call) Fail(err error) { c.router.fail(c, err) }

// fail writes the error object. It is the only place of a service that does.
func (rt *Router) fail(c *Call, err error) {
	var perr *protocol.Error
	if !errors.As(err, &perr) {
		perr = protocol.Internal(err)
	}
	status := perr.HTTPStatus()
	if status >= http.StatusInternalServerError && !errors.Is(perr.Cause, context.Canceled) {
		rt.opt.Log.ErrorContext(c.R.Context(), "request failed", "requestId", c.RequestID, "code", string(perr.Code), "err", perr.Cause)
	}
	if perr.RetryAfterMs != nil {
		c.W.Header().Set("Retry-After", strconv.FormatInt((*perr.RetryAfterMs+999)/1000, 10))
	}
	switch status {
	case http.StatusUnauthorized:
		c.W.Header().Set("WWW-Authenticate", "Bearer")
		rt.denied(c, perr)
	case http.StatusForbidden, http.StatusTooManyRequests:
		rt.denied(c, perr)
	}
	if perr.OccurredAt == "" {
		perr = perr.At(rt.opt.Now())
	}
	body, merr := strictjson.Marshal(perr)
	if merr != nil {
		rt.opt.Log.ErrorContext(c.R.Context(), "error object not encodable", "requestId", c.RequestID, "err", merr)
		status, body = http.StatusInternalServerError, nil
	}
	rt.drain(c)
	_ = c.Send(status, body)
}

// drainLimit is how much of a refused request's body is read and thrown away, in
// bytes.
const drainLimit = 8 << 20

// drain takes what the client still sends. net/http closes the connection on a
// body of which more than 256 KiB is left, and a client that is still writing
// then sees a reset in place of the refusal. Past the limit, or when the request's
// time is over, it stays so: a refusal must not cost without bound.
func (rt *Router) drain(c *Call) {
	// A client that waits for "100 Continue" has sent nothing yet.
	if c.R.ContentLength == 0 || c.R.Header.Get("Expect") != "" {
		return
	}
	_ = http.NewResponseController(c.W).SetReadDeadline(time.Now().Add(rt.opt.RequestTimeout))
	_, _ = io.CopyN(io.Discard, c.R.Body, drainLimit)
}

func (rt *Router) denied(c *Call, perr *protocol.Error) {
	if rt.opt.Denied != nil {
		rt.opt.Denied(c.Peer, perr)
	}
}
