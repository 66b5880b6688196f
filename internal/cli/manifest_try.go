package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/missionweave/server/internal/manifest"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

func newManifestResolveCommand(app *App) *cobra.Command {
	var mode, params, actor, resource, operation string
	var records, capabilities []string
	cmd := &cobra.Command{
		Use:   "resolve FILE ACTION",
		Short: "Decide one Proposed Action and explain every step",
		Long: `Resolve decides one action under a manifest and prints why. The data that drives it is
described by --from, once per record: a channel, with +tainted for a record that was
marked, or a parent after < as in memory<email. Without --from the chain is empty.`,
		Example: `  mw manifest resolve world.yaml send_email --from user --params '{"to":"a@example.org"}'
  mw manifest resolve world.yaml send_email --from 'memory<email' --mode interactive`,
		Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			m, _, err := app.readManifest(args[0])
			if err != nil {
				return err
			}
			doc, err := strictjson.Parse([]byte(params))
			if err != nil {
				return Usagef("--params: %w", err)
			}
			r := &manifest.Request{
				Mode: manifest.Mode(mode), Action: args[1], Parameters: doc.Root(), Actor: actor, Resource: resource,
				Operation: operation, Capabilities: capabilities,
			}
			if !r.Mode.Known() {
				return Usagef("--mode must be workflow, interactive or background")
			}
			r.Chain, r.Records = describeChain(records)
			d, steps := m.Explain(r)
			if app.JSON {
				line, err := d.Entry(r).AppendJSONLine(nil)
				if err != nil {
					return err
				}
				return app.PrintJSON(map[string]any{"decision": json.RawMessage(line), "steps": steps})
			}
			return printDecision(app.Out, &d, steps)
		},
	}
	cmd.Flags().StringVar(&mode, "mode", string(manifest.Background), "workflow, interactive or background")
	cmd.Flags().StringVar(&params, "params", "{}", "parameters as a JSON object")
	cmd.Flags().StringArrayVar(&records, "from", nil, "a record of the chain: CHANNEL[+tainted][<PARENT...]")
	cmd.Flags().StringVar(&actor, "actor", "", "id of the Agent")
	cmd.Flags().StringVar(&resource, "resource", "", "resource that the action is about")
	cmd.Flags().StringVar(&operation, "operation", "", "operation of the Capability Token")
	cmd.Flags().StringArrayVar(&capabilities, "capability", nil, "capability of the WorkItem")
	return cmd
}

// describeChain makes records of channel[+tainted][<parent]... .
func describeChain(described []string) ([]string, manifest.Records) {
	out := manifest.RecordMap{}
	var chain []string
	for i, text := range described {
		parts := strings.Split(text, "<")
		for j, part := range parts {
			channel, tainted := strings.CutSuffix(part, "+tainted")
			r := &manifest.Record{
				ID: fmt.Sprintf("record-%d.%d", i, j), Source: channel, Tainted: tainted,
				Transformations: []string{}, Parents: []string{}, Sessions: []string{"session"}, CreatedAt: "1970-01-01T00:00:00Z",
			}
			if j+1 < len(parts) {
				r.Parents = []string{fmt.Sprintf("record-%d.%d", i, j+1)}
			}
			out[r.ID] = r
		}
		chain = append(chain, fmt.Sprintf("record-%d.0", i))
	}
	return chain, out
}

func printDecision(w io.Writer, d *manifest.Decision, steps []manifest.Step) error {
	if _, err := fmt.Fprintf(w, "%s by %s: %s\n", d.Verdict, d.RuleID, d.Reason); err != nil {
		return err
	}
	if len(d.Laws) > 0 {
		fmt.Fprintf(w, "violated: %s\n", strings.Join(d.Laws, ", "))
	}
	if len(d.Choices) > 0 {
		fmt.Fprintf(w, "choices: %s\n", strings.Join(d.Choices, ", "))
	}
	for _, s := range steps {
		fmt.Fprintf(w, "  %d %-18s %s\n", s.Number, s.Name, s.Said)
	}
	fmt.Fprintf(w, "manifest %s\n", d.ManifestVersion)
	return nil
}

