package policy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/authz"
	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/manifest"
	"github.com/missionweave/server/internal/policylog"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/signedwrite"
)

// Installed answers a new version.
type Installed struct {
	Version string           `json:"version"`
	Report  *manifest.Report `json:"report"`
	// GroupID is the Group in which it is in force; empty for the Organization.
	GroupID string `json:"groupId,omitempty"`
}

// Manifest is a stored version.
type Manifest struct {
	Version     string         `json:"version"`
	Name        string         `json:"name"`
	VersionName string         `json:"versionName"`
	Layout      string         `json:"layout"`
	Extends     string         `json:"extends,omitempty"`
	InstalledBy protocol.Actor `json:"installedBy"`
	InstalledAt string         `json:"installedAt"`
	Withdrawn   bool           `json:"withdrawn"`
	// Manifest is the canonical compiled form; left out of lists.
	Manifest strictjson.Raw `json:"manifest,omitempty"`
	Report   strictjson.Raw `json:"report,omitempty"`
}

// refuse is SCHEMA_VALIDATION_FAILED with every fault of a manifest: line, path,
// reason.
func refuse(err error) error {
	var bad *manifest.Invalid
	if !errors.As(err, &bad) {
		return err
	}
	// The registry discloses path and keyword; every fault goes into the latter.
	lines := make([]string, 0, len(bad.Faults))
	for _, f := range bad.Faults {
		lines = append(lines, fmt.Sprintf("line %d: %s: %s", f.Line, f.Path, f.Reason))
	}
	return protocol.NewError(protocol.CodeSchemaValidationFailed, "manifest").
		WithDetail("path", "/manifest").WithDetail("keyword", clip(strings.Join(lines, "\n"), 4000))
}

// Install stores and compiles a manifest and puts it in force: for groupID, or for
// the Organization. The writer is a policy service. Errors:
// SCHEMA_VALIDATION_FAILED with the faults, AUTH_FORBIDDEN, GROUP_NOT_FOUND.
func (s *Service) Install(ctx context.Context, w *signedwrite.Write, name, format, text, groupID string) (*Installed, error) {
	ok, err := s.keeper(ctx, w.Principal())
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, forbidden("policy")
	}
	if groupID != "" {
		if _, err := s.enter(ctx, w.Principal(), groupID); err != nil {
			return nil, err
		}
	}
	if isJSON := strings.HasPrefix(strings.TrimSpace(text), "{"); format == "json" && !isJSON {
		return nil, httpkit.SchemaError("/manifest", "format")
	}
	m, report, err := manifest.Parse(name, []byte(text))
	if err != nil {
		return nil, refuse(err)
	}
	if err := s.putInForce(ctx, w, m, report, format, text, "", groupID, ""); err != nil {
		return nil, err
	}
	return &Installed{Version: m.Version(), Report: report, GroupID: groupID}, nil
}

// putInForce stores a version, binds it and logs that, in one transaction with the
// signed body.
func (s *Service) putInForce(ctx context.Context, w *signedwrite.Write, m *manifest.Manifest, report *manifest.Report, format, text, extends, groupID, requestID string) error {
	by := w.Principal()
	return pgx.BeginFunc(ctx, s.cfg.Pool, func(tx pgx.Tx) error {
		now, err := s.now(ctx, tx)
		if err != nil {
			return err
		}
		if err := w.Record(ctx, tx); err != nil {
			return err
		}
		// Two extensions of one version would undo each other: the second has to see
		// the first.
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended('manifest:' || $1, 0))`, groupID); err != nil {
			return err
		}
		if extends != "" {
			inForce, err := s.InForce(ctx, tx, groupID)
			if err != nil {
				return err
			}
			if inForce != extends {
				return protocol.NewError(protocol.CodeInvalidStateTransition, "manifest_not_in_force")
			}
		}
		withdrawn, err := s.Withdrawn(ctx, tx, m.Version())
		if err != nil {
			return err
		}
		if withdrawn {
			return protocol.NewError(protocol.CodeInvalidStateTransition, "manifest_withdrawn")
		}
		if _, err := tx.Exec(ctx, `INSERT INTO manifests (version, name, version_name, layout, source, source_format, canonical,
				report, extends, installed_by_type, installed_by_id, installed_at)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8, nullif($9, ''), $10, $11, $12) ON CONFLICT DO NOTHING`,
			m.Version(), m.Name(), m.VersionName(), report.Layout, []byte(text), format, m.Canonical(), marshal(report), extends,
			by.Type, by.ID, now); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO manifest_bindings (group_id, version, bound_at, bound_by, request_id)
			VALUES ($1, $2, $3, $4, nullif($5, ''))`, groupID, m.Version(), now, by.ID, requestID); err != nil {
			return err
		}
		outcome := "installed"
		if extends != "" {
			outcome = "extended"
		}
		return policylog.Append(ctx, tx, policylog.Decision{
			ID: s.cfg.Mint(), At: now, Category: policylog.Manifest, Outcome: outcome, RuleIDs: []string{"manifest:2"},
			ManifestVersion: m.Version(), Principal: by, GroupID: groupID, SubjectID: requestID,
			Input: marshal(map[string]any{"extends": extends, "format": format, "sourceDigest": digestOf([]byte(text))}),
		})
	})
}

