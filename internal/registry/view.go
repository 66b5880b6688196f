package registry

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/trust"
)

// View is the Registry at one revision: immutable, coherent and complete for the
// Organization. It says nothing about currency; Directory does.
type View struct {
	OrganizationID string
	Revision       int64
	Evidence       *trust.Evidence

	agents   layers[*Card]
	duties   map[Role][]protocol.Actor
	profiles []*Profile
}

// Agent returns the present card of a registered Agent.
func (v *View) Agent(agentID string) (*Card, bool) { return v.agents.get(agentID) }

// Agents yields the present card of every Agent, in no particular order.
func (v *View) Agents() iter.Seq2[string, *Card] { return v.agents.all() }

// Services lists the Principals that have a role, ordered by id.
func (v *View) Services(role Role) []protocol.Actor { return v.duties[role] }

// HasRole reports whether Organization policy gave a Principal a role.
func (v *View) HasRole(p protocol.Actor, role Role) bool { return slices.Contains(v.duties[role], p) }

// IsService reports whether a Principal is one of the Organization's services.
func (v *View) IsService(p protocol.Actor) bool {
	for _, role := range ServiceRoles() {
		if v.HasRole(p, role) {
			return true
		}
	}
	return false
}

// Profiles lists the registered Extension Profiles, ordered by URI and version.
func (v *View) Profiles() []*Profile { return v.profiles }

// next reads the revisions in (v.Revision, upTo] and returns the view at upTo.
// q must not see a half-done revision: it is a snapshot, or holds the head's
// lock. v nil starts from nothing.
func (v *View) next(ctx context.Context, q Querier, organizationID string, upTo int64) (*View, error) {
	if v == nil {
		evidence, err := trust.NewEvidence(organizationID, 0, nil)
		if err != nil {
			return nil, err
		}
		v = &View{OrganizationID: organizationID, Evidence: evidence}
	}
	if v.OrganizationID != organizationID {
		return nil, fmt.Errorf("registry: the database changed from Organization %s to %s", v.OrganizationID, organizationID)
	}
	if upTo == v.Revision {
		return v, nil
	}
	if upTo < v.Revision {
		return nil, fmt.Errorf("registry: revision went back from %d to %d", v.Revision, upTo)
	}
	n := &View{OrganizationID: organizationID, Revision: upTo, duties: v.duties, profiles: v.profiles}
	var err error
	if n.Evidence, err = v.nextEvidence(ctx, q, upTo); err != nil {
		return nil, err
	}
	cards, err := readAgents(ctx, q, v.Revision, upTo)
	if err != nil {
		return nil, err
	}
	n.agents = v.agents.with(cards)
	if n.duties, err = v.nextDuties(ctx, q, upTo); err != nil {
		return nil, err
	}
	n.profiles, err = v.nextProfiles(ctx, q, upTo)
	return n, err
}

func (v *View) nextEvidence(ctx context.Context, q Querier, upTo int64) (*trust.Evidence, error) {
	keys, first, err := keyRows(ctx, q, v.Revision, upTo)
	if err != nil {
		return nil, err
	}
	declared := make([]trust.Binding, 0, len(keys))
	for i := range keys {
		binding := keys[i].binding()
		if keys[i].Algorithm == "" {
			known, ok := v.Evidence.Key(keys[i].KeyID)
			if !ok {
				return nil, fmt.Errorf("registry: validity record of unknown key %s", keys[i].KeyID)
			}
			history := binding.History
			for j := range history {
				history[j].Sequence = first[keys[i].KeyID] + int64(j)
			}
			binding = known.Binding()
			binding.History = history
		}
		declared = append(declared, binding)
	}
	return v.Evidence.Extend(upTo, declared)
}

func readAgents(ctx context.Context, q Querier, after, upTo int64) (map[string]*Card, error) {
	rows, err := q.Query(ctx, `
		SELECT c.document FROM agents a JOIN agent_cards c USING (agent_id, card_version)
		WHERE a.revision > $1 AND a.revision <= $2`, after, upTo)
	if err != nil {
		return nil, err
	}
	cards := map[string]*Card{}
	var document []byte
	_, err = pgx.ForEachRow(rows, []any{&document}, func() error {
		card, err := decodeCard(slices.Clone(document))
		if err != nil {
			return err
		}
		cards[card.AgentID] = card
		return nil
	})
	return cards, err
}

func (v *View) nextDuties(ctx context.Context, q Querier, upTo int64) (map[Role][]protocol.Actor, error) {
	rows, err := q.Query(ctx, `
		SELECT role, principal_type, principal_id FROM org_services WHERE revision > $1 AND revision <= $2`, v.Revision, upTo)
	if err != nil {
		return nil, err
	}
	duties := v.duties
	var role Role
	var actor protocol.Actor
	_, err = pgx.ForEachRow(rows, []any{&role, &actor.Type, &actor.ID}, func() error {
		next := make(map[Role][]protocol.Actor, len(duties)+1)
		for r, actors := range duties {
			next[r] = actors
		}
		next[role] = append(slices.Clone(duties[role]), actor)
		slices.SortFunc(next[role], func(a, b protocol.Actor) int { return strings.Compare(a.ID, b.ID) })
		duties = next
		return nil
	})
	return duties, err
}

func (v *View) nextProfiles(ctx context.Context, q Querier, upTo int64) ([]*Profile, error) {
	rows, err := q.Query(ctx, `
		SELECT document FROM extension_profiles WHERE revision > $1 AND revision <= $2`, v.Revision, upTo)
	if err != nil {
		return nil, err
	}
	profiles := slices.Clone(v.profiles)
	var document []byte
	_, err = pgx.ForEachRow(rows, []any{&document}, func() error {
		p, err := decodeProfile(slices.Clone(document))
		profiles = append(profiles, p)
		return err
	})
	slices.SortFunc(profiles, func(a, b *Profile) int {
		if c := strings.Compare(a.Profile.ProfileURI, b.Profile.ProfileURI); c != 0 {
			return c
		}
		return strings.Compare(a.Profile.Version, b.Profile.Version)
	})
	return profiles, err
}
