package bench

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"

	"github.com/missionweave/server/internal/authority"
	"github.com/missionweave/server/internal/devstack"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/migrate"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/trust"
)

// stand is a whole Authority on a private, durable database.
type stand struct {
	stack     *devstack.Stack
	pool      *pgxpool.Pool
	store     *events.Store
	directory *registry.Directory
	service   *authority.Service
	hub       *events.Hub
	conn      *nats.Conn
	lanes     int
	cores     int

	signers     map[registry.Role]trust.Signer
	owner       trust.Signer
	coordinator trust.Signer
	epoch       int64
	agents      int // subscribers

	run    context.Context //nolint:containedctx // the stand's life
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// target is a Group that Messages are posted to.
type target struct {
	s                     *stand
	group, conversationID string
	work                  bool // WorkItems instead of Messages
}

func mint() string {
	var random [10]byte
	_, _ = rand.Read(random[:])
	return lexical.UUIDv7(time.Now(), random)
}

func now() string { return lexical.FormatMicros(time.Now()) }

func signer(actorType, name string) (trust.Signer, error) {
	id := "urn:bench:" + actorType + ":" + name
	seed := sha256.Sum256([]byte(id))
	return trust.NewSigner(id+":key", protocol.Actor{Type: actorType, ID: id}, seed[:])
}

func subscriberName(i int) string { return fmt.Sprintf("subscriber-%d", i) }

func newStand(ctx context.Context, options Options) (_ *stand, err error) {
	s := &stand{cores: runtime.GOMAXPROCS(0), lanes: options.Lanes, agents: options.subscribers, signers: map[registry.Role]trust.Signer{}}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.stack, err = devstack.Start(ctx, devstack.Options{DataDir: options.DataDir, Logger: options.Logger}); err != nil {
		return nil, err
	}
	if _, err = migrate.Up(ctx, s.stack.DatabaseURL); err != nil {
		return nil, err
	}
	if s.pool, err = pgxpool.New(ctx, s.stack.SocketDatabaseURL); err != nil {
		return nil, err
	}
	const organization = "urn:missionweave:bench:organization"
	if err = s.found(ctx, organization); err != nil {
		return nil, err
	}
	s.store, err = events.Open(ctx, s.stack.SocketDatabaseURL, events.Options{OrganizationID: organization})
	if err != nil {
		return nil, err
	}
	if err = s.fillLog(ctx); err != nil {
		return nil, err
	}
	s.hub = events.NewHub(s.store, events.HubOptions{})
	policy := authority.DefaultPolicy()
	policy.Limits.MessagesPerMinute, policy.Limits.DuplicateDecompositionOff = 0, true
	opt := authority.Options{
		Store: s.store, Directory: s.directory, Organization: policy.Organization, Lanes: options.Lanes,
		Hub: s.hub, Snapshots: events.NewSnapshotter(s.store, options.Logger), Logger: options.Logger,
	}
	for _, signer := range s.signers {
		opt.Signers = append(opt.Signers, signer)
	}
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.run, s.cancel = run, cancel
	if options.NATS {
		if s.conn, err = events.Connect(s.stack.NATSURL); err != nil {
			return nil, err
		}
		if opt.Publisher, err = events.NewPublisher(s.store, s.conn, events.PublisherOptions{Logger: options.Logger}); err != nil {
			return nil, err
		}
		s.wg.Go(func() { _ = opt.Publisher.Run(run) })
	}
	if s.service, err = authority.New(opt); err != nil {
		return nil, err
	}
	if s.lanes == 0 {
		s.lanes = s.cores
	}
	s.wg.Go(func() { _ = s.service.Run(run) })
	s.wg.Go(func() { _ = opt.Snapshots.Run(run) })
	s.wg.Go(func() { _ = s.directory.Run(run) })
	return s, s.openSession(ctx)
}

// fillLog brings the write-ahead log to the state of a database that has run for
// a while: segments are then reused, while a new database makes each of them
// anew in the middle of a commit.
func (s *stand) fillLog(ctx context.Context) error {
	for range 48 {
		if _, err := s.pool.Exec(ctx, "SELECT pg_logical_emit_message(false, 'bench', ''), pg_switch_wal()"); err != nil {
			return err
		}
	}
	_, err := s.pool.Exec(ctx, "CHECKPOINT")
	return err
}

// found makes the Organization with its services, the owner and one Agent.
func (s *stand) found(ctx context.Context, organization string) error {
	f := registry.Founding{OrganizationID: organization}
	add := func(role registry.Role, actorType, name string) (trust.Signer, error) {
		k, err := signer(actorType, name)
		f.Principals = append(f.Principals, registry.Founder{Role: role, Principal: k.Principal, KeyID: k.KeyID, PublicKey: k.PublicKey()})
		return k, err
	}
	var err error
	for _, role := range registry.ServiceRoles() {
		if s.signers[role], err = add(role, protocol.ActorService, string(role)); err != nil {
			return err
		}
	}
	if s.owner, err = add("", protocol.ActorHuman, "owner"); err != nil {
		return err
	}
	if s.coordinator, err = add("", protocol.ActorAgent, "coordinator"); err != nil {
		return err
	}
	const hash = "sha256:0000000000000000000000000000000000000000000000000000000000000001"
	card := func(k trust.Signer) protocol.AgentCard {
		return protocol.AgentCard{
			AgentID: k.Principal.ID, OrganizationID: organization, CardVersion: 1, DisplayName: "Agent",
			Owner: s.owner.Principal, Status: registry.CardActive, ProtocolVersions: []string{protocol.Version},
			Endpoints:  []protocol.Endpoint{{Transport: "wss", URI: "wss://bench.invalid/ws"}},
			PublicKeys: []protocol.PublicKey{{KeyID: k.KeyID, Algorithm: trust.Algorithm, PublicKey: k.PublicKey()}},
			Capabilities: []protocol.Capability{{
				ID: "text.write", Version: "1.0.0", InputSchema: "urn:bench:in", InputSchemaHash: hash,
				OutputSchema: "urn:bench:out", OutputSchemaHash: hash, Constraints: protocol.Raw(`{}`), VerifiedEvidence: []string{"urn:bench:evidence"},
			}},
			MaxConcurrency: 1,
		}
	}
	f.Cards = []protocol.AgentCard{card(s.coordinator)}
	issued := now()
	cards := make([]protocol.AgentCard, s.agents)
	for i := range cards {
		k, err := add("", protocol.ActorAgent, subscriberName(i))
		if err != nil {
			return err
		}
		f.Principals[len(f.Principals)-1].ValidFrom = issued
		cards[i] = card(k)
		cards[i].IssuedAt, cards[i].PublicKeys[0].ValidFrom = issued, issued
	}
	s.directory = registry.NewDirectory(s.pool, registry.DirectoryOptions{})
	service := registry.New(registry.Config{
		Pool: s.pool, Directory: s.directory, Signer: s.signers[registry.RoleRegistry], Mint: mint, Now: time.Now, Future: 30 * time.Second,
	})
	if err := service.Bootstrap(ctx, f); err != nil {
		return err
	}
	return s.register(ctx, cards)
}

// register puts cards into the Registry's tables as one revision: registering
// thousands one by one would take longer than what is measured.
func (s *stand) register(ctx context.Context, cards []protocol.AgentCard) error {
	ids, documents, hashes := make([]string, len(cards)), make([][]byte, len(cards)), make([]string, len(cards))
	for i := range cards {
		var err error
		ids[i] = cards[i].AgentID
		if documents[i], hashes[i], err = trust.SignDocument(protocol.KindAgentCard, &cards[i], s.signers[registry.RoleRegistry]); err != nil {
			return err
		}
	}
	_, err := s.pool.Exec(ctx, `
		WITH r AS (UPDATE registry_head SET revision = revision + 1 RETURNING revision),
		c AS (SELECT * FROM unnest($1::text[], $2::bytea[], $3::text[]) AS c(id, document, hash)),
		i AS (INSERT INTO agent_cards (agent_id, card_version, status, document, signing_hash, revision, registered_at)
			SELECT c.id, 1, 'active', c.document, c.hash, r.revision, clock_timestamp() FROM c, r)
		INSERT INTO agents (agent_id, card_version, status, capabilities, revision) SELECT c.id, 1, 'active', '{text.write}', r.revision FROM c, r`,
		ids, documents, hashes)
	if err != nil {
		return err
	}
	_, err = s.directory.Current(ctx)
	return err
}

func (s *stand) openSession(ctx context.Context) error {
	payload, err := strictjson.Marshal(map[string]any{
		"agentId": s.coordinator.Principal.ID, "sessionExpiresAt": lexical.FormatMicros(time.Now().Add(12 * time.Hour)),
	})
	if err != nil {
		return err
	}
	command, err := s.sign(s.signers[registry.RoleIdentity], protocol.Command{Kind: protocol.CommandSessionOpen, Payload: payload})
	if err != nil {
		return err
	}
	opened, refused := s.service.OpenSession(ctx, command)
	if refused != nil {
		return refusal(refused)
	}
	doc, err := strictjson.Parse(opened[0])
	if err != nil {
		return err
	}
	s.epoch, _ = doc.Root().Member("payload").Member("sessionEpoch").Int()
	return nil
}

func (s *stand) sign(k trust.Signer, c protocol.Command) ([]byte, error) {
	c.ProtocolVersion, c.Actor, c.ActionID, c.CorrelationID, c.IssuedAt = protocol.Version, k.Principal, mint(), "urn:bench:c", now()
	b, _, err := trust.SignDocument(protocol.KindCommand, &c, k)
	return b, err
}

// missions makes n Missions.
func (s *stand) missions(ctx context.Context, n int) ([]*target, error) {
	out := make([]*target, n)
	for i := range out {
		t := &target{s: s, group: mint()}
		limit := int64(1_000_000)
		payload, err := strictjson.Marshal(map[string]any{
			"missionId": mint(), "groupId": t.group, "coordinatorAgentId": s.coordinator.Principal.ID, "objective": "Measure",
			"definitionOfDone": []any{map[string]any{"criterionId": "done", "description": "Measured", "evidenceRequired": []any{"policy_check"}}},
			"budget":           map[string]any{"modelTokenLimit": limit, "toolCallLimit": limit},
			"deadline":         lexical.FormatMicros(time.Now().Add(24 * time.Hour)), "coordinatorLeaseSeconds": 86400,
			"approvalPolicy": map[string]any{"finalHumanApproval": true, "highRiskExecutionApproval": true, "policyVersion": "1.0.0"},
		})
		if err != nil {
			return nil, err
		}
		command, err := s.sign(s.owner, protocol.Command{Kind: "mission.create", GroupID: t.group, Payload: payload})
		if err != nil {
			return nil, err
		}
		res, refused := s.service.Submit(ctx, authority.Submission{Body: command, Peer: "bench"})
		if refused != nil {
			return nil, refusal(refused)
		}
		doc, err := strictjson.Parse(res.Events[0])
		if err != nil {
			return nil, err
		}
		t.conversationID = doc.Root().Member("payload").Member("conversation").Member("conversationId").Str()
		out[i] = t
	}
	return out, nil
}

// command signs what the target is for.
func (t *target) command(i int) ([]byte, error) {
	if t.work {
		return t.authorize(i)
	}
	return t.post(i)
}

// post signs a message.post.
func (t *target) post(i int) ([]byte, error) {
	payload, err := strictjson.Marshal(map[string]any{
		"messageId": mint(), "content": []any{map[string]any{"type": "text", "text": fmt.Sprintf(
			"Message %d: the second section is drafted, its sources are checked, and the open question of the first one is answered.", i)}},
	})
	if err != nil {
		return nil, err
	}
	return t.s.sign(t.s.coordinator, protocol.Command{
		Kind: "message.post", GroupID: t.group, ConversationID: t.conversationID, SessionEpoch: t.s.epoch, MembershipEpoch: 1,
		CoordinatorEpoch: 1, Payload: payload,
	})
}

// verifyAndSign is the cryptography no Authority can do without: the Command's
// signature is verified and the Event signed.
func (s *stand) verifyAndSign(p pair) error {
	view, err := s.directory.View(context.Background())
	if err != nil {
		return err
	}
	if _, failure := trust.VerifyBytes(protocol.KindCommand, p.command, view.Evidence); failure != nil {
		return failure.Diagnostic()
	}
	_, _, err = trust.SignDocument(protocol.KindEvent, p.event, s.signers[registry.RoleGroupAuthority])
	return err
}

func (s *stand) close() {
	if s.cancel != nil {
		s.cancel()
		s.wg.Wait()
	}
	if s.conn != nil {
		s.conn.Close()
	}
	if s.store != nil {
		s.store.Close()
	}
	if s.pool != nil {
		s.pool.Close()
	}
	if s.stack != nil {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_ = s.stack.Stop(ctx)
	}
}
