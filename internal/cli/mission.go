package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/missionweave/server/client"
)

func newMissionCommand(app *App) *cobra.Command {
	o := &operator{}
	cmd := &cobra.Command{
		Use:   "mission",
		Short: "Create, look at and decide Missions",
		Args:  cobra.NoArgs,
		RunE:  needsSubcommand,
	}
	o.flags(cmd)
	cmd.AddCommand(newMissionCreateCommand(app, o), newMissionListCommand(app, o), newMissionShowCommand(app, o),
		newMissionTreeCommand(app, o), newMissionApproveCommand(app, o), newMissionChangesCommand(app, o), newMissionCancelCommand(app, o))
	return cmd
}

func newMissionCreateCommand(app *App, o *operator) *cobra.Command {
	var file, objective, coordinator, title, currency string
	var criteria []string
	var deadline time.Duration
	var money float64
	var tokens, calls, effects int64
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Create a Mission",
		Long: `Create a Mission with a first Coordinator. Each --criterion is ID=DESCRIPTION and
asks for a human's review. --file is the whole payload of mission.create as JSON
("-" reads standard input); flags that are given go before what it says.`,
		Example: `  mw mission create --coordinator urn:example:agent:ada --objective "Write the report" --criterion complete="Every section is written." --model-tokens 100000`,
		Args:    cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&file, "file", "", "payload of mission.create as JSON")
	f.StringVar(&objective, "objective", "", "what is to be reached")
	f.StringVar(&coordinator, "coordinator", "", "id of the Agent that coordinates first")
	f.StringVar(&title, "title", "", "title of the Group Conversation")
	f.StringArrayVar(&criteria, "criterion", nil, "an acceptance criterion, ID=DESCRIPTION; may be repeated")
	f.DurationVar(&deadline, "deadline", 24*time.Hour, "how long the Mission may take")
	f.StringVar(&currency, "currency", "EUR", "currency of --money")
	f.Float64Var(&money, "money", 0, "financial limit in whole units")
	f.Int64Var(&tokens, "model-tokens", 0, "limit of model tokens")
	f.Int64Var(&calls, "tool-calls", 0, "limit of tool calls")
	f.Int64Var(&effects, "side-effects", 0, "limit of external side effects")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		payload := map[string]any{
			"approvalPolicy": map[string]any{"finalHumanApproval": true, "highRiskExecutionApproval": true, "policyVersion": "1.0.0"},
		}
		if err := app.readPayload(file, payload); err != nil {
			return err
		}
		set := func(name string, value any, given bool) {
			if _, there := payload[name]; given || !there {
				payload[name] = value
			}
		}
		set("missionId", client.NewID(), false)
		set("groupId", client.NewID(), false)
		set("objective", objective, objective != "")
		set("coordinatorAgentId", coordinator, coordinator != "")
		if title != "" {
			payload["title"] = title
		}
		set("deadline", client.Timestamp(time.Now().Add(deadline)), f.Changed("deadline"))
		if len(criteria) > 0 {
			list, err := criteriaOf(criteria)
			if err != nil {
				return err
			}
			payload["definitionOfDone"] = list
		}
		budget, err := budgetOf(currency, money, tokens, calls, effects)
		if err != nil {
			return err
		}
		set("budget", budget, f.Changed("money") || f.Changed("model-tokens") || f.Changed("tool-calls") || f.Changed("side-effects"))
		for _, needed := range []string{"objective", "coordinatorAgentId"} {
			if payload[needed] == "" {
				return Usagef("give --objective and --coordinator, or --file with both")
			}
		}
		if payload["definitionOfDone"] == nil {
			return Usagef("give at least one --criterion")
		}
		group, _ := payload["groupId"].(string)
		return o.with(cmd.Context(), false, func(ctx context.Context, c *client.Client) error {
			receipt, err := c.Post(ctx, client.Command{Kind: "mission.create", GroupID: group}, payload)
			if err != nil {
				return err
			}
			if app.JSON {
				return app.PrintJSON(map[string]any{"missionId": payload["missionId"], "groupId": group, "receipt": receipt})
			}
			_, err = fmt.Fprintf(app.Out, "mission %v\ngroup   %v\n", payload["missionId"], group)
			return err
		})
	}
	return cmd
}

// readPayload reads a JSON object into payload.
func (a *App) readPayload(file string, payload map[string]any) error {
	if file == "" {
		return nil
	}
	b, err := a.readInput(file)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, &payload); err != nil {
		return Usagef("%s is no JSON object: %w", file, err)
	}
	return nil
}

// maxInput bounds what is read from a file or standard input.
const maxInput = 64 << 20

func (a *App) readInput(file string) ([]byte, error) {
	in := a.In
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, Usagef("%w", err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxInput+1))
	if err == nil && len(b) > maxInput {
		err = fmt.Errorf("%s is larger than %d bytes", file, maxInput)
	}
	return b, err
}

