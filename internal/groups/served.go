package groups

import (
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Extensions that carry in served documents what the normative members cannot
// say (COMMANDS.md 6.3).
const (
	MissionFactsExtension  = "urn:missionweave:extension:mission-facts"
	WorkItemLinksExtension = "urn:missionweave:extension:work-item-links"
	ownExtensionVersion    = "0.1.0"
)

type servedExtension struct {
	Version  string `json:"version"`
	Critical bool   `json:"critical"`
	Data     any    `json:"data"`
}

type missionFacts struct {
	Permissions         []protocol.ResourceGrant `json:"permissions"`
	AllowedCapabilities []protocol.CapabilityRef `json:"allowedCapabilities,omitempty"`
	FailurePolicy       string                   `json:"failurePolicy,omitempty"`
	Submission          *MissionSubmission       `json:"submission,omitempty"`
}

type workItemLinks struct {
	ParentWorkItemID   string `json:"parentWorkItemId,omitempty"`
	ReplacesWorkItemID string `json:"replacesWorkItemId,omitempty"`
	DelegationGrantID  string `json:"delegationGrantId,omitempty"`
	ChildMissionID     string `json:"childMissionId,omitempty"`
	ChildGroupID       string `json:"childGroupId,omitempty"`
	ChildState         string `json:"childState,omitempty"`
	Gate               string `json:"gate,omitempty"`
	Paused             bool   `json:"paused,omitempty"`
}

// MissionDoc is the Mission document as clients get it.
func (s *State) MissionDoc() (protocol.Mission, error) {
	doc := s.Mission.Mission
	var err error
	doc.Extensions, err = withExtension(doc.Extensions, MissionFactsExtension, missionFacts{
		Permissions: s.Mission.Permissions, AllowedCapabilities: s.Mission.AllowedCapabilities,
		FailurePolicy: s.Mission.FailurePolicy, Submission: s.Mission.Submission,
	})
	return doc, err
}

// WorkItemClock is what a served WorkItem says that depends on the clock and
// on accounts of other Groups; the zero value leaves it out.
type WorkItemClock struct {
	// Gate is awaiting_execution_approval or empty.
	Gate   string
	Paused bool
}

// Served is the WorkItem document as clients get it.
func (w *WorkItem) Served(c WorkItemClock) (protocol.WorkItem, error) {
	links := workItemLinks{
		ParentWorkItemID: w.ParentWorkItemID, ReplacesWorkItemID: w.ReplacesWorkItemID,
		DelegationGrantID: w.DelegationGrantID, Gate: c.Gate, Paused: c.Paused,
	}
	if child := w.Child(); child != nil {
		links.ChildMissionID, links.ChildGroupID, links.ChildState = child.MissionID, child.GroupID, child.State
	}
	doc := w.WorkItem
	var err error
	doc.Extensions, err = withExtension(doc.Extensions, WorkItemLinksExtension, links)
	return doc, err
}

// WithClock adds to a WorkItem document that was made without a clock what the
// clock says now.
func WithClock(doc protocol.WorkItem, c WorkItemClock) (protocol.WorkItem, error) {
	all, err := doc.Extensions.Value()
	if err != nil {
		return doc, err
	}
	var links workItemLinks
	if data := all.Member(WorkItemLinksExtension).Member("data"); data.Exists() {
		if err := strictjson.Decode(data, &links); err != nil {
			return doc, err
		}
	}
	links.Gate, links.Paused = c.Gate, c.Paused
	doc.Extensions, err = withExtension(doc.Extensions, WorkItemLinksExtension, links)
	return doc, err
}

// withExtension adds one extension to a document's.
func withExtension(raw protocol.Raw, uri string, data any) (protocol.Raw, error) {
	all := map[string]any{}
	if len(raw) > 0 {
		v, err := raw.Value()
		if err != nil {
			return nil, err
		}
		for name, ext := range v.Members() {
			b, err := ext.AppendJCS(nil)
			if err != nil {
				return nil, err
			}
			all[name] = protocol.Raw(b)
		}
	}
	all[uri] = servedExtension{Version: ownExtensionVersion, Data: data}
	return strictjson.Marshal(all)
}
