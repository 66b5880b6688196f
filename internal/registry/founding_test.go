package registry_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/registry/registrytest"
	"github.com/missionweave/server/internal/trust"
)

func TestFoundingIsCompleteAndRepeatable(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	view, err := org.Directory.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range append(registry.ServiceRoles(), registry.RoleContextGenerator) {
		if len(view.Services(role)) != 1 {
			t.Errorf("role %s: %v", role, view.Services(role))
		}
	}
	if view.IsService(registrytest.Human("mission-owner").Principal) || view.IsService(registrytest.Agent("context-generator").Principal) {
		t.Error("a Principal that is no service counts as one")
	}
	if got, want := view.Evidence.Len(), len(registry.ServiceRoles())+2; got != want {
		t.Errorf("%d keys, want %d", got, want)
	}
	card, ok := view.Agent(registrytest.Agent("context-generator").Principal.ID)
	if !ok || card.Status != registry.CardActive {
		t.Fatalf("context generator's card: %+v", card)
	}
	if _, failure := trust.VerifyBytes(protocol.KindAgentCard, card.Document, view.Evidence); failure != nil {
		t.Errorf("founded card does not verify: %v", failure)
	}
	profiles := view.Profiles()
	if len(profiles) != 1 || profiles[0].Profile.ProfileURI != registry.OwnProfileURI || profiles[0].Profile.Critical {
		t.Fatalf("profiles: %+v", profiles)
	}
	if _, failure := trust.VerifyBytes(protocol.KindExtensionProfile, profiles[0].Document, view.Evidence); failure != nil {
		t.Errorf("own profile does not verify: %v", failure)
	}
	if n := count(t, org, `SELECT count(*) FROM org_events`); n != 1 {
		t.Errorf("%d Organization facts, want the founded card's", n)
	}
	if n := count(t, org, `SELECT count(*) FROM admissions`); n != 2 {
		t.Errorf("%d admission records, want those of card and profile", n)
	}

	before := head(t, org)
	if err := org.Service.Bootstrap(t.Context(), org.Founding); err != nil {
		t.Fatalf("second start: %v", err)
	}
	if after := head(t, org); after != before {
		t.Errorf("a second start moved the revision from %d to %d", before, after)
	}
	other := org.Founding
	other.OrganizationID = "urn:test:other"
	if err := org.Service.Bootstrap(t.Context(), other); !errors.Is(err, registry.ErrOtherOrganization) {
		t.Errorf("start for another Organization: %v", err)
	}
	contradiction := org.Founding
	contradiction.Principals = slices.Clone(contradiction.Principals)
	contradiction.Principals[1].PublicKey = registrytest.Agent("stranger").PublicKey()
	var fault *trust.BindingFault
	if err := org.Service.Bootstrap(t.Context(), contradiction); !errors.As(err, &fault) {
		t.Errorf("start with other key material under a known id: %v", err)
	}
}

func TestFoundersKeysMayBeOlderThanTheFounding(t *testing.T) {
	t.Parallel()
	org := registrytest.NewEmpty(t)
	s := registrytest.Service(registry.RoleRegistry)
	old := registrytest.At(-30 * 24 * time.Hour)
	founding := registry.Founding{OrganizationID: registrytest.OrganizationID, Principals: []registry.Founder{
		{Role: registry.RoleRegistry, Principal: s.Principal, KeyID: s.KeyID, PublicKey: s.PublicKey(), ValidFrom: old},
	}}
	if err := org.Service.Bootstrap(t.Context(), founding); err != nil {
		t.Fatal(err)
	}
	if key, err := org.Service.Key(t.Context(), s.KeyID); err != nil || key.ValidFrom != old {
		t.Errorf("founder's key %+v: %v", key, err)
	}
	founding.Principals = append(founding.Principals, registry.Founder{Role: "owner", Principal: s.Principal, KeyID: s.KeyID, PublicKey: s.PublicKey()})
	if err := org.Service.Bootstrap(t.Context(), founding); err == nil {
		t.Error("a role that is no duty was accepted")
	}
	founding.Principals = founding.Principals[1:]
	if err := org.Service.Bootstrap(t.Context(), founding); err == nil {
		t.Error("a founding without the registry's own key was accepted")
	}
}

func TestReplicasMayFoundAtTheSameTime(t *testing.T) {
	t.Parallel()
	first := registrytest.New(t) // only for its Founding and test stack
	fresh := registrytest.NewEmpty(t)
	var wg sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		_, service := fresh.Replica(t, nil)
		wg.Go(func() { errs[i] = service.Bootstrap(t.Context(), first.Founding) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if n := count(t, fresh, `SELECT count(*) FROM agent_cards`); n != 1 {
		t.Errorf("%d cards", n)
	}
}
