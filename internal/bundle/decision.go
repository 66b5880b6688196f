package bundle

import (
	"context"
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/policylog"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// decisionLine is a decision of the Organization's policy about the Group, outside
// of its own log: tokens, gates, Proposed Actions, inputs and memory. A token that
// was given out stands in the line of the decision that gave it.
type decisionLine struct {
	DecisionID      string         `json:"decisionId"`
	DecidedAt       string         `json:"decidedAt"`
	Category        string         `json:"category"`
	Outcome         string         `json:"outcome"`
	Code            string         `json:"code,omitempty"`
	Reason          string         `json:"reason,omitempty"`
	RuleIDs         []string       `json:"ruleIds"`
	ManifestVersion string         `json:"manifestVersion,omitempty"`
	Principal       protocol.Actor `json:"principal"`
	WorkItemID      string         `json:"workItemId,omitempty"`
	SubjectID       string         `json:"subjectId,omitempty"`
	Input           strictjson.Raw `json:"input"`
	Result          strictjson.Raw `json:"result,omitempty"`
	Token           *tokenFacts    `json:"token,omitempty"`
}

// tokenFacts are what is on record about a token. The token itself is on record
// nowhere.
type tokenFacts struct {
	Kind             string `json:"kind"`
	AgentID          string `json:"agentId"`
	KeyID            string `json:"keyId"`
	SessionEpoch     int64  `json:"sessionEpoch"`
	MembershipEpoch  int64  `json:"membershipEpoch"`
	WorkItemID       string `json:"workItemId,omitempty"`
	OwnershipEpoch   int64  `json:"ownershipEpoch,omitempty"`
	ExecutionLeaseID string `json:"executionLeaseId,omitempty"`
	ApprovalID       string `json:"approvalId,omitempty"`
	OneShot          bool   `json:"oneShot"`
	ManifestVersion  string `json:"manifestVersion,omitempty"`
	SigningKeyID     string `json:"signingKeyId"`
	IssuedAt         string `json:"issuedAt"`
	ExpiresAt        string `json:"expiresAt"`
	RevokedAt        string `json:"revokedAt,omitempty"`
	RevokedFor       string `json:"revokedFor,omitempty"`
}

// sqlDecisions reads a decision and its token in one statement, so that they belong
// together, and nothing that was decided after the moment of the bundle.
const sqlDecisions = `SELECT d.entry, d.decision_id, d.decided_at, d.category, d.outcome, coalesce(d.code, ''), coalesce(d.reason, ''),
	d.rule_ids, coalesce(d.manifest_version, ''), d.principal_type, d.principal_id, coalesce(d.work_item_id, ''),
	coalesce(d.subject_id, ''), d.input, d.result,
	t.kind, t.agent_id, t.key_id, t.session_epoch, t.membership_epoch, coalesce(t.work_item_id, ''), coalesce(t.ownership_epoch, 0),
	coalesce(t.execution_lease_id, ''), coalesce(t.approval_id, ''), coalesce(t.one_shot, false), coalesce(t.manifest_version, ''),
	coalesce(t.signing_key_id, ''), t.issued_at, t.expires_at, r.revoked_at, coalesce(r.reason, '')
FROM policy_decisions d
LEFT JOIN issued_tokens t ON d.category = 'token' AND d.outcome = 'issued' AND t.token_id = d.subject_id
LEFT JOIN token_revocations r ON r.token_id = t.token_id AND r.revoked_at <= $3
WHERE d.group_id = $1 AND d.entry > $2 AND d.decided_at <= $3 ORDER BY d.entry LIMIT $4`

func scanDecision(row pgx.CollectableRow) (entry int64, d decisionLine, err error) {
	var t tokenFacts
	var decided time.Time
	var kind, agent, key *string
	var session, membership *int64
	var issued, expires, revoked *time.Time
	err = row.Scan(&entry, &d.DecisionID, &decided, &d.Category, &d.Outcome, &d.Code, &d.Reason, &d.RuleIDs, &d.ManifestVersion,
		&d.Principal.Type, &d.Principal.ID, &d.WorkItemID, &d.SubjectID, (*[]byte)(&d.Input), (*[]byte)(&d.Result),
		&kind, &agent, &key, &session, &membership, &t.WorkItemID, &t.OwnershipEpoch, &t.ExecutionLeaseID, &t.ApprovalID, &t.OneShot,
		&t.ManifestVersion, &t.SigningKeyID, &issued, &expires, &revoked, &t.RevokedFor)
	if err != nil {
		return 0, d, err
	}
	d.DecidedAt = lexical.FormatMicros(decided)
	if kind != nil {
		t.Kind, t.AgentID, t.KeyID, t.SessionEpoch, t.MembershipEpoch = *kind, *agent, *key, *session, *membership
		t.IssuedAt, t.ExpiresAt = lexical.FormatMicros(*issued), lexical.FormatMicros(*expires)
		if revoked != nil {
			t.RevokedAt = lexical.FormatMicros(*revoked)
		}
		d.Token = &t
	}
	return entry, d, nil
}

// decisions writes what was decided about the Group up to the moment of the bundle.
func (x *export) decisions(ctx context.Context) error {
	for after := int64(0); ; {
		rows, err := x.pool.Query(ctx, sqlDecisions, x.s.head.GroupID, after, x.s.at, page)
		if err != nil {
			return err
		}
		list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d decisionLine, err error) {
			after, d, err = scanDecision(row)
			return d, err
		})
		if err != nil {
			return fmt.Errorf("bundle: decisions: %w", err)
		}
		for i := range list {
			if err := x.value(kindDecision, &list[i]); err != nil {
				return err
			}
		}
		if len(list) < page {
			return nil
		}
	}
}

