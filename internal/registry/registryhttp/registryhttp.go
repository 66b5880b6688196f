// Package registryhttp serves the Agent Registry over HTTP (API.md, Registry).
//
// It only translates: bodies are checked against the shapes here, signed bodies
// are verified by signedwrite, and everything that decides is in registry. What
// it adds is who may call what: evidence is for the Organization's services,
// cards and key histories for every Principal of the Organization, and a write
// needs the access token of a service with the duty and a body that the same
// Principal signed.
package registryhttp

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/shape"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/sessions"
	"github.com/missionweave/server/internal/signedwrite"
	"github.com/missionweave/server/internal/trust"
)

// Authority executes Commands that the Registry forwards.
type Authority interface {
	// Submit answers with the receipt; replayed tells that it is an earlier one.
	Submit(ctx context.Context, command []byte, peer string) (receipt []byte, replayed bool, err *protocol.Error)
}

// Options is what the API works with.
type Options struct {
	Service   *registry.Service
	Directory *registry.Directory
	// Authority is nil where no Authority is reachable: POST /v1/commands then
	// does not exist.
	Authority Authority
	// FreshPast and FreshFuture bound requestedAt (COMMANDS.md P9).
	FreshPast, FreshFuture time.Duration
	Now                    func() time.Time
}

type api struct {
	Options
	writes signedwrite.Verifier
}

// Routes are the Registry's own routes; the caller adds those of sessionshttp.
func Routes(o Options) []httpkit.Route {
	a := &api{Options: o, writes: signedwrite.Verifier{
		Evidence: func(ctx context.Context) *trust.Evidence {
			view, err := o.Directory.Current(ctx)
			if err != nil {
				return trust.UnavailableEvidence("", err)
			}
			return view.Evidence
		},
		Past: o.FreshPast, Future: o.FreshFuture, Now: o.Now,
	}}
	routes := []httpkit.Route{
		{Method: http.MethodPost, Pattern: "/v1/agent-cards", Handler: a.postCard},
		{Method: http.MethodGet, Pattern: "/v1/agent-cards", Handler: a.listCards, Query: []string{"capability", "status", "limit", "after"}},
		{Method: http.MethodGet, Pattern: "/v1/agent-cards/{agentId}", Handler: a.getCard, Query: []string{"version"}},
		{Method: http.MethodPost, Pattern: "/v1/keys", Handler: a.postKey},
		{Method: http.MethodGet, Pattern: "/v1/keys/{keyId}", Handler: a.getKey},
		{Method: http.MethodPost, Pattern: "/v1/keys/{keyId}/validity", Handler: a.postValidity},
		{Method: http.MethodGet, Pattern: "/v1/registry/evidence", Handler: a.getEvidence, Query: []string{"organizationId", "revision"}},
		{Method: http.MethodPost, Pattern: "/v1/extension-profiles", Handler: a.postProfile},
		{Method: http.MethodGet, Pattern: "/v1/extension-profiles", Handler: a.listProfiles, Query: []string{"limit", "after"}},
	}
	if o.Authority != nil {
		routes = append(routes, httpkit.Route{
			Method: http.MethodPost, Pattern: "/v1/commands", Handler: a.postCommand, Auth: httpkit.Public,
		})
	}
	return routes
}

// Shapes of the signed bodies.
var (
	shapeCardBody = signedwrite.Shape(shape.Req("card", protocol.ShapeAgentCard.Without("signature")))
	shapeKeyBody  = signedwrite.Shape(
		shape.Req("keyId", protocol.ShapeID),
		shape.Req("principal", protocol.ShapeActor),
		shape.Req("algorithm", shape.Const(trust.Algorithm)),
		shape.Req("publicKey", protocol.ShapeBase64URL),
		shape.Req("validFrom", protocol.ShapeTimestamp),
	)
	// keyId is optional: a client that signs it cannot have its body turned on
	// another key.
	shapeValidityBody = signedwrite.Shape(
		shape.Opt("keyId", protocol.ShapeID),
		shape.Opt("validUntil", protocol.ShapeTimestamp),
		shape.Opt("revokedAt", protocol.ShapeTimestamp),
	).RequireAny([]string{"validUntil"}, []string{"revokedAt"})
	shapeProfileBody = signedwrite.Shape(shape.Req("profile", protocol.ShapeExtensionProfile))
)

