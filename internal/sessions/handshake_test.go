package sessions_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/registry/registrytest"
	"github.com/missionweave/server/internal/sessions"
	"github.com/missionweave/server/internal/trust"
)

func TestEveryHelloOpensTheNextEpoch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.agent(t, "worker")
	first, id := mustHello(t, w.service, s)
	if first.SessionEpoch != 1 || first.SelectedVersion != "0.1" || id.Principal != s.Principal || id.KeyID != s.KeyID {
		t.Fatalf("accept %+v, identity %+v", first, id)
	}
	if expires, err := lexical.ParseTimestamp(first.ExpiresAt); err != nil || !expires.Time().Equal(id.ExpiresAt) ||
		id.ExpiresAt.Sub(w.clock.now()) > sessions.DefaultLife {
		t.Errorf("expiresAt %s, identity %v", first.ExpiresAt, id.ExpiresAt)
	}
	if _, err := protocol.AppendFrame(nil, first); err != nil {
		t.Error(err)
	}
	got, perr := w.service.Authenticate(t.Context(), first.SessionToken)
	if perr != nil || !cmp.Equal(got, id) {
		t.Fatalf("token: %+v %v, want %+v", got, perr, id)
	}

	second, _ := mustHello(t, w.service, s)
	if second.SessionEpoch != 2 {
		t.Errorf("second epoch %d", second.SessionEpoch)
	}
	_, perr = w.service.Authenticate(t.Context(), first.SessionToken)
	expect(t, "token of the fenced session", perr, protocol.CodeAuthStaleSession)
	if perr.Details["receivedSessionEpoch"] != int64(1) {
		t.Errorf("details %v", perr.Details)
	}
	if _, perr = w.service.Authenticate(t.Context(), second.SessionToken); perr != nil {
		t.Errorf("token of the new session: %v", perr)
	}
	if diff := cmp.Diff([]string{"opened", "opened"}, w.takeHooks()); diff != "" {
		t.Error(diff)
	}
	current, ok, err := w.service.Current(t.Context(), s.Principal.ID)
	if err != nil || !ok || current.Epoch != 2 || current.KeyID != s.KeyID {
		t.Errorf("current session %+v %v", current, err)
	}
}

func TestChallengesTellStrangersNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	known := w.agent(t, "one")
	stranger := registrytest.Agent("two")
	a, _ := challenge(t, w.service, known)
	b, _ := challenge(t, w.service, stranger)
	if len(a.Challenge) != len(b.Challenge) || len(a.ServerNonce) != 43 || a.ServerNonce == b.ServerNonce || a.ClientNonce != clientNonce {
		t.Errorf("challenges differ in shape:\n%+v\n%+v", a, b)
	}
}