// tokenSeen is what has to be known of a token later in the bundle.
type tokenSeen struct {
	line      int64
	id        string
	revoked   bool // its facts say so
	confirmed bool // a decision said so
}

func idKey(id string) [16]byte {
	sum := sha256.Sum256([]byte(id))
	return [16]byte(sum[:])
}

// decision checks one decision: that there is only one of its id, that a token goes
// back to a lease and an approval that the Events know, ends with them, and that
// whoever uses or revokes a token means one that was given out.
func (v *verifier) decision(l *line, c *checked) {
	d := c.decision
	if d == nil {
		return
	}
	if v.decided[idKey(d.DecisionID)] {
		v.problem(l, d.DecisionID, "is a second decision of this id")
	}
	v.decided[idKey(d.DecisionID)] = true
	token := d.Category == policylog.Token
	issued := token && d.Outcome == "issued"
	switch {
	case issued && d.Token == nil:
		if !v.tokenOver(d) {
			v.problem(l, d.SubjectID, "gives out a token of which nothing is said")
		}
		v.tokens[idKey(d.SubjectID)] = &tokenSeen{line: l.at, id: d.SubjectID}
	case !issued && d.Token != nil:
		v.problem(l, d.SubjectID, "has a token and gives out none")
	case issued:
		v.token(l, d)
	case token && d.Outcome == "revoked":
		v.confirmRevoked(l, d.SubjectID)
	}
	if v.stopped || len(c.rests) == 0 {
		return
	}
	for _, r := range c.rests {
		if r.token {
			if _, ok := v.tokens[idKey(r.id)]; !ok {
				v.problem(l, r.id, "rests on a token that was not given out")
			}
			continue
		}
		if _, ok := v.known.Leases[r.id]; !ok {
			v.problem(l, r.id, "rests on a lease that was not granted")
		}
	}
}

// tokenKept is how long after its end a service keeps the facts of a token.
const tokenKept = 24 * time.Hour

