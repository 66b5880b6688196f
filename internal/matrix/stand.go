package matrix

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/trust"
)

// stand is the server under test with the Principals that all plays share.
type stand struct {
	stack    *client.DevStack
	http     *http.Client
	evidence *trust.Evidence

	registrar, owner *actor
	// Shared Agents and humans; none of them ever opens a second session.
	outsider, former, lapsed, visitor, reviewer, revoked, idle *actor
	outsiderHuman, formerHuman, lapsedHuman, visitorHuman      *actor

	// brief is how many seconds a play gives what has to end soon: one, or more on a
	// machine that is busy with other things.
	brief int64

	// opened is no earlier than the idle Agent's session.
	opened    time.Time
	revokedAt time.Time

	// keyless are Principals by type whose key was revoked, half a minute ago.
	keyless map[string]*actor

	mu       sync.Mutex
	services map[string]*actor
	// kinds are the kinds of the accepted Commands by Action ID, for the causes of
	// Events.
	kinds map[string]string
}

// actor is a Principal with its client and, for an Agent, its session.
type actor struct {
	*client.Client
	session *socket
	// epoch is the Session Epoch of an Agent without a living session.
	epoch int64
}

func (a *actor) sessionEpoch() int64 {
	if a.session != nil {
		return a.session.Epoch()
	}
	return a.epoch
}

func (a *actor) agent() bool { return a.Principal().Type == client.Agent }

func openStand(ctx context.Context, stack *client.DevStack) (*stand, error) {
	roots, err := stack.RootCAs()
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 16
	if roots != nil {
		transport.TLSClientConfig = tlsConfig(roots)
	}
	s := &stand{stack: stack, http: &http.Client{Transport: transport}, services: map[string]*actor{}, kinds: map[string]string{}}
	if s.registrar, err = s.service("registry"); err != nil {
		return nil, err
	}
	if s.owner, err = s.service("mission-owner"); err != nil {
		return nil, err
	}
	if s.evidence, err = s.readEvidence(ctx); err != nil {
		return nil, err
	}
	began := time.Now()
	for _, a := range []struct {
		dst  **actor
		name string
	}{
		{&s.outsider, "outsider"},
		{&s.former, "former"},
		{&s.lapsed, "lapsed"},
		{&s.visitor, "visitor"},
		{&s.reviewer, "reviewer"},
		{&s.revoked, "revoked"},
		{&s.idle, "idle"},
	} {
		if *a.dst, err = s.newAgent(ctx, a.name); err != nil {
			return nil, err
		}
	}
	const agents, usual = 7, 60 * time.Millisecond
	s.brief = min(1+int64(time.Since(began)/(agents*usual)), 10)
	for _, h := range []struct {
		dst  **actor
		name string
	}{
		{&s.outsiderHuman, "outsider"}, {&s.formerHuman, "former"}, {&s.lapsedHuman, "lapsed"}, {&s.visitorHuman, "visitor"},
	} {
		if *h.dst, err = s.newHuman(ctx, h.name); err != nil {
			return nil, err
		}
	}
	if err := s.endKeys(ctx); err != nil {
		return nil, err
	}
	// What follows is judged by the session alone: nobody renews it any more.
	s.idle.epoch = s.idle.session.Epoch()
	s.idle.session.Close()
	s.idle.session = nil
	s.opened = time.Now()
	s.revokedAt = s.opened
	return s, s.revokeCard(ctx, s.revoked)
}

func (s *stand) close() {
	for _, a := range []*actor{s.outsider, s.former, s.lapsed, s.visitor, s.reviewer, s.revoked} {
		if a != nil && a.session != nil {
			a.session.Close()
		}
	}
	s.http.CloseIdleConnections()
}

// service is the Principal of the stack with a role.
func (s *stand) service(role string) (*actor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a, ok := s.services[role]; ok {
		return a, nil
	}
	identity, err := s.stack.Identity(role)
	if err != nil {
		return nil, err
	}
	c, err := s.stack.Connect(identity)
	if err != nil {
		return nil, err
	}
	s.services[role] = &actor{Client: c}
	return s.services[role], nil
}

