package httpapi

import (
	"context"
	"net/http"

	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/views"
)

// enter enters the Group of the path.
func (a *API) enter(c *httpkit.Call) (*views.Access, error) {
	groupID, err := c.ParamID("groupId")
	if err != nil {
		return nil, err
	}
	return a.enterGroup(c.R.Context(), c.Caller.Principal, groupID)
}

func (a *API) enterGroup(ctx context.Context, reader protocol.Actor, groupID string) (*views.Access, error) {
	access, refusal := a.Views.Enter(ctx, reader, groupID)
	if refusal != nil {
		return nil, refusal
	}
	return access, nil
}

// enterMission enters the Group of the path's Mission; an unknown Mission is an
// unknown Group.
func (a *API) enterMission(c *httpkit.Call) (*views.Access, error) {
	missionID, err := c.ParamID("missionId")
	if err != nil {
		return nil, err
	}
	groupID, err := a.Views.GroupOf(c.R.Context(), missionID)
	if err != nil {
		return nil, err //nolint:wrapcheck // becomes INTERNAL_ERROR as it is
	}
	if groupID == "" {
		return nil, protocol.NewError(protocol.CodeGroupNotFound, "")
	}
	return a.enterGroup(c.R.Context(), c.Caller.Principal, groupID)
}

type (
	reader func(*views.Views, context.Context, *views.Access) ([]byte, error)
	lister func(*views.Views, context.Context, *views.Access, httpkit.Page) (views.List, error)
)

// document answers with one document of the path's Group.
func (a *API) document(read reader) httpkit.Handler {
	return func(c *httpkit.Call) error {
		access, err := a.enter(c)
		if err != nil {
			return err
		}
		return a.sendDocument(c, access, read)
	}
}

func (a *API) missionDocument(read reader) httpkit.Handler {
	return func(c *httpkit.Call) error {
		access, err := a.enterMission(c)
		if err != nil {
			return err
		}
		return a.sendDocument(c, access, read)
	}
}

func (a *API) sendDocument(c *httpkit.Call, access *views.Access, read reader) error {
	document, err := read(a.Views, c.R.Context(), access)
	if err != nil {
		return internal(err)
	}
	if document == nil {
		return httpkit.NotFound()
	}
	return c.Send(http.StatusOK, document)
}

// list answers with a list of the path's Group. parts is how many columns its
// order has.
func (a *API) list(parts int, read lister) httpkit.Handler {
	return func(c *httpkit.Call) error {
		page, err := pageOf(c, parts)
		if err != nil {
			return err
		}
		access, err := a.enter(c)
		if err != nil {
			return err
		}
		return send(c)(read(a.Views, c.R.Context(), access, page))
	}
}

// pageOf reads limit and after.
func pageOf(c *httpkit.Call, parts int) (httpkit.Page, error) {
	return c.Query.Page(parts) //nolint:wrapcheck // a refusal
}

func send(c *httpkit.Call) func(views.List, error) error {
	return func(list views.List, err error) error {
		if err != nil {
			return internal(err)
		}
		return c.SendList(list.Items, list.Next)
	}
}

// idFilter is a query parameter that holds an id.
func idFilter(c *httpkit.Call, name string) (string, error) {
	value, ok, err := c.Query.Text(name)
	if err != nil {
		return "", err //nolint:wrapcheck // a refusal
	}
	if ok && !lexical.ValidID(value) {
		return "", httpkit.SchemaError("/"+name, "format")
	}
	return value, nil
}

func (a *API) listMessages(c *httpkit.Call) error {
	page, err := pageOf(c, 1)
	if err != nil {
		return err
	}
	conversationID, err := c.ParamID("conversationId")
	if err != nil {
		return err //nolint:wrapcheck // a refusal
	}
	access, err := a.enter(c)
	if err != nil {
		return err
	}
	known, err := a.Views.Conversation(c.R.Context(), access, conversationID)
	if err != nil {
		return internal(err)
	}
	if !known {
		return httpkit.NotFound()
	}
	return send(c)(a.Views.Messages(c.R.Context(), access, conversationID, page))
}

func (a *API) listWorkItems(c *httpkit.Call) error {
	page, err := pageOf(c, 1)
	if err != nil {
		return err
	}
	state, _, err := c.Query.OneOf("state", workItemStates...)
	if err != nil {
		return err //nolint:wrapcheck // a refusal
	}
	owner, err := idFilter(c, "owner")
	if err != nil {
		return err
	}
	access, err := a.enter(c)
	if err != nil {
		return err
	}
	return send(c)(a.Views.WorkItems(c.R.Context(), access, state, owner, page))
}

var workItemStates = []string{
	protocol.WorkOpen, protocol.WorkOffered, protocol.WorkQueued, protocol.WorkActive, protocol.WorkBlocked,
	protocol.WorkSubmitted, protocol.WorkVerified, protocol.WorkFailed, protocol.WorkCancelled,
}

var missionStates = []string{
	protocol.MissionActive, protocol.MissionAwaitingApproval, protocol.MissionApproved, protocol.MissionFailed,
	protocol.MissionCancelled,
}

// enterWorkItem enters the Group and finds the WorkItem of the path.
func (a *API) enterWorkItem(c *httpkit.Call) (access *views.Access, workItemID string, document []byte, err error) {
	if workItemID, err = c.ParamID("workItemId"); err != nil {
		return nil, "", nil, err //nolint:wrapcheck // a refusal
	}
	if access, err = a.enter(c); err != nil {
		return nil, "", nil, err
	}
	if document, err = a.Views.WorkItem(c.R.Context(), access, workItemID); err != nil {
		return nil, "", nil, internal(err)
	}
	if document == nil {
		return nil, "", nil, httpkit.NotFound()
	}
	return access, workItemID, document, nil
}

func (a *API) getWorkItem(c *httpkit.Call) error {
	_, _, document, err := a.enterWorkItem(c)
	if err != nil {
		return err
	}
	return c.Send(http.StatusOK, document)
}

func (a *API) listWorkItemLeases(c *httpkit.Call) error {
	page, err := pageOf(c, 1)
	if err != nil {
		return err
	}
	access, workItemID, _, err := a.enterWorkItem(c)
	if err != nil {
		return err
	}
	return send(c)(a.Views.Leases(c.R.Context(), access, workItemID, page))
}

func (a *API) listLeases(c *httpkit.Call) error {
	page, err := pageOf(c, 1)
	if err != nil {
		return err
	}
	access, err := a.enter(c)
	if err != nil {
		return err
	}
	return send(c)(a.Views.Leases(c.R.Context(), access, "", page))
}

func (a *API) listMissions(c *httpkit.Call) error {
	page, err := pageOf(c, 1)
	if err != nil {
		return err
	}
	var f views.MissionFilter
	if f.State, _, err = c.Query.OneOf("state", missionStates...); err != nil {
		return err //nolint:wrapcheck // a refusal
	}
	if f.Owner, err = idFilter(c, "owner"); err != nil {
		return err
	}
	if f.Coordinator, err = idFilter(c, "coordinator"); err != nil {
		return err
	}
	return send(c)(a.Views.Missions(c.R.Context(), c.Caller.Principal, f, page))
}

func (a *API) listOffers(c *httpkit.Call) error {
	page, err := pageOf(c, 2)
	if err != nil {
		return err
	}
	return send(c)(a.Views.Offers(c.R.Context(), c.Caller.Principal, page))
}