func TestFailedProofsAreOneNeutralRefusal(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, other := w.agent(t, "worker"), w.agent(t, "other")
	second := registrytest.Signer(protocol.ActorAgent, "worker", 2)
	future := registrytest.Signer(protocol.ActorAgent, "worker", 3)
	w.nextCard(t, s, func(c *protocol.AgentCard) {
		c.PublicKeys = append(c.PublicKeys,
			protocol.PublicKey{KeyID: second.KeyID, Algorithm: trust.Algorithm, PublicKey: second.PublicKey(), ValidFrom: registrytest.Now(), RevokedAt: registrytest.Now()},
			protocol.PublicKey{KeyID: future.KeyID, Algorithm: trust.Algorithm, PublicKey: future.PublicKey(), ValidFrom: registrytest.At(time.Hour)})
	})
	revoked := w.agent(t, "revoked")
	w.revokeCard(t, revoked)
	ended := w.agent(t, "ended")
	w.nextCard(t, ended, func(c *protocol.AgentCard) { c.ValidUntil = registrytest.At(-time.Millisecond) })
	human := registrytest.Human("mission-owner")
	asAgent := human
	asAgent.Principal.Type = protocol.ActorAgent
	keyOfOther := s
	keyOfOther.KeyID = other.KeyID
	keyOfOther.Private = other.Private

	type answer = sessions.Answer
	cases := []struct {
		name string
		s    trust.Signer
		f    func(*answer)
	}{
		{"unknown Agent", registrytest.Agent("nobody"), func(*answer) {}},
		{"unknown key", registrytest.Signer(protocol.ActorAgent, "worker", 9), func(*answer) {}},
		{"key of another Agent", keyOfOther, func(*answer) {}},
		{"key of a human", asAgent, func(*answer) {}},
		{"revoked key", second, func(*answer) {}},
		{"key not yet valid", future, func(*answer) {}},
		{"revoked card", revoked, func(*answer) {}},
		{"card past its validUntil", ended, func(*answer) {}},
		{"signature of another key", s, func(a *answer) { a.Response.ChallengeSignature = sign(other, []byte("x")) }},
		{"signature of other bytes", s, func(a *answer) { a.Response.ChallengeSignature = sign(s, []byte("x")) }},
		{"signature with S out of range", s, func(a *answer) { a.Response.ChallengeSignature = outOfRange(t, a.Response.ChallengeSignature) }},
		{"signature with padding", s, func(a *answer) { a.Response.ChallengeSignature += "==" }},
		{"signature with pad bits", s, func(a *answer) {
			a.Response.ChallengeSignature = a.Response.ChallengeSignature[:85] + "B"
		}},
		{"signature too short", s, func(a *answer) { a.Response.ChallengeSignature = "AAAA" }},
		{"other Agent id in the answer", s, func(a *answer) { a.Response.AgentID = other.Principal.ID }},
		{"other key id in the answer", s, func(a *answer) { a.Response.KeyID = other.KeyID }},
		{"other client nonce in the answer", s, func(a *answer) { a.Response.ClientNonce += "A" }},
		{"server nonce of nobody", s, func(a *answer) {
			a.Challenge = nil
			a.Response.ServerNonce = strings.Repeat("A", 43)
		}},
		{"server nonce of another connection", s, func(a *answer) { a.Response.ServerNonce = secondChallenge(t, w, s) }},
		{"garbage as session token", s, withBearer("x.y.z")},
		{"malformed session token", s, withBearer("")},
	}
	var want string
	for _, tc := range cases {
		_, _, perr := hello(t, w.service, tc.s, tc.f)
		expect(t, tc.name, perr, protocol.CodeAuthInvalidSignature)
		if perr == nil {
			continue
		}
		perr.OccurredAt = "2026-01-01T00:00:00Z"
		wire, err := strictjson.Marshal(perr)
		if err != nil {
			t.Fatal(err)
		}
		if want == "" {
			want = string(wire)
		}
		if string(wire) != want {
			t.Errorf("%s is told apart:\n%s\n%s", tc.name, wire, want)
		}
	}
	if n := w.authority.count(); n != 0 {
		t.Errorf("%d sessions were asked for", n)
	}
	deprecated := w.agent(t, "deprecated")
	w.nextCard(t, deprecated, func(c *protocol.AgentCard) { c.Status = registry.CardDeprecated })
	if _, _, perr := hello(t, w.service, deprecated); perr != nil {
		t.Errorf("deprecated still works: %v", perr)
	}
}

func secondChallenge(t *testing.T, w *world, s trust.Signer) string {
	c, _ := challenge(t, w.service, s)
	return c.ServerNonce
}

// outOfRange adds the group order to S: the same signature to a library that
// reduces S, a forbidden one here.
func outOfRange(t *testing.T, signature string) string {
	b, err := lexical.DecodeBase64URL(signature)
	if err != nil {
		t.Fatal(err)
	}
	order := []byte{
		0xed, 0xd3, 0xf5, 0x5c, 0x1a, 0x63, 0x12, 0x58, 0xd6, 0x9c, 0xf7, 0xa2, 0xde, 0xf9, 0xde, 0x14,
		0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x10,
	}
	carry := 0
	for i, o := range order {
		sum := int(b[32+i]) + int(o) + carry
		b[32+i], carry = byte(sum), sum>>8
	}
	return lexical.EncodeBase64URL(b)
}

