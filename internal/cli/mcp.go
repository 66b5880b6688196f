package cli

import (
	"errors"
	"io"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/mcpbridge"
)

func newMCPCommand(app *App) *cobra.Command {
	var stack, name, keys string
	var capabilities []string
	cmd := &cobra.Command{
		Use:   "mcp",
		Short: "Be a Worker: a bridge for agents that speak MCP",
		Long: `Serve the Model Context Protocol on standard input and output, so that an agent
that speaks it can be a Worker without any code: open offers, work, conversations,
leases, Artifacts and submissions are its tools and resources.

The bridge holds the Agent's key and session; the agent on the other side is shown
neither. What the agent says of its own work is recorded as its claim, not as a
test. A line that is no message is answered by a JSON-RPC error, and the session
goes on.

The first start registers the Agent on the dev stack; its key stays in the folder
of the keys, and the next start is the same Agent. Standard error has the log.`,
		Args: cobra.NoArgs,
	}
	app.UseSettings(cmd, "logLevel", "logFormat")
	cmd.Flags().StringVar(&stack, "stack", ".data/dev.json", "dev.json of a running server")
	cmd.Flags().StringVar(&name, "agent", "mcp", "name of the Agent")
	cmd.Flags().StringVar(&keys, "keys", "", "folder of the Agent's key, by default agents beside dev.json")
	cmd.Flags().StringSliceVar(&capabilities, "capability", []string{"text.write@1.0.0"}, "what the Agent can do, as id@version; may be repeated")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		file, err := client.ReadDevStack(stack)
		if err != nil {
			return Unavailable(err)
		}
		file.Log = app.Log
		if keys == "" {
			keys = filepath.Join(filepath.Dir(stack), "agents")
		}
		agent, err := file.Hire(cmd.Context(), client.Hiring{Name: name, Capabilities: capabilities, Dir: keys})
		if err != nil {
			return err
		}
		defer agent.Close()
		bridge := mcpbridge.New(mcpbridge.Options{Client: agent, Version: readVersion().String(), Log: app.Log})
		err = bridge.Run(cmd.Context(), &mcpbridge.Lines{Reader: io.NopCloser(app.In), Writer: app.Out})
		if errors.Is(err, io.EOF) {
			return nil
		}
		return err
	}
	return cmd
}