// write judges a write without Command: the token's kind and Principal, the
// signed body, and the duty, in this order.
func (a *api) write(c *httpkit.Call, s *shape.Shape) (registry.Author, strictjson.Value, error) {
	none := registry.Author{}
	doc, err := c.JSON(s)
	if err != nil {
		return none, strictjson.Value{}, err
	}
	w, perr := a.writes.Verify(c.R.Context(), c.R.Method+" "+c.R.URL.EscapedPath(), doc, c.Caller.Principal)
	if perr != nil {
		return none, strictjson.Value{}, perr
	}
	if c.Caller.Kind != sessions.AccessToken {
		return none, strictjson.Value{}, forbidden("access_token")
	}
	view, err := a.Directory.View(c.R.Context())
	if err != nil {
		return none, strictjson.Value{}, err
	}
	if !view.HasRole(c.Caller.Principal, registry.RoleRegistry) {
		return none, strictjson.Value{}, forbidden("policy")
	}
	return registry.Author{Principal: c.Caller.Principal, Write: w}, doc.Root(), nil
}

func forbidden(reason string) *protocol.Error {
	return protocol.NewError(protocol.CodeAuthForbidden, reason)
}

// known turns ErrUnknown into the answer for what does not exist.
func known(err error) error {
	if errors.Is(err, registry.ErrUnknown) {
		return httpkit.NotFound()
	}
	return err
}

func (a *api) postCard(c *httpkit.Call) error {
	author, body, err := a.write(c, shapeCardBody)
	if err != nil {
		return err
	}
	document, err := a.Service.RegisterCard(c.R.Context(), author, body.Member("card"))
	if err != nil {
		return err
	}
	return c.Send(http.StatusCreated, document)
}

func (a *api) listCards(c *httpkit.Call) error {
	filter := registry.CardFilter{}
	var err error
	if filter.Capability, _, err = c.Query.Text("capability"); err != nil {
		return err
	}
	if filter.Capability != "" && !lexical.ValidCapabilityID(filter.Capability) {
		return httpkit.SchemaError("/capability", shape.KeywordPattern)
	}
	filter.Status, _, err = c.Query.OneOf("status", registry.CardActive, registry.CardDeprecated, registry.CardRevoked)
	if err != nil {
		return err
	}
	page, err := c.Query.Page(1)
	if err != nil {
		return err
	}
	filter.Limit = page.Limit
	if page.After != nil {
		filter.After = page.After[0]
	}
	documents, last, err := a.Service.Cards(c.R.Context(), filter)
	if err != nil {
		return err
	}
	next := ""
	if last != "" {
		next = httpkit.Cursor(last)
	}
	return c.SendList(documents, next)
}

func (a *api) getCard(c *httpkit.Call) error {
	agentID, err := c.ParamID("agentId")
	if err != nil {
		return err
	}
	version, err := c.Query.Int("version", 0, 1, strictjson.MaxSafeInteger)
	if err != nil {
		return err
	}
	document, err := a.Service.Card(c.R.Context(), agentID, version)
	if err != nil {
		return known(err)
	}
	return c.Send(http.StatusOK, document)
}

func (a *api) postKey(c *httpkit.Call) error {
	author, body, err := a.write(c, shapeKeyBody)
	if err != nil {
		return err
	}
	record, created, err := a.Service.RegisterKey(c.R.Context(), author, trust.Binding{
		KeyID:     body.Member("keyId").Str(),
		Principal: protocol.ActorOf(body.Member("principal")),
		Algorithm: body.Member("algorithm").Str(),
		PublicKey: body.Member("publicKey").Str(),
		ValidFrom: body.Member("validFrom").Str(),
	})
	if err != nil {
		return err
	}
	return c.SendValue(createdOr(created), record)
}

