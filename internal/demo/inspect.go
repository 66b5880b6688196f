package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/missionweave/server/client"
)

// Summary is what a finished run has to show.
type Summary struct {
	MissionID string         `json:"missionId"`
	GroupID   string         `json:"groupId"`
	Events    int            `json:"events"`
	ByKind    map[string]int `json:"eventsByKind"`
	WorkItems int            `json:"workItemsVerified"`
	Artifacts int            `json:"artifacts"`
	// Seconds from the first registration to the end of the inspection.
	Seconds float64 `json:"seconds"`
}

// inspect reads the whole log again over REST and checks that it tells the
// Mission that was asked for.
func inspect(ctx context.Context, c *cast, p *plan) (*Summary, error) {
	s := &Summary{MissionID: p.mission, GroupID: p.group, ByKind: map[string]int{}, WorkItems: len(p.file.All())}
	board := newBoard()
	for after := int64(0); ; {
		page, next, err := c.owner.Events(ctx, p.group, after, 50)
		if err != nil {
			return nil, expect("the log to be readable from the beginning", err)
		}
		if len(page) == 0 {
			break
		}
		for _, d := range page {
			if d.Event.Sequence != board.head+1 {
				return nil, expect("a log without gaps", fmt.Errorf("sequence %d follows %d", d.Event.Sequence, board.head))
			}
			if err := board.learn(d.Event); err != nil {
				return nil, expect("the Event log", err)
			}
			s.Events++
			s.ByKind[d.Event.Kind]++
		}
		after = next
	}
	s.Artifacts = s.ByKind["artifact.published"]
	if err := s.check(p); err != nil {
		return nil, err
	}
	return s, expect("the served Mission to agree with its log", served(ctx, c, p, board))
}

// check holds the counts of the log against the Mission file.
func (s *Summary) check(p *plan) error {
	items, rounds := len(p.file.All()), 0
	if p.file.ChangeRound != nil {
		rounds = 1
	}
	checkpoints := 0
	for _, w := range p.file.All() {
		if len(w.Phases) > 1 {
			checkpoints++
		}
	}
	for kind, want := range map[string]int{
		"mission.created":                1,
		"mission.submitted_for_approval": 1 + rounds,
		"mission.changes_requested":      rounds,
		"mission.approved":               1,
		"membership.changed":             len(p.cast.workers),
		"work.authorized":                items,
		"work.offer.accepted":            items,
		"artifact.published":             items,
		"work.submitted":                 items,
		"work.result.accepted":           items,
	} {
		if got := s.ByKind[kind]; got != want {
			return expect(fmt.Sprintf("%d × %s in the log", want, kind), fmt.Errorf("there are %d", got))
		}
	}
	// A broken session returns a WorkItem to the queue, and it is started again.
	if got := s.ByKind["work.started"]; got < items+checkpoints {
		return expect(fmt.Sprintf("at least %d × work.started in the log", items+checkpoints), fmt.Errorf("there are %d", got))
	}
	return nil
}

// served compares the documents that the server serves with the log.
func served(ctx context.Context, c *cast, p *plan, b *board) error {
	mission, err := c.owner.Mission(ctx, p.mission)
	if err != nil {
		return err
	}
	if mission.State != "approved" {
		return fmt.Errorf("the Mission is %s", mission.State)
	}
	items, err := c.owner.WorkItems(ctx, p.group)
	if err != nil {
		return err
	}
	if len(items) != len(b.items) {
		return fmt.Errorf("%d WorkItems are served, the log has %d", len(items), len(b.items))
	}
	for _, w := range items {
		if w.State != "verified" {
			return fmt.Errorf("WorkItem %s is %s", p.names[w.WorkItemID], w.State)
		}
	}
	for _, w := range p.file.All() {
		content, err := c.coordinator.GetArtifact(ctx, p.group, client.Hash([]byte(w.Artifact.Content)))
		if err != nil {
			return fmt.Errorf("the Artifact of %s: %w", w.ID, err)
		}
		if string(content) != w.Artifact.Content {
			return errors.New("the Artifact of " + w.ID + " has other content")
		}
	}
	return nil
}

func (t *timeline) summary(s *Summary) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.printf("")
	t.printf("%s in %.2f s: %d Events, %d WorkItems verified, %d Artifacts, no gap in the log",
		t.paint("1;32", "Mission approved"), s.Seconds, s.Events, s.WorkItems, s.Artifacts)
	for _, kind := range slices.Sorted(maps.Keys(s.ByKind)) {
		t.printf("  %4d  %s", s.ByKind[kind], kind)
	}
	t.printf("")
	t.printf("Mission  %s", s.MissionID)
	t.printf("Group    %s", s.GroupID)
}
