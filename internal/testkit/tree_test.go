package testkit_test

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/testkit"
)

// descend promotes a new WorkItem of a Mission to a child Mission of another
// Coordinator.
func descend(t *testing.T, s *testkit.Stack, m *testkit.Mission, coordinator *client.Client, within time.Duration) *testkit.Mission {
	t.Helper()
	item, contract := client.NewID(), m.Contract()
	contract.Deadline = client.Timestamp(time.Now().Add(within))
	m.Do(client.Command{Kind: "work.authorize", WorkItemID: item}, map[string]any{"contract": contract})
	missionID, groupID := client.NewID(), client.NewID()
	m.Do(client.Command{Kind: "mission.create_child", WorkItemID: item}, map[string]any{
		"missionId": missionID, "groupId": groupID, "coordinatorAgentId": coordinator.Principal().ID, "objective": "A part of it",
		"definitionOfDone": []client.AcceptanceCriterion{{CriterionID: "works", Description: "It works.", EvidenceRequired: []string{"human_review"}}},
		"budget":           contract.Budget, "deadline": contract.Deadline,
	})
	return s.Attach(missionID, groupID, m.Owner, coordinator)
}

// The human at the top reads every Mission below, down to a grandchild, from
// its first Event on; a member of one of them sees nothing of the next.
func TestTheRootsOwnerInspectsTheWholeTree(t *testing.T) {
	s := testkit.Start(t)
	root := s.NewMission()
	member := s.Agent("member")
	root.Admit(member, "worker", 1)
	child := descend(t, s, root, s.Agent("second"), 4*time.Hour)
	grandchild := descend(t, s, child, s.Agent("third"), 2*time.Hour)
	for _, m := range []*testkit.Mission{root, child, grandchild} {
		page := s.Get(s.Owner, client.Path("v1", "groups", m.GroupID)+"/events").Value(t)
		if got := kinds(page); len(got) == 0 || got[0] != "mission.created" {
			t.Errorf("%s: the root's owner reads %v", m.MissionID, got)
		}
	}
	tree := s.Get(s.Owner, client.Path("v1", "missions", root.MissionID)+"/tree").Value(t).Member("missions")
	var found []string
	for _, m := range tree.Items() {
		found = append(found, m.Member("missionId").Str())
	}
	for _, m := range []*testkit.Mission{root, child, grandchild} {
		if !slices.Contains(found, m.MissionID) {
			t.Errorf("the tree %s lacks %s", tree.Raw(), m.MissionID)
		}
	}
	s.Get(member, client.Path("v1", "groups", child.GroupID)+"/events").Refused(t, http.StatusNotFound, "GROUP_NOT_FOUND")
	s.Get(root.Coordinator, client.Path("v1", "groups", grandchild.GroupID)+"/events").Refused(t, http.StatusNotFound, "GROUP_NOT_FOUND")
}
