package aeplog

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/missionweave/server/internal/authz"
	"github.com/missionweave/server/internal/evidence"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/trust"
	"github.com/missionweave/server/internal/views"
)

// Policies says which manifests there are, for tier 4. Both may answer nil: then
// there is no such registry.
type Policies interface {
	// KnownPolicies are the digests of policy bundles, KnownVersions the names by
	// which a revocation may call them.
	KnownPolicies(ctx context.Context, q authz.Querier) (digests, versions map[string]bool, err error)
}

// Verifier checks records against the server's own registries.
type Verifier struct {
	pool      *pgxpool.Pool
	views     *views.Views
	directory *registry.Directory
	policies  Policies
}

// NewVerifier makes a Verifier; policies may be nil.
func NewVerifier(pool *pgxpool.Pool, v *views.Views, d *registry.Directory, policies Policies) *Verifier {
	return &Verifier{pool: pool, views: v, directory: d, policies: policies}
}

// Verdict is a report with what is derived from a record of the right shape.
type Verdict struct {
	Valid bool `json:"valid"`
	*evidence.Report
	Actions []Derived `json:"actions"`
}

// Derived is the projection and the assessment of one action.
type Derived struct {
	ActionID   string              `json:"actionId"`
	Envelope   evidence.Envelope   `json:"decisionEnvelope"`
	Assessment evidence.Assessment `json:"assessment"`
}

// Verify judges a record by all four tiers. Leases, approvals and Events that
// the reader may not know count as unknown: otherwise verifying would be a way
// to ask for them.
func (v *Verifier) Verify(ctx context.Context, reader protocol.Actor, raw []byte) (Verdict, error) {
	view, err := v.directory.View(ctx)
	if err != nil {
		return Verdict{}, fmt.Errorf("aeplog: registry: %w", err)
	}
	opt := evidence.Options{Signature: true, Keys: func(id string) (ed25519.PublicKey, bool) {
		key, ok := view.Evidence.Key(id)
		if !ok {
			return nil, false
		}
		return key.PublicKey(), true
	}}
	record, err := evidence.ParseValue(raw)
	if err == nil && record.Kind() == evidence.Object {
		if opt.Registry, err = v.registry(ctx, reader, view, record); err != nil {
			return Verdict{}, err
		}
	}
	record, report := evidence.Check(raw, opt)
	out := Verdict{Valid: report.OK(), Report: report, Actions: []Derived{}}
	for _, tier := range report.Tiers {
		if tier != 2 {
			continue
		}
		for _, a := range record.Get("actions").Items() {
			out.Actions = append(out.Actions, Derived{a.Get("action_id").Str(), evidence.EnvelopeOf(record, a), evidence.Assess(a)})
		}
	}
	return out, nil
}

// TrustedKeys are the keys that may sign evidence of the Organization.
func TrustedKeys(view *registry.View) map[string]evidence.KeyStatus {
	out := map[string]evidence.KeyStatus{}
	for key := range view.Evidence.All() {
		if !view.HasRole(key.Principal(), registry.RoleEvidence) {
			continue
		}
		out[key.ID()] = KeyStatusOf(key)
	}
	return out
}

// KeyStatusOf is when a key stopped being one, however it did.
func KeyStatusOf(key *trust.Key) evidence.KeyStatus {
	if end, ok := registry.KeyEnd(key); ok {
		ms := end.UnixMilli()
		return evidence.KeyStatus{RevokedAtMS: &ms}
	}
	return evidence.KeyStatus{}
}

func (v *Verifier) registry(ctx context.Context, reader protocol.Actor, view *registry.View, record *evidence.Value) (*evidence.Registry, error) {
	g := &evidence.Registry{
		Keys:                 TrustedKeys(view),
		Leases:               map[string][]evidence.LeaseWindow{},
		Approvals:            map[string]bool{},
		RevocationEvents:     map[string]int64{},
		Actions:              map[string]bool{},
		ArgsEqualityVersions: map[string]bool{},
		UnknownNeedsApproval: true,
	}
	for _, version := range evidence.ArgsEqualityVersions() {
		g.ArgsEqualityVersions[version] = true
	}
	if v.policies != nil {
		var err error
		if g.Policies, g.PolicyVersions, err = v.policies.KnownPolicies(ctx, v.pool); err != nil {
			return nil, fmt.Errorf("aeplog: policies: %w", err)
		}
	}
	group, from, err := v.groupOf(ctx, reader, record)
	if err != nil || group == "" {
		return g, err
	}
	rows, err := v.pool.Query(ctx, `SELECT action_id FROM evidence_records WHERE run_id = $1 AND group_sequence >= $2`,
		record.Get("run_id").Str(), from)
	if err != nil {
		return nil, fmt.Errorf("aeplog: history: %w", err)
	}
	history, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("aeplog: history: %w", err)
	}
	for _, id := range history {
		g.Actions[id] = true
	}
	var wanted []string
	for _, a := range record.Get("actions").Items() {
		if evidence.Grant(a) == "one-shot-payload" {
			wanted = append(wanted, "")
		}
		ble := a.Get("bounded_lease_evidence")
		for _, id := range []string{ble.Get("lease_id").Str(), ble.Get("revocation_event_id").Str()} {
			if id != "" {
				wanted = append(wanted, id)
			}
		}
	}
	if len(wanted) == 0 {
		return g, nil
	}
	return g, v.facts(ctx, group, from, wanted, g)
}