// tokenOver tells that a token had ended so long before the bundle was made that only
// the decision about it is kept.
func (v *verifier) tokenOver(d *decisionLine) bool {
	var answer struct {
		ExpiresAt string `json:"expiresAt"`
	}
	if err := d.Result.Decode(&answer); err != nil {
		return false
	}
	expired, err1 := lexical.ParseTimestamp(answer.ExpiresAt)
	taken, err2 := lexical.ParseTimestamp(v.head.TakenAt)
	return err1 == nil && err2 == nil && expired.Time().Add(tokenKept).Before(taken.Time())
}

func (v *verifier) confirmRevoked(l *line, id string) {
	t, ok := v.tokens[idKey(id)]
	if !ok {
		v.problem(l, id, "revokes a token that was not given out")
		return
	}
	t.confirmed = true
}

// token checks the facts of a token that was given out.
func (v *verifier) token(l *line, d *decisionLine) {
	t := d.Token
	if _, twice := v.tokens[idKey(d.SubjectID)]; twice {
		v.problem(l, d.SubjectID, "is given out a second time")
	}
	v.report.Tokens++
	v.tokens[idKey(d.SubjectID)] = &tokenSeen{line: l.at, id: d.SubjectID, revoked: t.RevokedAt != ""}
	agent := protocol.Actor{Type: protocol.ActorAgent, ID: t.AgentID}
	issued, err1 := lexical.ParseTimestamp(t.IssuedAt)
	expires, err2 := lexical.ParseTimestamp(t.ExpiresAt)
	if err1 != nil || err2 != nil || !issued.Time().Before(expires.Time()) {
		v.problem(l, d.SubjectID, "runs from %q to %q", t.IssuedAt, t.ExpiresAt)
		return
	}
	if t.RevokedAt != "" {
		if at, err := lexical.ParseTimestamp(t.RevokedAt); err != nil || at.Time().Before(issued.Time()) {
			v.problem(l, d.SubjectID, "was revoked at %q, before it was given out", t.RevokedAt)
		}
	}
	var answer struct {
		TokenID   string `json:"tokenId"`
		ExpiresAt string `json:"expiresAt"`
	}
	if err := d.Result.Decode(&answer); err != nil {
		v.problem(l, d.SubjectID, "result: %v", err)
	}
	for _, x := range []struct{ what, have, want string }{
		{"id", d.SubjectID, answer.TokenID},
		{"end", t.ExpiresAt, answer.ExpiresAt},
		{"holder", t.AgentID, d.Principal.ID},
		{"time", t.IssuedAt, d.DecidedAt},
		{"WorkItem", t.WorkItemID, d.WorkItemID},
		{"manifest", t.ManifestVersion, d.ManifestVersion},
	} {
		if x.have != x.want {
			v.problem(l, d.SubjectID, "%s is %q in the token and %q in the decision", x.what, x.have, x.want)
		}
	}
	if key, ok := v.ev.Key(t.SigningKeyID); !ok || !v.hasRole(key.Principal(), "authorization") || !key.Interval().Contains(issued) {
		v.problem(l, d.SubjectID, "is signed by %s, which was no key of an authorization service then", t.SigningKeyID)
	}
	if key, ok := v.ev.Key(t.KeyID); !ok || key.Principal() != agent || !key.Interval().Contains(issued) {
		v.problem(l, d.SubjectID, "is bound to %s, which was no key of its holder then", t.KeyID)
	}
	if !v.stopped {
		v.tokenStands(l, d, expires.Time())
	}
}

