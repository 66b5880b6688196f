package server

import (
	"github.com/missionweave/server/internal/httpkit"
)

// Routes are the declared routes of each service, for the tests that hold them
// against the contract. /ws, which has no bearer and no body, is not among them.

// Routes of the Authority.
func (a *Authority) Routes() []httpkit.Route { return a.router.Routes() }

// Routes of the Registry.
func (r *Registry) Routes() []httpkit.Route { return r.router.Routes() }

// Routes of the Authorization Service.
func (z *Authz) Routes() []httpkit.Route { return z.router.Routes() }