func criteriaOf(texts []string) ([]client.AcceptanceCriterion, error) {
	var out []client.AcceptanceCriterion
	for _, text := range texts {
		id, description, ok := strings.Cut(text, "=")
		if !ok || id == "" || description == "" {
			return nil, Usagef("--criterion %q is not ID=DESCRIPTION", text)
		}
		out = append(out, client.AcceptanceCriterion{CriterionID: id, Description: description, EvidenceRequired: []string{"human_review"}})
	}
	return out, nil
}

func budgetOf(currency string, money float64, tokens, calls, effects int64) (client.Budget, error) {
	b := client.Budget{ModelTokenLimit: &tokens, ToolCallLimit: &calls, ExternalSideEffectLimit: &effects}
	if money < 0 || money > 1e9 || tokens < 0 || calls < 0 || effects < 0 {
		return b, Usagef("a budget is not negative, and money at most a thousand million")
	}
	if money > 0 {
		limit := client.Money(money*1e6 + 0.5)
		b.Currency, b.FinancialLimit = currency, &limit
	}
	return b, nil
}

func newMissionListCommand(app *App, o *operator) *cobra.Command {
	var state, owner, coordinator string
	cmd := &cobra.Command{Use: "list", Short: "List the Missions that you may see", Args: cobra.NoArgs}
	cmd.Flags().StringVar(&state, "state", "", "active, awaiting_approval, approved, failed or cancelled")
	cmd.Flags().StringVar(&owner, "owner", "", "id of the MissionOwner")
	cmd.Flags().StringVar(&coordinator, "coordinator", "", "id of the Coordinator")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		query := url.Values{}
		for name, value := range map[string]string{"state": state, "owner": owner, "coordinator": coordinator} {
			if value != "" {
				query.Set(name, value)
			}
		}
		return o.with(cmd.Context(), false, func(ctx context.Context, c *client.Client) error {
			missions, err := listAll[client.Mission](ctx, c, "/v1/missions", query)
			if err != nil {
				return err
			}
			if app.JSON {
				return app.PrintJSON(missions)
			}
			return app.table("MISSION\tSTATE\tDEADLINE\tOBJECTIVE", func(w io.Writer) {
				for _, m := range missions {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", m.MissionID, m.State, m.Deadline, shorten(m.Objective, 60))
				}
			})
		})
	}
	return cmd
}

// table prints aligned columns.
func (a *App) table(head string, rows func(io.Writer)) error {
	w := tabwriter.NewWriter(a.Out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(w, head)
	rows(w)
	return w.Flush()
}

// shorten keeps a text of somebody else on one line and within n characters.
func shorten(text string, n int) string {
	runes := []rune(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text))
	if len(runes) > n {
		return string(runes[:n-1]) + "…"
	}
	return string(runes)
}

// listAll reads every page of a list.
func listAll[T any](ctx context.Context, c *client.Client, path string, query url.Values) ([]T, error) {
	all := []T{}
	for {
		var page struct {
			Items []T    `json:"items"`
			Next  string `json:"next"`
		}
		if err := c.Get(ctx, path, query, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.Next == "" {
			return all, nil
		}
		query.Set("after", page.Next)
	}
}

// progress is what mw mission show takes of a Mission's derived progress.
type progress struct {
	State        string           `json:"state"`
	Counts       map[string]int64 `json:"counts"`
	CriticalPath []string         `json:"criticalPath"`
	Blocked      []string         `json:"blocked"`
	Overdue      []string         `json:"overdue"`
	Required     []string         `json:"required"`
}

func newMissionShowCommand(app *App, o *operator) *cobra.Command {
	return &cobra.Command{
		Use: "show MISSION", Short: "Show a Mission and how far it is", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.with(cmd.Context(), false, func(ctx context.Context, c *client.Client) error {
				m, err := c.Mission(ctx, args[0])
				if err != nil {
					return err
				}
				var p progress
				if err := c.Get(ctx, client.Path("v1", "missions", args[0], "progress"), nil, &p); err != nil {
					return err
				}
				if app.JSON {
					return app.PrintJSON(map[string]any{"mission": m, "progress": p})
				}
				fmt.Fprintf(app.Out, "mission      %s\ngroup        %s\nstate        %s, revision %d\nowner        %s\ncoordinator  %s, epoch %d\ndeadline     %s\nobjective    %s\n",
					m.MissionID, m.GroupID, m.State, m.Revision, m.MissionOwner.ID, m.Coordinator.AgentID, m.Coordinator.CoordinatorEpoch,
					m.Deadline, shorten(m.Objective, 200))
				for _, state := range []string{"open", "offered", "queued", "active", "blocked", "submitted", "verified", "failed", "cancelled"} {
					if n := p.Counts[state]; n > 0 {
						fmt.Fprintf(app.Out, "%-12s %d WorkItems\n", state, n)
					}
				}
				for _, list := range []struct {
					name string
					ids  []string
				}{{"still needed", p.Required}, {"critical", p.CriticalPath}, {"held up", p.Blocked}, {"overdue", p.Overdue}} {
					for _, id := range list.ids {
						fmt.Fprintf(app.Out, "%-12s %s\n", list.name, id)
					}
				}
				return nil
			})
		},
	}
}

