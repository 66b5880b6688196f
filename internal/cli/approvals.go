package cli

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/missionweave/server/client"
)

func newApprovalsCommand(app *App) *cobra.Command {
	o := &operator{}
	cmd := &cobra.Command{
		Use:   "approvals",
		Short: "List what waits for your decision, and decide",
		Args:  cobra.NoArgs,
		RunE:  needsSubcommand,
	}
	o.flags(cmd)
	cmd.AddCommand(newApprovalsListCommand(app, o), newApprovalsGrantCommand(app, o), newApprovalsDenyCommand(app, o))
	return cmd
}

// waiting is an item of GET /v1/approvals.
type waiting struct {
	Type            string `json:"type"`
	ID              string `json:"id"`
	MissionID       string `json:"missionId"`
	GroupID         string `json:"groupId"`
	MissionRevision int64  `json:"missionRevision"`
	PolicyVersion   string `json:"policyVersion"`
	Objective       string `json:"objective"`
	WorkItem        *struct {
		WorkItemID     string `json:"workItemId"`
		Goal           string `json:"goal"`
		OwnerAgentID   string `json:"ownerAgentId"`
		OwnershipEpoch int64  `json:"ownershipEpoch"`
		SideEffectRisk string `json:"sideEffectRisk"`
	} `json:"workItem"`
	What struct {
		ArtifactHashes  []string `json:"artifactHashes"`
		Operations      []string `json:"operations"`
		Resources       []string `json:"resources"`
		ActionType      string   `json:"actionType"`
		ArgumentsDigest string   `json:"argumentsDigest"`
	} `json:"what"`
	Why struct {
		Gate   string `json:"gate"`
		RuleID string `json:"ruleId"`
		Reason string `json:"reason"`
	} `json:"why"`
	Cost     client.Raw `json:"cost"`
	Basis    client.Raw `json:"basis"`
	Until    string     `json:"until"`
	Requests []struct {
		RequestID       string `json:"requestId"`
		ArgumentsDigest string `json:"argumentsDigest"`
		ExpiresAt       string `json:"expiresAt"`
	} `json:"requests"`
}

// waitingFor finds what waits about one id.
func waitingFor(ctx context.Context, c *client.Client, id string, types ...string) (*waiting, error) {
	all, err := listAll[waiting](ctx, c, "/v1/approvals", url.Values{"state": {"pending"}})
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].ID == id && slices.Contains(types, all[i].Type) {
			return &all[i], nil
		}
	}
	return nil, fmt.Errorf("nothing about %s waits for %s", id, c.Principal().ID)
}

// approval is the Approval document about an item, unsigned.
func (w *waiting) approval(c *client.Client, kind, decision, comments string) client.Approval {
	version := w.PolicyVersion
	if version == "" {
		version = "1.0.0"
	}
	out := client.Approval{
		ApprovalID: client.NewID(), Kind: kind, Decision: decision, MissionID: w.MissionID, GroupID: w.GroupID,
		MissionRevision: w.MissionRevision, ArtifactHashes: []string{}, AcceptancePolicyVersion: version,
		Approver: c.Principal(), Comments: comments, Conditions: []string{}, OccurredAt: client.Timestamp(time.Now()),
	}
	if w.WorkItem != nil {
		out.WorkItemID = w.WorkItem.WorkItemID
	}
	return out
}

func newApprovalsListCommand(app *App, o *operator) *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List what waits for your decision", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.with(cmd.Context(), false, func(ctx context.Context, c *client.Client) error {
				if app.JSON {
					all, err := listAll[client.Raw](ctx, c, "/v1/approvals", url.Values{})
					if err != nil {
						return err
					}
					return app.PrintJSON(all)
				}
				all, err := listAll[waiting](ctx, c, "/v1/approvals", url.Values{})
				if err != nil {
					return err
				}
				return app.table("TYPE\tID\tUNTIL\tWHAT\tWHY", func(out io.Writer) {
					for i := range all {
						fmt.Fprintf(out, "%s\t%s\t%s\t%s\t%s\n", all[i].Type, all[i].ID, all[i].Until, all[i].what(), shorten(all[i].why(), 60))
					}
				})
			})
		},
	}
}

