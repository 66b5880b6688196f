package routes_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/testkit"
)

// place fills a pattern's parameters with ids of a Mission that exists.
func place(m *testkit.Mission, workItemID, conversationID, pattern string) string {
	return strings.NewReplacer(
		"{groupId}", esc(m.GroupID), "{missionId}", esc(m.MissionID), "{workItemId}", esc(workItemID),
		"{conversationId}", esc(conversationID), "{sha256}", client.Hash([]byte("content")),
	).Replace(pattern)
}

func esc(id string) string { return strings.TrimPrefix(client.Path(id), "/") }

// body is what a write of the Authority that needs a bearer takes.
func body(route httpkit.Route) []byte {
	if route.Method == http.MethodPut && strings.HasSuffix(route.Pattern, "/cursor") {
		return []byte(`{"sequence":0}`)
	}
	if route.Method == http.MethodPut {
		return []byte("content")
	}
	if route.Method == http.MethodGet {
		return nil
	}
	return []byte("{}")
}

// needed are query parameters without which a route answers nobody.
func needed(m *testkit.Mission, route httpkit.Route) string {
	if strings.HasPrefix(route.Pattern, "/v1/artifacts/") {
		return "?groupId=" + esc(m.GroupID)
	}
	return ""
}

// Every route of the Authority, as nobody, as a stranger and with parameters that
// are none: a route that is added is walked without being named here.
func TestEveryRouteIsClosedToOthers(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	item := m.Authorize()
	routes := s.Routes()["authority"]
	stranger := s.Human("stranger")
	agent := s.Agent("stranger")
	walked := 0
	for _, route := range routes {
		if route.Auth != httpkit.Bearer {
			continue
		}
		walked++
		t.Run(route.Method+" "+route.Pattern, func(t *testing.T) {
			url := s.AuthorityURL + place(m, item, m.Conversation, route.Pattern)
			query := needed(m, route)
			ask := func(token, query string) testkit.Answer {
				return s.Do(testkit.Request{Method: route.Method, URL: url + query, Token: token, Body: body(route)})
			}
			ask("", query).Refused(t, 401, "AUTH_REQUIRED")
			ask("nonsense", query).Refused(t, 401, "AUTH_REQUIRED")
			scoped := strings.Contains(route.Pattern, "{groupId}") || strings.Contains(route.Pattern, "{missionId}") || query != ""
			for _, c := range []*client.Client{stranger, agent, s.As("metering")} {
				a := ask(s.Token(c), query)
				switch {
				case scoped:
					// The very answer of a Group that does not exist.
					e := a.Refused(t, 404, "GROUP_NOT_FOUND")
					if e.Member("groupId").Exists() || e.Member("details").Exists() {
						t.Errorf("the refusal tells more: %s", a.Body)
					}
				case route.Method == http.MethodGet && (a.Status != 200 || string(a.Body) != `{"items":[]}`):
					t.Errorf("a stranger is answered %d %s", a.Status, a.Body)
				}
			}
			owner := s.Token(m.Owner)
			unknown := "?surprise=1"
			if query != "" {
				unknown = query + "&surprise=1"
			}
			ask(owner, unknown).Refused(t, 400, "SCHEMA_VALIDATION_FAILED")
			for name, values := range map[string][]string{
				"limit": {"0", "1001", "-1", "x", "", "1e2", "01"}, "after": {"!", "", "%00"}, "state": {"surprise", ""}, "owner": {"no id", ""},
				"coordinator": {"no id"}, "groupId": {"no id", ""}, "mentionsOnly": {"1"}, "workItemIds": {"a b"},
			} {
				if !slices.Contains(route.Query, name) {
					continue
				}
				for _, value := range values {
					q := "?" + name + "=" + strings.ReplaceAll(value, " ", "%20")
					ask(owner, q).Refused(t, 400, "SCHEMA_VALIDATION_FAILED")
				}
				ask(owner, "?"+name+"=1&"+name+"=2").Refused(t, 400, "SCHEMA_VALIDATION_FAILED")
			}
			if strings.Contains(route.Pattern, "{groupId}") {
				bad := s.AuthorityURL + strings.ReplaceAll(place(m, item, m.Conversation, route.Pattern), esc(m.GroupID), "not%20an%20id")
				s.Do(testkit.Request{Method: route.Method, URL: bad, Token: owner, Body: body(route)}).Refused(t, 400, "SCHEMA_VALIDATION_FAILED")
			}
		})
	}
	if walked < 20 {
		t.Errorf("only %d routes were walked", walked)
	}
}

// table are the routes of API.md's Authority table.
var table = []string{
	"POST /v1/commands", "POST /v1/commands:batch", "GET /v1/groups/{groupId}/events", "GET /v1/groups/{groupId}/events/stream",
	"GET /v1/groups/{groupId}/cursor", "PUT /v1/groups/{groupId}/cursor", "GET /v1/groups/{groupId}",
	"GET /v1/groups/{groupId}/memberships", "GET /v1/groups/{groupId}/conversations",
	"GET /v1/groups/{groupId}/conversations/{conversationId}/messages", "GET /v1/groups/{groupId}/artifacts",
	"GET /v1/groups/{groupId}/budget", "GET /v1/groups/{groupId}/policy-log", "GET /v1/groups/{groupId}/snapshot",
	"GET /v1/missions", "GET /v1/missions/{missionId}", "GET /v1/missions/{missionId}/tree", "GET /v1/missions/{missionId}/progress",
	"GET /v1/groups/{groupId}/work-items", "GET /v1/groups/{groupId}/work-items/{workItemId}",
	"GET /v1/groups/{groupId}/work-items/{workItemId}/leases", "GET /v1/groups/{groupId}/leases",
	"GET /v1/offers", "GET /v1/approvals", "GET /v1/attention", "PUT /v1/artifacts/{sha256}", "GET /v1/artifacts/{sha256}",
	"GET /v1/groups/{groupId}/presence", "POST /v1/access/challenge", "POST /v1/access/token", "POST /v1/sessions",
	"POST /v1/sessions/response",
}

func TestTheWholeTableIsServed(t *testing.T) {
	s := testkit.Start(t)
	var served []string
	for _, route := range s.Routes()["authority"] {
		served = append(served, route.Method+" "+route.Pattern)
	}
	for _, want := range table {
		if !slices.Contains(served, want) {
			t.Errorf("%s is not served", want)
		}
	}
}
