// Command mw runs a MissionWeave server and talks to one.
package main

import (
	"os"

	"github.com/missionweave/server/internal/cli"
)

func main() { os.Exit(cli.Main()) }