func TestAChallengeIsAnsweredOnceByWhicheverReplica(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.agent(t, "worker")
	directory, _ := w.Replica(t, nil)
	elsewhere := w.replica(registrytest.NewPool(t, w.DatabaseURL), directory)

	_, r := challenge(t, w.service, s)
	accept, _, perr := elsewhere.Accept(t.Context(), sessions.Answer{Response: r})
	if perr != nil || accept.SessionEpoch != 1 {
		t.Fatalf("replica without the challenge in memory: %v", perr)
	}
	for _, service := range []*sessions.Service{w.service, elsewhere} {
		_, _, perr = service.Accept(t.Context(), sessions.Answer{Response: r})
		expect(t, "used challenge", perr, protocol.CodeAuthInvalidSignature)
	}

	_, r = challenge(t, w.service, s)
	const racers = 12
	errs := make([]*protocol.Error, racers)
	var wg sync.WaitGroup
	for i := range racers {
		service := w.service
		if i%2 == 0 {
			service = elsewhere
		}
		wg.Go(func() { _, _, errs[i] = service.Accept(t.Context(), sessions.Answer{Response: r}) })
	}
	wg.Wait()
	won := 0
	for _, perr := range errs {
		if perr == nil {
			won++
		} else {
			expect(t, "lost race", perr, protocol.CodeAuthInvalidSignature)
		}
	}
	if won != 1 {
		t.Errorf("%d of %d answers to one challenge were accepted", won, racers)
	}
	if current, _, _ := w.service.Current(t.Context(), s.Principal.ID); current.Epoch != 2 {
		t.Errorf("epoch %d", current.Epoch)
	}
}

func TestAWrongAnswerUsesTheChallengeUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.agent(t, "worker")
	_, r := challenge(t, w.service, s)
	wrong := *r
	wrong.ChallengeSignature = sign(s, []byte("something else"))
	_, _, perr := w.service.Accept(t.Context(), sessions.Answer{Response: &wrong})
	expect(t, "wrong answer", perr, protocol.CodeAuthInvalidSignature)
	_, _, perr = w.service.Accept(t.Context(), sessions.Answer{Response: r})
	expect(t, "right answer after it", perr, protocol.CodeAuthInvalidSignature)
}

func TestAChallengeLivesThirtySeconds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.agent(t, "worker")
	_, r := challenge(t, w.service, s)
	_, late := challenge(t, w.service, s)
	w.clock.move(sessions.ChallengeLife - 2*time.Second)
	if _, _, perr := w.service.Accept(t.Context(), sessions.Answer{Response: r}); perr != nil {
		t.Errorf("before the end: %v", perr)
	}
	w.clock.move(2 * time.Second)
	_, _, perr := w.service.Accept(t.Context(), sessions.Answer{Response: late})
	expect(t, "after 30 s", perr, protocol.CodeAuthInvalidSignature)
	for range 3 {
		challenge(t, w.service, s)
	}
	w.clock.move(sessions.ChallengeLife)
	challenge(t, w.service, s)
	var waiting int
	if err := w.Pool.QueryRow(t.Context(), `SELECT count(*) FROM challenges`).Scan(&waiting); err != nil || waiting != 1 {
		t.Errorf("%d challenges kept (%v), want the newest alone", waiting, err)
	}
}

func TestTooLongANonceFitsNoChallenge(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, perr := w.service.Challenge(t.Context(), &protocol.HelloClientInit{
		AgentID: "urn:x:y", KeyID: "urn:x:z", ClientNonce: strings.Repeat("A", 4000),
	})
	expect(t, "nonce of 4000 characters", perr, protocol.CodeSchemaValidationFailed)
}

