package testkit_test

import (
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/testkit"
)

// What a registered Principal without any Membership or duty gets from each
// route that needs a credential. A route that is not here fails the walk: who
// adds one has to say what it tells an outsider.
const (
	hidden    = "GROUP_NOT_FOUND"  // as a Group that does not exist
	absent    = "no such thing"    // as something else that does not exist
	forbidden = "AUTH_FORBIDDEN"   // the Organization's policy
	own       = "the caller's own" // a list of what is the caller's
	everyone  = "everyone"         // open to each Principal of the Organization
)

var outsider = map[string]string{
	"GET /v1/groups/{groupId}":                                         hidden,
	"GET /v1/groups/{groupId}/events":                                  hidden,
	"GET /v1/groups/{groupId}/events/stream":                           hidden,
	"GET /v1/groups/{groupId}/cursor":                                  hidden,
	"PUT /v1/groups/{groupId}/cursor":                                  hidden,
	"GET /v1/groups/{groupId}/memberships":                             hidden,
	"GET /v1/groups/{groupId}/conversations":                           hidden,
	"GET /v1/groups/{groupId}/conversations/{conversationId}/messages": hidden,
	"GET /v1/groups/{groupId}/artifacts":                               hidden,
	"GET /v1/groups/{groupId}/budget":                                  hidden,
	"GET /v1/groups/{groupId}/policy-log":                              hidden,
	"GET /v1/groups/{groupId}/work-items":                              hidden,
	"GET /v1/groups/{groupId}/work-items/{workItemId}":                 hidden,
	"GET /v1/groups/{groupId}/work-items/{workItemId}/leases":          hidden,
	"GET /v1/groups/{groupId}/leases":                                  hidden,
	"GET /v1/missions":                                                 own,
	"GET /v1/missions/{missionId}":                                     hidden,
	"GET /v1/missions/{missionId}/tree":                                hidden,
	"GET /v1/missions/{missionId}/progress":                            hidden,
	"GET /v1/offers":                                                   own,
	"GET /v1/approvals":                                                own,
	"GET /v1/attention":                                                own,
	"GET /v1/groups/{groupId}/snapshot":                                hidden,
	"GET /v1/groups/{groupId}/presence":                                hidden,
	"PUT /v1/artifacts/{sha256}":                                       hidden,
	"GET /v1/artifacts/{sha256}":                                       hidden,
	"GET /v1/groups/{groupId}/export":                                  hidden,
	"POST /v1/nats-credentials":                                        forbidden,

	"POST /v1/agent-cards":           forbidden,
	"GET /v1/agent-cards":            everyone,
	"GET /v1/agent-cards/{agentId}":  everyone,
	"POST /v1/keys":                  forbidden,
	"GET /v1/keys/{keyId}":           everyone,
	"POST /v1/keys/{keyId}/validity": forbidden,
	"GET /v1/registry/evidence":      forbidden,
	"POST /v1/extension-profiles":    forbidden,
	"GET /v1/extension-profiles":     everyone,

	"POST /v1/capability-tokens":              forbidden,
	"POST /v1/membership-tokens":              forbidden,
	"POST /v1/introspect":                     forbidden,
	"POST /v1/revoke":                         forbidden,
	"GET /v1/evidence":                        hidden,
	"GET /v1/evidence/{recordId}":             absent,
	"POST /v1/evidence:verify":                everyone,
	"POST /v1/evidence:compare":               forbidden,
	"GET /v1/manifests":                       everyone,
	"POST /v1/manifests":                      forbidden,
	"POST /v1/manifests:diff":                 forbidden,
	"POST /v1/manifests:simulate":             forbidden,
	"GET /v1/manifests/{version}":             absent,
	"POST /v1/manifests/{version}":            absent,
	"POST /v1/manifests/{version}/extensions": forbidden,
	"POST /v1/inputs":                         forbidden,
	"GET /v1/inputs/{eventId}":                absent,
	"POST /v1/memory":                         forbidden,
	"GET /v1/memory/{key}":                    hidden,
	"GET /v1/actions":                         absent,
	"POST /v1/actions":                        forbidden,
	"GET /v1/actions/{actionId}":              absent,
	"POST /v1/actions/{actionId}/outcome":     forbidden,
	"POST /v1/action-modes":                   forbidden,
	"GET /v1/policy-decisions":                hidden,
}

// public are the routes without a credential: their bodies prove themselves, or
// they are the same for everybody.
var public = []string{
	"POST /v1/commands", "POST /v1/commands:batch", "POST /v1/access/challenge", "POST /v1/access/token",
	"POST /v1/sessions", "POST /v1/sessions/response", "GET /openapi.yaml", "GET /.well-known/jwks.json", "GET /v1/revocations",
}

// ofGroup are the patterns whose Group is a query parameter.
var ofGroup = regexp.MustCompile(`artifacts/\{|memory/\{|^/v1/(actions|evidence|policy-decisions)$`)

