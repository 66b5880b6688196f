// Package policyhttp serves the routes of World Manifests, inputs, memory and
// Proposed Actions (API.md, Authorization).
//
// The hazard it guards against is a body that says more than its route means:
// every body has a shape and a bound, and what installs or extends a manifest is
// signed by the Principal of the token.
package policyhttp

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/manifest"
	"github.com/missionweave/server/internal/policy"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/shape"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/sessions"
	"github.com/missionweave/server/internal/signedwrite"
	"github.com/missionweave/server/internal/trust"
)

// maxListed bounds the record ids of one action or write.
const maxListed = 1024

// stored is a text that becomes a column, which holds no NUL.
func stored(maxLen int) *shape.Shape {
	return shape.String().Min(1).Max(maxLen).Match(func(s string) bool {
		return lexical.NotBlank(s) && !strings.ContainsRune(s, 0)
	})
}

var (
	anyObject    = shape.Map(shape.String(), shape.Any)
	shapeRecords = shape.Array(protocol.ShapeID).Max(maxListed)
	shapeMode    = shape.Enum(string(manifest.Workflow), string(manifest.Interactive), string(manifest.Background))
	shapeName    = stored(200)

	shapeManifest = signedwrite.Shape(
		shape.Req("name", shapeName),
		shape.Req("format", shape.Enum("yaml", "json")),
		shape.Req("manifest", shape.Any),
		// groupId puts the version in force for one Group only.
		shape.Opt("groupId", protocol.ShapeID),
	)
	shapeExtension = signedwrite.Shape(
		shape.Req("change", shape.Any),
		shape.Opt("requestId", protocol.ShapeID),
	)
	shapeWithdrawal = signedwrite.Shape(shape.Req("reason", shape.Text(1000)))
	shapeDiff       = shape.Object(shape.Opt("from", shapeName), shape.Req("to", shapeName))
	shapeSimulate   = shape.Object(
		shape.Opt("version", shapeName),
		shape.Req("groupId", protocol.ShapeID),
		shape.Opt("limit", shape.Int(1, policy.MaxSimulated)),
		shape.Opt("after", shapeName),
	)

	shapeInput = shape.Object(
		shape.Req("groupId", protocol.ShapeID),
		shape.Opt("workItemId", protocol.ShapeID),
		shape.Req("source", shapeName),
		shape.Req("mediaType", shapeName),
		shape.Req("payload", shape.String()),
	)
	shapeMemory = shape.Object(
		shape.Req("groupId", protocol.ShapeID),
		shape.Req("key", stored(512)),
		shape.Req("value", shape.Any),
		shape.Req("provenance", shapeRecords),
	)
	shapeAction = shape.Object(
		shape.Req("actionId", protocol.ShapeID),
		shape.Req("groupId", protocol.ShapeID),
		shape.Req("workItemId", protocol.ShapeID),
		shape.Req("capabilityToken", shape.Text(16<<10)),
		shape.Req("actionType", shapeName),
		shape.Req("parameters", anyObject),
		shape.Req("provenance", shapeRecords),
		shape.Req("operation", protocol.ShapeOperation),
		shape.Req("resource", protocol.ShapeID),
		shape.Opt("mode", shapeMode),
		shape.Opt("argsEqualityVersion", shapeName),
		shape.Opt("approvalRequestId", protocol.ShapeID),
		shape.Opt("reason", shape.Text(2000)),
	)
	shapeOutcome = shape.Object(
		shape.Opt("observedParameters", anyObject),
		shape.Opt("observedArgumentsDigest", protocol.ShapeSHA256),
		shape.Req("result", shape.Enum("success", "failure", "skipped")),
		shape.Opt("resultDigest", protocol.ShapeSHA256),
		shape.Opt("usage", anyObject),
		shape.Opt("stateDigestKind", shapeName),
		shape.Opt("stateDigestCoverage", anyObject),
		shape.Opt("preStateDigest", protocol.ShapeSHA256),
		shape.Opt("postStateDigest", protocol.ShapeSHA256),
	)
	shapeModeBody = shape.Object(
		shape.Req("groupId", protocol.ShapeID),
		shape.Opt("agentId", protocol.ShapeID),
		shape.Opt("sessionEpoch", protocol.ShapePositiveInteger),
		shape.Req("mode", shapeMode),
	)
)

