package mcpbridge

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Lines is an MCP transport of one JSON-RPC message a line, as on standard
// streams. Unlike the library's own it survives what is no message: a line that
// cannot be read is answered by a JSON-RPC error and the session goes on, because
// an agent that once wrote a bad line must not lose its work by it. At the end of
// the input it waits for the answers that are due.
type Lines struct {
	Reader io.ReadCloser
	Writer io.Writer
	// MaxLine bounds a line in bytes, default 16 MiB. A longer one is answered by an
	// error and skipped without being kept.
	MaxLine int
	// Grace is how long answers are waited for after the input has ended, default
	// 3 s.
	Grace time.Duration
}

// Connect starts reading.
func (l *Lines) Connect(context.Context) (mcp.Connection, error) {
	c := &lineConn{
		Lines: *l, lines: make(chan line), closed: make(chan struct{}), due: map[any]bool{}, settled: make(chan struct{}, 1),
	}
	if c.MaxLine == 0 {
		c.MaxLine = 16 << 20
	}
	if c.Grace == 0 {
		c.Grace = 3 * time.Second
	}
	go c.scan()
	return c, nil
}

// line is one line, or why there is none.
type line struct {
	text    []byte
	tooLong bool
	err     error
}

type lineConn struct {
	Lines
	lines   chan line
	closed  chan struct{}
	closing sync.Once

	writing sync.Mutex // one message at a time

	mu sync.Mutex
	// due are the ids of requests that were not answered yet.
	due     map[any]bool
	settled chan struct{} // capacity 1: something was answered
}

// SessionID is that of a transport with one session.
func (c *lineConn) SessionID() string { return "" }

// scan hands lines over until the input or the connection ends.
func (c *lineConn) scan() {
	in := bufio.NewReader(c.Reader)
	for {
		next := c.readLine(in)
		select {
		case c.lines <- next:
		case <-c.closed:
			return
		}
		if next.err != nil {
			return
		}
	}
}

// readLine reads one line; the rest of one that is too long is thrown away as it
// comes. The last line needs no newline.
func (c *lineConn) readLine(in *bufio.Reader) line {
	var out line
	for {
		part, err := in.ReadSlice('\n')
		switch {
		case out.tooLong:
		case len(out.text)+len(bytes.TrimRight(part, "\r\n")) > c.MaxLine:
			out.text, out.tooLong = nil, true
		default:
			out.text = append(out.text, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err == nil, errors.Is(err, io.EOF) && (len(out.text) > 0 || out.tooLong):
			return out // the end comes up again with the next line
		}
		return line{err: err}
	}
}

// Read returns the next message. What is no message it answers itself.
func (c *lineConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	for {
		var next line
		select {
		case <-ctx.Done():
			return nil, ctx.Err() //nolint:wrapcheck // the context's
		case <-c.closed:
			return nil, io.EOF
		case next = <-c.lines:
		}
		if next.err != nil {
			c.settle(ctx)
			return nil, next.err
		}
		msg, refused := c.parse(next)
		if refused == nil && msg == nil {
			continue // a blank line
		}
		if refused == nil {
			return msg, nil
		}
		if err := c.put(refused); err != nil {
			return nil, err
		}
	}
}

// settle waits for the answers that are due. The library drops them once it
// knows that the input has ended.
func (c *lineConn) settle(ctx context.Context) {
	limit := time.NewTimer(c.Grace)
	defer limit.Stop()
	for {
		c.mu.Lock()
		left := len(c.due)
		c.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-c.closed:
			return
		case <-limit.C:
			return
		case <-c.settled:
		}
	}
}

// wireError is a JSON-RPC error message of this transport.
type wireError struct {
	Version string           `json:"jsonrpc"`
	ID      *json.RawMessage `json:"id"` // null where the request's could not be read
	Error   jsonrpc.Error    `json:"error"`
}

func refuse(id json.RawMessage, code int64, format string, args ...any) *wireError {
	out := &wireError{Version: "2.0", Error: jsonrpc.Error{Code: code, Message: fmt.Sprintf(format, args...)}}
	if id != nil {
		out.ID = &id
	}
	return out
}