// tokenStands holds a token against the Group: Membership, lease, approval.
func (v *verifier) tokenStands(l *line, d *decisionLine, expires time.Time) {
	t := d.Token
	if m, ok := v.state.Memberships[protocol.Actor{Type: protocol.ActorAgent, ID: t.AgentID}]; !ok || m.MembershipEpoch < t.MembershipEpoch {
		v.problem(l, d.SubjectID, "is for a Membership that its holder never had")
	}
	if t.Kind != "capability" {
		return
	}
	w, ok := v.state.WorkItems[t.WorkItemID]
	if !ok {
		v.problem(l, d.SubjectID, "is for a WorkItem that there is not")
		return
	}
	lease, ok := w.Lease(t.ExecutionLeaseID)
	if !ok || lease.HolderAgentID != t.AgentID || lease.OwnershipEpoch != t.OwnershipEpoch || lease.LeaseType != protocol.LeaseExecution {
		v.problem(l, d.SubjectID, "is for the lease %s, which is no Execution Lease of its holder", t.ExecutionLeaseID)
		return
	}
	var in struct {
		GroupHead int64 `json:"groupHead"`
	}
	if err := d.Input.Decode(&in); err != nil || in.GroupHead < 1 || in.GroupHead > v.head.Head {
		v.problem(l, d.SubjectID, "was decided at a head that the Group did not have")
		return
	}
	if until, ok := v.leaseUntil(t.ExecutionLeaseID, in.GroupHead); !ok || expires.UnixMilli() > until {
		v.problem(l, d.SubjectID, "outlives its lease as that was at #%d", in.GroupHead)
	}
	if t.ApprovalID == "" {
		return
	}
	if !knowsApproval(w, t.ApprovalID) {
		v.problem(l, d.SubjectID, "rests on the approval %s, which nobody gave", t.ApprovalID)
	}
	if t.OneShot {
		if v.oneShots[idKey(t.ApprovalID)] {
			v.problem(l, d.SubjectID, "is a second token of the approval %s for one action", t.ApprovalID)
		}
		v.oneShots[idKey(t.ApprovalID)] = true
	}
}

func knowsApproval(w *groups.WorkItem, id string) bool {
	for i := range w.Executions {
		if w.Executions[i].ApprovalID == id {
			return true
		}
	}
	for i := range w.ActionRequests {
		if a := w.ActionRequests[i].Decision; a != nil && a.Approval.Doc.ApprovalID == id {
			return true
		}
	}
	return false
}

// leaseUntil is when a lease ended as it was known at a sequence of the log, in
// epoch milliseconds. The log's order counts: clocks of two services may differ.
func (v *verifier) leaseUntil(id string, sequence int64) (ms int64, ok bool) {
	for i, w := range v.known.Leases[id] {
		if since := v.leaseSince[id]; i < len(since) && since[i] <= sequence {
			ms, ok = w.ExpiresAtMS, true
		}
	}
	return ms, ok
}

// noteLeases notes the sequence from which on the windows count that an Event made.
func (v *verifier) noteLeases(ev *groups.Event) {
	w := v.state.WorkItems[ev.WorkItemID]
	if v.stopped || w == nil || w.Execution == nil {
		return
	}
	id := w.Execution.LeaseID
	for len(v.leaseSince[id]) < len(v.known.Leases[id]) {
		v.leaseSince[id] = append(v.leaseSince[id], ev.Sequence)
	}
}

// rest is what a decision says that it stands on.
type rest struct {
	token bool
	id    string
}

// checkDecision reads a decision. The input of one about an action says on which
// lease and token it stands.
func (c *checked) checkDecision(raw []byte) {
	d := &decisionLine{}
	if err := decodeExactly(raw, d); err != nil {
		c.fail(err.Error())
		return
	}
	c.decision = d
	if _, err := lexical.ParseTimestamp(d.DecidedAt); err != nil {
		c.fail("was decided at no time")
	}
	if d.Category != policylog.Action || d.Outcome == "reported" {
		return
	}
	var in struct {
		LeaseID string `json:"executionLeaseId"`
		TokenID string `json:"capabilityTokenId"`
	}
	if err := d.Input.Decode(&in); err != nil {
		c.fail(err.Error())
		return
	}
	if in.LeaseID != "" {
		c.rests = append(c.rests, rest{false, in.LeaseID})
	}
	if in.TokenID != "" {
		c.rests = append(c.rests, rest{true, in.TokenID})
	}
}
