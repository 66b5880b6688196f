package mcpbridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/missionweave/server/client"
)

// scheme begins the URI of every resource. Ids in it are percent-encoded.
const scheme = "missionweave://"

func (b *Bridge) addResources(s *mcp.Server) {
	fixed := func(name, description string, f func(ctx context.Context) (any, error)) {
		s.AddResource(&mcp.Resource{
			URI: scheme + name, Name: name, Description: description, MIMEType: "application/json",
		}, b.reader(0, func(ctx context.Context, _ []string) (any, error) { return f(ctx) }))
	}
	fixed("offers", "WorkItems that are offered to this Agent now", func(context.Context) (any, error) { return b.all(offered), nil })
	fixed("work", "WorkItems that this Agent owns", func(context.Context) (any, error) { return b.all(owned), nil })
	fixed("leases", "Leases of this Agent", func(context.Context) (any, error) { return b.leases(), nil })
	fixed("submissions", "WorkItems that were handed in", func(context.Context) (any, error) { return b.all(submitted), nil })
	fixed("missions", "Missions of this Agent", func(ctx context.Context) (any, error) { return b.missions(ctx, none{}) })
	fixed("conversations", "Conversations of this Agent's Groups", func(context.Context) (any, error) { return b.rooms(), nil })
	fixed("artifacts", "Artifacts published on WorkItems that this Agent can see", func(context.Context) (any, error) { return b.artifacts(), nil })
	s.AddResourceTemplate(&mcp.ResourceTemplate{
		URITemplate: scheme + "work/{+workItemId}", Name: "workItem", Description: "A WorkItem with its Work Contract", MIMEType: "application/json",
	}, b.reader(1, func(ctx context.Context, ids []string) (any, error) { return b.get(ctx, aboutWork{ids[0]}) }))
	s.AddResourceTemplate(&mcp.ResourceTemplate{
		URITemplate: scheme + "conversations/{+groupId}/{+conversationId}", Name: "conversation",
		Description: "Messages of a Conversation", MIMEType: "application/json",
	}, b.reader(2, func(ctx context.Context, ids []string) (any, error) { return b.conversation(ctx, ids[0], ids[1]) }))
	s.AddResourceTemplate(&mcp.ResourceTemplate{
		URITemplate: scheme + "artifacts/{+groupId}/{+hash}", Name: "artifact", Description: "Content of an Artifact",
	}, b.artifact)
}

// reader serves JSON for a URI that ends in n ids.
func (b *Bridge) reader(n int, f func(context.Context, []string) (any, error)) mcp.ResourceHandler {
	return func(ctx context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
		ids, err := idsOf(r.Params.URI, n)
		if err != nil {
			return nil, err
		}
		v, err := f(ctx, ids)
		if err != nil {
			return nil, hidden(r.Params.URI, err)
		}
		text, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			return nil, fmt.Errorf("mcp: %w", err)
		}
		return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{URI: r.Params.URI, MIMEType: "application/json", Text: string(text)}}}, nil
	}
}

func (b *Bridge) artifact(ctx context.Context, r *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	ids, err := idsOf(r.Params.URI, 2)
	if err != nil {
		return nil, err
	}
	data, err := b.c.GetArtifact(ctx, ids[0], ids[1])
	if err != nil {
		return nil, hidden(r.Params.URI, err)
	}
	c := &mcp.ResourceContents{URI: r.Params.URI, MIMEType: "application/octet-stream"}
	if utf8.Valid(data) {
		c.MIMEType, c.Text = "text/plain", string(data)
	} else {
		c.Blob = data
	}
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{c}}, nil
}

// idsOf takes the n ids at the end of a resource's URI.
func idsOf(uri string, n int) ([]string, error) {
	parts := strings.Split(strings.TrimPrefix(uri, scheme), "/")
	if len(parts) != n+1 {
		return nil, mcp.ResourceNotFoundError(uri)
	}
	ids := make([]string, 0, n)
	for _, p := range parts[1:] {
		id, err := url.PathUnescape(p)
		if err != nil || id == "" {
			return nil, mcp.ResourceNotFoundError(uri)
		}
		ids = append(ids, id)
	}
	return ids, nil
}

// hidden answers for what may not be read like for what does not exist.
func hidden(uri string, err error) error {
	switch client.CodeOf(err) {
	case "GROUP_NOT_FOUND", "MEMBERSHIP_REQUIRED", "INVALID_COMMAND":
		return mcp.ResourceNotFoundError(uri)
	}
	if errors.Is(err, errNoWork) || errors.Is(err, errNoGroup) {
		return mcp.ResourceNotFoundError(uri)
	}
	return explain(err)
}
