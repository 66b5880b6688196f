package natsauth

import (
	"net/http"

	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/views"
)

// maxBody is enough for MaxGroups ids.
const maxBody = 256 << 10

var shapeRequest = shape.Object(
	shape.Opt("groupIds", shape.Array(protocol.ShapeID).Min(1).Max(MaxGroups).Unique()),
)

// Route is POST /v1/nats-credentials. s may be nil where direct subscriptions are
// not configured: then there is no such thing. A Group that is named must be the
// caller's; one that it cannot follow yet is left out of the answer.
func Route(s *Service, read *views.Views) httpkit.Route {
	return httpkit.Route{
		Method: http.MethodPost, Pattern: "/v1/nats-credentials", MaxBodyBytes: maxBody,
		Handler: func(c *httpkit.Call) error {
			if s == nil {
				return httpkit.NotFound()
			}
			doc, err := c.JSON(shapeRequest)
			if err != nil {
				return err //nolint:wrapcheck // a refusal
			}
			var request struct {
				GroupIDs []string `json:"groupIds"`
			}
			if err := strictjson.Decode(doc.Root(), &request); err != nil {
				return err //nolint:wrapcheck // internal
			}
			for _, groupID := range request.GroupIDs {
				if _, refusal := read.Enter(c.R.Context(), c.Caller.Principal, groupID); refusal != nil {
					return refusal
				}
			}
			credentials, refusal := s.Grant(c.R.Context(), c.Caller, request.GroupIDs)
			if refusal != nil {
				return refusal
			}
			return c.SendValue(http.StatusCreated, credentials) //nolint:wrapcheck // internal
		},
	}
}
