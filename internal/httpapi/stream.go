package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/missionweave/server/internal/delivery"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// writeWithin bounds one write to a stream: a reader that takes longer is gone,
// and comes back with Last-Event-ID if it is not.
const writeWithin = 30 * time.Second

// busyRecheck is how old the last look at the credential may be when Events are
// sent.
const busyRecheck = time.Second

// stream sends a Group's Events as Server-Sent Events until the client, the
// credential, the Membership or the server ends.
func (a *API) stream(c *httpkit.Call) error {
	after, err := startOf(c)
	if err != nil {
		return err
	}
	attention, err := attentionOf(c.Query)
	if err != nil {
		return err
	}
	groupID, err := c.ParamID("groupId")
	if err != nil {
		return err //nolint:wrapcheck // a refusal
	}
	ctx, cancel := context.WithCancel(c.R.Context())
	defer cancel()
	feed, refusal := delivery.Open(ctx, a.source, delivery.Request{
		Reader: c.Caller.Principal, GroupID: groupID, After: after, Attention: attention,
	})
	if refusal != nil {
		if refusal.Code == protocol.CodeGroupNotFound {
			refusal.GroupID = "" // only answers to frames repeat it (COMMANDS.md 9)
		}
		return refusal
	}
	defer feed.Close()

	h := c.W.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store, no-transform")
	h.Set("X-Accel-Buffering", "no")
	c.W.WriteHeader(http.StatusOK)
	out := &sse{control: http.NewResponseController(c.W), w: c.W}
	if out.comment("open") != nil {
		return nil
	}

	pages := make(chan delivery.Page)
	go func() {
		defer close(pages)
		for {
			page, err := feed.Next(ctx)
			if err != nil {
				return
			}
			select {
			case pages <- page:
			case <-ctx.Done():
				return
			}
		}
	}()
	a.pump(ctx, c, out, pages)
	cancel()
	for range pages { // until the goroutine that reads the Feed has ended
	}
	return nil
}

// pump writes what comes until something ends.
func (a *API) pump(ctx context.Context, c *httpkit.Call, out *sse, pages <-chan delivery.Page) {
	heartbeat := time.NewTicker(a.Heartbeat)
	defer heartbeat.Stop()
	recheck := time.NewTicker(a.Recheck)
	defer recheck.Stop()
	expiry := time.NewTimer(c.Caller.ExpiresAt.Sub(a.Now()))
	defer expiry.Stop()
	checked := a.Now()
	check := func() bool {
		checked = a.Now()
		refusal := a.Sessions.Check(ctx, c.Caller)
		if refusal == nil || refusal.Code == protocol.CodeInternalError {
			return true
		}
		out.end(refusal.At(a.Now()))
		return false
	}
	for {
		// An expired credential gets nothing more, however much is waiting.
		if !a.Now().Before(c.Caller.ExpiresAt) {
			out.end(protocol.NewError(protocol.CodeAuthRequired, "expired").At(a.Now()))
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-a.draining:
			return
		case <-expiry.C:
		case <-heartbeat.C:
			if out.comment("heartbeat") != nil {
				return
			}
		case <-recheck.C:
			if !check() {
				return
			}
		case page, ok := <-pages:
			// A busy stream of a session that was replaced must not run on until the
			// next look.
			if ok && a.Now().Sub(checked) > busyRecheck && !check() {
				return
			}
			if !ok || out.page(page) != nil {
				return
			}
			if page.End != nil {
				out.end(page.End.At(a.Now()))
				return
			}
		}
	}
}

// startOf is the position to begin after: Last-Event-ID of a client that comes
// back, else the query parameter.
func startOf(c *httpkit.Call) (int64, error) {
	after, err := c.Query.Sequence("after", 0)
	if err != nil {
		return 0, err //nolint:wrapcheck // a refusal
	}
	last := c.R.Header.Values("Last-Event-ID")
	if len(last) == 0 || last[0] == "" {
		return after, nil
	}
	resumed, err := httpkit.Query{"after": last[0]}.Sequence("after", 0)
	if err != nil || len(last) > 1 {
		return 0, httpkit.SchemaError("/Last-Event-ID", "format")
	}
	return max(after, resumed), nil
}

