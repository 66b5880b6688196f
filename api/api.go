// Package api holds the contract of the server's HTTP surface as a document.
//
// The hazard is a contract that says something else than the handlers do: so
// the document is embedded and served by each service, and the tests of
// internal/testkit hold every route, answer and error body against it.
package api

import _ "embed"

// OpenAPI is the OpenAPI 3.1 document of the three services.
//
//go:embed openapi.yaml
var OpenAPI []byte
