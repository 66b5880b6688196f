package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/trust"
)

// foundingLock serialises the first start of several replicas.
const foundingLock = 0x4d57_0001

// ErrOtherOrganization is a database that belongs to another Organization than
// the one the process was configured for.
var ErrOtherOrganization = errors.New("registry: the database belongs to another Organization")

// Founder is one Principal of the Organization's first start. Role is empty for
// a Principal without duty (a human). ValidFrom may be empty: then the key is
// valid from the founding on.
type Founder struct {
	Role      Role
	Principal protocol.Actor
	KeyID     string
	PublicKey string // base64url
	ValidFrom string
}

// Founding is what a first start brings: the Organization, its first Principals,
// and the unsigned cards of its own Agents (the context generator).
type Founding struct {
	OrganizationID string
	Principals     []Founder
	Cards          []protocol.AgentCard
}

// Bootstrap founds the Organization if the database has none, and otherwise adds
// what is missing of it; run again with the same Founding it changes nothing. A
// role keeps the Principals that it has. Several replicas may start at once. The
// error is ErrOtherOrganization, a *trust.BindingFault for a key that contradicts
// a registered one, a refusal of a card, or a failure of the database.
func (s *Service) Bootstrap(ctx context.Context, f Founding) error {
	if !slices.ContainsFunc(f.Principals, func(p Founder) bool {
		return p.Role == RoleRegistry && p.Principal == s.cfg.Signer.Principal && p.KeyID == s.cfg.Signer.KeyID
	}) {
		return errors.New("registry: the founding does not name the signing key of the registry service")
	}
	for _, p := range f.Principals {
		if p.Role != "" && p.Role != RoleContextGenerator && !slices.Contains(ServiceRoles(), p.Role) {
			return fmt.Errorf("registry: %q is no duty of a Principal", p.Role)
		}
	}
	err := pgx.BeginTxFunc(ctx, s.cfg.Pool, pgx.TxOptions{}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, foundingLock); err != nil {
			return err
		}
		return s.found(ctx, tx, f)
	})
	if err != nil {
		return err
	}
	_, err = s.cfg.Directory.Current(ctx)
	return err
}

// found makes one revision of each thing that is missing, so that a card is
// tried on the keys that were founded before it like on any others.
func (s *Service) found(ctx context.Context, tx pgx.Tx, f Founding) error {
	organizationID, _, err := readHead(ctx, tx)
	switch {
	case errors.Is(err, ErrNoOrganization):
		if err := insertOrganization(ctx, tx, f.OrganizationID); err != nil {
			return err
		}
	case err != nil:
		return err
	case organizationID != f.OrganizationID:
		return fmt.Errorf("%w: %s, not %s", ErrOtherOrganization, organizationID, f.OrganizationID)
	}
	err = s.revise(ctx, tx, func(m *mutation) (bool, error) { return m.foundPrincipals(ctx, f.Principals) })
	if err != nil {
		return err
	}
	for i := range f.Cards {
		err := s.revise(ctx, tx, func(m *mutation) (bool, error) { return s.foundCard(ctx, m, f.Cards[i]) })
		if err != nil {
			return fmt.Errorf("card of %s: %w", f.Cards[i].AgentID, err)
		}
	}
	if err := s.revise(ctx, tx, func(m *mutation) (bool, error) { return s.foundProfile(ctx, m) }); err != nil {
		return fmt.Errorf("own extension profile: %w", err)
	}
	return nil
}

// revise makes a revision, or none when f changed nothing.
func (s *Service) revise(ctx context.Context, tx pgx.Tx, f func(m *mutation) (changed bool, err error)) error {
	inner, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	m, err := s.cfg.Directory.begin(ctx, inner, s.cfg.Signer.Principal)
	if err != nil {
		return err
	}
	changed, err := f(m)
	if err != nil {
		return err
	}
	if !changed {
		return inner.Rollback(ctx)
	}
	return inner.Commit(ctx)
}

func insertOrganization(ctx context.Context, tx Querier, organizationID string) error {
	if _, err := tx.Exec(ctx, `INSERT INTO organizations VALUES ($1, clock_timestamp())`, organizationID); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `INSERT INTO registry_head VALUES ($1, 0)`, organizationID)
	return err
}

func (m *mutation) foundPrincipals(ctx context.Context, founders []Founder) (changed bool, err error) {
	var declared []trust.Binding
	for _, f := range founders {
		b := trust.Binding{
			KeyID: f.KeyID, Principal: f.Principal, Algorithm: trust.Algorithm,
			PublicKey: f.PublicKey, ValidFrom: m.foundingTime(f.KeyID, f.ValidFrom),
		}
		declared = append(declared, b)
	}
	if _, err := m.base.Evidence.Extend(m.revision, declared); err != nil {
		return false, err
	}
	for i, f := range founders {
		if _, known := m.base.Evidence.Key(f.KeyID); !known {
			// Founders' keys may be older than the hour that binds everyone after
			// them: they are made first, and before the Organization there was nobody
			// to whom they could have signed anything.
			if err := m.insertBinding(ctx, declared[i]); err != nil {
				return false, err
			}
			changed = true
		}
		if f.Role == "" || m.base.HasRole(f.Principal, f.Role) {
			continue
		}
		_, err := m.tx.Exec(ctx, `INSERT INTO org_services (role, principal_type, principal_id, revision) VALUES ($1, $2, $3, $4)`,
			string(f.Role), f.Principal.Type, f.Principal.ID, m.revision)
		if err != nil {
			return false, err
		}
		changed = true
	}
	return changed, nil
}

// foundingTime is the validFrom of a key that does not name one: that of its
// binding, or now.
func (m *mutation) foundingTime(keyID, validFrom string) string {
	if validFrom != "" {
		return validFrom
	}
	if known, ok := m.base.Evidence.Key(keyID); ok {
		return known.Binding().ValidFrom
	}
	return lexical.FormatMicros(m.now)
}

// foundCard signs and registers the card of an Agent that has none yet.
func (s *Service) foundCard(ctx context.Context, m *mutation, card protocol.AgentCard) (changed bool, err error) {
	if _, known := m.base.Agent(card.AgentID); known {
		return false, nil
	}
	if card.IssuedAt == "" {
		card.IssuedAt = lexical.FormatMicros(m.now)
	}
	card.PublicKeys = slices.Clone(card.PublicKeys)
	for i := range card.PublicKeys {
		key := &card.PublicKeys[i]
		key.ValidFrom = m.foundingTime(key.KeyID, key.ValidFrom)
	}
	document, _, err := trust.SignDocument(protocol.KindAgentCard, &card, s.cfg.Signer)
	if err != nil {
		return false, err
	}
	return true, s.registerCard(ctx, m, document)
}

// foundProfile signs and registers the server's own profile once.
func (s *Service) foundProfile(ctx context.Context, m *mutation) (changed bool, err error) {
	for _, p := range m.base.Profiles() {
		if p.Profile.ProfileURI == OwnProfileURI && p.Profile.Version == OwnProfileVersion {
			return false, nil
		}
	}
	profile, err := OwnProfile(s.cfg.Signer.Principal, m.now)
	if err != nil {
		return false, err
	}
	document, _, err := trust.SignDocument(protocol.KindExtensionProfile, profile, s.cfg.Signer)
	if err != nil {
		return false, err
	}
	return s.registerProfile(ctx, m, document)
}