// parse reads a line as a JSON-RPC message: nil and nil for a blank one.
func (c *lineConn) parse(l line) (jsonrpc.Message, *wireError) {
	if l.tooLong {
		return nil, refuse(nil, jsonrpc.CodeInvalidRequest, "Invalid Request: the line is longer than %d bytes", c.MaxLine)
	}
	text := bytes.TrimSpace(l.text)
	if len(text) == 0 {
		return nil, nil
	}
	if !utf8.Valid(text) || !json.Valid(text) {
		return nil, refuse(nil, jsonrpc.CodeParseError, "Parse error: the line is not JSON in UTF-8; one message is one line")
	}
	var members map[string]json.RawMessage
	if text[0] == '[' {
		return nil, refuse(nil, jsonrpc.CodeInvalidRequest, "Invalid Request: batches are not part of MCP; send one message a line")
	}
	if text[0] != '{' || json.Unmarshal(text, &members) != nil {
		return nil, refuse(nil, jsonrpc.CodeInvalidRequest, "Invalid Request: the message is not an object")
	}
	id, key := members["id"], any(nil)
	if id != nil {
		var ok bool
		if key, ok = idOf(id); !ok {
			return nil, refuse(nil, jsonrpc.CodeInvalidRequest, "Invalid Request: id is neither a text nor a whole number")
		}
	}
	if string(members["jsonrpc"]) != `"2.0"` {
		return nil, refuse(id, jsonrpc.CodeInvalidRequest, `Invalid Request: jsonrpc is not "2.0"`)
	}
	if members["method"] == nil && (id == nil || (members["result"] == nil) == (members["error"] == nil)) {
		return nil, refuse(id, jsonrpc.CodeInvalidRequest, "Invalid Request: neither a request with a method nor an answer")
	}
	if p := members["params"]; p != nil && p[0] != '{' {
		return nil, refuse(id, jsonrpc.CodeInvalidRequest, "Invalid Request: params is not an object")
	}
	msg, err := jsonrpc.DecodeMessage(text)
	if err != nil {
		return nil, refuse(id, jsonrpc.CodeInvalidRequest, "Invalid Request: %v", err)
	}
	if _, request := msg.(*jsonrpc.Request); request && id != nil && !c.expect(key) {
		// Whose answer an answer with this id would be, nobody could tell.
		return nil, refuse(nil, jsonrpc.CodeInvalidRequest, "Invalid Request: a request with the id %s is not answered yet", id)
	}
	return msg, nil
}

// idOf reads an id as the library will: a text, or a number that it can keep
// exactly.
func idOf(raw json.RawMessage) (any, bool) {
	var v any
	if json.Unmarshal(raw, &v) != nil {
		return nil, false
	}
	switch v := v.(type) {
	case string:
		return v, true
	case float64:
		return int64(v), v == math.Trunc(v) && math.Abs(v) <= 1<<53-1
	}
	return nil, false
}

// expect notes that an answer is due; false when it is already.
func (c *lineConn) expect(id any) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.due[id] {
		return false
	}
	c.due[id] = true
	return true
}

// Write sends a message.
func (c *lineConn) Write(_ context.Context, msg jsonrpc.Message) error {
	text, err := jsonrpc.EncodeMessage(msg)
	if err != nil {
		return fmt.Errorf("mcp: %w", err)
	}
	err = c.send(text)
	if r, ok := msg.(*jsonrpc.Response); ok {
		c.mu.Lock()
		delete(c.due, r.ID.Raw())
		c.mu.Unlock()
		select {
		case c.settled <- struct{}{}:
		default:
		}
	}
	return err
}

func (c *lineConn) put(e *wireError) error {
	text, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("mcp: %w", err)
	}
	return c.send(text)
}

func (c *lineConn) send(text []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if _, err := c.Writer.Write(append(text, '\n')); err != nil {
		return fmt.Errorf("mcp: write: %w", err)
	}
	return nil
}

// Close ends the connection; a Read that waits returns.
func (c *lineConn) Close() error {
	err := error(nil)
	c.closing.Do(func() {
		close(c.closed)
		err = c.Reader.Close()
	})
	return err
}
