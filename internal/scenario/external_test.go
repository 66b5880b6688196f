package scenario

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/missionweave/server/client"
)

// outside is an external system whose Authorization Service is as given.
func outside(t *testing.T, authz http.Handler) *external {
	t.Helper()
	service := httptest.NewServer(authz)
	t.Cleanup(service.Close)
	identity, err := client.NewIdentity(client.Actor{Type: client.Service, ID: "urn:example:service"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(client.Options{
		Endpoints: client.Endpoints{AuthorityURL: service.URL, RegistryURL: service.URL, AuthzURL: service.URL, WebSocketURL: "ws://127.0.0.1:1"}, Identity: identity,
	})
	if err != nil {
		t.Fatal(err)
	}
	x, err := newExternal(t.Context(), &client.DevStack{AuthzURL: service.URL, OrganizationID: "urn:example:org"}, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.close)
	return x
}

func nothingThere() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/jwks.json", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"keys":[]}`)) })
	mux.HandleFunc("GET /v1/revocations", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"items":[],"next":""}`)) })
	return mux
}

func TestTheExternalSystemDoesNothingForWhoeverHasNoGoodToken(t *testing.T) {
	x := outside(t, nothingThere())
	release := map[string]any{"release": "1.0"}
	for _, tc := range []struct {
		name   string
		body   any
		header []string
		status int
		why    string
	}{
		{"no token", release, []string{"Idempotency-Key", "k"}, http.StatusUnauthorized, "no token"},
		{"a forged token", release, []string{"Idempotency-Key", "k", "Authorization", "Bearer " + forgery}, http.StatusUnauthorized, "token not valid"},
		{"another scheme", release, []string{"Idempotency-Key", "k", "Authorization", "Basic " + forgery}, http.StatusUnauthorized, "no token"},
		{"no idempotency key", release, []string{"Authorization", "Bearer " + forgery}, http.StatusBadRequest, "malformed"},
		{"no release", map[string]any{}, []string{"Idempotency-Key", "k", "Authorization", "Bearer " + forgery}, http.StatusBadRequest, "malformed"},
	} {
		before := x.journal().Refused[tc.why]
		status, content, err := post(t.Context(), x.url+"/deployments", tc.body, tc.header...)
		if err != nil || status != tc.status || x.journal().Refused[tc.why] != before+1 {
			t.Errorf("%s: %d %s %v, refused %v", tc.name, status, content, err, x.journal().Refused)
		}
	}
	if j := x.journal(); len(j.Deployments) != 0 || j.Requests != 5 {
		t.Errorf("%+v", j)
	}
}

func TestTheExternalSystemDoesNothingWhereItCannotAsk(t *testing.T) {
	x := outside(t, http.NotFoundHandler())
	status, _, err := post(t.Context(), x.url+"/deployments", map[string]any{"release": "1.0"}, "Idempotency-Key", "k", "Authorization", "Bearer "+forgery)
	if err != nil || status != http.StatusUnauthorized || len(x.journal().Deployments) != 0 {
		t.Errorf("%d %v %+v", status, err, x.journal())
	}
}

func TestTheJournalIsServedWithoutATokenInIt(t *testing.T) {
	x := outside(t, nothingThere())
	_, content, err := send(context.Background(), http.MethodGet, x.url+"/journal", nil)
	var j journal
	if err != nil || json.Unmarshal(content, &j) != nil || j.Deployments == nil {
		t.Errorf("%s %v", content, err)
	}
}
