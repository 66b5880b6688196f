package httpapi

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/views"
)

// listEvents answers with a page of signed Events. next is the last sequence
// that was looked at, a number; a page without next is at the head.
func (a *API) listEvents(c *httpkit.Call) error {
	after, err := c.Query.Sequence("after", 0)
	if err != nil {
		return err //nolint:wrapcheck // a refusal
	}
	limit, err := c.Query.Int("limit", httpkit.DefaultLimit, 1, httpkit.MaxLimit)
	if err != nil {
		return err //nolint:wrapcheck // a refusal
	}
	access, err := a.enter(c)
	if err != nil {
		return err
	}
	visible, next, err := a.eventPage(c, access, max(after, access.From-1), int(limit))
	if err != nil {
		return err
	}
	body := append(make([]byte, 0, 1024*len(visible)+64), `{"items":[`...)
	for i, e := range visible {
		if i > 0 {
			body = append(body, ',')
		}
		body = append(body, e.Document...)
	}
	body = append(body, ']')
	if next > 0 {
		body = strconv.AppendInt(append(body, `,"next":`...), next, 10)
	}
	return c.Send(http.StatusOK, append(body, '}'))
}

// eventPage reads on past Events that the reader may not see, so that only a
// page at the head is empty.
func (a *API) eventPage(c *httpkit.Call, access *views.Access, after int64, limit int) (visible []events.StoredEvent, next int64, err error) {
	if after < access.Trimmed {
		return nil, 0, a.Views.CursorTooOld(c.R.Context(), access)
	}
	for {
		page, err := a.Store.ReadEvents(c.R.Context(), access.GroupID, after, limit)
		if errors.Is(err, events.ErrTrimmed) {
			return nil, 0, a.Views.CursorTooOld(c.R.Context(), access)
		}
		if err != nil {
			return nil, 0, err //nolint:wrapcheck // becomes INTERNAL_ERROR as it is
		}
		if len(page) == 0 {
			return nil, next, nil
		}
		after = page[len(page)-1].Sequence
		next = after
		if visible, err = a.Views.Visible(c.R.Context(), access, page); err != nil || len(visible) > 0 {
			return visible, next, internal(err)
		}
	}
}

var shapeCursor = shape.Object(shape.Req("sequence", protocol.ShapeSafeInteger))

type cursor struct {
	Sequence int64 `json:"sequence"`
	Head     int64 `json:"head"`
}

func (a *API) getCursor(c *httpkit.Call) error {
	access, err := a.enter(c)
	if err != nil {
		return err
	}
	sequence, head, err := a.Store.Cursor(c.R.Context(), access.GroupID, c.Caller.Principal)
	if err != nil {
		return err //nolint:wrapcheck // becomes INTERNAL_ERROR as it is
	}
	return c.SendValue(http.StatusOK, cursor{sequence, head})
}

func (a *API) putCursor(c *httpkit.Call) error {
	doc, err := c.JSON(shapeCursor)
	if err != nil {
		return err //nolint:wrapcheck // a refusal
	}
	var asked struct {
		Sequence int64 `json:"sequence"`
	}
	if err := strictjson.Decode(doc.Root(), &asked); err != nil {
		return err //nolint:wrapcheck // cannot happen after the shape
	}
	access, err := a.enter(c)
	if err != nil {
		return err
	}
	sequence, err := a.Store.SetCursor(c.R.Context(), access.GroupID, c.Caller.Principal, asked.Sequence)
	switch {
	case errors.Is(err, events.ErrPastHead):
		return protocol.NewError(protocol.CodeProtocolViolation, "past_the_head").WithGroup(access.GroupID)
	case err != nil:
		return err //nolint:wrapcheck // becomes INTERNAL_ERROR as it is
	}
	return c.SendValue(http.StatusOK, cursor{sequence, max(access.Head, sequence)})
}