func (w *waiting) what() string {
	switch {
	case w.WorkItem == nil:
		return fmt.Sprintf("%d Artifacts for: %s", len(w.What.ArtifactHashes), shorten(w.Objective, 60))
	case w.What.ActionType != "":
		return shorten(fmt.Sprintf("%s %v by %s", w.What.ActionType, w.What.Resources, w.WorkItem.OwnerAgentID), 80)
	}
	return shorten(fmt.Sprintf("%v on %v: %s", w.What.Operations, w.What.Resources, w.WorkItem.Goal), 80)
}

func (w *waiting) why() string {
	if w.Why.Reason != "" {
		return w.Why.Reason
	}
	if w.Why.RuleID != "" {
		return w.Why.RuleID
	}
	return w.Why.Gate
}

// maxApproval is the longest that an approval may hold (COMMANDS.md 5.6).
const maxApproval = 24 * time.Hour

func newApprovalsGrantCommand(app *App, o *operator) *cobra.Command {
	var comments string
	var life time.Duration
	cmd := &cobra.Command{
		Use:   "grant ID",
		Short: "Let a WorkItem start, or let one Proposed Action happen once",
		Long: `ID is a WorkItem that waits to start or the request of an ASK, as mw approvals list
shows them. The approval covers what the item asks for and nothing else; that of an
ASK binds the exact arguments and is used up by one use.`,
		Args: cobra.ExactArgs(1),
	}
	cmd.Flags().StringVar(&comments, "comments", "", "what to say with it")
	cmd.Flags().DurationVar(&life, "for", time.Hour, "how long it holds, at most 24h")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if life <= 0 || life > maxApproval {
			return Usagef("--for is more than nothing and at most %s", maxApproval)
		}
		return o.with(cmd.Context(), false, func(ctx context.Context, c *client.Client) error {
			return app.decide(ctx, c, args[0], "approved", comments, client.Timestamp(time.Now().Add(life)))
		})
	}
	return cmd
}

func newApprovalsDenyCommand(app *App, o *operator) *cobra.Command {
	var comments string
	cmd := &cobra.Command{Use: "deny ID", Short: "Deny what waits", Args: cobra.ExactArgs(1)}
	cmd.Flags().StringVar(&comments, "comments", "", "why")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return o.with(cmd.Context(), false, func(ctx context.Context, c *client.Client) error {
			return app.decide(ctx, c, args[0], "denied", comments, "")
		})
	}
	return cmd
}

// decide signs and sends the operator's word on a WorkItem's start or on an ASK.
func (a *App) decide(ctx context.Context, c *client.Client, id, decision, comments, expiresAt string) error {
	w, err := waitingFor(ctx, c, id, "execution", "action")
	if err != nil {
		return err
	}
	approval := w.approval(c, "work_execution", decision, comments)
	payload := map[string]any{}
	kind := map[string]string{"approved": "approval.grant_execution", "denied": "ext.missionweave.approval.deny_execution"}[decision]
	if w.Type == "action" {
		kind = "ext.missionweave.approval.decide_action"
		approval.Conditions = []string{"argumentsDigest:" + w.What.ArgumentsDigest}
		payload["requestId"], payload["scope"], payload["argumentsDigest"] = w.ID, "one_shot", w.What.ArgumentsDigest
	} else {
		payload["ownershipEpoch"] = w.WorkItem.OwnershipEpoch
		if len(w.Requests) > 0 {
			payload["requestId"] = w.soonest()
		}
		if decision == "approved" {
			payload["operations"], payload["resources"] = w.What.Operations, w.What.Resources
			if w.What.ArgumentsDigest != "" {
				payload["argumentsDigest"] = w.What.ArgumentsDigest
			}
		}
	}
	if decision == "approved" {
		payload["expiresAt"] = expiresAt
	}
	signed, err := c.Identity().SignApproval(approval)
	if err != nil {
		return err
	}
	payload["approval"] = signed
	return a.post(ctx, c, client.Command{Kind: kind, GroupID: w.GroupID, WorkItemID: w.WorkItem.WorkItemID}, payload)
}

// soonest is the request that the item speaks for.
func (w *waiting) soonest() string {
	for _, r := range w.Requests {
		if r.ExpiresAt == w.Until {
			return r.RequestID
		}
	}
	return w.Requests[0].RequestID
}