var parameter = regexp.MustCompile(`\{(\w+)\}`)

func TestEveryRouteKeepsStrangersOut(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	nobody := s.Agent("outsider")
	seen := map[string]bool{}
	values := map[string]string{
		"groupId": m.GroupID, "missionId": m.MissionID, "conversationId": m.Conversation, "workItemId": client.NewID(),
		"recordId": client.Hash([]byte("record")), "version": client.Hash([]byte("manifest")), "eventId": client.NewID(),
		"key": "note", "actionId": client.NewID(),
		"sha256": client.Hash([]byte("content")), "agentId": m.Coordinator.Principal().ID, "keyId": m.Coordinator.Identity().KeyID,
	}
	base := map[string]string{"authority": s.AuthorityURL, "registry": s.RegistryURL, "authz": s.AuthzURL}
	for service, routes := range s.Routes() {
		for _, route := range routes {
			name := route.Method + " " + route.Pattern
			seen[name] = true
			if route.Auth == httpkit.Public {
				if !slices.Contains(public, name) {
					t.Errorf("%s needs no credential, and nobody said so", name)
				}
				continue
			}
			expected, ok := outsider[name]
			if !ok {
				t.Errorf("%s: nobody said what it tells an outsider", name)
				continue
			}
			t.Run(service+" "+name, func(t *testing.T) {
				request := testkit.Request{Method: route.Method, URL: base[service] + fill(route.Pattern, values)}
				if ofGroup.MatchString(route.Pattern) {
					request.URL += "?groupId=" + m.GroupID
				}
				if route.Method != http.MethodGet {
					request.Body = []byte(`{"sequence":1}`)
				}
				for _, bad := range []struct{ name, header string }{
					{"no credential", ""},
					{"another scheme", "Basic YTpi"},
					{"an empty one", "Bearer "},
					{"not a token", "Bearer abc"},
					{"a token nobody signed", "Bearer eyJhbGciOiJub25lIn0.e30."},
				} {
					request.Header = map[string]string{}
					if bad.header != "" {
						request.Header["Authorization"] = bad.header
					}
					answer := s.Do(request)
					answer.Refused(t, http.StatusUnauthorized, "AUTH_REQUIRED")
					if answer.Header.Get("WWW-Authenticate") == "" {
						t.Errorf("%s: no WWW-Authenticate", bad.name)
					}
				}
				request.Header = nil
				request.Token = s.Token(nobody)
				answer := s.Do(request)
				switch expected {
				case hidden, absent:
					code := map[string]client.Code{hidden: "GROUP_NOT_FOUND", absent: "PROTOCOL_VIOLATION"}[expected]
					got := answer.Refused(t, http.StatusNotFound, code)
					none := request
					none.URL = strings.NewReplacer(m.GroupID, client.NewID(), m.MissionID, client.NewID()).Replace(request.URL)
					other := s.Do(none).Refused(t, http.StatusNotFound, code)
					if got.Member("message").Str() != other.Member("message").Str() || got.Len() != other.Len() || got.Member("groupId").Exists() {
						t.Errorf("what is undisclosed (%s) and what is absent (%s) differ", got.Raw(), other.Raw())
					}
				case forbidden:
					if answer.Status != http.StatusForbidden && answer.Status != http.StatusBadRequest {
						t.Errorf("status %d: %s", answer.Status, answer.Body)
					}
				case own:
					if answer.Status != http.StatusOK || string(answer.Body) != `{"items":[]}` {
						t.Errorf("answer %d %s", answer.Status, answer.Body)
					}
				case everyone:
					if answer.Status != http.StatusOK {
						t.Errorf("answer %d %s", answer.Status, answer.Body)
					}
				}
			})
		}
	}
	for name := range outsider {
		if !seen[name] {
			t.Errorf("%s is expected and does not exist", name)
		}
	}
	for _, name := range public {
		if !seen[name] {
			t.Errorf("%s is expected and does not exist", name)
		}
	}
}

// fill puts values into the parameters of a pattern.
func fill(pattern string, values map[string]string) string {
	return parameter.ReplaceAllStringFunc(pattern, func(p string) string {
		return strings.TrimPrefix(client.Path(values[strings.Trim(p, "{}")]), "/")
	})
}

func TestFencedSessionTokensAreRefused(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	old := m.Lead.Token
	s.Login(m.Coordinator)
	get := func(token string) testkit.Answer {
		return s.Do(testkit.Request{Method: "GET", URL: s.AuthorityURL + "/v1/missions", Token: token})
	}
	e := get(old).Refused(t, http.StatusConflict, "AUTH_STALE_SESSION")
	if n, _ := e.Member("details").Member("receivedSessionEpoch").Int(); n != 1 {
		t.Errorf("error %s", e.Raw())
	}
	// An access token has no epoch.
	if a := get(s.Token(m.Coordinator)); a.Status != http.StatusOK {
		t.Errorf("access token: %d %s", a.Status, a.Body)
	}
}