func TestRenewalKeepsTheEpoch(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s, other := w.agent(t, "worker"), w.agent(t, "other")
	second := registrytest.Signer(protocol.ActorAgent, "worker", 2)
	w.nextCard(t, s, func(c *protocol.AgentCard) {
		c.PublicKeys = append(c.PublicKeys, protocol.PublicKey{
			KeyID: second.KeyID, Algorithm: trust.Algorithm, PublicKey: second.PublicKey(), ValidFrom: registrytest.Now(),
		})
	})
	first, id := mustHello(t, w.service, s)
	w.takeHooks()
	w.clock.move(10 * time.Minute)

	// Resume on a new connection, with another key of the Agent.
	resumed, resumedID := mustHello(t, w.service, second, withBearer(first.SessionToken))
	if resumed.SessionEpoch != 1 || resumed.SessionToken == first.SessionToken || !resumedID.ExpiresAt.After(id.ExpiresAt) {
		t.Errorf("resumed: %+v", resumed)
	}
	// In band, on the living connection.
	w.clock.move(time.Minute)
	inBand, _ := mustHello(t, w.service, s, live(resumedID))
	if inBand.SessionEpoch != 1 {
		t.Errorf("renewed in band: %+v", inBand)
	}
	if diff := cmp.Diff([]string{"resumed"}, w.takeHooks()); diff != "" {
		t.Errorf("connections closed: %s", diff)
	}
	if w.authority.count() != 1 {
		t.Errorf("%d sessions opened", w.authority.count())
	}
	if _, perr := w.service.Authenticate(t.Context(), first.SessionToken); perr != nil {
		t.Errorf("a renewal ended an earlier token: %v", perr)
	}
	current, _, err := w.service.Current(t.Context(), s.Principal.ID)
	if expires, perr := lexical.ParseTimestamp(inBand.ExpiresAt); err != nil || perr != nil || !current.ExpiresAt.Equal(expires.Time()) {
		t.Errorf("session ends %v, its latest token %s", current.ExpiresAt, inBand.ExpiresAt)
	}

	_, _, perr := hello(t, w.service, other, withBearer(inBand.SessionToken))
	expect(t, "another Agent's token", perr, protocol.CodeAuthInvalidSignature)
	_, _, perr = hello(t, w.service, other, live(resumedID))
	expect(t, "renewal for another Agent in band", perr, protocol.CodeProtocolViolation)
	grant, perr := access(t, w.service, s)
	if perr != nil {
		t.Fatal(perr)
	}
	_, _, perr = hello(t, w.service, s, withBearer(grant.AccessToken))
	expect(t, "access token instead of a session token", perr, protocol.CodeAuthInvalidSignature)

	// Past its expiry a token asks for nothing: an ordinary HELLO.
	w.clock.move(5 * time.Minute)
	again, _ := mustHello(t, w.service, s, withBearer(first.SessionToken))
	if again.SessionEpoch != 2 {
		t.Errorf("HELLO with an expired token: epoch %d, want a new one", again.SessionEpoch)
	}
	// A fenced runtime cannot take the identity back by accident.
	_, _, perr = hello(t, w.service, s, withBearer(inBand.SessionToken))
	expect(t, "token of an older epoch", perr, protocol.CodeAuthStaleSession)
	_, _, perr = hello(t, w.service, s, live(resumedID))
	expect(t, "in band on a fenced connection", perr, protocol.CodeAuthStaleSession)
	if current, _, _ := w.service.Current(t.Context(), s.Principal.ID); current.Epoch != 2 {
		t.Errorf("epoch %d", current.Epoch)
	}
	// A living connection whose session ran out cannot be renewed.
	w.clock.move(sessions.DefaultLife)
	_, _, perr = hello(t, w.service, s, live(sessions.Identity{Principal: s.Principal, SessionEpoch: 2}))
	expect(t, "in band after the expiry", perr, protocol.CodeAuthRequired)
}

func TestATokenWhoseKeyEndedResumesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.agent(t, "worker")
	second := registrytest.Signer(protocol.ActorAgent, "worker", 2)
	w.nextCard(t, s, func(c *protocol.AgentCard) {
		c.PublicKeys = append(c.PublicKeys, protocol.PublicKey{
			KeyID: second.KeyID, Algorithm: trust.Algorithm, PublicKey: second.PublicKey(), ValidFrom: registrytest.Now(),
		})
	})
	first, _ := mustHello(t, w.service, s)
	w.EndKey(t, s.KeyID, "", registrytest.Now())
	accept, _ := mustHello(t, w.service, second, withBearer(first.SessionToken))
	if accept.SessionEpoch != 2 {
		t.Errorf("epoch %d, want a new session", accept.SessionEpoch)
	}
	_, _, perr := hello(t, w.service, second, withBearer(first.SessionToken))
	expect(t, "the same token once its session was replaced", perr, protocol.CodeAuthStaleSession)
}