// Options is what the routes work with. All are required.
type Options struct {
	Service   *policy.Service
	Directory *registry.Directory
	// FreshPast and FreshFuture bound requestedAt (COMMANDS.md P9).
	FreshPast, FreshFuture time.Duration
	Now                    func() time.Time
}

type api struct {
	*policy.Service
	writes signedwrite.Verifier
}

// Routes are the routes of the policy runtime.
func Routes(o Options) []httpkit.Route {
	a := &api{Service: o.Service, writes: signedwrite.Verifier{
		Evidence: func(ctx context.Context) *trust.Evidence {
			view, err := o.Directory.Current(ctx)
			if err != nil {
				return trust.UnavailableEvidence("", err)
			}
			return view.Evidence
		},
		Past: o.FreshPast, Future: o.FreshFuture, Now: o.Now,
	}}
	get, post := http.MethodGet, http.MethodPost
	return []httpkit.Route{
		{Method: get, Pattern: "/v1/manifests", Handler: a.listManifests, Query: []string{"limit", "after"}},
		{Method: post, Pattern: "/v1/manifests", Handler: a.install},
		{Method: post, Pattern: "/v1/manifests:diff", Handler: func(c *httpkit.Call) error { return a.diff(c, "") }},
		{Method: post, Pattern: "/v1/manifests:simulate", Handler: func(c *httpkit.Call) error { return a.simulate(c, "") }},
		{Method: get, Pattern: "/v1/manifests/{version}", Handler: a.getManifest},
		// {version}:diff, {version}:simulate, {version}:withdraw: a version holds a
		// colon itself, so the verb is cut off here.
		{Method: post, Pattern: "/v1/manifests/{version}", Handler: a.verb},
		{Method: post, Pattern: "/v1/manifests/{version}/extensions", Handler: a.extend},
		{Method: post, Pattern: "/v1/inputs", Handler: a.postInput},
		{Method: get, Pattern: "/v1/inputs/{eventId}", Handler: a.getInput},
		{Method: post, Pattern: "/v1/memory", Handler: a.postMemory},
		{Method: get, Pattern: "/v1/memory/{key}", Handler: a.getMemory, Query: []string{"groupId"}},
		{Method: get, Pattern: "/v1/actions", Handler: a.listActions, Query: []string{"groupId", "state", "review", "limit", "after"}},
		{Method: post, Pattern: "/v1/actions", Handler: a.postAction},
		{Method: get, Pattern: "/v1/actions/{actionId}", Handler: a.getAction, Query: []string{"agentId"}},
		{Method: post, Pattern: "/v1/actions/{actionId}/outcome", Handler: a.postOutcome},
		{Method: post, Pattern: "/v1/action-modes", Handler: a.postMode},
		{Method: get, Pattern: "/v1/policy-decisions", Handler: a.listDecisions, Query: []string{"groupId", "category", "subjectId", "limit", "after"}},
	}
}

// signed judges a write without Command: the shape, the signed body, and that the
// token is no Agent's.
func (a *api) signed(c *httpkit.Call, s *shape.Shape) (*signedwrite.Write, error) {
	doc, err := c.JSON(s)
	if err != nil {
		return nil, err
	}
	w, perr := a.writes.Verify(c.R.Context(), c.R.Method+" "+c.R.URL.EscapedPath(), doc, c.Caller.Principal)
	if perr != nil {
		return nil, perr
	}
	if c.Caller.Kind != sessions.AccessToken {
		return nil, protocol.NewError(protocol.CodeAuthForbidden, "access_token")
	}
	return w, nil
}

// text is a manifest or a change: a text, or the JSON itself.
func text(v strictjson.Value) (string, error) {
	switch v.Kind() {
	case strictjson.String:
		return v.Str(), nil
	case strictjson.Object:
		raw, err := v.JCS()
		return string(raw), err
	}
	return "", httpkit.SchemaError("/manifest", "type")
}

