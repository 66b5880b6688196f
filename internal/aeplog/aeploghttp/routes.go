// Package aeploghttp serves the evidence routes of the Authorization Service.
//
// The hazard it guards against is a record that is changed on its way: documents
// go out as the bytes that were signed, and a record that comes in is judged as
// the bytes that came.
package aeploghttp

import (
	"encoding/json"
	"net/http"

	"github.com/missionweave/server/internal/aeplog"
	"github.com/missionweave/server/internal/evidence"
	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
)

// Options are what the routes are made of. All are required.
type Options struct {
	Reader   *aeplog.Reader
	Verifier *aeplog.Verifier
}

// Routes are the evidence routes.
func Routes(o Options) []httpkit.Route {
	return []httpkit.Route{
		{
			Method: http.MethodGet, Pattern: "/v1/evidence", Query: []string{"runId", "groupId", "limit", "after"},
			Handler: func(c *httpkit.Call) error { return list(c, o.Reader) },
		},
		{
			Method: http.MethodGet, Pattern: "/v1/evidence/{recordId}",
			Handler: func(c *httpkit.Call) error {
				id, err := c.ParamID("recordId")
				if err != nil {
					return err //nolint:wrapcheck // a refusal
				}
				document, err := o.Reader.Get(c.R.Context(), c.Caller.Principal, id)
				if err != nil {
					return err //nolint:wrapcheck // a refusal, or INTERNAL_ERROR as it is
				}
				return c.Send(http.StatusOK, document)
			},
		},
		{
			Method: http.MethodPost, Pattern: "/v1/evidence:verify",
			Handler: func(c *httpkit.Call) error {
				body, err := c.Body()
				if err != nil {
					return err //nolint:wrapcheck // a refusal
				}
				verdict, err := o.Verifier.Verify(c.R.Context(), c.Caller.Principal, body)
				if err != nil {
					return err //nolint:wrapcheck // becomes INTERNAL_ERROR as it is
				}
				return send(c, verdict)
			},
		},
		{
			Method: http.MethodPost, Pattern: "/v1/evidence:compare",
			Handler: func(c *httpkit.Call) error {
				body, err := c.Body()
				if err != nil {
					return err //nolint:wrapcheck // a refusal
				}
				v, err := evidence.ParseValue(body)
				if err != nil {
					return protocol.NewError(protocol.CodeProtocolViolation, "json").WithCause(err)
				}
				for _, side := range []string{"a", "b"} {
					if v.Get(side).Kind() != evidence.Object {
						return httpkit.SchemaError("/"+side, "type")
					}
				}
				return send(c, evidence.Compare(evidence.DigestOf(v.Get("a")), evidence.DigestOf(v.Get("b")), nil))
			},
		},
	}
}

func list(c *httpkit.Call, r *aeplog.Reader) error {
	page, err := c.Query.Page(2)
	if err != nil {
		return err //nolint:wrapcheck // a refusal
	}
	var f aeplog.Filter
	if f.RunID, _, err = c.Query.Text("runId"); err != nil {
		return err //nolint:wrapcheck // a refusal
	}
	if f.GroupID, _, err = c.Query.Text("groupId"); err != nil {
		return err //nolint:wrapcheck // a refusal
	}
	switch {
	case f.GroupID != "" && !lexical.ValidID(f.GroupID):
		return httpkit.SchemaError("/groupId", "format")
	case f.GroupID == "" && f.RunID == "":
		return httpkit.SchemaError("/groupId", "required")
	}
	found, err := r.List(c.R.Context(), c.Caller.Principal, f, page)
	if err != nil {
		return err //nolint:wrapcheck // a refusal, or INTERNAL_ERROR as it is
	}
	return c.SendList(found.Items, found.Next)
}

// send answers in the record's own member names; canonical form is not needed.
func send(c *httpkit.Call, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err //nolint:wrapcheck // becomes INTERNAL_ERROR as it is
	}
	return c.Send(http.StatusOK, b)
}