// A renewal waits for the commits of the Agent that are under way, and they for
// it: both hold the Agent's lock.
func TestARenewalIsJudgedUnderTheSessionLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.agent(t, "worker")
	_, id := mustHello(t, w.service, s)
	tx, err := w.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock_shared($1)`, agentLock(s.Principal.ID)); err != nil {
		t.Fatal(err)
	}
	c, r := challenge(t, w.service, s)
	done := make(chan *protocol.Error, 1)
	go func() {
		_, _, perr := w.service.Accept(t.Context(), sessions.Answer{Response: r, Challenge: c, Live: &id})
		done <- perr
	}()
	for waiting := 0; waiting == 0; {
		err := tx.QueryRow(t.Context(), `
			SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted
				AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
		select {
		case perr := <-done:
			t.Fatalf("renewed while a commit held the lock: %v", perr)
		default:
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if perr := <-done; perr != nil {
		t.Error(perr)
	}
}

func TestHandshakesOfAnAgentAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *sessions.Config) { c.HellosPerMinute = 3 })
	s, other := w.agent(t, "worker"), w.agent(t, "other")
	directory, _ := w.Replica(t, nil)
	elsewhere := w.replica(registrytest.NewPool(t, w.DatabaseURL), directory, func(c *sessions.Config) { c.HellosPerMinute = 3 })
	for _, service := range []*sessions.Service{w.service, elsewhere, w.service} {
		mustHello(t, service, s)
		w.clock.move(time.Second)
	}
	_, _, perr := hello(t, elsewhere, s)
	expect(t, "fourth handshake", perr, protocol.CodeRateLimited)
	if ms := *perr.RetryAfterMs; ms < 55_000 || ms > 57_000 {
		t.Errorf("retry after %d ms, want the rest of the first one's minute", ms)
	}
	if _, _, perr := hello(t, w.service, other); perr != nil {
		t.Errorf("another Agent: %v", perr)
	}
	w.clock.move(57 * time.Second)
	if _, _, perr := hello(t, w.service, s); perr != nil {
		t.Errorf("after the wait: %v", perr)
	}
}

func TestSessionsEndWithTheirKeyAndCard(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(c *sessions.Config) { c.Life = time.Hour })
	keyEnds, cardEnds := w.agent(t, "key-ends"), w.agent(t, "card-ends")
	soon := time.Now().Add(5 * time.Minute).UTC().Truncate(time.Microsecond)
	w.EndKey(t, keyEnds.KeyID, lexical.FormatMicros(soon), "")
	w.nextCard(t, cardEnds, func(c *protocol.AgentCard) { c.ValidUntil = lexical.FormatMicros(soon) })
	for _, s := range []trust.Signer{keyEnds, cardEnds} {
		accept, id := mustHello(t, w.service, s)
		if !id.ExpiresAt.Equal(soon) {
			t.Errorf("%s: expires %v, want %v", s.KeyID, id.ExpiresAt, soon)
		}
		if _, perr := w.service.Authenticate(t.Context(), accept.SessionToken); perr != nil {
			t.Error(perr)
		}
	}
	s := w.agent(t, "worker")
	second := registrytest.Signer(protocol.ActorAgent, "worker", 2)
	w.nextCard(t, s, func(c *protocol.AgentCard) {
		c.PublicKeys = append(c.PublicKeys, protocol.PublicKey{
			KeyID: second.KeyID, Algorithm: trust.Algorithm, PublicKey: second.PublicKey(), ValidFrom: registrytest.Now(),
		})
	})
	accept, id := mustHello(t, w.service, s)
	w.EndKey(t, s.KeyID, "", registrytest.Now())
	_, perr := w.service.Authenticate(t.Context(), accept.SessionToken)
	expect(t, "token of a revoked key", perr, protocol.CodeAuthRequired)
	expect(t, "connection of a revoked key", w.service.Check(t.Context(), id), protocol.CodeAuthRequired)

	accept, id = mustHello(t, w.service, second)
	w.revokeCard(t, s)
	_, perr = w.service.Authenticate(t.Context(), accept.SessionToken)
	expect(t, "token of a revoked Agent", perr, protocol.CodeAuthRequired)
	expect(t, "connection of a revoked Agent", w.service.Check(t.Context(), id), protocol.CodeAuthRequired)
}

