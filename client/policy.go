package client

import (
	"context"
	"fmt"
	"net/http"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// InstallManifest puts a World Manifest in force, for one Group or with an empty
// groupID for the Organization, and returns its version. The Client's Principal
// must be a policy service.
func (c *Client) InstallManifest(ctx context.Context, name, yaml, groupID string) (version string, err error) {
	body := map[string]any{"name": name, "format": "yaml", "manifest": yaml}
	if groupID != "" {
		body["groupId"] = groupID
	}
	var installed struct {
		Version string `json:"version"`
	}
	err = c.writeSignedTo(ctx, c.opt.AuthzURL, "/v1/manifests", body, &installed)
	return installed.Version, err
}

// SemanticEvent is what came in through a channel, as an Agent may see it: labels
// of the channel and cleaned text. RecordID names it in provenance.
type SemanticEvent struct {
	EventID          string `json:"eventId"`
	Source           string `json:"source"`
	TrustLevel       string `json:"trustLevel"`
	Tainted          bool   `json:"tainted"`
	SanitizedPayload string `json:"sanitizedPayload"`
	Provenance       struct {
		RecordID string `json:"recordId"`
	} `json:"provenance"`
}

// Input brings something into a Group through a channel of its World Manifest.
// Services may speak for trusted channels, Agents may not.
func (c *Client) Input(ctx context.Context, groupID, source, mediaType, payload string) (*SemanticEvent, error) {
	out := new(SemanticEvent)
	err := c.PostAuthz(ctx, "/v1/inputs", map[string]any{
		"groupId": groupID, "source": source, "mediaType": mediaType, "payload": payload,
	}, out)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// EvidenceRecord reads an evidence record as it was signed.
func (c *Client) EvidenceRecord(ctx context.Context, recordID string) (Raw, error) {
	if c.opt.AuthzURL == "" {
		return nil, errNoURL
	}
	a, err := c.authorized(ctx, call{method: http.MethodGet, url: c.opt.AuthzURL + Path("v1", "evidence", recordID)})
	if err != nil {
		return nil, err
	}
	return a.body, nil
}

// EvidenceVerdict is what the rules of evidence records say about one.
type EvidenceVerdict struct {
	Valid     bool   `json:"valid"`
	Signature string `json:"signature"`
	Errors    []struct {
		Code string `json:"code"`
	} `json:"errors"`
}

// VerifyEvidence has a record judged by all rules.
func (c *Client) VerifyEvidence(ctx context.Context, record Raw) (*EvidenceVerdict, error) {
	out := new(EvidenceVerdict)
	if err := c.PostAuthz(ctx, "/v1/evidence:verify", record, out); err != nil {
		return nil, err
	}
	return out, nil
}

// PostAuthz posts a JSON body to the Authorization Service with an access token.
func (c *Client) PostAuthz(ctx context.Context, path string, body, dst any) error {
	if c.opt.AuthzURL == "" {
		return errNoURL
	}
	b, err := strictjson.Marshal(body)
	if err != nil {
		return fmt.Errorf("client: encode the request: %w", err)
	}
	a, err := c.authorized(ctx, call{method: http.MethodPost, url: c.opt.AuthzURL + path, contentType: "application/json", body: b})
	if err != nil || dst == nil {
		return err
	}
	return decode(a.body, dst)
}
