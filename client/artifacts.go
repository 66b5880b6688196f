package client

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
)

// Hash is the protocol's spelling of a content hash.
func Hash(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// PutArtifact stores content for a Group and returns its hash. Storing the
// same content again changes nothing.
func (c *Client) PutArtifact(ctx context.Context, groupID string, content []byte) (string, error) {
	hash := Hash(content)
	_, err := c.authorized(ctx, call{
		method: http.MethodPut, url: c.artifactURL(groupID, hash),
		contentType: "application/octet-stream", body: content,
	})
	return hash, err
}

// GetArtifact reads content through a Group and checks it against its hash.
func (c *Client) GetArtifact(ctx context.Context, groupID, hash string) ([]byte, error) {
	a, err := c.authorized(ctx, call{method: http.MethodGet, url: c.artifactURL(groupID, hash)})
	if err != nil {
		return nil, err
	}
	if got := Hash(a.body); got != hash {
		return nil, fmt.Errorf("client: the content is %s, not %s", got, hash)
	}
	return bytes.Clone(a.body), nil
}

// Export reads the audit bundle of a Group, which mw verify checks without the
// server. It is for the MissionOwner and for services that archive.
func (c *Client) Export(ctx context.Context, groupID string) ([]byte, error) {
	a, err := c.authorized(ctx, call{method: http.MethodGet, url: c.opt.AuthorityURL + Path("v1", "groups", groupID, "export")})
	if err != nil {
		return nil, err
	}
	return a.body, nil
}

func (c *Client) artifactURL(groupID, hash string) string {
	return c.opt.AuthorityURL + Path("v1", "artifacts", hash) + "?" + url.Values{"groupId": {groupID}}.Encode()
}

// errNoURL is returned by calls to a service whose URL was not configured.
var errNoURL = errors.New("client: the URL of this service is not configured")
