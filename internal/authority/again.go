package authority

import (
	"context"
	"errors"

	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/trust"
)

// Deciding a round again means to load the states it touched, which is dear for
// a Group with a long log, and the conditions that move most often do not
// concern the round at all: some Agent was registered, a session was renewed.
// Then the same decisions are committed under the new conditions. Whenever there
// is a doubt, the round is decided again.

// commit writes the batch, and once more under fresh conditions when those that
// moved turn out not to matter.
func (r *round) commit(ctx context.Context) error {
	var err error
	for range 3 {
		r.attempt, err = r.s.store.Commit(ctx, &r.batch)
		if !errors.Is(err, events.ErrRegistryMoved) && !errors.Is(err, events.ErrSessionMoved) {
			return err
		}
		same, lookErr := r.refresh(ctx)
		if lookErr != nil || !same {
			return err
		}
		r.s.stats.recommitted.Add(1)
	}
	return err
}

// refresh reads the conditions anew and reports whether every decision of the
// round would be the same under them.
func (r *round) refresh(ctx context.Context) (same bool, err error) {
	if r.batch.Within != nil || len(r.batch.Sessions) > 0 {
		return false, nil
	}
	look := events.Look{}
	for id, a := range r.agents {
		if a.load != nil || a.activeRead || a.opened {
			return false, nil
		}
		look.Agents = append(look.Agents, id)
	}
	view, err := r.s.store.Look(ctx, look)
	if err != nil {
		return false, err
	}
	for id, a := range r.agents {
		session := view.Sessions[id]
		if session.Epoch != a.session.Epoch || session.ExpiresAt.Before(a.session.ExpiresAt) {
			return false, nil
		}
		if !session.ExpiresAt.Equal(a.session.ExpiresAt) && r.refused(protocol.CodeAuthRequired) {
			return false, nil
		}
	}
	if view.Registry != r.policy.view.Revision {
		if same, err := r.sameRegistry(ctx, view.Registry); err != nil || !same {
			return false, err
		}
	}
	for id, a := range r.agents {
		a.session = view.Sessions[id]
	}
	r.batch.Agents = r.batch.Agents[:0]
	for _, a := range r.agents {
		r.batch.Agents = append(r.batch.Agents, a.condition())
	}
	return true, nil
}

// refused reports a refusal in the round, with one code or with any.
func (r *round) refused(code protocol.Code) bool {
	for _, e := range r.entries {
		if e.refusal != nil && (code == "" || e.refusal.Code == code) {
			return true
		}
	}
	return false
}

// sameRegistry reports that a later revision leaves everything as it was that the
// round looked at: the keys, the Agents' cards, and no service acted.
func (r *round) sameRegistry(ctx context.Context, revision int64) (bool, error) {
	next, err := r.s.opt.Directory.AtLeast(ctx, revision)
	if err != nil {
		return false, err
	}
	if r.refused("") {
		return false, nil
	}
	sameKey := func(v *trust.Verified) bool {
		key, ok := next.Evidence.Key(v.KeyID)
		return ok && key == v.Key
	}
	for _, e := range r.entries {
		if e.task.env.Actor.Type == protocol.ActorService || !sameKey(e.task.verified) {
			return false, nil
		}
		for _, d := range e.task.docs {
			if !sameKey(d.verified) {
				return false, nil
			}
		}
	}
	for id := range r.agents {
		before, had := r.policy.view.Agent(id)
		after, has := next.Agent(id)
		if had != has || before != after {
			return false, nil
		}
	}
	if len(next.Profiles()) != len(r.policy.view.Profiles()) {
		return false, nil
	}
	r.policy = r.s.policy.at(next)
	r.batch.Registry = next.Revision
	return true, nil
}