func freshIdentity(kind, name string) (client.Identity, error) {
	unique := strings.TrimPrefix(client.NewID(), "urn:uuid:")
	return client.NewIdentity(client.Actor{Type: kind, ID: "urn:missionweave:matrix:" + kind + ":" + name + ":" + unique})
}

// newAgent registers an Agent and opens its session; edit changes its card.
func (s *stand) newAgent(ctx context.Context, name string, edit ...func(*client.AgentCard)) (*actor, error) {
	identity, err := freshIdentity(client.Agent, name)
	if err != nil {
		return nil, err
	}
	card := s.card(identity, 1)
	for _, e := range edit {
		e(&card)
	}
	if _, err := s.registrar.RegisterAgent(ctx, card); err != nil {
		return nil, fmt.Errorf("register %s: %w", name, err)
	}
	c, err := s.stack.Connect(identity)
	if err != nil {
		return nil, err
	}
	session, err := s.openSocket(ctx, identity)
	if err != nil {
		return nil, fmt.Errorf("session of %s: %w", name, err)
	}
	return &actor{Client: c, session: session}, nil
}

// longSince lets keys be older than the freshness window, so that an old Command
// fails for its age and not for its key.
func longSince() string { return client.Timestamp(time.Now().Add(-30 * time.Minute)) }

// newHuman registers a human with one key.
func (s *stand) newHuman(ctx context.Context, name string) (*actor, error) {
	return s.newPrincipal(ctx, client.Human, name)
}

// newPrincipal registers a human or a service with one key.
func (s *stand) newPrincipal(ctx context.Context, kind, name string) (*actor, error) {
	identity, err := freshIdentity(kind, name)
	if err != nil {
		return nil, err
	}
	err = s.registrar.RegisterKey(ctx, client.KeyBinding{
		KeyID: identity.KeyID, Principal: identity.Principal, Algorithm: "Ed25519",
		PublicKey: identity.PublicKey(), ValidFrom: longSince(),
	})
	if err != nil {
		return nil, fmt.Errorf("register %s: %w", name, err)
	}
	c, err := s.stack.Connect(identity)
	if err != nil {
		return nil, err
	}
	return &actor{Client: c}, nil
}

// endKeys makes the Principals whose key was revoked.
func (s *stand) endKeys(ctx context.Context) (err error) {
	agent, err := s.newAgent(ctx, "keyless")
	if err != nil {
		return err
	}
	agent.session.Close()
	agent.session = nil
	s.keyless = map[string]*actor{client.Agent: agent}
	for _, kind := range []string{client.Human, client.Service} {
		if s.keyless[kind], err = s.newPrincipal(ctx, kind, "keyless"); err != nil {
			return err
		}
	}
	for _, a := range s.keyless {
		if err := s.registrar.EndKey(ctx, a.Identity().KeyID, "", client.Timestamp(time.Now().Add(-30*time.Second))); err != nil {
			return fmt.Errorf("revoke a key: %w", err)
		}
	}
	return nil
}

// capability is what every Agent of the matrix can do; forbidden it can do too, and
// no Mission of the matrix allows it.
const (
	capability = "text.write"
	forbidden  = "text.forge"
)

// card is the card of an Agent with room for any work.
func (s *stand) card(identity client.Identity, version int64) client.AgentCard {
	const hash = "sha256:0000000000000000000000000000000000000000000000000000000000000001"
	now := client.Timestamp(time.Now())
	can := func(id string) client.Capability {
		return client.Capability{
			ID: id, Version: "1.0.0", InputSchema: "urn:missionweave:matrix:in", InputSchemaHash: hash,
			OutputSchema: "urn:missionweave:matrix:out", OutputSchemaHash: hash, Constraints: client.Raw("{}"),
			VerifiedEvidence: []string{"urn:missionweave:matrix:assessment"},
		}
	}
	return client.AgentCard{
		AgentID: identity.Principal.ID, OrganizationID: s.stack.OrganizationID, CardVersion: version,
		DisplayName: "Agent", Owner: s.owner.Principal(), Status: "active", ProtocolVersions: []string{"0.1"},
		Endpoints: []client.Endpoint{{Transport: "wss", URI: "wss://agents.invalid/matrix"}},
		PublicKeys: []client.PublicKey{{
			KeyID: identity.KeyID, Algorithm: "Ed25519", PublicKey: identity.PublicKey(), ValidFrom: longSince(),
		}},
		Capabilities:   []client.Capability{can(capability), can(forbidden)},
		MaxConcurrency: 100, IssuedAt: now,
	}
}

