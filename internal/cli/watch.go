package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
)

func newWatchCommand(app *App) *cobra.Command {
	o := &operator{}
	var after int64
	var most int
	cmd := &cobra.Command{
		Use:   "watch GROUP",
		Short: "Print the Events of a Group as they are committed",
		Long: `Print one line per Event, from the first one on and then live, until interrupted.
With --json each line is the Event in the bytes that were signed.`,
		Args: cobra.ExactArgs(1),
	}
	o.flags(cmd)
	cmd.Flags().Int64Var(&after, "after", 0, "begin after this sequence")
	cmd.Flags().IntVar(&most, "count", 0, "end after so many Events; 0 goes on")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return o.with(cmd.Context(), true, func(ctx context.Context, c *client.Client) error {
			seen := 0
			err := c.Follow(ctx, args[0], after, func(d client.Delivery) error {
				if err := app.printEvent(d); err != nil {
					return err
				}
				if seen++; most > 0 && seen >= most {
					return client.ErrStop
				}
				return nil
			})
			if errors.Is(err, client.ErrStop) {
				return nil
			}
			return err
		})
	}
	return cmd
}

func (a *App) printEvent(d client.Delivery) error {
	var err error
	if a.JSON {
		_, err = fmt.Fprintf(a.Out, "%s\n", d.Bytes)
		return err
	}
	_, err = fmt.Fprintf(a.Out, "%6d  %s  %-45s %s %s\n", d.Event.Sequence, d.Event.OccurredAt, d.Event.Kind, d.Event.Actor.ID, d.Event.WorkItemID)
	return err
}

// replayed is what mw replay prints.
type replayed struct {
	GroupID     string                `json:"groupId"`
	Sequence    int64                 `json:"sequence"`
	LastEventAt string                `json:"lastEventAt"`
	Mission     protocol.Mission      `json:"mission"`
	Memberships []protocol.Membership `json:"memberships"`
	WorkItems   []protocol.WorkItem   `json:"workItems"`
}

func newReplayCommand(app *App) *cobra.Command {
	o := &operator{}
	var to int64
	cmd := &cobra.Command{
		Use:   "replay GROUP",
		Short: "Fold a Group's Events from the first one and print the state they make",
		Long: `Read a Group's Events, fold them from nothing on this machine and print the state,
as it was at a sequence or as it is now. A gap, an Event twice, or a document in an
Event that is not what the fold makes is an error. Whoever does not see every Event
of the Group cannot replay it.`,
		Args: cobra.ExactArgs(1),
	}
	o.flags(cmd)
	cmd.Flags().Int64Var(&to, "to", 0, "stop at this sequence; 0 goes on to the last one")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return o.with(cmd.Context(), true, func(ctx context.Context, c *client.Client) error {
			state, err := fold(ctx, c, args[0], to)
			if err != nil {
				return err
			}
			return app.printState(state)
		})
	}
	return cmd
}

// fold reads a Group's log and applies it.
func fold(ctx context.Context, c *client.Client, groupID string, to int64) (*groups.State, error) {
	state := groups.New()
	for after := int64(0); ; {
		page, next, err := c.Events(ctx, groupID, after, 1000)
		if err != nil {
			return nil, err
		}
		for _, d := range page {
			if to > 0 && d.Event.Sequence > to {
				return state, nil
			}
			if d.Event.Sequence != state.Head+1 {
				return nil, fmt.Errorf("the Event after sequence %d is %d: not every Event is shown to %s", state.Head, d.Event.Sequence, c.Principal().ID)
			}
			ev, err := events.Decode(d.Bytes)
			if err == nil {
				err = state.Apply(ev)
			}
			if err != nil {
				return nil, fmt.Errorf("sequence %d: %w", d.Event.Sequence, err)
			}
		}
		if len(page) == 0 || next == after {
			break
		}
		after = next
	}
	switch {
	case state.Mission == nil:
		return nil, fmt.Errorf("there are no Events of Group %s", groupID)
	case state.Head < to:
		return nil, fmt.Errorf("the log ends at sequence %d", state.Head)
	}
	return state, nil
}

func (a *App) printState(s *groups.State) error {
	out := replayed{GroupID: s.GroupID, Sequence: s.Head, LastEventAt: s.LastEventAt, WorkItems: []protocol.WorkItem{}}
	var err error
	if out.Mission, err = s.MissionDoc(); err != nil {
		return err
	}
	for _, m := range s.SortedMemberships() {
		out.Memberships = append(out.Memberships, *m)
	}
	for _, id := range slices.Sorted(maps.Keys(s.WorkItems)) {
		doc, err := s.WorkItems[id].Served(groups.WorkItemClock{})
		if err != nil {
			return err
		}
		out.WorkItems = append(out.WorkItems, doc)
	}
	if a.JSON {
		return a.PrintJSON(out)
	}
	fmt.Fprintf(a.Out, "group    %s at sequence %d, %s\nmission  %s %s, revision %d\n", out.GroupID, out.Sequence, out.LastEventAt,
		out.Mission.MissionID, out.Mission.State, out.Mission.Revision)
	for _, m := range out.Memberships {
		fmt.Fprintf(a.Out, "member   %s %s %s, epoch %d\n", m.Member.ID, m.Role, m.State, m.MembershipEpoch)
	}
	for i := range out.WorkItems {
		w := &out.WorkItems[i]
		fmt.Fprintf(a.Out, "work     %s %s: %s\n", w.WorkItemID, w.State, shorten(w.Contract.Goal, 60))
	}
	return nil
}