func (a *api) install(c *httpkit.Call) error {
	w, err := a.signed(c, shapeManifest)
	if err != nil {
		return err
	}
	source, err := text(w.Value.Member("manifest"))
	if err != nil {
		return err
	}
	out, err := a.Install(c.R.Context(), w, w.Value.Member("name").Str(), w.Value.Member("format").Str(), source, w.Value.Member("groupId").Str())
	if err != nil {
		return err
	}
	return c.SendValue(http.StatusCreated, out)
}

func (a *api) extend(c *httpkit.Call) error {
	version, err := c.Param("version")
	if err != nil {
		return err
	}
	w, err := a.signed(c, shapeExtension)
	if err != nil {
		return err
	}
	change, err := text(w.Value.Member("change"))
	if err != nil {
		return err
	}
	out, err := a.Extend(c.R.Context(), w, version, []byte(change), w.Value.Member("requestId").Str())
	if err != nil {
		return err
	}
	return c.SendValue(http.StatusCreated, out)
}

func (a *api) listManifests(c *httpkit.Call) error {
	page, err := c.Query.Page(1)
	if err != nil {
		return err
	}
	after := ""
	if page.After != nil {
		after = page.After[0]
	}
	items, next, err := a.List(c.R.Context(), after, page.Limit)
	if err != nil {
		return err
	}
	out := make([][]byte, len(items))
	for i := range items {
		if out[i], err = strictjson.Marshal(&items[i]); err != nil {
			return err
		}
	}
	if next != "" {
		next = httpkit.Cursor(next)
	}
	return c.SendList(out, next)
}

func (a *api) getManifest(c *httpkit.Call) error {
	version, err := c.Param("version")
	if err != nil {
		return err
	}
	m, err := a.Get(c.R.Context(), version)
	if err != nil {
		return err
	}
	return c.SendValue(http.StatusOK, m)
}

func (a *api) verb(c *httpkit.Call) error {
	target, err := c.Param("version")
	if err != nil {
		return err
	}
	cut := strings.LastIndexByte(target, ':')
	if cut < 0 {
		return httpkit.Problem(http.StatusNotFound, "unknown_route")
	}
	switch version := target[:cut]; target[cut+1:] {
	case "diff":
		return a.diff(c, version)
	case "simulate":
		return a.simulate(c, version)
	case "withdraw":
		w, err := a.signed(c, shapeWithdrawal)
		if err != nil {
			return err
		}
		if err := a.Withdraw(c.R.Context(), w, version, w.Value.Member("reason").Str()); err != nil {
			return err
		}
		return c.SendValue(http.StatusOK, struct {
			Version string `json:"version"`
		}{version})
	}
	return httpkit.Problem(http.StatusNotFound, "unknown_route")
}

func (a *api) diff(c *httpkit.Call, from string) error {
	doc, err := c.JSON(shapeDiff)
	if err != nil {
		return err
	}
	if stated := doc.Root().Member("from"); stated.Exists() {
		if from != "" && stated.Str() != from {
			return httpkit.SchemaError("/from", "const")
		}
		from = stated.Str()
	}
	if from == "" {
		return httpkit.SchemaError("/from", "required")
	}
	d, err := a.Diff(c.R.Context(), from, doc.Root().Member("to").Str())
	if err != nil {
		return err
	}
	return c.SendValue(http.StatusOK, d)
}

// decode reads a body of a shape into dst.
func decode(c *httpkit.Call, s *shape.Shape, dst any) error {
	doc, err := c.JSON(s)
	if err != nil {
		return err
	}
	return strictjson.Decode(doc.Root(), dst)
}

func (a *api) postInput(c *httpkit.Call) error {
	var in policy.Input
	if err := decode(c, shapeInput, &in); err != nil {
		return err
	}
	out, err := a.Receive(c.R.Context(), c.Caller, in)
	if err != nil {
		return err
	}
	return c.SendValue(http.StatusCreated, out)
}

func (a *api) getInput(c *httpkit.Call) error {
	id, err := c.ParamID("eventId")
	if err != nil {
		return err
	}
	out, err := a.Event(c.R.Context(), c.Caller, id)
	if err != nil {
		return err
	}
	return c.SendValue(http.StatusOK, out)
}