func createdOr(created bool) int {
	if created {
		return http.StatusCreated
	}
	return http.StatusOK
}

func (a *api) getKey(c *httpkit.Call) error {
	keyID, err := c.ParamID("keyId")
	if err != nil {
		return err
	}
	record, err := a.Service.Key(c.R.Context(), keyID)
	if err != nil {
		return known(err)
	}
	return c.SendValue(http.StatusOK, record)
}

func (a *api) postValidity(c *httpkit.Call) error {
	keyID, err := c.ParamID("keyId")
	if err != nil {
		return err
	}
	author, body, err := a.write(c, shapeValidityBody)
	if err != nil {
		return err
	}
	if named, ok := body.Get("keyId"); ok && named.Str() != keyID {
		return protocol.NewError(protocol.CodeInvalidCommand, "envelope_mismatch")
	}
	record, changed, err := a.Service.AppendValidity(c.R.Context(), author, keyID,
		body.Member("validUntil").Str(), body.Member("revokedAt").Str())
	if err != nil {
		return known(err)
	}
	return c.SendValue(createdOr(changed), record)
}

func (a *api) getEvidence(c *httpkit.Call) error {
	view, err := a.Directory.View(c.R.Context())
	if err != nil {
		return err
	}
	if !view.IsService(c.Caller.Principal) {
		return forbidden("policy")
	}
	organizationID, sent, err := c.Query.Text("organizationId")
	if err != nil {
		return err
	}
	if sent && organizationID != view.OrganizationID {
		return httpkit.NotFound()
	}
	revision, err := c.Query.Int("revision", 0, 1, strictjson.MaxSafeInteger)
	if err != nil {
		return err
	}
	document, err := a.Service.Evidence(c.R.Context(), revision)
	if err != nil {
		return known(err)
	}
	return c.SendValue(http.StatusOK, document)
}

func (a *api) postProfile(c *httpkit.Call) error {
	author, body, err := a.write(c, shapeProfileBody)
	if err != nil {
		return err
	}
	document := body.Member("profile").Raw()
	created, err := a.Service.RegisterProfile(c.R.Context(), author, document)
	if err != nil {
		return err
	}
	return c.Send(createdOr(created), document)
}

func (a *api) listProfiles(c *httpkit.Call) error {
	page, err := c.Query.Page(2)
	if err != nil {
		return err
	}
	uri, version := "", ""
	if page.After != nil {
		uri, version = page.After[0], page.After[1]
	}
	documents, lastURI, lastVersion, err := a.Service.Profiles(c.R.Context(), uri, version, page.Limit)
	if err != nil {
		return err
	}
	next := ""
	if lastURI != "" {
		next = httpkit.Cursor(lastURI, lastVersion)
	}
	return c.SendList(documents, next)
}

// postCommand forwards agent_card_register to the Authority. Another kind is
// none of the Registry's business; a body that is no Command goes there as well,
// for the Authority has the one set of answers to that.
func (a *api) postCommand(c *httpkit.Call) error {
	body, err := c.Body()
	if err != nil {
		return err
	}
	doc, err := strictjson.Parse(body)
	if err != nil {
		return protocol.NewError(protocol.CodeProtocolViolation, "json").WithCause(err)
	}
	kind := doc.Root().Member("kind")
	if kind.Kind() == strictjson.String && kind.Str() != protocol.CommandAgentCardRegister {
		return protocol.NewError(protocol.CodeInvalidCommand, "not_served_here")
	}
	receipt, replayed, perr := a.Authority.Submit(c.R.Context(), body, c.Peer)
	if perr != nil {
		return perr
	}
	if replayed {
		c.W.Header().Set("Idempotency-Replayed", "true")
		return c.Send(http.StatusOK, receipt)
	}
	return c.Send(http.StatusCreated, receipt)
}