// groupOf is the Group that a record is about, if the reader may know it, and the
// sequence from which the reader sees its log.
func (v *Verifier) groupOf(ctx context.Context, reader protocol.Actor, record *evidence.Value) (string, int64, error) {
	leases := []string{}
	for _, a := range record.Get("actions").Items() {
		leases = append(leases, a.Get("scope_lease_id").Str())
	}
	rows, err := v.pool.Query(ctx, `SELECT group_id FROM evidence_runs WHERE run_id = $1
		UNION SELECT group_id FROM leases WHERE lease_id = ANY ($2)`, record.Get("run_id").Str(), leases)
	if err != nil {
		return "", 0, fmt.Errorf("aeplog: group: %w", err)
	}
	groups, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(groups) != 1 { // a record across Groups is about none
		return "", 0, err
	}
	access, perr := v.views.Enter(ctx, reader, groups[0])
	switch {
	case perr != nil && perr.Code == protocol.CodeInternalError:
		return "", 0, perr
	case perr != nil || access.Provisional:
		return "", 0, nil
	}
	return groups[0], access.From, nil
}

// facts reads what a Group's log says about leases, revoking Events and
// approvals. Only Events that hold one of the ids, or an approval, are read.
func (v *Verifier) facts(ctx context.Context, group string, from int64, wanted []string, g *evidence.Registry) error {
	rows, err := v.pool.Query(ctx, `SELECT e.occurred_at, e.document FROM groups g
		JOIN event_log e ON e.tree_id = g.tree_id AND e.group_id = g.group_id
		WHERE g.group_id = $1 AND e.sequence >= $3 AND (e.kind LIKE '%approval%' OR EXISTS (
			SELECT FROM unnest($2::text[]) AS id WHERE id <> '' AND position(convert_to(id, 'UTF8') IN e.document) > 0))
		ORDER BY e.sequence`, group, wanted, from)
	if err != nil {
		return fmt.Errorf("aeplog: Events: %w", err)
	}
	var occurred time.Time
	var document []byte
	_, err = pgx.ForEachRow(rows, []any{&occurred, &document}, func() error {
		doc, err := strictjson.Parse(document)
		if err != nil {
			return err
		}
		Facts(doc.Root(), occurred.UnixMilli(), g)
		return nil
	})
	if err != nil {
		return fmt.Errorf("aeplog: Events: %w", err)
	}
	return nil
}

// Facts adds what one Event says to a registry: the windows of leases, the
// approvals by their Signing Hash, and the Event itself.
func Facts(event strictjson.Value, atMS int64, g *evidence.Registry) {
	g.RevocationEvents[event.Member("eventId").Str()] = atMS
	facts(event.Member("payload"), atMS, g)
}

func facts(v strictjson.Value, atMS int64, g *evidence.Registry) {
	switch v.Kind() {
	case strictjson.Array:
		for _, item := range v.Items() {
			facts(item, atMS, g)
		}
	case strictjson.Object:
		id, starts, ends := v.Member("leaseId").Str(), v.Member("startsAt").Str(), v.Member("expiresAt").Str()
		if id != "" && starts != "" && ends != "" {
			leaseWindow(g, id, starts, ends, atMS)
		}
		if v.Member("approvalId").Str() != "" && v.Member("signature").Kind() == strictjson.Object {
			if hash, err := trust.SigningHash(v); err == nil {
				g.Approvals[hash] = true
			}
		}
		for _, m := range v.Members() {
			facts(m, atMS, g)
		}
	}
}

// leaseWindow notes a window that differs from the one before.
func leaseWindow(g *evidence.Registry, id, starts, ends string, sinceMS int64) {
	from, err := lexical.ParseTimestamp(starts)
	if err != nil {
		return
	}
	to, err := lexical.ParseTimestamp(ends)
	if err != nil {
		return
	}
	w := evidence.LeaseWindow{SinceMS: sinceMS, GrantedAtMS: from.Time().UnixMilli(), ExpiresAtMS: to.Time().UnixMilli()}
	list := g.Leases[id]
	if n := len(list); n > 0 && list[n-1].GrantedAtMS == w.GrantedAtMS && list[n-1].ExpiresAtMS == w.ExpiresAtMS {
		return
	}
	g.Leases[id] = append(list, w)
}
