// Package authoritytest runs a Group Authority on a fresh database of the test
// stack, with an Organization, Agents in session and a way to sign Commands as
// any of them, so that tests of what stands before the Authority begin where a
// client begins.
package authoritytest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/missionweave/server/internal/authority"
	"github.com/missionweave/server/internal/devstack"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/registry/registrytest"
	"github.com/missionweave/server/internal/trust"
)

// Options change a Rig before it starts; each member may be zero.
type Options struct {
	// DatabaseURL is a migrated database without Organization, default a fresh
	// one of ForTest.
	DatabaseURL string
	Policy      *authority.Policy
	Events      events.Options
	Change      func(*authority.Options)
	// NATS starts publisher and hub on the test stack's NATS.
	NATS bool
}

// Rig is one Organization with one or more Authority processes.
type Rig struct {
	*Replica
	T   testing.TB
	Org *registrytest.Org

	mu     sync.Mutex
	epochs map[string]int64
}

// Replica is one Authority process.
type Replica struct {
	Service   *authority.Service
	Store     *events.Store
	Hub       *events.Hub
	Publisher *events.Publisher
	Directory *registry.Directory

	stop func()
}

// Start founds an Organization and runs an Authority for it until the test ends.
func Start(t testing.TB, options Options) *Rig {
	t.Helper()
	r := &Rig{T: t, Org: registrytest.New(t), epochs: map[string]int64{}}
	if options.DatabaseURL != "" {
		founding := r.Org.Founding
		r.Org = &registrytest.Org{DatabaseURL: options.DatabaseURL, Founding: founding}
		r.Org.Pool = registrytest.NewPool(t, options.DatabaseURL)
		r.Org.Directory, r.Org.Service = r.Org.Replica(t, nil)
		if err := r.Org.Service.Bootstrap(t.Context(), founding); err != nil {
			t.Fatalf("found the Organization: %v", err)
		}
	}
	r.Replica = r.AddReplica(options)
	return r
}

// AddReplica runs another Authority process on the same database.
func (r *Rig) AddReplica(options Options) *Replica {
	r.T.Helper()
	options.Events.OrganizationID = registrytest.OrganizationID
	store, err := events.Open(context.WithoutCancel(r.T.Context()), r.Org.DatabaseURL, options.Events)
	if err != nil {
		r.T.Fatal(err)
	}
	directory, _ := r.Org.Replica(r.T, nil)
	policy := authority.DefaultPolicy()
	if options.Policy != nil {
		policy = *options.Policy
	}
	n := &Replica{Store: store, Directory: directory, Hub: events.NewHub(store, events.HubOptions{})}
	opt := authority.Options{
		Store: store, Directory: directory, Organization: policy.Organization, Hub: n.Hub,
		Snapshots: events.NewSnapshotter(store, nil),
		Signers: []trust.Signer{
			registrytest.Service(registry.RoleGroupAuthority), registrytest.Service(registry.RoleIdentity),
			registrytest.Service(registry.RoleRegistry), registrytest.Agent("context-generator"),
		},
	}
	var conn *nats.Conn
	if options.NATS {
		if conn, err = events.Connect(devstack.ForTest(r.T).NATSURL); err != nil {
			r.T.Fatal(err)
		}
		if n.Publisher, err = events.NewPublisher(store, conn, events.PublisherOptions{AdvanceEvery: 20 * time.Millisecond}); err != nil {
			r.T.Fatal(err)
		}
		n.Hub.UseNATS(conn)
		opt.Publisher = n.Publisher
	}
	if options.Change != nil {
		options.Change(&opt)
	}
	if n.Service, err = authority.New(opt); err != nil {
		r.T.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	run := func(f func(context.Context) error) {
		wg.Go(func() {
			if err := f(ctx); err != nil {
				r.T.Errorf("service ended: %v", err)
			}
		})
	}
	run(n.Service.Run)
	run(n.Hub.Run)
	if opt.Snapshots != nil {
		run(opt.Snapshots.Run)
	}
	run(directory.Run)
	if n.Publisher != nil {
		run(n.Publisher.Run)
	}
	var once sync.Once
	n.stop = func() {
		once.Do(func() {
			cancel()
			wg.Wait()
			if conn != nil {
				conn.Close()
			}
			store.Close()
		})
	}
	r.T.Cleanup(n.stop)
	return n
}

// Stop ends the process in order.
func (n *Replica) Stop() { n.stop() }

// AddAgent registers an Agent and opens its first session.
func (r *Rig) AddAgent(name string) trust.Signer {
	r.T.Helper()
	s := registrytest.Agent(name)
	card := registrytest.Card(s)
	card.MaxConcurrency = 4
	r.Org.AddCard(r.T, card)
	r.OpenSession(s)
	return s
}

// AddHuman binds a human's key.
func (r *Rig) AddHuman(name string) trust.Signer {
	r.T.Helper()
	s := registrytest.Human(name)
	r.Org.AddKey(r.T, s)
	return s
}

// OpenSession opens the Agent's next session.
func (r *Rig) OpenSession(s trust.Signer) int64 {
	r.T.Helper()
	identity := registrytest.Service(registry.RoleIdentity)
	command := r.Sign(identity, protocol.Command{
		Kind: protocol.CommandSessionOpen,
		Payload: Payload(r.T, map[string]any{
			"agentId": s.Principal.ID, "keyId": s.KeyID, "sessionExpiresAt": registrytest.At(time.Hour),
		}),
	})
	if _, err := r.Service.OpenSession(r.T.Context(), command); err != nil {
		r.T.Fatalf("open session of %s: %v", s.Principal.ID, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.epochs[s.Principal.ID]++
	return r.epochs[s.Principal.ID]
}

// Payload encodes a payload.
func Payload(t testing.TB, v any) protocol.Raw {
	t.Helper()
	raw, err := strictjson.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// Sign completes and signs a Command: ids, times and the present session epoch
// are filled in where they are empty.
func (r *Rig) Sign(s trust.Signer, c protocol.Command) []byte {
	r.T.Helper()
	c.ProtocolVersion = protocol.Version
	c.Actor = s.Principal
	if c.ActionID == "" {
		c.ActionID = registrytest.Mint()
	}
	if c.CorrelationID == "" {
		c.CorrelationID = "urn:test:correlation"
	}
	if c.IssuedAt == "" {
		c.IssuedAt = lexical.FormatMicros(time.Now())
	}
	if c.SessionEpoch == 0 && s.Principal.Type == protocol.ActorAgent {
		r.mu.Lock()
		c.SessionEpoch = max(1, r.epochs[s.Principal.ID])
		r.mu.Unlock()
	}
	signed, _, err := trust.SignDocument(protocol.KindCommand, &c, s)
	if err != nil {
		r.T.Fatalf("sign %s: %v", c.Kind, err)
	}
	return signed
}

// Submit sends exact bytes to the first process.
func (r *Rig) Submit(body []byte) (*authority.Result, *protocol.Error) {
	return r.Service.Submit(context.WithoutCancel(r.T.Context()), authority.Submission{Body: body, Peer: "test"})
}

// Send signs and submits a Command.
func (r *Rig) Send(s trust.Signer, c protocol.Command) (*authority.Result, *protocol.Error) {
	r.T.Helper()
	return r.Submit(r.Sign(s, c))
}

// Must is Send for a Command that has to be accepted.
func (r *Rig) Must(s trust.Signer, c protocol.Command) *authority.Result {
	r.T.Helper()
	res, err := r.Send(s, c)
	if err != nil {
		r.T.Fatalf("%s by %s: %v %v", c.Kind, s.Principal.ID, err, err.Details)
	}
	return res
}