func TestRefusalsOfTheAuthorityReachTheAgentNeutrally(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.agent(t, "worker")
	w.authority.fail = protocol.NewError(protocol.CodeInvalidCommand, "unknown_reference")
	_, _, perr := hello(t, w.service, s)
	expect(t, "Agent revoked meanwhile", perr, protocol.CodeAuthInvalidSignature)
	w.authority.fail = protocol.NewError(protocol.CodeInternalError, "")
	_, _, perr = hello(t, w.service, s)
	expect(t, "Authority down", perr, protocol.CodeInternalError)
	if hooks := w.takeHooks(); len(hooks) > 0 {
		t.Errorf("connections were closed for a session that was not opened: %v", hooks)
	}
}

func TestSessionOpenIsASignedCommandOfTheIdentityService(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	s := w.agent(t, "worker")
	view, err := w.Directory.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var sent [][]byte
	event := func(agentID string, epoch string) []byte {
		return []byte(`{"kind":"ext.missionweaveprotocol.identity.session_opened","payload":{"agentId":"` + agentID + `","sessionEpoch":` + epoch + `}}`)
	}
	results := []struct {
		events [][]byte
		err    *protocol.Error
	}{
		{nil, protocol.NewError(protocol.CodeInternalError, "")}, // its outcome is unknown
		{[][]byte{event("urn:x:other", "9"), event(s.Principal.ID, "4")}, nil},
	}
	opener := &sessions.CommandOpener{
		Signer: registrytest.Service(registry.RoleIdentity), Mint: registrytest.Mint, Now: w.clock.now,
		Submit: func(_ context.Context, command []byte) ([][]byte, *protocol.Error) {
			sent = append(sent, slices.Clone(command))
			r := results[len(sent)-1]
			return r.events, r.err
		},
	}
	epoch, perr := opener.Open(t.Context(), s.Principal.ID, s.KeyID, w.clock.now().Add(time.Minute))
	if perr != nil || epoch != 4 {
		t.Fatalf("epoch %d, %v", epoch, perr)
	}
	if len(sent) != 2 || string(sent[0]) != string(sent[1]) {
		t.Fatalf("an unknown outcome was not asked about with the identical Command: %d sent", len(sent))
	}
	verified, failure := trust.VerifyBytes(protocol.KindCommand, sent[0], view.Evidence)
	if failure != nil {
		t.Fatal(failure)
	}
	payload := verified.Value.Member("payload")
	if !view.HasRole(verified.Principal, registry.RoleIdentity) || verified.Value.Member("kind").Str() != protocol.CommandSessionOpen ||
		payload.Member("agentId").Str() != s.Principal.ID || payload.Member("keyId").Str() != s.KeyID ||
		verified.Value.Member("groupId").Exists() || verified.Value.Member("sessionEpoch").Exists() {
		t.Errorf("command %s", sent[0])
	}

	opener.Submit = func(context.Context, []byte) ([][]byte, *protocol.Error) { return nil, nil }
	_, perr = opener.Open(t.Context(), s.Principal.ID, s.KeyID, w.clock.now())
	expect(t, "accepted without Event", perr, protocol.CodeInternalError)
	calls := 0
	opener.Submit = func(context.Context, []byte) ([][]byte, *protocol.Error) {
		calls++
		return nil, protocol.NewError(protocol.CodeInvalidCommand, "unknown_reference")
	}
	_, perr = opener.Open(t.Context(), s.Principal.ID, s.KeyID, w.clock.now())
	expect(t, "refused", perr, protocol.CodeInvalidCommand)
	if calls != 1 {
		t.Errorf("a refusal was asked for %d times", calls)
	}
}
