package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
)

// ExportGroup writes the audit bundle of a Group to w as it arrives. A bundle that
// was broken off is an error, and would not verify either.
func (c *Client) ExportGroup(ctx context.Context, groupID string, w io.Writer) error {
	token, err := c.AccessToken(ctx)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.opt.Endpoints.AuthorityURL+Path("v1", "groups", groupID, "export"), nil)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	stream := *c.http
	stream.Timeout = 0 // a large Group takes its time; ctx bounds it
	res, err := stream.Do(req)
	if err != nil {
		return &unreachable{err}
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode >= 400 {
		body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
		if err != nil {
			return &unreachable{err}
		}
		return refusal(res, body)
	}
	if _, err := io.Copy(w, res.Body); err != nil {
		return fmt.Errorf("client: the export broke off: %w", err)
	}
	return nil
}
