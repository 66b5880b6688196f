// Package testkit runs the three services in the test process, on a database of
// their own, and plays their clients: over real listeners, with real keys.
//
// Tests that use it are black-box tests. They say what goes over the wire and
// what must come back, so that the services behind it can be rewritten; the one
// thing they may look at beside it is the database, to see what is left.
package testkit

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/devorg"
	"github.com/missionweave/server/internal/devstack"
	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/server"
	"github.com/missionweave/server/internal/testwait"
	"github.com/missionweave/server/internal/wsapi"
)

// Patience is how long anything may take before a test fails. It is long because
// test machines are shared, and never waited for when a test passes.
const Patience = testwait.Patience

// Stack is the services of one Organization.
type Stack struct {
	// Pool reads the database behind the services.
	Pool *pgxpool.Pool
	// Owner is a human who may own Missions; Registrar the registry service.
	Owner, Registrar *client.Client
	// Endpoints are where the services listen.
	client.Endpoints
	Settings config.Settings
	// KeysDir holds the seeds of the services.
	KeysDir string

	t       testing.TB
	keys    *devorg.Organization
	options server.Options
	routes  map[string][]httpkit.Route
	stop    map[string]func()
	// management is where each service shows its health.
	management map[string]string
}

// Option changes how a Stack is started.
type Option func(*server.Options)

// Policy changes the settings.
func Policy(change func(*config.Policy)) Option {
	return func(o *server.Options) { change(&o.Settings.Policy) }
}

// Setting changes what is not policy.
func Setting(change func(*config.Settings)) Option {
	return func(o *server.Options) { change(o.Settings) }
}

// Timing changes the times of the WebSocket binding.
func Timing(t wsapi.Timing) Option { return func(o *server.Options) { o.Timing = t } }

// WithoutNATS lets NATS be away: the services are left to polling.
func WithoutNATS() Option {
	return func(o *server.Options) { o.Settings.NATSURL = "nats://127.0.0.1:1" }
}

// Start starts a Stack, which ends with the test.
func Start(t testing.TB, options ...Option) *Stack {
	t.Helper()
	shared := devstack.ForTest(t)
	settings := *config.New()
	settings.DatabaseURL, settings.NATSURL = shared.NewDatabase(t), shared.NATSURL
	settings.NATSSystemURL, settings.NATSIssuerSeed = shared.NATSSystemURL, shared.NATSIssuerSeed
	settings.DataDir = t.TempDir()
	settings.DatabaseMaxConns = 6
	settings.ShutdownSeconds = 5
	keysDir := t.TempDir()
	keys, err := devorg.Open(keysDir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s := &Stack{t: t, keys: keys, KeysDir: keysDir, routes: map[string][]httpkit.Route{}, stop: map[string]func(){}, management: map[string]string{}}
	s.options = server.Options{Settings: &settings, Keys: keys}
	for _, change := range options {
		change(&s.options)
	}
	s.Settings = settings
	if err := server.Found(t.Context(), s.options); err != nil {
		t.Fatal(err)
	}
	authority, url := s.Replica("authority")
	s.AuthorityURL, s.WebSocketURL = url, WebSocketURL(url)
	s.options.Submit = authority
	s.routes["authority"] = authority.Routes()

	o := s.listen()
	registry, err := server.OpenRegistry(t.Context(), o, authority)
	if err != nil {
		t.Fatal(err)
	}
	s.RegistryURL, s.routes["registry"] = s.run("registry", registry.Run, o), registry.Routes()

	authz, url := s.AuthzReplica("authz")
	s.AuthzURL, s.routes["authz"] = url, authz.Routes()

	if s.Pool, err = pgxpool.New(context.Background(), settings.DatabaseURL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Pool.Close)
	s.Owner, s.Registrar = s.As("mission-owner"), s.As("registry")
	return s
}

// Replica starts one more Authority on the same database and returns it with its
// URL.
func (s *Stack) Replica(name string) (authority *server.Authority, url string) {
	s.t.Helper()
	o := s.listen()
	authority, err := server.OpenAuthority(s.t.Context(), o)
	if err != nil {
		s.t.Fatal(err)
	}
	return authority, s.run(name, authority.Run, o)
}

// AuthzReplica starts one more Authorization Service, or the next one after Stop.
func (s *Stack) AuthzReplica(name string) (authz *server.Authz, url string) {
	s.t.Helper()
	o := s.listen()
	authz, err := server.OpenAuthz(s.t.Context(), o)
	if err != nil {
		s.t.Fatal(err)
	}
	return authz, s.run(name, authz.Run, o)
}

// Rotate follows the key of a role by a new one.
func (s *Stack) Rotate(r server.KeyRotation) *server.RotatedKey {
	s.t.Helper()
	done, err := server.RotateKey(s.t.Context(), s.options, r)
	if err != nil {
		s.t.Fatal(err)
	}
	return done
}

// Stop ends one service as a terminating signal does, and waits for it.
func (s *Stack) Stop(name string) { s.stop[name]() }

// ManagementURL is where a service shows health and metrics.
func (s *Stack) ManagementURL(name string) string { return s.management[name] }

// Routes are the routes by service: authority, registry, authz.
func (s *Stack) Routes() map[string][]httpkit.Route { return s.routes }

func (s *Stack) listen() server.Options {
	s.t.Helper()
	o := s.options
	for _, l := range []*net.Listener{&o.Listener, &o.Management} {
		var err error
		if *l, err = (&net.ListenConfig{}).Listen(s.t.Context(), "tcp", "127.0.0.1:0"); err != nil {
			s.t.Fatal(err)
		}
	}
	return o
}

func (s *Stack) run(name string, run func(context.Context) error, o server.Options) (url string) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx) }()
	s.management[name] = "http://" + o.Management.Addr().String()
	stopped := false
	s.stop[name] = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			s.t.Errorf("%s: %v", name, err)
		}
	}
	s.t.Cleanup(s.stop[name])
	return "http://" + o.Listener.Addr().String()
}

