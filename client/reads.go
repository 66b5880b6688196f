package client

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Get reads one document or list of the Authority into dst. path begins with
// /v1/ and has its ids escaped (Path does that); query may be nil.
func (c *Client) Get(ctx context.Context, path string, query url.Values, dst any) error {
	return c.get(ctx, c.opt.AuthorityURL, path, query, dst)
}

func (c *Client) get(ctx context.Context, base, path string, query url.Values, dst any) error {
	target := base + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	a, err := c.authorized(ctx, call{method: http.MethodGet, url: target})
	if err != nil {
		return err
	}
	return decode(a.body, dst)
}

// Path joins path segments, escaping each; ids may contain any character.
func Path(segments ...string) string {
	out := ""
	for _, s := range segments {
		out += "/" + url.PathEscape(s)
	}
	return out
}

// Mission reads a Mission document.
func (c *Client) Mission(ctx context.Context, missionID string) (*Mission, error) {
	m := new(Mission)
	if err := c.Get(ctx, Path("v1", "missions", missionID), nil, m); err != nil {
		return nil, err
	}
	return m, nil
}

// Missions reads the Missions that the caller may see; state narrows them unless
// it is empty.
func (c *Client) Missions(ctx context.Context, state string) ([]Mission, error) {
	query := url.Values{}
	if state != "" {
		query.Set("state", state)
	}
	return list[Mission](ctx, c, c.opt.AuthorityURL, "/v1/missions", query)
}

// WorkItem reads a WorkItem document.
func (c *Client) WorkItem(ctx context.Context, groupID, workItemID string) (*WorkItem, error) {
	w := new(WorkItem)
	if err := c.Get(ctx, Path("v1", "groups", groupID, "work-items", workItemID), nil, w); err != nil {
		return nil, err
	}
	return w, nil
}

// Memberships reads every Membership of a Group.
func (c *Client) Memberships(ctx context.Context, groupID string) ([]Membership, error) {
	return list[Membership](ctx, c, c.opt.AuthorityURL, Path("v1", "groups", groupID, "memberships"), nil)
}

// WorkItems reads every WorkItem of a Group.
func (c *Client) WorkItems(ctx context.Context, groupID string) ([]WorkItem, error) {
	return list[WorkItem](ctx, c, c.opt.AuthorityURL, Path("v1", "groups", groupID, "work-items"), nil)
}

// Messages reads the Messages of a Conversation in the order they were committed,
// amendments included.
func (c *Client) Messages(ctx context.Context, groupID, conversationID string) ([]Message, error) {
	return list[Message](ctx, c, c.opt.AuthorityURL, Path("v1", "groups", groupID, "conversations", conversationID, "messages"), nil)
}

// list reads all pages of a list.
func list[T any](ctx context.Context, c *Client, base, path string, query url.Values) ([]T, error) {
	var all []T
	if query == nil {
		query = url.Values{}
	}
	query.Set("limit", "1000")
	for {
		var page struct {
			Items []T    `json:"items"`
			Next  string `json:"next"`
		}
		if err := c.get(ctx, base, path, query, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.Next == "" {
			return all, nil
		}
		query.Set("after", page.Next)
	}
}

// Delivery is one Event with the bytes that the Authority signed.
type Delivery struct {
	Event Event
	Bytes []byte
}

// Events reads one page of a Group's Events after a sequence. next is the last
// sequence of the page, or after when the page is empty: reading goes on there.
func (c *Client) Events(ctx context.Context, groupID string, after int64, limit int) (page []Delivery, next int64, err error) {
	query := url.Values{"after": {strconv.FormatInt(after, 10)}, "limit": {strconv.Itoa(limit)}}
	a, err := c.authorized(ctx, call{
		method: http.MethodGet,
		url:    c.opt.AuthorityURL + Path("v1", "groups", groupID, "events") + "?" + query.Encode(),
	})
	if err != nil {
		return nil, after, err
	}
	doc, err := strictjson.Parse(a.body)
	if err != nil {
		return nil, after, fmt.Errorf("client: the answer is not JSON: %w", err)
	}
	next = after
	if n, ok := doc.Root().Member("next").Int(); ok {
		next = n
	}
	for _, item := range doc.Root().Member("items").Items() {
		d, err := delivery(item)
		if err != nil {
			return nil, after, err
		}
		page = append(page, d)
	}
	return page, next, nil
}

func delivery(v strictjson.Value) (Delivery, error) {
	var e Event
	if err := strictjson.Decode(v, &e); err != nil {
		return Delivery{}, fmt.Errorf("client: not an Event: %w", err)
	}
	return Delivery{Event: e, Bytes: v.Raw()}, nil
}