// Extend installs a Manifest Extension of a version. A policy service extends for
// whoever acts under the version by default; a human with approval.execution
// extends for the Group of the ASK that is named, and for no other. The change is
// JSON. Errors as Install, and INVALID_COMMAND for an ASK under another version.
func (s *Service) Extend(ctx context.Context, w *signedwrite.Write, version string, change []byte, requestID string) (*Installed, error) {
	ok, err := s.keeper(ctx, w.Principal())
	if err != nil {
		return nil, err
	}
	groupID, under := "", version
	if requestID != "" {
		err := s.cfg.Pool.QueryRow(ctx, `SELECT group_id, manifest_version FROM proposed_actions WHERE request_id = $1 ORDER BY proposed_at LIMIT 1`,
			requestID).Scan(&groupID, &under)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil, invalid("unknown_reference")
		}
		if err != nil {
			return nil, err
		}
	}
	if !ok {
		// What a human may change ends where the human's authority does.
		if groupID == "" || w.Principal().Type != protocol.ActorHuman {
			return nil, forbidden("policy")
		}
		now, err := s.now(ctx, s.cfg.Pool)
		if err != nil {
			return nil, err
		}
		if err := s.approver(ctx, w.Principal(), groupID, now); err != nil {
			if code(err) == protocol.CodeGroupNotFound {
				err = invalid("unknown_reference") // a request that may not be known
			}
			return nil, err
		}
	}
	if under != version {
		return nil, invalid("binding_mismatch")
	}
	base, err := s.load(ctx, s.cfg.Pool, version)
	if errors.Is(err, errNoVersion) {
		return nil, httpkit.NotFound()
	}
	if err != nil {
		return nil, err
	}
	m, err := base.Extend("change", change)
	if err != nil {
		return nil, refuse(err)
	}
	report := &manifest.Report{Layout: manifest.Format, NotCarried: []manifest.Fault{}}
	if err := s.putInForce(ctx, w, m, report, "json", string(change), version, groupID, requestID); err != nil {
		return nil, err
	}
	return &Installed{Version: m.Version(), Report: report, GroupID: groupID}, nil
}

// Withdraw ends a version: nobody acts under it any more, and its tokens die.
func (s *Service) Withdraw(ctx context.Context, w *signedwrite.Write, version, reason string) error {
	ok, err := s.keeper(ctx, w.Principal())
	if err != nil {
		return err
	}
	if !ok {
		return forbidden("policy")
	}
	return pgx.BeginFunc(ctx, s.cfg.Pool, func(tx pgx.Tx) error {
		now, err := s.now(ctx, tx)
		if err != nil {
			return err
		}
		if err := w.Record(ctx, tx); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, `INSERT INTO manifest_withdrawals (version, withdrawn_at, withdrawn_by, reason)
			SELECT version, $2, $3, $4 FROM manifests WHERE version = $1 ON CONFLICT DO NOTHING`, version, now, w.Principal().ID, reason)
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			withdrawn, err := s.Withdrawn(ctx, tx, version)
			if err == nil && withdrawn {
				err = protocol.NewError(protocol.CodeInvalidStateTransition, "manifest_withdrawn")
			}
			if err == nil {
				err = httpkit.NotFound()
			}
			return err
		}
		return policylog.Append(ctx, tx, policylog.Decision{
			ID: s.cfg.Mint(), At: now, Category: policylog.Manifest, Outcome: "withdrawn", Reason: "withdrawn", RuleIDs: []string{"manifest:2"},
			ManifestVersion: version, Principal: w.Principal(), Input: marshal(map[string]any{"version": version, "reason": reason}),
		})
	})
}

