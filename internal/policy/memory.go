package policy

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/manifest"
	"github.com/missionweave/server/internal/policylog"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/sessions"
)

// WriteAction is the action type under which memory is written.
const WriteAction = "write_memory"

const readOperation = "read_memory"

// MemoryWrite is a value to be remembered.
type MemoryWrite struct {
	GroupID    string         `json:"groupId"`
	Key        string         `json:"key"`
	Value      strictjson.Raw `json:"value"`
	Provenance []string       `json:"provenance"`
}

// Written answers a memory write.
type Written struct {
	Key        string `json:"key"`
	RecordID   string `json:"recordId"`
	TrustLevel string `json:"trustLevel"`
	Tainted    bool   `json:"tainted"`
}

// Write remembers a value with where it came from. It is the effect of an action:
// a write_memory action of the same Agent with the parameters {key, value} and the
// same provenance that was allowed, and that no write has used yet, allows it.
// Without one it is decided here as a background action. Either way every law is
// checked now: the records may have become worse since.
//
// Errors: GROUP_NOT_FOUND; AUTH_FORBIDDEN with the rule that denies it;
// APPROVAL_REQUIRED where a human would have to be asked.
func (s *Service) Write(ctx context.Context, who sessions.Identity, w MemoryWrite) (*Written, error) {
	if who.Principal.Type != protocol.ActorAgent || who.Kind != sessions.SessionToken {
		return nil, forbidden("session_token")
	}
	if _, err := s.enter(ctx, who.Principal, w.GroupID); err != nil {
		return nil, err
	}
	doc, err := strictjson.Parse(marshal(map[string]any{"key": w.Key, "value": w.Value}))
	if err != nil {
		return nil, err
	}
	digest, err := manifest.ParametersDigest(doc.Root())
	if err != nil {
		return nil, protocol.NewError(protocol.CodeProtocolViolation, "json")
	}
	var out *Written
	var refused error
	err = pgx.BeginFunc(ctx, s.cfg.Pool, func(tx pgx.Tx) error {
		now, err := s.now(ctx, tx)
		if err != nil {
			return err
		}
		actionID, allowed, err := s.allowedWrite(ctx, tx, who.Principal.ID, w, digest)
		if err != nil {
			return err
		}
		records, err := ancestry(ctx, tx, w.GroupID, w.Provenance)
		if err != nil {
			return err
		}
		m, err := s.inForce(ctx, tx, w.GroupID)
		if err != nil {
			return err
		}
		r := &manifest.Request{
			Mode: manifest.Background, Action: WriteAction, Parameters: doc.Root(), Chain: w.Provenance, Records: records,
			Actor: who.Principal.ID, Session: sessionID(who), Now: now,
		}
		d := m.Decide(r)
		if !mayWrite(&d, allowed) {
			refused = refusedWrite(&d)
			return s.logMemory(ctx, tx, now, who, w, &d, r, "refused")
		}
		if allowed {
			// Only now: a write that is refused uses nothing up.
			if _, err := tx.Exec(ctx, `UPDATE proposed_actions SET written = true WHERE agent_id = $1 AND action_id = $2`,
				who.Principal.ID, actionID); err != nil {
				return err
			}
		} else {
			actionID = s.cfg.Mint()
		}
		out, err = s.remember(ctx, tx, now, who, w, actionID, &d)
		if err != nil {
			return err
		}
		if allowed {
			if err := s.emitWritten(ctx, tx, who.Principal.ID, actionID, &w, out, now); err != nil {
				return err
			}
		}
		return s.logMemory(ctx, tx, now, who, w, &d, r, "written")
	})
	if err == nil {
		err = refused
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// mayWrite lets an ALLOW through, and what a human allowed unless a law, a schema
// or a deny rule speaks against it now.
func mayWrite(d *manifest.Decision, allowed bool) bool {
	return d.Verdict == manifest.ALLOW || allowed && (d.Rule == manifest.Escalation || d.Rule == manifest.Uncovered)
}

func refusedWrite(d *manifest.Decision) error {
	if d.Rule == manifest.Escalation || d.Rule == manifest.Uncovered {
		return protocol.NewError(protocol.CodeApprovalRequired, "manifest").WithDetail("ruleId", d.RuleID)
	}
	return forbidden("manifest").WithDetail("ruleId", d.RuleID)
}

// allowedWrite takes the action that allows a write: held until the transaction
// ends, so that no second write uses it.
func (s *Service) allowedWrite(ctx context.Context, tx pgx.Tx, agentID string, w MemoryWrite, digest string) (actionID string, allowed bool, err error) {
	rows, err := tx.Query(ctx, `SELECT action_id, entry FROM proposed_actions
		WHERE agent_id = $1 AND group_id = $2 AND arguments_digest = $3 AND state = 'allowed' AND NOT written
		ORDER BY decided_at, action_id FOR UPDATE`, agentID, w.GroupID, digest)
	if err != nil {
		return "", false, err
	}
	want := slices.Sorted(slices.Values(w.Provenance))
	var id string
	var raw []byte
	_, err = pgx.ForEachRow(rows, []any{&id, &raw}, func() error {
		var e manifest.Entry
		if err := strictjson.Raw(raw).Decode(&e); err != nil {
			return err
		}
		if actionID == "" && e.ActionType == WriteAction && slices.Equal(slices.Sorted(slices.Values(e.Provenance)), want) {
			actionID = id
		}
		return nil
	})
	if err != nil || actionID == "" {
		return "", false, err
	}
	return actionID, true, nil
}

// remember stores the value with its record.
func (s *Service) remember(ctx context.Context, tx pgx.Tx, now time.Time, who sessions.Identity, w MemoryWrite, actionID string, d *manifest.Decision) (*Written, error) {
	r := newRecord{
		Record: manifest.Record{
			ID: s.cfg.Mint(), Source: memoryChannel, Trust: manifest.Derived.String(), Tainted: d.Context.Tainted,
			Transformations: []string{WriteAction}, Parents: orEmpty(w.Provenance), Sessions: []string{sessionID(who)},
			CreatedAt: now.Format(time.RFC3339Nano),
		},
		kind: kindMemoryWrite, groupID: w.GroupID, by: who.Principal, at: now,
	}
	if err := r.store(ctx, tx); err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, `INSERT INTO memory_values (group_id, key, value, record_id, action_id) VALUES ($1, $2, $3, $4, $5)`,
		w.GroupID, w.Key, []byte(w.Value), r.ID, actionID); err != nil {
		return nil, err
	}
	return &Written{Key: w.Key, RecordID: r.ID, TrustLevel: d.Context.Trust.String(), Tainted: d.Context.Tainted}, nil
}

func (s *Service) logMemory(ctx context.Context, tx pgx.Tx, now time.Time, who sessions.Identity, w MemoryWrite, d *manifest.Decision, r *manifest.Request, outcome string) error {
	e := d.Entry(r)
	e.Parameters = nil // the value is in memory, if anywhere
	return policylog.Append(ctx, tx, policylog.Decision{
		ID: s.cfg.Mint(), At: now, Category: policylog.Memory, Outcome: outcome, RuleIDs: rulesOf(d),
		ManifestVersion: d.ManifestVersion, Principal: who.Principal, GroupID: w.GroupID, SubjectID: w.Key, Input: marshal(e),
	})
}

// Remembered is a value with where it came from.
type Remembered struct {
	Key   string         `json:"key"`
	Value strictjson.Raw `json:"value"`
	// RecordID is the new record of this read: whoever uses the value names it.
	RecordID        string       `json:"recordId"`
	TrustLevel      string       `json:"trustLevel"`
	Tainted         bool         `json:"tainted"`
	Provenance      []Provenance `json:"provenance"`
	SessionsCrossed []string     `json:"sessionsCrossed"`
}

// Read gives the value of a key with its chain and makes a derived record of the
// read. NotFound for a key without a value.
func (s *Service) Read(ctx context.Context, who sessions.Identity, groupID, key string) (*Remembered, error) {
	if _, err := s.enter(ctx, who.Principal, groupID); err != nil {
		return nil, err
	}
	var out *Remembered
	err := pgx.BeginFunc(ctx, s.cfg.Pool, func(tx pgx.Tx) error {
		now, err := s.now(ctx, tx)
		if err != nil {
			return err
		}
		var value []byte
		var written string
		err = tx.QueryRow(ctx, `SELECT value, record_id FROM memory_values WHERE group_id = $1 AND key = $2 ORDER BY entry DESC LIMIT 1`,
			groupID, key).Scan(&value, &written)
		if errors.Is(err, pgx.ErrNoRows) {
			return httpkit.NotFound()
		}
		if err != nil {
			return err
		}
		records, err := ancestry(ctx, tx, groupID, []string{written})
		if err != nil {
			return err
		}
		m, err := s.inForce(ctx, tx, groupID)
		if err != nil {
			return err
		}
		r := newRecord{
			Record: manifest.Record{
				ID: s.cfg.Mint(), Source: memoryChannel, Trust: manifest.Derived.String(), Transformations: []string{readOperation},
				Parents: []string{written}, Sessions: []string{sessionID(who)}, CreatedAt: now.Format(time.RFC3339Nano),
			},
			kind: kindMemoryRead, groupID: groupID, by: who.Principal, at: now,
		}
		records[r.ID] = &r.Record
		trust, tainted := manifest.Untrusted, true // without a manifest nothing is known of channels
		if m != nil {
			ctx := m.Context([]string{r.ID}, records)
			trust, tainted = ctx.Trust, ctx.Tainted
		}
		r.Tainted = tainted
		if err := r.store(ctx, tx); err != nil {
			return err
		}
		out = &Remembered{
			Key: key, Value: value, RecordID: r.ID, TrustLevel: trust.String(), Tainted: tainted, Provenance: chainOf(records, r.ID),
		}
		for _, p := range out.Provenance {
			if !slices.Contains(out.SessionsCrossed, p.SessionID) {
				out.SessionsCrossed = append(out.SessionsCrossed, p.SessionID)
			}
		}
		return policylog.Append(ctx, tx, policylog.Decision{
			ID: s.cfg.Mint(), At: now, Category: policylog.Memory, Outcome: "read", RuleIDs: []string{"memory:4"},
			Principal: who.Principal, GroupID: groupID, SubjectID: key,
			Input: marshal(map[string]any{"recordId": r.ID, "parent": written, "tainted": tainted, "trustLevel": trust.String()}),
		})
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// rulesOf are the laws and the rule of a decision for the Policy Log.
func rulesOf(d *manifest.Decision) []string {
	if len(d.Laws) > 0 {
		return d.Laws
	}
	return []string{d.RuleID}
}
