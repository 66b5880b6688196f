package scenario

import (
	"context"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/missionweave/server/client"
)

// What a proof names is read from the server again, over REST, by the
// MissionOwner, and not taken from what an actor remembers.

// log reads the whole log of a Mission.
func (s *scene) log(ctx context.Context, m *mission) []client.Event {
	var all []client.Event
	for after := int64(0); ; {
		page, next, err := s.owner.c.Events(ctx, m.group, after, 200)
		s.must("read the log of "+m.name, err)
		if len(page) == 0 {
			return all
		}
		for _, d := range page {
			all = append(all, d.Event)
		}
		after = next
	}
}

// of are the Events of some kinds about one WorkItem; "" is any.
func of(log []client.Event, id string, kinds ...string) []client.Event {
	return slices.DeleteFunc(slices.Clone(log), func(e client.Event) bool {
		return id != "" && e.WorkItemID != id || !slices.Contains(kinds, e.Kind)
	})
}

// doc reads a WorkItem.
func (s *scene) doc(ctx context.Context, m *mission, id string) *client.WorkItem {
	item, err := s.owner.c.WorkItem(ctx, m.group, id)
	s.must("read "+s.nameOf(id), err)
	return item
}

// ownedIn lists the WorkItems of a Mission that are in a state and that a Worker owns.
func (s *scene) ownedIn(ctx context.Context, m *mission, worker, state string) []string {
	var page struct {
		Items []client.WorkItem `json:"items"`
	}
	s.must("list WorkItems", s.owner.c.Get(ctx, client.Path("v1", "groups", m.group, "work-items"),
		url.Values{"state": {state}, "owner": {s.agentID(worker)}, "limit": {"1000"}}, &page))
	ids := []string{}
	for _, w := range page.Items {
		ids = append(ids, w.WorkItemID)
	}
	return ids
}

// leases are the live leases of a WorkItem of one type.
func (s *scene) leases(ctx context.Context, m *mission, id, kind string) []client.Lease {
	var page struct {
		Items []client.Lease `json:"items"`
	}
	s.must("list leases", s.owner.c.Get(ctx, client.Path("v1", "groups", m.group, "work-items", id, "leases"), nil, &page))
	return slices.DeleteFunc(page.Items, func(l client.Lease) bool { return l.LeaseType != kind || l.State != "active" })
}

// graph is a Mission's progress: its WorkItems with what each depends on.
type graph struct {
	State        string   `json:"state"`
	WorkItems    []node   `json:"workItems"`
	CriticalPath []string `json:"criticalPath"`
	Required     []string `json:"required"`
}

type node struct {
	WorkItemID       string   `json:"workItemId"`
	State            string   `json:"state"`
	DependsOn        []string `json:"dependsOn"`
	Waiting          []string `json:"waiting"`
	Gate             string   `json:"gate"`
	Paused           bool     `json:"paused"`
	ParentWorkItemID string   `json:"parentWorkItemId"`
	OwnerAgentID     string   `json:"ownerAgentId"`
	ChildMissionID   string   `json:"childMissionId"`
}

func (s *scene) graph(ctx context.Context, m *mission) graph {
	var g graph
	s.must("read the progress of "+m.name, s.owner.c.Get(ctx, client.Path("v1", "missions", m.id, "progress"), nil, &g))
	return g
}

func (g graph) node(id string) node {
	for _, n := range g.WorkItems {
		if n.WorkItemID == id {
			return n
		}
	}
	return node{}
}

// handedIn is the content of everything that a WorkItem handed in.
func (s *scene) handedIn(ctx context.Context, m *mission, id string) string {
	item := s.doc(ctx, m, id)
	var all strings.Builder
	if item.Submission != nil {
		for _, hash := range item.Submission.ArtifactHashes {
			content, err := s.owner.c.GetArtifact(ctx, m.group, hash)
			s.must("read what "+s.nameOf(id)+" handed in", err)
			all.Write(content)
		}
	}
	return all.String()
}

