// Command authz runs the Authorization Service on its own, against an external PostgreSQL and
// NATS.
package main

import (
	"os"

	"github.com/missionweave/server/internal/cli"
)

func main() { os.Exit(cli.ServiceMain("authz")) }
