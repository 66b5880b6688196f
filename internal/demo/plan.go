package demo

import (
	"math"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/missionfile"
)

// missionIDs are chosen by the MissionOwner before the Mission exists.
type missionIDs struct{ mission, group string }

// plan is the Mission file turned into the protocol's documents. Actors use
// their own part of it: the MissionOwner the Mission, the Coordinator the
// contracts, a Worker the content it produces.
type plan struct {
	missionIDs
	file    *missionfile.File
	cast    *cast
	started time.Time
	ids     map[string]string // name in the file -> WorkItem id
	names   map[string]string // WorkItem id -> name in the file
}

// policyVersion is the approval policy that the Mission pins.
const policyVersion = "1.0.0"

func newPlan(f *missionfile.File, c *cast, ids missionIDs, started time.Time) *plan {
	p := &plan{missionIDs: ids, file: f, cast: c, started: started, ids: map[string]string{}, names: map[string]string{}}
	for _, w := range f.All() {
		id := client.NewID()
		p.ids[w.ID], p.names[id] = id, w.ID
	}
	return p
}

func (p *plan) at(s missionfile.Span) string {
	return client.Timestamp(p.started.Add(s.Duration()))
}

// creation is the payload of mission.create.
func (p *plan) creation() map[string]any {
	m := p.file.Mission
	title := m.Title
	if title == "" {
		title = "Mission"
	}
	return map[string]any{
		"missionId": p.mission, "groupId": p.group,
		"coordinatorAgentId": p.cast.coordinator.Principal().ID,
		"title":              title, "objective": m.Objective,
		"definitionOfDone": criteria(m.DefinitionOfDone),
		"budget":           budget(m.Budget),
		"deadline":         p.at(m.Deadline),
		"approvalPolicy": client.ApprovalPolicy{
			FinalHumanApproval: true, HighRiskExecutionApproval: true, PolicyVersion: policyVersion,
		},
	}
}

// item finds a WorkItem of the file by its id in the protocol.
func (p *plan) item(workItemID string) (missionfile.WorkItem, bool) {
	name, ok := p.names[workItemID]
	if !ok {
		return missionfile.WorkItem{}, false
	}
	for _, w := range p.file.All() {
		if w.ID == name {
			return w, true
		}
	}
	return missionfile.WorkItem{}, false
}

// contract is the first version of a WorkItem's contract.
func (p *plan) contract(w missionfile.WorkItem) client.WorkContract {
	c := client.WorkContract{
		ContractVersion: 1, Goal: w.Goal, AcceptanceCriteria: criteria(w.Criteria),
		InputArtifacts: []string{}, DependencyWorkItemIDs: []string{}, AllowedResources: nil,
		RequiredCapabilities: capabilities(w.Capabilities), Deadline: p.at(w.Deadline),
		RequestedUrgency: w.Urgency, BusinessImpact: w.Impact,
		RetryPolicy:    client.RetryPolicy{MaxAttempts: 1, Backoff: "none", MaxDelay: "PT1M", RetryableFailures: []string{}},
		Budget:         budget(w.Budget),
		SideEffectRisk: "none", ExecutionApproval: "not_required",
	}
	for _, d := range w.Deliverables {
		c.RequiredDeliverables = append(c.RequiredDeliverables, client.Deliverable{
			DeliverableID: d.ID, Description: d.Description, MediaType: d.MediaType, Schema: "urn:missionweave:demo:deliverable",
		})
	}
	for _, d := range w.DependsOn {
		c.DependencyWorkItemIDs = append(c.DependencyWorkItemIDs, p.ids[d])
	}
	return c
}

// selection says why the candidates of a WorkItem were chosen.
func (p *plan) selection(w missionfile.WorkItem) client.SelectionBasis {
	return client.SelectionBasis{
		RequiredCapabilities: capabilities(w.Capabilities), VerifiedMatches: capabilities(w.Capabilities),
		AuthorizationEligible: true, AvailabilityEstimate: client.Timestamp(time.Now()),
		ExpectedCost: w.Budget.Financial, ReliabilityEvidence: []string{},
		PolicyRulesApplied: []string{"demo:listed-candidates"},
	}
}

func (p *plan) candidates(w missionfile.WorkItem) []string {
	var ids []string
	for _, name := range w.Candidates {
		ids = append(ids, p.cast.agentOf(name))
	}
	return ids
}

func criteria(list []missionfile.Criterion) []client.AcceptanceCriterion {
	out := make([]client.AcceptanceCriterion, 0, len(list))
	for _, k := range list {
		out = append(out, client.AcceptanceCriterion{CriterionID: k.ID, Description: k.Description, EvidenceRequired: k.Evidence})
	}
	return out
}

func capabilities(list []missionfile.Capability) []client.CapabilityRef {
	out := make([]client.CapabilityRef, 0, len(list))
	for _, k := range list {
		out = append(out, client.CapabilityRef{ID: k.ID, Version: k.Version})
	}
	return out
}

func budget(b missionfile.Budget) client.Budget {
	out := client.Budget{Currency: b.Currency}
	limit := func(v int64) *int64 {
		if v == 0 {
			return nil
		}
		return &v
	}
	if b.Financial > 0 {
		micro := client.Money(math.Round(b.Financial * 1e6))
		out.FinancialLimit = &micro
	}
	out.ModelTokenLimit, out.ToolCallLimit = limit(b.ModelTokens), limit(b.ToolCalls)
	out.ComputeSecondsLimit, out.WallClockSecondsLimit = limit(b.ComputeSeconds), limit(b.WallClockSeconds)
	out.ExternalSideEffectLimit = limit(b.ExternalSideEffects)
	return out
}