// WebSocketURL is the WebSocket binding of the Authority at a URL.
func WebSocketURL(url string) string { return "ws" + strings.TrimPrefix(url, "http") + "/ws" }

// connect makes a Client for an Identity.
func (s *Stack) connect(identity client.Identity) *client.Client {
	s.t.Helper()
	c, err := client.New(client.Options{Endpoints: s.Endpoints, Identity: identity, Retry: client.Retry{First: 10 * time.Millisecond, Most: 200 * time.Millisecond}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Close)
	return c
}

// As is a Client for the Principal that the Organization was founded with in a
// role.
func (s *Stack) As(role string) *client.Client {
	s.t.Helper()
	signer, err := s.keys.Signer(role)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.connect(client.Identity{Principal: signer.Principal, KeyID: signer.KeyID, Key: signer.Private})
}

// Human registers a new human with one key.
func (s *Stack) Human(name string) *client.Client {
	s.t.Helper()
	return s.human(s.identity(client.Human, name))
}

// Twin registers a human whose id is that of another Principal.
func (s *Stack) Twin(of *client.Client) *client.Client {
	s.t.Helper()
	identity := s.identity(client.Human, "twin")
	identity.Principal.ID = of.Principal().ID
	return s.human(identity)
}

func (s *Stack) human(identity client.Identity) *client.Client {
	s.t.Helper()
	err := s.Registrar.RegisterKey(s.t.Context(), client.KeyBinding{
		KeyID: identity.KeyID, Principal: identity.Principal, Algorithm: "Ed25519",
		PublicKey: identity.PublicKey(), ValidFrom: client.Timestamp(time.Now()),
	})
	if err != nil {
		s.t.Fatalf("register %s: %v", identity.Principal.ID, err)
	}
	return s.connect(identity)
}

// DevFile writes the dev.json of the Stack and returns its path.
func (s *Stack) DevFile() string {
	s.t.Helper()
	b, err := json.Marshal(server.DevFile{
		OrganizationID: s.keys.ID, AuthorityURL: s.AuthorityURL, RegistryURL: s.RegistryURL, AuthzURL: s.AuthzURL,
		WSURL: s.WebSocketURL, NATSURL: s.Settings.NATSURL, DatabaseURL: s.Settings.DatabaseURL,
		Principals: s.keys.Principals, Policy: s.Settings.Policy,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	path := filepath.Join(s.t.TempDir(), "dev.json")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

// Agent registers a new Agent that can do what its tests ask for: capability
// text.write 1.0.0.
func (s *Stack) Agent(name string) *client.Client {
	s.t.Helper()
	identity := s.identity(client.Agent, name)
	if _, err := s.Registrar.RegisterAgent(s.t.Context(), s.Card(identity)); err != nil {
		s.t.Fatalf("register %s: %v", name, err)
	}
	return s.connect(identity)
}

// Stranger is a Client whose Principal and key nobody registered.
func (s *Stack) Stranger(name string) *client.Client {
	s.t.Helper()
	return s.connect(s.identity(client.Agent, name))
}

func (s *Stack) identity(kind, name string) client.Identity {
	s.t.Helper()
	identity, err := client.NewIdentity(client.Actor{Type: kind, ID: "urn:test:" + kind + ":" + name + ":" + strings.TrimPrefix(client.NewID(), "urn:uuid:")})
	if err != nil {
		s.t.Fatal(err)
	}
	return identity
}

// Card is the first card of an Agent, unsigned.
func (s *Stack) Card(identity client.Identity) client.AgentCard {
	const hash = "sha256:0000000000000000000000000000000000000000000000000000000000000001"
	now := client.Timestamp(time.Now())
	return client.AgentCard{
		AgentID: identity.Principal.ID, OrganizationID: s.keys.ID, CardVersion: 1,
		DisplayName: "Agent", Owner: s.Owner.Principal(), Status: "active", ProtocolVersions: []string{"0.1"},
		Endpoints: []client.Endpoint{{Transport: "wss", URI: "wss://agents.test/one"}},
		PublicKeys: []client.PublicKey{{
			KeyID: identity.KeyID, Algorithm: "Ed25519", PublicKey: identity.PublicKey(), ValidFrom: now,
		}},
		Capabilities: []client.Capability{{
			ID: "text.write", Version: "1.0.0", InputSchema: "urn:test:in", InputSchemaHash: hash,
			OutputSchema: "urn:test:out", OutputSchemaHash: hash, Constraints: client.Raw("{}"),
			VerifiedEvidence: []string{"urn:test:evidence"},
		}},
		MaxConcurrency: 4, IssuedAt: now,
	}
}

// sign is a pure signature over bytes, for handshakes.
func sign(c *client.Client, b []byte) []byte { return ed25519.Sign(c.Identity().Key, b) }

// Main runs tests and then stops the servers they shared, so that what still
// runs is a leak of the tests.
func Main(m *testing.M, leaks func() error) {
	code := m.Run()
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	if err := devstack.StopShared(ctx); err != nil && code != 0 {
		fmt.Fprintln(os.Stderr, err)
	}
	if leaks != nil && code == 0 {
		if err := leaks(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// SignChallenge signs the decoded bytes of a challenge.
func SignChallenge(t testing.TB, c *client.Client, challenge string) string {
	t.Helper()
	transcript, err := lexical.DecodeBase64URL(challenge)
	if err != nil {
		t.Fatal(err)
	}
	return lexical.EncodeBase64URL(sign(c, transcript))
}
