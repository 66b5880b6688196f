package authzhttp_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/authz"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/testwait"
)

// versions are manifests without a table.
type versions struct {
	withdrawn bool
	down      error
}

func (v *versions) InForce(context.Context, authz.Querier, string) (string, error) {
	return "sha256:in-force", v.down
}

func (v *versions) Withdrawn(_ context.Context, _ authz.Querier, version string) (bool, error) {
	return v.withdrawn && version == "sha256:in-force", v.down
}

// batched reads the version together with the rest.
type batched struct{ *versions }

func (batched) QueueInForce(b *pgx.Batch, groupID string, version *string) {
	b.Queue(`SELECT 'sha256:in-force' WHERE $1 <> ''`, groupID).QueryRow(func(row pgx.Row) error { return row.Scan(version) })
}

func TestAWithdrawnManifestEndsItsTokens(t *testing.T) {
	t.Parallel()
	plain := &versions{}
	for name, manifests := range map[string]authz.Manifests{"plain": plain, "batched": batched{plain}} {
		t.Run(name, func(t *testing.T) {
			*plain = versions{}
			s := newService(t, manifests)
			g, perr := s.service.IssueCapability(t.Context(), s.holder, s.request)
			if perr != nil {
				t.Fatal(perr)
			}
			if c, perr := s.service.CheckCapability(t.Context(), nil, g.Token); perr != nil || c.ManifestVersion != "sha256:in-force" {
				t.Fatalf("%+v %v", c, perr)
			}
			plain.withdrawn = true
			if _, perr := s.service.CheckCapability(t.Context(), nil, g.Token); !errors.Is(perr, protocol.CodeAuthForbidden) || perr.Reason != "manifest_withdrawn" {
				t.Errorf("after the withdrawal: %v", perr)
			}
			if err := s.service.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			list, err := s.service.Revocations(t.Context(), "", 10)
			if err != nil || len(list) != 1 || list[0].TokenID != g.TokenID {
				t.Errorf("revocations %v, %v", list, err)
			}
			// What cannot be asked is refused.
			*plain = versions{down: errors.New("away")}
			if _, perr := s.service.CheckCapability(t.Context(), nil, g.Token); !errors.Is(perr, protocol.CodeInternalError) {
				t.Errorf("with the manifests away: %v", perr)
			}
		})
	}
}

// counted counts how often a sweep asks about a version.
type counted struct {
	versions
	withdrawals int64
	asked       int
}

func (c *counted) Withdrawals(context.Context, authz.Querier) (int64, error) {
	return c.withdrawals, nil
}

func (c *counted) Withdrawn(ctx context.Context, q authz.Querier, version string) (bool, error) {
	c.asked++
	return c.versions.Withdrawn(ctx, q, version)
}

// A Group in which nothing happened is looked at again when a manifest was withdrawn,
// and not otherwise.
func TestASweepLooksOnlyWhereSomethingHappened(t *testing.T) {
	t.Parallel()
	c := &counted{}
	s := newService(t, c)
	g, perr := s.service.IssueCapability(t.Context(), s.holder, s.request)
	if perr != nil {
		t.Fatal(perr)
	}
	sweep := func() (asked int) {
		t.Helper()
		before := c.asked
		if err := s.service.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		return c.asked - before
	}
	testwait.Until(t, "a token that is not new any more", func() bool { return sweep() == 0 })
	for range 3 {
		if n := sweep(); n != 0 {
			t.Fatalf("looked at %d tokens with nothing changed", n)
		}
	}
	c.withdrawn, c.withdrawals = true, 1
	if n := sweep(); n != 1 {
		t.Errorf("looked at %d tokens after a withdrawal", n)
	}
	list, err := s.service.Revocations(t.Context(), "", 10)
	if err != nil || len(list) != 1 || list[0].TokenID != g.TokenID {
		t.Errorf("revocations %v, %v", list, err)
	}
}