func newMissionTreeCommand(app *App, o *operator) *cobra.Command {
	return &cobra.Command{
		Use: "tree MISSION", Short: "Show the Missions above and below one", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.with(cmd.Context(), false, func(ctx context.Context, c *client.Client) error {
				var tree struct {
					Missions []treeNode `json:"missions"`
				}
				if err := c.Get(ctx, client.Path("v1", "missions", args[0], "tree"), nil, &tree); err != nil {
					return err
				}
				if app.JSON {
					return app.PrintJSON(tree.Missions)
				}
				app.branch(tree.Missions, "", 0)
				return nil
			})
		},
	}
}

type treeNode struct {
	MissionID        string `json:"missionId"`
	GroupID          string `json:"groupId"`
	State            string `json:"state"`
	ParentMissionID  string `json:"parentMissionId,omitempty"`
	ParentWorkItemID string `json:"parentWorkItemId,omitempty"`
}

// branch prints the Missions below one; those whose parent is not shown stand at
// the top.
func (a *App) branch(all []treeNode, parent string, depth int) {
	known := map[string]bool{}
	for _, n := range all {
		known[n.MissionID] = true
	}
	for _, n := range all {
		if n.ParentMissionID == parent || parent == "" && !known[n.ParentMissionID] {
			fmt.Fprintf(a.Out, "%s%s %s\n", strings.Repeat("  ", depth), n.MissionID, n.State)
			if depth < len(all) {
				a.branch(all, n.MissionID, depth+1)
			}
		}
	}
}

func newMissionCancelCommand(app *App, o *operator) *cobra.Command {
	var reason string
	cmd := &cobra.Command{Use: "cancel MISSION", Short: "Cancel a Mission with everything below it", Args: cobra.ExactArgs(1)}
	cmd.Flags().StringVar(&reason, "reason", "", "why")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if reason == "" {
			return Usagef("give --reason")
		}
		return o.with(cmd.Context(), false, func(ctx context.Context, c *client.Client) error {
			m, err := c.Mission(ctx, args[0])
			if err != nil {
				return err
			}
			return app.post(ctx, c, client.Command{Kind: "mission.cancel", GroupID: m.GroupID}, map[string]any{"reason": reason})
		})
	}
	return cmd
}

func newMissionApproveCommand(app *App, o *operator) *cobra.Command {
	var comments string
	cmd := &cobra.Command{
		Use:   "approve MISSION",
		Short: "Approve the submission of a Mission",
		Long: `Sign an Approval of exactly what was submitted and send it. For a child Mission
that also needs the root MissionOwner's word, the signed Approval is printed
instead: its MissionOwner sends it along as humanApproval.`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&comments, "comments", "", "what to say with it")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return o.with(cmd.Context(), false, func(ctx context.Context, c *client.Client) error {
			return app.decideMission(ctx, c, args[0], "mission.approve", "approved", comments)
		})
	}
	return cmd
}

func newMissionChangesCommand(app *App, o *operator) *cobra.Command {
	var comments string
	cmd := &cobra.Command{Use: "request-changes MISSION", Short: "Send a submission back with comments", Args: cobra.ExactArgs(1)}
	cmd.Flags().StringVar(&comments, "comments", "", "what has to change")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if comments == "" {
			return Usagef("give --comments")
		}
		return o.with(cmd.Context(), false, func(ctx context.Context, c *client.Client) error {
			return app.decideMission(ctx, c, args[0], "mission.request_changes", "changes_requested", comments)
		})
	}
	return cmd
}

// decideMission signs what waits for the operator about a Mission.
func (a *App) decideMission(ctx context.Context, c *client.Client, missionID, kind, decision, comments string) error {
	w, err := waitingFor(ctx, c, missionID, "mission", "mission_human")
	if err != nil {
		return err
	}
	m, err := c.Mission(ctx, missionID)
	if err != nil {
		return err
	}
	approval := w.approval(c, "mission_final", decision, comments)
	if m.Parent != nil && w.Type == "mission" {
		approval.Kind = "child_mission"
	}
	approval.ArtifactHashes = w.What.ArtifactHashes
	signed, err := c.Identity().SignApproval(approval)
	if err != nil {
		return err
	}
	if w.Type == "mission_human" {
		_, err := fmt.Fprintf(a.Out, "%s\n", signed)
		return err
	}
	return a.post(ctx, c, client.Command{Kind: kind, GroupID: w.GroupID}, map[string]any{"approval": signed})
}