const sqlManifest = `SELECT m.version, m.name, m.version_name, m.layout, coalesce(m.extends, ''), m.installed_by_type, m.installed_by_id,
	m.installed_at, w.version IS NOT NULL, m.canonical, m.report
	FROM manifests m LEFT JOIN manifest_withdrawals w ON w.version = m.version`

func scanManifest(row pgx.CollectableRow) (x Manifest, err error) {
	var at time.Time
	err = row.Scan(&x.Version, &x.Name, &x.VersionName, &x.Layout, &x.Extends, &x.InstalledBy.Type, &x.InstalledBy.ID, &at, &x.Withdrawn, &x.Manifest, &x.Report)
	x.InstalledAt = at.UTC().Format(time.RFC3339Nano)
	return x, err
}

// Get is one version with its canonical form. NotFound otherwise.
func (s *Service) Get(ctx context.Context, version string) (*Manifest, error) {
	rows, err := s.cfg.Pool.Query(ctx, sqlManifest+` WHERE m.version = $1`, version)
	if err != nil {
		return nil, err
	}
	x, err := pgx.CollectExactlyOneRow(rows, scanManifest)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, httpkit.NotFound()
	}
	return &x, err
}

// List is a page of versions in the order of installation; after is the version of
// the last one seen, "" for the first page.
func (s *Service) List(ctx context.Context, after string, limit int) (items []Manifest, next string, err error) {
	rows, err := s.cfg.Pool.Query(ctx, sqlManifest+` WHERE $1 = '' OR (m.installed_at, m.version) >
			(SELECT installed_at, version FROM manifests WHERE version = $1)
		ORDER BY m.installed_at, m.version LIMIT $2`, after, limit+1)
	if err != nil {
		return nil, "", err
	}
	items, err = pgx.CollectRows(rows, scanManifest)
	if err != nil {
		return nil, "", err
	}
	if len(items) > limit {
		items = slices.Clip(items[:limit])
		next = items[limit-1].Version
	}
	for i := range items {
		items[i].Manifest, items[i].Report = nil, nil
	}
	return items, next, nil
}

// Diff compares two stored versions. NotFound for one that is not stored.
func (s *Service) Diff(ctx context.Context, from, to string) (*manifest.Diff, error) {
	var pair [2]*manifest.Manifest
	for i, version := range []string{from, to} {
		m, err := s.load(ctx, s.cfg.Pool, version)
		if errors.Is(err, errNoVersion) {
			return nil, httpkit.NotFound()
		}
		if err != nil {
			return nil, err
		}
		pair[i] = m
	}
	return manifest.Compare(pair[0], pair[1]), nil
}

// code is the code of a refusal, "" for another error.
func code(err error) protocol.Code {
	var perr *protocol.Error
	if errors.As(err, &perr) {
		return perr.Code
	}
	return ""
}

// KnownPolicies implements aeplog.Policies: a manifest version is the digest of a
// policy bundle and the name by which a revocation calls it.
func (v *Versions) KnownPolicies(ctx context.Context, q authz.Querier) (digests, versions map[string]bool, err error) {
	rows, err := q.Query(ctx, `SELECT version FROM manifests`)
	if err != nil {
		return nil, nil, err
	}
	digests = map[string]bool{}
	var version string
	_, err = pgx.ForEachRow(rows, []any{&version}, func() error {
		digests[version] = true
		return nil
	})
	return digests, digests, err
}
