package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// CapabilityRequest asks for authority over a tool, within the contract and the
// lease of a Job. An absent Budget asks for all that remains.
type CapabilityRequest struct {
	Operations []string
	Resources  []string
	Budget     *Budget
	TTLSeconds int64
	// ApprovalID names the Execution Approval where the start gate needed one.
	ApprovalID string
}

// CapabilityToken is a Capability Token. The token is a secret of its Job: it must
// appear in no Message, Artifact or log, which is why it has no exported member.
type CapabilityToken struct {
	TokenID   string
	ExpiresAt string
	token     string
}

// Bearer is the token, for the tool that it is for.
func (c *CapabilityToken) Bearer() string { return c.token }

// String leaves the token out.
func (c *CapabilityToken) String() string { return "Capability Token " + c.TokenID }

// GoString leaves the token out too.
func (c *CapabilityToken) GoString() string { return c.String() }

// Capability asks the Authorization Service for a Capability Token. It ends with
// the Job's Execution Lease at the latest.
func (j *Job) Capability(ctx context.Context, r CapabilityRequest) (*CapabilityToken, error) {
	lease := j.lease()
	if lease == nil {
		return nil, ErrLeaseLost
	}
	if r.Resources == nil {
		r.Resources = []string{}
	}
	body := map[string]any{
		"groupId": j.GroupID, "workItemId": j.WorkItemID, "ownershipEpoch": j.OwnershipEpoch, "executionLeaseId": lease.id,
		"operations": r.Operations, "resources": r.Resources,
	}
	if r.Budget != nil {
		body["budget"] = r.Budget
	}
	if r.TTLSeconds > 0 {
		body["ttlSeconds"] = r.TTLSeconds
	}
	if r.ApprovalID != "" {
		body["approvalId"] = r.ApprovalID
	}
	var granted struct {
		Token     string `json:"token"`
		TokenID   string `json:"tokenId"`
		ExpiresAt string `json:"expiresAt"`
	}
	if err := j.w.session.PostAuthz(ctx, "/v1/capability-tokens", body, &granted); err != nil {
		return nil, err
	}
	return &CapabilityToken{TokenID: granted.TokenID, ExpiresAt: granted.ExpiresAt, token: granted.Token}, nil
}

// Action is a Proposed Action. ID is the caller's: proposed again it is the same.
type Action struct {
	ID         string
	Type       string
	Parameters any
	// Provenance are the record ids of everything the parameters came from.
	Provenance []string
	Operation  string
	Resource   string
	// ApprovalRequestID names the request that a human has granted meanwhile.
	ApprovalRequestID string
	Reason            string
}

// Decision is what the World Manifest says about an Action: ALLOW, DENY or ASK.
type Decision struct {
	ActionID        string   `json:"actionId"`
	Decision        string   `json:"decision"`
	RuleID          string   `json:"ruleId"`
	Laws            []string `json:"laws"`
	Reason          string   `json:"reason"`
	ManifestVersion string   `json:"manifestVersion"`
	ArgumentsDigest string   `json:"argumentsDigest"`
	// EvidenceRecordID is the record of the decision, once it is final.
	EvidenceRecordID string `json:"evidenceRecordId"`
	// ApprovalRequest is there when the answer is ASK.
	ApprovalRequest *ApprovalRequest `json:"approvalRequest"`
}

// ApprovalRequest waits for a human.
type ApprovalRequest struct {
	RequestID string   `json:"requestId"`
	Choices   []string `json:"choices"`
	ExpiresAt string   `json:"expiresAt"`
}

// Act proposes an Action under a Capability Token. Nothing may be executed unless
// the Decision is ALLOW.
func (j *Job) Act(ctx context.Context, c *CapabilityToken, a Action) (*Decision, error) {
	if a.Provenance == nil {
		a.Provenance = []string{}
	}
	body := map[string]any{
		"actionId": a.ID, "groupId": j.GroupID, "workItemId": j.WorkItemID, "capabilityToken": c.token,
		"actionType": a.Type, "parameters": a.Parameters, "provenance": a.Provenance,
		"operation": a.Operation, "resource": a.Resource,
	}
	if a.ApprovalRequestID != "" {
		body["approvalRequestId"] = a.ApprovalRequestID
	}
	if a.Reason != "" {
		body["reason"] = a.Reason
	}
	decision := new(Decision)
	if err := j.w.session.PostAuthz(ctx, "/v1/actions", body, decision); err != nil {
		return nil, err
	}
	return decision, nil
}

// ProposedAction is an Action as the Authorization Service keeps it.
type ProposedAction struct {
	Decision
	// State is asking, asked, consuming, allowed or denied.
	State      string `json:"state"`
	ActionType string `json:"actionType"`
	Parameters Raw    `json:"parameters"`
}

// ProposedAction reads an Action of the caller, nil when none with this id was
// ever decided on.
func (c *Client) ProposedAction(ctx context.Context, actionID string) (*ProposedAction, error) {
	if c.opt.AuthzURL == "" {
		return nil, errNoURL
	}
	out := new(ProposedAction)
	err := c.get(ctx, c.opt.AuthzURL, Path("v1", "actions", actionID), nil, out)
	if e, ok := errors.AsType[*Error](err); ok && e.Status == http.StatusNotFound {
		return nil, nil //nolint:nilnil // never decided on is an answer, not a failure
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Proposed is ProposedAction of the Job's Agent.
func (j *Job) Proposed(ctx context.Context, actionID string) (*ProposedAction, error) {
	return j.w.c.ProposedAction(ctx, actionID)
}

// Outcome is what was executed under an Action.
type Outcome struct {
	// ObservedParameters are those the tool really got; nil when nobody knows, and
	// then the record says that they were not checked.
	ObservedParameters any
	// Result is success, failure or skipped.
	Result       string
	ResultDigest string
	Usage        *Usage
}

// Recorded names the evidence record of an executed Action.
type Recorded struct {
	EvidenceRecordID string `json:"evidenceRecordId"`
	// ArgumentDrift is matched, drifted, or not-checked.
	ArgumentDrift string `json:"argumentDrift"`
}

// Outcome reports what was executed and returns the evidence record.
func (j *Job) Outcome(ctx context.Context, actionID string, o Outcome) (*Recorded, error) {
	body := map[string]any{"result": o.Result}
	if o.ObservedParameters != nil {
		body["observedParameters"] = o.ObservedParameters
	}
	if o.ResultDigest != "" {
		body["resultDigest"] = o.ResultDigest
	}
	if o.Usage != nil {
		body["usage"] = o.Usage
	}
	recorded := new(Recorded)
	if err := j.w.session.PostAuthz(ctx, Path("v1", "actions", actionID, "outcome"), body, recorded); err != nil {
		return nil, err
	}
	return recorded, nil
}

// PostAuthz posts a JSON body to the Authorization Service with the session token
// as bearer, until it is answered, and decodes the answer into dst.
func (s *Session) PostAuthz(ctx context.Context, path string, body, dst any) error {
	if s.c.opt.AuthzURL == "" {
		return errNoURL
	}
	b, err := strictjson.Marshal(body)
	if err != nil {
		return fmt.Errorf("client: encode the request: %w", err)
	}
	a, err := s.c.repeat(ctx, func() (*answer, error) {
		return s.c.do(ctx, call{
			method: http.MethodPost, url: s.c.opt.AuthzURL + path, contentType: "application/json", body: b, bearer: s.Token(),
		})
	})
	if err != nil || dst == nil {
		return err
	}
	return decode(a.body, dst)
}