func newManifestSimulateCommand(app *App) *cobra.Command {
	return &cobra.Command{
		Use:   "simulate FILE TRACE",
		Short: "Decide a recorded trace again under a manifest",
		Long: `Simulate decides every entry of a trace (one decision record a line, - for standard
input) under the manifest and prints those that come out otherwise. It exits 1 when
there is one.`,
		Args: cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			m, trace, err := app.readTrace(args)
			if err != nil {
				return err
			}
			s := m.Simulate(trace)
			if app.JSON {
				err = app.PrintJSON(s)
			} else {
				_, err = fmt.Fprintf(app.Out, "%d decided, %d the same, %d otherwise, %d skipped\n", s.Decided, s.Same, len(s.Differences), s.Skipped)
				for _, x := range s.Differences {
					fmt.Fprintf(app.Out, "%d %s %s (%s): %s by %s -> %s by %s: %s\n", x.Index+1, x.ActionID, x.Action, x.Mode, x.Was, x.WasRule, x.Is, x.IsRule, x.Reason)
				}
			}
			if err == nil && len(s.Differences) > 0 {
				return ErrSilent
			}
			return err
		},
	}
}

func newManifestCoverageCommand(app *App) *cobra.Command {
	return &cobra.Command{
		Use:   "coverage FILE TRACE",
		Short: "Show rules that a recorded trace never hit",
		Args:  cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			m, trace, err := app.readTrace(args)
			if err != nil {
				return err
			}
			c := m.Cover(trace)
			if app.JSON {
				return app.PrintJSON(c)
			}
			_, err = fmt.Fprintf(app.Out, "%d decided, %d skipped\n", c.Decided, c.Skipped)
			for _, id := range c.NeverHit {
				fmt.Fprintf(app.Out, "rule %s: never\n", id)
			}
			for _, name := range c.NeverProposed {
				fmt.Fprintf(app.Out, "action %s: never proposed\n", name)
			}
			return err
		},
	}
}

func (a *App) readTrace(args []string) (*manifest.Manifest, []manifest.Entry, error) {
	m, _, err := a.readManifest(args[0])
	if err != nil {
		return nil, nil, err
	}
	source, err := a.readFile(args[1], maxTrace)
	if err != nil {
		return nil, nil, err
	}
	trace, err := manifest.ReadTrace(source)
	if err != nil {
		return nil, nil, Usagef("%s: %w", args[1], err)
	}
	return m, trace, nil
}

func printDiff(w io.Writer, d *manifest.Diff) error {
	if _, err := fmt.Fprintf(w, "%s -> %s\n", d.From, d.To); err != nil {
		return err
	}
	for _, line := range d.Channels {
		fmt.Fprintf(w, "channel %s\n", line)
	}
	for _, line := range d.Taint {
		fmt.Fprintf(w, "taint rule %s\n", line)
	}
	for _, name := range d.Schemas {
		fmt.Fprintf(w, "schema of %s changes\n", name)
	}
	for _, list := range [][]manifest.Cell{d.Allowed, d.Denied, d.Asked} {
		for i := range list {
			c := &list[i]
			fmt.Fprintf(w, "%s -> %s %s, data %s", c.From, c.To, c.Action, c.Levels)
			if c.Tainted {
				fmt.Fprint(w, " tainted")
			}
			if !c.Complete {
				fmt.Fprint(w, " incomplete")
			}
			for name, value := range map[string]string{"actor": c.Actor, "resource": c.Resource, "capability": c.Capability} {
				if value != "" {
					fmt.Fprintf(w, ", %s %s", name, value)
				}
			}
			if len(c.Predicates) > 0 {
				fmt.Fprintf(w, ", where %s", strings.Join(c.Predicates, " and "))
			}
			fmt.Fprintf(w, ", %v (%s -> %s)\n", c.Modes, c.FromRule, c.ToRule)
		}
	}
	for _, name := range d.Partial {
		fmt.Fprintf(w, "%s has too many conditions to try them together: one at a time was tried\n", name)
	}
	_, err := fmt.Fprintf(w, "%d places compared\n", d.Cells)
	return err
}