func (a *api) postMemory(c *httpkit.Call) error {
	var w policy.MemoryWrite
	if err := decode(c, shapeMemory, &w); err != nil {
		return err
	}
	out, err := a.Write(c.R.Context(), c.Caller, w)
	if err != nil {
		return err
	}
	return c.SendValue(http.StatusCreated, out)
}

func (a *api) getMemory(c *httpkit.Call) error {
	key, err := c.Param("key")
	if err != nil {
		return err
	}
	groupID, err := groupOf(c)
	if err != nil {
		return err
	}
	out, err := a.Read(c.R.Context(), c.Caller, groupID, key)
	if err != nil {
		return err
	}
	return c.SendValue(http.StatusOK, out)
}

// groupOf is the required query parameter groupId.
func groupOf(c *httpkit.Call) (string, error) {
	id, there, err := c.Query.Text("groupId")
	switch {
	case err != nil:
		return "", err
	case !there:
		return "", httpkit.SchemaError("/groupId", "required")
	case !lexical.ValidID(id):
		return "", httpkit.SchemaError("/groupId", "format")
	}
	return id, nil
}

func (a *api) postAction(c *httpkit.Call) error {
	var p policy.Proposal
	if err := decode(c, shapeAction, &p); err != nil {
		return err
	}
	out, err := a.Propose(c.R.Context(), c.Caller, p)
	if err != nil {
		return err
	}
	return c.SendValue(http.StatusOK, out)
}

func (a *api) getAction(c *httpkit.Call) error {
	id, err := c.ParamID("actionId")
	if err != nil {
		return err
	}
	agent, _, err := c.Query.Text("agentId")
	if err != nil {
		return err
	}
	out, err := a.Inspect(c.R.Context(), c.Caller, agent, id)
	if err != nil {
		return err
	}
	return c.SendValue(http.StatusOK, out)
}

func (a *api) listActions(c *httpkit.Call) error {
	groupID, err := groupOf(c)
	if err != nil {
		return err
	}
	page, err := c.Query.Page(2)
	if err != nil {
		return err
	}
	state, there, err := c.Query.Text("state")
	if err != nil {
		return err
	}
	if there && !strings.Contains(" asking asked consuming allowed denied ", " "+state+" ") {
		return httpkit.SchemaError("/state", "enum")
	}
	review, there, err := c.Query.Text("review")
	if err != nil {
		return err
	}
	if there && review != "true" && review != "false" {
		return httpkit.SchemaError("/review", "enum")
	}
	items, next, err := a.ListActions(c.R.Context(), c.Caller, groupID, state, review == "true", page.After, page.Limit)
	if err != nil {
		return err
	}
	out := make([][]byte, len(items))
	for i, item := range items {
		if out[i], err = strictjson.Marshal(item); err != nil {
			return err
		}
	}
	cursor := ""
	if next != nil {
		cursor = httpkit.Cursor(next...)
	}
	return c.SendList(out, cursor)
}

func (a *api) postOutcome(c *httpkit.Call) error {
	id, err := c.ParamID("actionId")
	if err != nil {
		return err
	}
	var o policy.Outcome
	if err := decode(c, shapeOutcome, &o); err != nil {
		return err
	}
	out, err := a.Report(c.R.Context(), c.Caller, id, o)
	if err != nil {
		return err
	}
	return c.SendValue(http.StatusOK, out)
}

func (a *api) postMode(c *httpkit.Call) error {
	var b struct {
		GroupID      string        `json:"groupId"`
		AgentID      string        `json:"agentId"`
		SessionEpoch int64         `json:"sessionEpoch"`
		Mode         manifest.Mode `json:"mode"`
	}
	if err := decode(c, shapeModeBody, &b); err != nil {
		return err
	}
	if b.SessionEpoch > 0 && b.AgentID == "" {
		return httpkit.SchemaError("/agentId", "required")
	}
	if err := a.SetMode(c.R.Context(), c.Caller, b.GroupID, b.AgentID, b.SessionEpoch, b.Mode); err != nil {
		return err
	}
	return c.SendValue(http.StatusOK, b)
}
