package policyhttp

import (
	"net/http"
	"strconv"

	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/policy"
	"github.com/missionweave/server/internal/policylog"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

func (a *api) simulate(c *httpkit.Call, version string) error {
	doc, err := c.JSON(shapeSimulate)
	if err != nil {
		return err
	}
	if stated := doc.Root().Member("version"); stated.Exists() {
		if version != "" && stated.Str() != version {
			return httpkit.SchemaError("/version", "const")
		}
		version = stated.Str()
	}
	if version == "" {
		return httpkit.SchemaError("/version", "required")
	}
	limit := int64(policy.MaxSimulated)
	if stated := doc.Root().Member("limit"); stated.Exists() {
		limit, _ = stated.Int()
	}
	after, err := placeOf(doc.Root().Member("after").Str())
	if err != nil {
		return err
	}
	s, err := a.Simulate(c.R.Context(), c.Caller.Principal, version, doc.Root().Member("groupId").Str(), after, int(limit))
	if err != nil {
		return err
	}
	return c.SendValue(http.StatusOK, s)
}

// placeOf reads the cursor of a place in the Policy Log; "" is its beginning.
func placeOf(cursor string) (int64, error) {
	if cursor == "" {
		return 0, nil
	}
	page, err := httpkit.Query{"after": cursor}.Page(1)
	if err != nil {
		return 0, err
	}
	return placeIn(page)
}

// placeIn is the place that a page continues after.
func placeIn(page httpkit.Page) (int64, error) {
	if page.After == nil {
		return 0, nil
	}
	place, err := strconv.ParseInt(page.After[0], 10, 64)
	if err != nil || place < 0 {
		return 0, httpkit.SchemaError("/after", "format")
	}
	return place, nil
}

func (a *api) listDecisions(c *httpkit.Call) error {
	var f policy.DecisionFilter
	var err error
	if _, there := c.Query["groupId"]; there {
		if f.GroupID, err = groupOf(c); err != nil {
			return err
		}
	}
	if f.SubjectID, _, err = c.Query.Text("subjectId"); err != nil {
		return err
	}
	if len(f.SubjectID) > 512 {
		return httpkit.SchemaError("/subjectId", "maxLength")
	}
	if f.Category, _, err = c.Query.OneOf("category", policylog.Categories...); err != nil {
		return err
	}
	page, err := c.Query.Page(1)
	if err != nil {
		return err
	}
	after, err := placeIn(page)
	if err != nil {
		return err
	}
	items, next, err := a.Decisions(c.R.Context(), c.Caller.Principal, f, after, page.Limit)
	if err != nil {
		return err
	}
	out := make([][]byte, len(items))
	for i := range items {
		if out[i], err = strictjson.Marshal(&items[i]); err != nil {
			return err
		}
	}
	cursor := ""
	if next > 0 {
		cursor = httpkit.Cursor(strconv.FormatInt(next, 10))
	}
	return c.SendList(out, cursor)
}
