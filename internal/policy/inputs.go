package policy

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/manifest"
	"github.com/missionweave/server/internal/policylog"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/sessions"
)

// Input is what comes in from outside, raw.
type Input struct {
	GroupID    string `json:"groupId"`
	WorkItemID string `json:"workItemId"`
	Source     string `json:"source"`
	MediaType  string `json:"mediaType"`
	Payload    string `json:"payload"`
}

// SemanticEvent is what an Agent may see of an input.
type SemanticEvent struct {
	EventID          string     `json:"eventId"`
	GroupID          string     `json:"groupId"`
	WorkItemID       string     `json:"workItemId,omitempty"`
	Source           string     `json:"source"`
	MediaType        string     `json:"mediaType"`
	TrustLevel       string     `json:"trustLevel"`
	Tainted          bool       `json:"tainted"`
	HadHiddenContent bool       `json:"hadHiddenContent"`
	SanitizedPayload string     `json:"sanitizedPayload"`
	PayloadDigest    string     `json:"payloadDigest"`
	ManifestVersion  string     `json:"manifestVersion"`
	Provenance       Provenance `json:"provenance"`
}

// Receive is the virtualization boundary: it makes a Semantic Event and a
// provenance record of an input. The raw bytes are kept as a digest only.
//
// A service of the Organization and a human member may speak for any channel; what
// an Agent brings in is untrusted whatever channel it names, because the channel
// is its claim. Errors: GROUP_NOT_FOUND, AUTH_FORBIDDEN (no_manifest).
func (s *Service) Receive(ctx context.Context, who sessions.Identity, in Input) (*SemanticEvent, error) {
	if _, err := s.enter(ctx, who.Principal, in.GroupID); err != nil {
		return nil, err
	}
	m, err := s.inForce(ctx, s.cfg.Pool, in.GroupID)
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, forbidden("no_manifest")
	}
	seen := m.Virtualize(in.Source, in.Payload)
	if who.Principal.Type == protocol.ActorAgent || seen.Trust == manifest.Derived {
		// Trust that is derived has parents, and what enters here has none.
		seen.Trust, seen.Tainted = manifest.Untrusted, true
	}
	var out *SemanticEvent
	err = pgx.BeginFunc(ctx, s.cfg.Pool, func(tx pgx.Tx) error {
		now, err := s.now(ctx, tx)
		if err != nil {
			return err
		}
		r := newRecord{
			Record: manifest.Record{
				ID: s.cfg.Mint(), Source: in.Source, Trust: seen.Trust.String(), Tainted: seen.Tainted,
				Transformations: []string{}, Parents: []string{}, Sessions: []string{sessionID(who)}, CreatedAt: now.Format(time.RFC3339Nano),
			},
			kind: kindInput, groupID: in.GroupID, by: who.Principal, at: now,
		}
		out = &SemanticEvent{
			EventID: s.cfg.Mint(), GroupID: in.GroupID, WorkItemID: in.WorkItemID, Source: in.Source, MediaType: in.MediaType,
			TrustLevel: r.Trust, Tainted: r.Tainted, HadHiddenContent: seen.Hidden, SanitizedPayload: seen.Payload,
			PayloadDigest: digestOf([]byte(in.Payload)), ManifestVersion: m.Version(), Provenance: provenanceOf(&r.Record),
		}
		if err := r.store(ctx, tx); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO semantic_events (event_id, group_id, work_item_id, record_id, media_type, sanitized_payload,
				payload_digest, hidden, manifest_version) VALUES ($1, $2, nullif($3, ''), $4, $5, $6, $7, $8, $9)`,
			out.EventID, in.GroupID, in.WorkItemID, r.ID, in.MediaType, seen.Payload, out.PayloadDigest, seen.Hidden, m.Version()); err != nil {
			return err
		}
		outcome := "clean"
		if r.Tainted {
			outcome = "tainted"
		}
		return policylog.Append(ctx, tx, policylog.Decision{
			ID: s.cfg.Mint(), At: now, Category: policylog.Input, Outcome: outcome, RuleIDs: []string{"trust_channels"},
			ManifestVersion: m.Version(), Principal: who.Principal, GroupID: in.GroupID, WorkItemID: in.WorkItemID, SubjectID: out.EventID,
			Input: marshal(map[string]any{
				"source": in.Source, "mediaType": in.MediaType, "payloadDigest": out.PayloadDigest, "recordId": r.ID, "hidden": seen.Hidden,
			}),
		})
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Event is a Semantic Event for a member of its Group. NotFound otherwise.
func (s *Service) Event(ctx context.Context, who sessions.Identity, eventID string) (*SemanticEvent, error) {
	var e SemanticEvent
	var record string
	err := s.cfg.Pool.QueryRow(ctx, `SELECT event_id, group_id, coalesce(work_item_id, ''), record_id, media_type, sanitized_payload, payload_digest,
			hidden, manifest_version FROM semantic_events WHERE event_id = $1`, eventID).
		Scan(&e.EventID, &e.GroupID, &e.WorkItemID, &record, &e.MediaType, &e.SanitizedPayload, &e.PayloadDigest, &e.HadHiddenContent, &e.ManifestVersion)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, httpkit.NotFound()
	}
	if err != nil {
		return nil, err
	}
	if _, err := s.enter(ctx, who.Principal, e.GroupID); err != nil {
		return nil, undisclosed(err)
	}
	records, err := ancestry(ctx, s.cfg.Pool, e.GroupID, []string{record})
	if err != nil {
		return nil, err
	}
	r := records.Record(record)
	e.Source, e.TrustLevel, e.Tainted, e.Provenance = r.Source, r.Trust, r.Tainted, provenanceOf(r)
	return &e, nil
}