// artifacts reads every Artifact of a Mission: the manifests' hashes and the
// content.
func (s *scene) artifacts(ctx context.Context, m *mission) (hashes []string, contents [][]byte) {
	for after := ""; ; {
		query := url.Values{"limit": {"1000"}}
		if after != "" {
			query.Set("after", after)
		}
		var page struct {
			Items []client.Artifact `json:"items"`
			Next  string            `json:"next"`
		}
		s.must("list Artifacts", s.owner.c.Get(ctx, client.Path("v1", "groups", m.group, "artifacts"), query, &page))
		for _, a := range page.Items {
			content, err := s.owner.c.GetArtifact(ctx, m.group, a.ContentHash)
			s.must("read an Artifact", err)
			hashes, contents = append(hashes, a.ContentHash), append(contents, content)
		}
		if after = page.Next; after == "" {
			return hashes, contents
		}
	}
}

// everything is all that a member of a Mission can read in it: the bytes of every
// Event, Messages among them, and of every Artifact.
func (s *scene) everything(ctx context.Context, m *mission) [][]byte {
	_, all := s.artifacts(ctx, m)
	for after := int64(0); ; {
		page, next, err := s.owner.c.Events(ctx, m.group, after, 200)
		s.must("read the log of "+m.name, err)
		if len(page) == 0 {
			return all
		}
		for _, d := range page {
			all = append(all, d.Bytes)
		}
		after = next
	}
}

// account is a budget account as the server serves it.
type account struct {
	Account struct {
		Type string `json:"type"`
		ID   string `json:"id"`
	} `json:"account"`
	Limit     client.Budget `json:"limit"`
	Remaining struct {
		ModelTokens         int64 `json:"modelTokens"`
		ExternalSideEffects int64 `json:"externalSideEffects"`
	} `json:"remaining"`
	Usage struct {
		ModelTokens int64 `json:"modelTokens"`
	} `json:"usage"`
	Exhausted []string `json:"exhausted"`
	Paused    bool     `json:"paused"`
}

func (s *scene) account(ctx context.Context, m *mission, kind, id string) account {
	var served struct {
		Accounts []account `json:"accounts"`
	}
	s.must("read the budget", s.owner.c.Get(ctx, client.Path("v1", "groups", m.group, "budget"), nil, &served))
	for _, k := range served.Accounts {
		if k.Account.Type == kind && k.Account.ID == id {
			return k
		}
	}
	return account{}
}

// remaining is what a Mission has left of its model tokens.
func (s *scene) remaining(ctx context.Context, m *mission) int64 {
	return s.account(ctx, m, "mission", m.id).Remaining.ModelTokens
}

// ledger is the whole budget answer of a Mission, to be compared.
func (s *scene) ledger(ctx context.Context, m *mission) string {
	var served client.Raw
	s.must("read the budget", s.owner.c.Get(ctx, client.Path("v1", "groups", m.group, "budget"), nil, &served))
	return string(served)
}

// when is the time of an Event by the server's clock.
func (s *scene) when(e client.Event) time.Time {
	t, err := time.Parse(time.RFC3339Nano, e.OccurredAt)
	s.must("read a time", err)
	return t
}

// eventually waits for something that no Event tells.
func (s *scene) eventually(ctx context.Context, what string, f func() bool) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-ctx.Done():
			s.must(what, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// count is how many Events of some kinds there are about a WorkItem, as its
// Coordinator was told.
func (s *scene) count(m *mission, id string, kinds ...string) int {
	return len(of(m.lead.events(kinds...), id, kinds...))
}

func (s *scene) named(ids []string) string {
	var names []string
	for _, id := range ids {
		names = append(names, s.nameOf(id))
	}
	return strings.Join(names, " ")
}

// same tells whether two lists hold the same ids, in any order.
func same(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// head is the last sequence that a Mission's Coordinator was told.
func (s *scene) head(m *mission) int64 {
	return read(m.lead, func(b *client.Board) int64 { return b.Head })
}
