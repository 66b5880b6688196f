package sessions_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/missionweave/server/internal/authority"
	"github.com/missionweave/server/internal/authority/authoritytest"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/registry/registrytest"
	"github.com/missionweave/server/internal/sessions"
)

// onAuthority is the session service in front of the real pipeline.
func onAuthority(t *testing.T) (*authoritytest.Rig, *sessions.Service) {
	t.Helper()
	rig := authoritytest.Start(t, authoritytest.Options{})
	identity := registrytest.Service(registry.RoleIdentity)
	return rig, sessions.New(sessions.Config{
		Pool: rig.Org.Pool, Directory: rig.Org.Directory, Signer: identity, AgentLock: events.AgentLockKey,
		Opener: &sessions.CommandOpener{Signer: identity, Submit: rig.Service.OpenSession, Mint: registrytest.Mint, Now: time.Now},
		Mint:   registrytest.Mint,
	})
}

func TestSessionsAreOpenedInTheAuthoritysLog(t *testing.T) {
	t.Parallel()
	rig, service := onAuthority(t)
	s := registrytest.Agent("worker")
	rig.Org.AddAgent(t, s)
	first, id := mustHello(t, service, s)
	if first.SessionEpoch != 1 {
		t.Errorf("first epoch %d", first.SessionEpoch)
	}
	current, ok, err := service.Current(t.Context(), s.Principal.ID)
	if err != nil || !ok || current.Epoch != 1 || !current.ExpiresAt.Equal(id.ExpiresAt) || current.KeyID != s.KeyID {
		t.Errorf("session in the log's projection %+v (%v), token until %v", current, err, id.ExpiresAt)
	}
	renewed, _ := mustHello(t, service, s, withBearer(first.SessionToken))
	if renewed.SessionEpoch != 1 {
		t.Errorf("renewal: epoch %d", renewed.SessionEpoch)
	}

	// Racing openings each get an epoch of their own; the last one lives.
	const racers = 6
	epochs := make([]int64, racers)
	tokens := make([]string, racers)
	var wg sync.WaitGroup
	for i := range racers {
		_, r := challenge(t, service, s)
		wg.Go(func() {
			accept, _, perr := service.Accept(t.Context(), sessions.Answer{Response: r})
			if perr != nil {
				t.Errorf("racer %d: %v", i, perr)
				return
			}
			epochs[i], tokens[i] = accept.SessionEpoch, accept.SessionToken
		})
	}
	wg.Wait()
	for i, token := range tokens {
		_, perr := service.Authenticate(t.Context(), token)
		if epochs[i] == racers+1 {
			expect(t, "last session", perr, "")
		} else {
			expect(t, "fenced session", perr, protocol.CodeAuthStaleSession)
		}
	}
	slices.Sort(epochs)
	for i, epoch := range epochs {
		if epoch != int64(i)+2 {
			t.Fatalf("epochs %v", epochs)
		}
	}
}

func TestCardsAreRegisteredThroughTheAuthority(t *testing.T) {
	t.Parallel()
	rig, service := onAuthority(t)
	_, cards := rig.Org.Replica(t, func(ctx context.Context, command []byte) ([]byte, bool, *protocol.Error) {
		result, perr := rig.Service.Submit(ctx, authority.Submission{Body: command})
		if perr != nil {
			return nil, false, perr
		}
		return result.Receipt, result.Replayed, nil
	})
	s := registrytest.Agent("worker")
	author := registry.Author{Principal: registrytest.Service(registry.RoleRegistry).Principal}
	register := func(version int64, change func(*protocol.AgentCard)) error {
		card := registrytest.Card(s)
		card.CardVersion = version
		if known, err := rig.Org.Service.Key(t.Context(), s.KeyID); err == nil {
			card.PublicKeys[0].ValidFrom = known.ValidFrom
		}
		change(&card)
		text, err := strictjson.Marshal(card)
		if err != nil {
			t.Fatal(err)
		}
		doc, err := strictjson.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		_, err = cards.RegisterCard(t.Context(), author, doc.Root())
		return err
	}
	same := func(*protocol.AgentCard) {}
	if err := register(1, same); err != nil {
		t.Fatal(err)
	}
	accept, _ := mustHello(t, service, s)
	if err := register(1, same); !isCode(err, protocol.CodeRevisionConflict) {
		t.Errorf("same version: %v", err)
	}
	if err := register(2, func(c *protocol.AgentCard) {
		c.PublicKeys[0].ValidUntil = lexical.FormatMicros(time.Now().Add(time.Hour))
	}); err != nil {
		t.Errorf("second version: %v", err)
	}
	if err := register(3, func(c *protocol.AgentCard) { c.Status = registry.CardRevoked }); err != nil {
		t.Errorf("revocation: %v", err)
	}
	_, perr := service.Authenticate(t.Context(), accept.SessionToken)
	expect(t, "token of the revoked Agent", perr, protocol.CodeAuthRequired)
	_, _, perr = hello(t, service, s)
	expect(t, "HELLO of the revoked Agent", perr, protocol.CodeAuthInvalidSignature)
	var facts int
	err := rig.Org.Pool.QueryRow(t.Context(), `
		SELECT count(*) FROM org_events WHERE subject_id = $1 AND kind = 'ext.missionweaveprotocol.registry.agent_card_registered'`,
		s.Principal.ID).Scan(&facts)
	if err != nil || facts != 3 {
		t.Errorf("%d facts of three registrations: %v", facts, err)
	}
}

func isCode(err error, code protocol.Code) bool {
	return errors.Is(err, code)
}
