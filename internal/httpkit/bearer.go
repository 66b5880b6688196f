package httpkit

import (
	"net/http"
	"strings"

	"github.com/missionweave/server/internal/protocol"
)

// maxBearer bounds what is looked at as a credential; our own tokens stay far
// below it (server_accept allows 8192).
const maxBearer = 8192

// BearerToken returns the bearer credential of a request, or AUTH_REQUIRED when
// it is missing, doubled or of another scheme.
func BearerToken(r *http.Request) (string, *protocol.Error) {
	token, present := OptionalBearer(r)
	if !present || token == "" {
		return "", protocol.NewError(protocol.CodeAuthRequired, "")
	}
	return token, nil
}

// OptionalBearer tells a request without a credential (false) from one with a
// malformed credential ("" and true).
func OptionalBearer(r *http.Request) (token string, present bool) {
	headers := r.Header.Values("Authorization")
	if len(headers) == 0 {
		return "", false
	}
	scheme, token, ok := strings.Cut(headers[0], " ")
	if len(headers) > 1 || !ok || !strings.EqualFold(scheme, "Bearer") ||
		token == "" || len(token) > maxBearer || strings.ContainsAny(token, " \t,") {
		return "", true
	}
	return token, true
}
