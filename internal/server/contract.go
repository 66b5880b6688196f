package server

import (
	"net/http"

	"github.com/missionweave/server/api"
	"github.com/missionweave/server/internal/httpkit"
)

// addContract serves the OpenAPI document.
func addContract(router *httpkit.Router) {
	router.Add(httpkit.Route{
		Method: http.MethodGet, Pattern: "/openapi.yaml", Auth: httpkit.Public,
		Handler: func(c *httpkit.Call) error { return c.SendAs(http.StatusOK, "application/yaml", api.OpenAPI) },
	})
}
