package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// maxEventLine bounds one Event in the stream.
const maxEventLine = 8 << 20

// Follow reads a Group's Events after a sequence as they are committed and
// hands each over once, in order, to handle. It comes back after every broken
// connection at the Event after the last one handed over; what the log shows
// but the stream left out is read before anything after it. It ends with ctx,
// with the first error of handle, or with whatever waiting does not help
// against (such as the end of the Membership, or a server that is none).
func (c *Client) Follow(ctx context.Context, groupID string, after int64, handle func(Delivery) error) error {
	s := &stream{c: c, groupID: groupID, after: after, handle: handle, seen: newRecent()}
	for attempt := 0; ; attempt++ {
		before := s.after
		err := c.followOnce(ctx, s)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if s.err != nil {
			return s.err
		}
		asked, ok := again(err)
		if !ok && CodeOf(err) != "AUTH_REQUIRED" {
			return err
		}
		if s.after > before {
			attempt = 0
		}
		c.opt.Log.DebugContext(ctx, "following again", "group", groupID, "after", s.after, "because", err)
		if err := sleep(ctx, max(asked, c.opt.Retry.wait(attempt))); err != nil {
			return err
		}
	}
}

// stream is the position of one Follow.
type stream struct {
	c       *Client
	groupID string
	after   int64
	handle  func(Delivery) error
	seen    *recent
	err     error // of handle: ends Follow
}

func (c *Client) followOnce(ctx context.Context, s *stream) error {
	token, err := c.AccessToken(ctx)
	if err != nil {
		return err
	}
	target := c.opt.AuthorityURL + Path("v1", "groups", s.groupID, "events", "stream") + "?" +
		url.Values{"after": {strconv.FormatInt(s.after, 10)}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "text/event-stream")
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := c.http.Do(req)
	if err != nil {
		return &unreachable{err}
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		body, err := io.ReadAll(io.LimitReader(res.Body, maxEventLine))
		if err != nil {
			return &unreachable{err}
		}
		err = refusal(res, body)
		if CodeOf(err) == "AUTH_REQUIRED" {
			c.dropAccess(token)
		}
		return err
	}
	return s.read(ctx, res.Body)
}

// read takes Server-Sent Events until the stream ends. Comments are heartbeats;
// an id without data passes over what was left out on purpose.
func (s *stream) read(ctx context.Context, body io.Reader) error {
	lines := bufio.NewScanner(body)
	lines.Buffer(make([]byte, 64<<10), maxEventLine)
	var kind, id string
	var data []byte
	for lines.Scan() {
		line := lines.Bytes()
		if len(line) == 0 {
			if data != nil {
				if err := s.take(ctx, kind, data); err != nil {
					return err
				}
			} else if passed, err := strconv.ParseInt(id, 10, 64); err == nil {
				s.after = max(s.after, passed)
			}
			kind, id, data = "", "", nil
			continue
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(name) {
		case "event":
			kind = string(value)
		case "id":
			id = string(value)
		case "data":
			data = bytes.Clone(value)
		}
	}
	if err := lines.Err(); err != nil {
		return &unreachable{err}
	}
	return &unreachable{io.ErrUnexpectedEOF}
}

func (s *stream) take(ctx context.Context, kind string, data []byte) error {
	if kind == "error" {
		e, err := readError(data)
		if err != nil {
			return fmt.Errorf("client: an error without its object: %w", err)
		}
		return e
	}
	doc, err := strictjson.Parse(data)
	if err != nil {
		return fmt.Errorf("client: not an Event: %w", err)
	}
	d, err := delivery(doc.Root())
	if err != nil {
		return err
	}
	if d.Event.Sequence <= s.after {
		return s.seen.repeated(d.Event.Sequence, d.Event.EventID)
	}
	if err := s.fill(ctx, d.Event.Sequence); err != nil {
		return err
	}
	return s.hand(d)
}

// fill reads what the log shows before a sequence and the stream did not bring.
func (s *stream) fill(ctx context.Context, before int64) error {
	for position := s.after; position+1 < before; {
		page, next, err := s.c.Events(ctx, s.groupID, position, int(min(before-position-1, 500)))
		if err != nil {
			return err
		}
		for _, d := range page {
			if d.Event.Sequence >= before {
				return nil
			}
			if err := s.hand(d); err != nil {
				return err
			}
		}
		if len(page) == 0 || next <= position {
			return nil
		}
		position = next
	}
	return nil
}

func (s *stream) hand(d Delivery) error {
	if err := s.handle(d); err != nil {
		s.err = err
		return err
	}
	s.seen.add(d.Event.Sequence, d.Event.EventID)
	s.after = d.Event.Sequence
	return nil
}

// ErrStop may be returned by the handler of Follow to end it on purpose.
var ErrStop = errors.New("client: stop following")
