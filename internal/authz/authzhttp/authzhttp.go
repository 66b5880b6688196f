// Package authzhttp serves the routes of the Authorization Service's tokens.
//
// The hazard it guards against is a token in the wrong place: answers that hold
// one are never cached, none is taken from a URL, and none is logged.
package authzhttp

import (
	"context"
	"encoding/json"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/missionweave/server/internal/authz"
	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/registry"
)

// maxBody bounds a request: ids, a list of operations and resources, or a token.
const maxBody = 64 << 10

// maxListed bounds the operations and the resources of a request.
const maxListed = 256

// Shapes of the two bodies (API.md, Bodies).
var (
	ShapeCapability = shape.Object(
		shape.Req("groupId", protocol.ShapeID),
		shape.Req("workItemId", protocol.ShapeID),
		shape.Req("ownershipEpoch", protocol.ShapePositiveInteger),
		shape.Req("executionLeaseId", protocol.ShapeID),
		shape.Req("operations", shape.Array(protocol.ShapeOperation).Min(1).Max(maxListed).Unique()),
		shape.Req("resources", shape.Array(protocol.ShapeID).Max(maxListed).Unique()),
		shape.Opt("budget", protocol.ShapeBudgetLimits),
		shape.Opt("ttlSeconds", shape.Int(1, 900)),
		shape.Opt("approvalId", protocol.ShapeID),
	)
	ShapeMembership = shape.Object(shape.Req("groupId", protocol.ShapeID))
	shapeToken      = shape.Object(
		shape.Req("token", shape.Text(maxBody)),
		shape.Opt("token_type_hint", shape.Text(64)),
	)
)

// Options are what the routes are made of. All are required.
type Options struct {
	Service   *authz.Service
	Directory *registry.Directory
	// Database reads the rotations of keys.
	Database authz.Querier
	Now      func() time.Time
}

// Routes are the token routes of the Authorization Service. Those of access tokens
// come from sessionshttp.
func Routes(o Options) []httpkit.Route {
	return []httpkit.Route{
		{
			Method: http.MethodPost, Pattern: "/v1/capability-tokens", MaxBodyBytes: maxBody,
			Handler: func(c *httpkit.Call) error {
				var r authz.CapabilityRequest
				if err := decode(c, ShapeCapability, &r); err != nil {
					return err
				}
				return granted(c)(o.Service.IssueCapability(c.R.Context(), c.Caller, r))
			},
		},
		{
			Method: http.MethodPost, Pattern: "/v1/membership-tokens", MaxBodyBytes: maxBody,
			Handler: func(c *httpkit.Call) error {
				var r authz.MembershipRequest
				if err := decode(c, ShapeMembership, &r); err != nil {
					return err
				}
				return granted(c)(o.Service.IssueMembership(c.R.Context(), c.Caller, r))
			},
		},
		{
			// RFC 7662 asks with a form; JSON is taken as everywhere else here.
			Method: http.MethodPost, Pattern: "/v1/introspect", MaxBodyBytes: maxBody, ContentType: "*",
			Handler: func(c *httpkit.Call) error {
				token, err := tokenOf(c)
				if err != nil {
					return err
				}
				answer, perr := o.Service.Introspect(c.R.Context(), c.Caller, token)
				if perr != nil {
					return perr
				}
				b, err := json.Marshal(answer)
				if err != nil {
					return err
				}
				return c.Send(http.StatusOK, b)
			},
		},
		{
			// RFC 7009.
			Method: http.MethodPost, Pattern: "/v1/revoke", MaxBodyBytes: maxBody, ContentType: "*",
			Handler: func(c *httpkit.Call) error {
				token, err := tokenOf(c)
				if err != nil {
					return err
				}
				if perr := o.Service.Revoke(c.R.Context(), c.Caller, token); perr != nil {
					return perr
				}
				return c.SendValue(http.StatusOK, struct{}{})
			},
		},
		{
			Method: http.MethodGet, Pattern: "/v1/revocations", Auth: httpkit.Public, Query: []string{"after", "limit"},
			Handler: func(c *httpkit.Call) error { return revocations(c, o.Service) },
		},
		JWKS(o.Directory, o.Database, o.Now),
	}
}

// JWKS is the route of the key set.
func JWKS(d *registry.Directory, q authz.Querier, now func() time.Time) httpkit.Route {
	return httpkit.Route{
		Method: http.MethodGet, Pattern: "/.well-known/jwks.json", Auth: httpkit.Public,
		Handler: func(c *httpkit.Call) error {
			set, err := keySet(c.R.Context(), d, q, now())
			if err != nil {
				return err
			}
			c.W.Header().Set("Cache-Control", "public, max-age="+seconds(authz.KeySetMaxAge))
			return c.SendValue(http.StatusOK, set)
		},
	}
}

func keySet(ctx context.Context, d *registry.Directory, q authz.Querier, now time.Time) (authz.KeySet, error) {
	view, err := d.View(ctx)
	if err != nil {
		return authz.KeySet{}, err
	}
	rotations, err := authz.ReadRotations(ctx, q, "")
	return authz.Keys(view, rotations, now), err
}

func revocations(c *httpkit.Call, s *authz.Service) error {
	page, err := c.Query.Page(1)
	if err != nil {
		return err
	}
	after := ""
	if page.After != nil {
		after = page.After[0]
	}
	list, err := s.Revocations(c.R.Context(), after, page.Limit+1)
	if err != nil {
		return err
	}
	next := ""
	if len(list) > page.Limit {
		list = list[:page.Limit]
		next = httpkit.Cursor(list[page.Limit-1].TokenID)
	}
	items := make([][]byte, len(list))
	for i := range list {
		if items[i], err = strictjson.Marshal(list[i]); err != nil {
			return err
		}
	}
	return c.SendList(items, next)
}

func decode(c *httpkit.Call, s *shape.Shape, to any) error {
	doc, err := c.JSON(s)
	if err != nil {
		return err
	}
	return strictjson.Decode(doc.Root(), to)
}

func granted(c *httpkit.Call) func(authz.Grant, *protocol.Error) error {
	return func(g authz.Grant, perr *protocol.Error) error {
		if perr != nil {
			return perr
		}
		return c.SendValue(http.StatusOK, g)
	}
}

// tokenOf reads the token of a form or a JSON body.
func tokenOf(c *httpkit.Call) (string, error) {
	media, _, err := mime.ParseMediaType(c.R.Header.Get("Content-Type"))
	if err != nil {
		return "", httpkit.Problem(http.StatusUnsupportedMediaType, "content_type")
	}
	body, err := c.Body()
	if err != nil {
		return "", err
	}
	switch media {
	case "application/json":
		doc, err := httpkit.ParseJSON(body, shapeToken)
		if err != nil {
			return "", err
		}
		return doc.Root().Member("token").Str(), nil
	case "application/x-www-form-urlencoded":
		form, err := url.ParseQuery(string(body))
		if err != nil || len(form["token"]) != 1 || form.Get("token") == "" || len(form["token_type_hint"]) > 1 {
			return "", protocol.NewError(protocol.CodeSchemaValidationFailed, "token")
		}
		return form.Get("token"), nil
	}
	return "", httpkit.Problem(http.StatusUnsupportedMediaType, "content_type")
}

func seconds(d time.Duration) string { return strconv.FormatInt(int64(d/time.Second), 10) }