var attentionQuery = []string{"eventKinds", "conversationIds", "workItemIds", "mentionsOnly", "announcements"}

// attentionOf reads an attention filter (COMMANDS.md 8.6) from query parameters:
// lists are separated by commas, an empty one matches nothing.
func attentionOf(q httpkit.Query) (*protocol.Attention, error) {
	var a protocol.Attention
	var sent bool
	for name, list := range map[string]struct {
		into *[]string
		item *shape.Shape
	}{
		"eventKinds":      {&a.EventKinds, protocol.ShapeKind},
		"conversationIds": {&a.ConversationIDs, protocol.ShapeID},
		"workItemIds":     {&a.WorkItemIDs, protocol.ShapeID},
	} {
		text, ok := q[name]
		if !ok {
			continue
		}
		sent = true
		*list.into = []string{}
		if text == "" {
			continue
		}
		for _, item := range strings.Split(text, ",") {
			if !accepts(list.item, item) {
				return nil, httpkit.SchemaError("/"+name, "format")
			}
			*list.into = append(*list.into, item)
		}
	}
	for name, into := range map[string]*bool{"mentionsOnly": &a.MentionsOnly, "announcements": &a.Announcements} {
		word, ok, err := q.OneOf(name, "true", "false")
		if err != nil {
			return nil, err //nolint:wrapcheck // a refusal
		}
		sent, *into = sent || ok, word == "true"
	}
	if !sent {
		return nil, nil //nolint:nilnil // no filter
	}
	return &a, nil
}

func accepts(s *shape.Shape, text string) bool {
	b, err := strictjson.Marshal(text)
	if err != nil {
		return false
	}
	doc, err := strictjson.Parse(b)
	return err == nil && s.Accepts(doc.Root())
}

// sse writes Server-Sent Events.
type sse struct {
	w       http.ResponseWriter
	control *http.ResponseController
	buffer  []byte
}

func (s *sse) flush() error {
	// Not every ResponseWriter has deadlines (tests); the write then has no bound.
	_ = s.control.SetWriteDeadline(time.Now().Add(writeWithin))
	if _, err := s.w.Write(s.buffer); err != nil {
		return fmt.Errorf("httpapi: stream: %w", err)
	}
	s.buffer = s.buffer[:0]
	if err := s.control.Flush(); err != nil {
		return fmt.Errorf("httpapi: stream: %w", err)
	}
	return nil
}

func (s *sse) comment(text string) error {
	s.buffer = append(append(append(s.buffer, ": "...), text...), "\n\n"...)
	return s.flush()
}

// page writes Events in the bytes that were signed; canonical JSON has no line
// breaks. An id without data moves Last-Event-ID over what was left out.
func (s *sse) page(page delivery.Page) error {
	for i := range page.Events {
		s.event(&page.Events[i])
	}
	if page.Withheld && (len(page.Events) == 0 || page.Events[len(page.Events)-1].Sequence < page.Through) {
		s.buffer = append(strconv.AppendInt(append(s.buffer, "id: "...), page.Through, 10), "\n\n"...)
	}
	if len(s.buffer) == 0 {
		return nil
	}
	return s.flush()
}

func (s *sse) event(e *events.StoredEvent) {
	s.buffer = append(strconv.AppendInt(append(s.buffer, "id: "...), e.Sequence, 10), "\nevent: "...)
	s.buffer = append(append(s.buffer, e.Kind...), "\ndata: "...)
	s.buffer = append(append(s.buffer, e.Document...), "\n\n"...)
}

// end says why the stream ends. Nobody can be told when that fails.
func (s *sse) end(refusal *protocol.Error) {
	object, err := strictjson.Marshal(refusal)
	if err != nil {
		return
	}
	s.buffer = append(append(append(s.buffer, "event: error\ndata: "...), object...), "\n\n"...)
	_ = s.flush()
}
