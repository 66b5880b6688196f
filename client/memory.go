package client

import (
	"context"
	"net/http"
	"net/url"
)

// Remembered is a value of a Group's memory with where it came from. Whoever uses
// it names RecordID in the provenance of what it makes of it.
type Remembered struct {
	Key             string   `json:"key"`
	Value           Raw      `json:"value"`
	RecordID        string   `json:"recordId"`
	TrustLevel      string   `json:"trustLevel"`
	Tainted         bool     `json:"tainted"`
	SessionsCrossed []string `json:"sessionsCrossed"`
}

// Remember writes a value into a Group's memory. A write_memory Action with the
// parameters key and value and the same provenance allows it.
func (s *Session) Remember(ctx context.Context, groupID, key string, value any, provenance []string) (*Remembered, error) {
	out := new(Remembered)
	body := map[string]any{"groupId": groupID, "key": key, "value": value, "provenance": provenance}
	if err := s.PostAuthz(ctx, "/v1/memory", body, out); err != nil {
		return nil, err
	}
	return out, nil
}

// Recall reads a value from a Group's memory.
func (s *Session) Recall(ctx context.Context, groupID, key string) (*Remembered, error) {
	if s.c.opt.AuthzURL == "" {
		return nil, errNoURL
	}
	target := s.c.opt.AuthzURL + Path("v1", "memory", key) + "?" + url.Values{"groupId": {groupID}}.Encode()
	a, err := s.c.repeat(ctx, func() (*answer, error) {
		return s.c.do(ctx, call{method: http.MethodGet, url: target, bearer: s.Token()})
	})
	if err != nil {
		return nil, err
	}
	out := new(Remembered)
	if err := decode(a.body, out); err != nil {
		return nil, err
	}
	return out, nil
}

// GetAuthz reads from the Authorization Service with an access token.
func (c *Client) GetAuthz(ctx context.Context, path string, query url.Values, dst any) error {
	if c.opt.AuthzURL == "" {
		return errNoURL
	}
	return c.get(ctx, c.opt.AuthzURL, path, query, dst)
}
