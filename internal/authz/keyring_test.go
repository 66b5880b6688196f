package authz_test

import (
	"errors"
	"testing"
	"time"

	"github.com/missionweave/server/internal/authz"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/registry/registrytest"
	"github.com/missionweave/server/internal/trust"
)

// seeds are the keys that a process was given.
type seeds map[string]trust.Signer

func (s seeds) SignerOf(_, keyID string) (trust.Signer, bool, error) {
	signer, ok := s[keyID]
	return signer, ok, nil
}

func TestTheKeyringChangesOverByTheClock(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	role := registry.RoleAuthorization
	first := registrytest.Service(role)
	second := registrytest.Signer(protocol.ActorService, string(role), 2)
	third := registrytest.Signer(protocol.ActorService, string(role), 3)
	by := registry.Author{Principal: registrytest.Service(registry.RoleRegistry).Principal}
	now := time.Now().UTC()
	for _, s := range []trust.Signer{second, third} {
		if _, _, err := org.Service.RegisterKey(t.Context(), by, s.Binding(registrytest.At(0))); err != nil {
			t.Fatal(err)
		}
	}
	for id, from := range map[string]time.Time{second.KeyID: now.Add(time.Hour), third.KeyID: now.Add(2 * time.Hour)} {
		if _, err := org.Pool.Exec(t.Context(), `INSERT INTO signing_keys (key_id, role, signs_from) VALUES ($1, $2, $3)`, id, string(role), from); err != nil {
			t.Fatal(err)
		}
	}
	view := func() *registry.View {
		t.Helper()
		v, err := org.Directory.Current(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	at := func(ring *authz.Keyring, when time.Time) string {
		t.Helper()
		signer, err := ring.Signer(t.Context(), org.Pool, view(), when)
		if errors.Is(err, authz.ErrNoSigner) {
			return "none"
		}
		if err != nil {
			t.Fatal(err)
		}
		return signer.KeyID
	}
	all := authz.NewKeyring(role, first, seeds{second.KeyID: second, third.KeyID: third})
	for _, c := range []struct {
		rule string
		when time.Duration
		want string
	}{
		{"before", 59 * time.Minute, first.KeyID},
		{"at the instant", time.Hour, second.KeyID},
		{"after the next", 3 * time.Hour, third.KeyID},
	} {
		if got := at(all, now.Add(c.when)); got != c.want {
			t.Errorf("%s: %s, want %s", c.rule, got, c.want)
		}
	}
	// A process that lacks the newest keys goes on with the last one it has, until
	// that ends.
	poor := authz.NewKeyring(role, first, seeds{})
	if got := at(poor, now.Add(3*time.Hour)); got != first.KeyID {
		t.Errorf("without the seeds: %s", got)
	}
	org.EndKey(t, first.KeyID, "", registrytest.Now())
	if got := at(poor, now.Add(3*time.Hour)); got != "none" {
		t.Errorf("with an ended key only: %s", got)
	}
	// A revoked key is passed over at once.
	org.EndKey(t, third.KeyID, "", registrytest.Now())
	if got := at(all, now.Add(3*time.Hour)); got != second.KeyID {
		t.Errorf("after the newest was revoked: %s", got)
	}
	// What was rotated cannot be unsaid.
	if _, err := org.Pool.Exec(t.Context(), `DELETE FROM signing_keys`); err == nil {
		t.Error("a rotation was deleted")
	}
}
