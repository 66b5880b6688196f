package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"

	"github.com/spf13/cobra"

	"github.com/missionweave/server/client"
)

func newManifestTraceCommand(app *App) *cobra.Command {
	o := &operator{}
	var out string
	cmd := &cobra.Command{
		Use:   "trace GROUP",
		Short: "Fetch the recorded decisions of a Group as a trace for simulate and coverage",
		Long: `Trace reads what the Authorization Service decided about Proposed Actions of a Group
from its Policy Log and writes one decision record a line: the whole input and what
came of it. simulate and coverage read it. The reader is the Group's MissionOwner, its
Coordinator, a human with approval.execution or a policy service.`,
		Example: `  mw manifest trace --stack .data/dev.json --out week.jsonl urn:uuid:…
  mw manifest simulate next.yaml week.jsonl`,
		Args: cobra.ExactArgs(1),
	}
	o.flags(cmd)
	cmd.Flags().StringVar(&out, "out", "", "file to write to, which must not exist; empty for standard output")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return o.with(cmd.Context(), true, func(ctx context.Context, c *client.Client) error {
			if out == "" {
				_, err := writeTrace(ctx, c, args[0], app.Out)
				return err
			}
			f, err := os.OpenFile(out, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				return Usagef("%w", err)
			}
			n, err := writeTrace(ctx, c, args[0], f)
			if err = errors.Join(err, f.Close()); err != nil {
				return errors.Join(err, os.Remove(out)) // half a trace is none
			}
			_, err = fmt.Fprintf(app.Err, "%d decisions\n", n)
			return err
		})
	}
	return cmd
}

// writeTrace writes every decision about a Proposed Action in a Group's Policy Log
// and returns how many there were.
func writeTrace(ctx context.Context, c *client.Client, groupID string, out io.Writer) (n int, err error) {
	w := bufio.NewWriter(out)
	query := url.Values{"groupId": {groupID}, "category": {"action"}, "limit": {"1000"}}
	for {
		var page struct {
			Items []struct {
				Outcome string     `json:"outcome"`
				Input   client.Raw `json:"input"`
			} `json:"items"`
			Next string `json:"next"`
		}
		if err := c.GetAuthz(ctx, "/v1/policy-decisions", query, &page); err != nil {
			return n, err
		}
		for _, d := range page.Items {
			if d.Outcome == "reported" {
				continue // what was executed, not what was decided
			}
			var line bytes.Buffer
			if err := json.Compact(&line, d.Input); err != nil {
				return n, fmt.Errorf("a recorded decision: %w", err)
			}
			line.WriteByte('\n')
			if _, err := w.Write(line.Bytes()); err != nil {
				return n, fmt.Errorf("write the trace: %w", err)
			}
			n++
		}
		if page.Next == "" {
			break
		}
		query.Set("after", page.Next)
	}
	if err := w.Flush(); err != nil {
		return n, fmt.Errorf("write the trace: %w", err)
	}
	return n, nil
}