// revokeCard registers a next version of an Agent's card that is revoked.
func (s *stand) revokeCard(ctx context.Context, a *actor) error {
	a.epoch = a.session.Epoch()
	a.session.Close()
	a.session = nil
	return s.recard(ctx, a, func(card *client.AgentCard) { card.Status = "revoked" })
}

// recard registers the next version of an Agent's card; the session goes on.
func (s *stand) recard(ctx context.Context, a *actor, edit func(*client.AgentCard)) error {
	card, err := a.AgentCard(ctx, a.Principal().ID)
	if err != nil {
		return fmt.Errorf("read the card: %w", err)
	}
	edit(card)
	card.CardVersion++
	card.IssuedAt, card.Signature = client.Timestamp(time.Now()), protocol.Signature{}
	if _, err := s.registrar.RegisterAgent(ctx, *card); err != nil {
		return fmt.Errorf("change the card: %w", err)
	}
	return nil
}

// revokedAgent is an Agent with a revoked card whose session has not expired yet:
// an expired one would be refused for that.
func (s *stand) revokedAgent(ctx context.Context) (*actor, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	life, ok := s.policy("sessionLifeSeconds")
	if ok && time.Since(s.revokedAt) > time.Duration(life)*time.Second/3 {
		fresh, err := s.newAgent(ctx, "revoked")
		if err != nil {
			return nil, err
		}
		s.revokedAt = time.Now()
		if err := s.revokeCard(ctx, fresh); err != nil {
			return nil, err
		}
		s.revoked = fresh
	}
	return s.revoked, nil
}

// answer is an HTTP answer that was read whole.
type answer struct {
	status   int
	body     []byte
	replayed bool
}

func (a answer) value() (strictjson.Value, error) {
	doc, err := strictjson.Parse(a.body)
	if err != nil {
		return strictjson.Value{}, fmt.Errorf("the answer is not strict JSON: %w", err)
	}
	return doc.Root(), nil
}

// post sends a Command's bytes once.
func (s *stand) post(ctx context.Context, command []byte) (answer, error) {
	return s.request(ctx, http.MethodPost, s.stack.AuthorityURL+"/v1/commands", "", command)
}

func (s *stand) request(ctx context.Context, method, url, token string, body []byte) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := s.http.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, b, res.Header.Get("Idempotency-Replayed") == "true"}, err
}

// readEvidence reads the Registry's evidence, which the signatures of Events are
// verified with.
func (s *stand) readEvidence(ctx context.Context) (*trust.Evidence, error) {
	token, err := s.registrar.AccessToken(ctx)
	if err != nil {
		return nil, err
	}
	a, err := s.request(ctx, http.MethodGet, s.stack.RegistryURL+"/v1/registry/evidence?organizationId="+s.stack.OrganizationID, token, nil)
	if err != nil {
		return nil, err
	}
	v, err := a.value()
	if err != nil || a.status != http.StatusOK {
		return nil, errors.Join(fmt.Errorf("the Registry's evidence: status %d", a.status), err)
	}
	var doc registry.EvidenceDocument
	if err := strictjson.Decode(v, &doc); err != nil {
		return nil, fmt.Errorf("the Registry's evidence: %w", err)
	}
	return trust.NewEvidence(doc.OrganizationID, doc.Revision, doc.TrustBindings())
}

// policy is a setting of the stack; ok is false when it does not say.
func (s *stand) policy(name string) (int64, bool) {
	n, ok := s.stack.Policy[name].(float64)
	return int64(n), ok
}

func (s *stand) sent(actionID, kind string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds[actionID] = kind
}

func (s *stand) kindOf(actionID string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kinds[actionID]
}

// idleOver waits until the idle Agent's session has ended.
func (s *stand) idleOver(life time.Duration) {
	timer := time.NewTimer(time.Until(s.opened.Add(life + 200*time.Millisecond)))
	defer timer.Stop()
	<-timer.C
}
