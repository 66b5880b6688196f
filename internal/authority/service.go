package authority

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"time"

	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/trust"
)

// Defaults of Options.
const (
	DefaultFreshnessPast   = 300 * time.Second
	DefaultFreshnessFuture = 30 * time.Second
	DefaultSessionLife     = 900 * time.Second
	DefaultQueue           = 4096
	DefaultRound           = 256
	DefaultHotGroups       = 4096
	DefaultHotEvents       = 2_000_000
	DefaultMostEvents      = 10_000
)

// Options say what a Service works with. Store, Directory, Organization and
// Signers are required.
type Options struct {
	Store     *events.Store
	Directory *registry.Directory
	// Organization builds the policy for a revision of the Registry; it is called
	// once per revision.
	Organization func(*registry.View) *groups.Organization
	// Signers are the keys this process signs with, one per Principal: the
	// Authority itself, the services that accept Organization facts, and the
	// context generator.
	Signers []trust.Signer

	// FreshnessPast and FreshnessFuture are the window of P9.
	FreshnessPast, FreshnessFuture time.Duration
	// SessionLife is how long a session lives whose opening names no expiry.
	SessionLife time.Duration

	// Lanes is how many rounds run at once, default the number of cores.
	Lanes int
	// Queue bounds the Commands that wait in one lane, Round those decided in one
	// transaction.
	Queue, Round int
	// MostEvents bounds the Events that one Command may cause (COMMANDS.md 8.12);
	// what ends, fences or archives work is not held to it.
	MostEvents int
	// HotGroups and HotEvents bound the states kept in memory, by number and by
	// the Events they were folded from.
	HotGroups int
	HotEvents int64

	// Publisher, Hub and Snapshots are told of commits; each may be nil.
	Publisher *events.Publisher
	Hub       *events.Hub
	Snapshots *events.Snapshotter

	Logger *slog.Logger
}

// Service is the Group Authority. Run it before the first Submit.
type Service struct {
	opt     Options
	store   *events.Store
	log     *slog.Logger
	signers map[protocol.Actor]trust.Signer
	self    trust.Signer // the Authority's own
	policy  policyCache
	lanes   []*lane
	auditor *auditor
	cores   chan struct{} // verification slots
	stats   counters

	stopping chan struct{} // closed when Run is to end
	stopped  chan struct{} // closed when nothing is decided any more
	running  sync.WaitGroup
}

// New makes a Service.
func New(opt Options) (*Service, error) {
	if opt.Store == nil || opt.Directory == nil || opt.Organization == nil {
		return nil, errors.New("authority: Store, Directory and Organization are required")
	}
	whenZero(&opt.FreshnessPast, DefaultFreshnessPast)
	whenZero(&opt.FreshnessFuture, DefaultFreshnessFuture)
	whenZero(&opt.SessionLife, DefaultSessionLife)
	whenZero(&opt.Lanes, runtime.GOMAXPROCS(0))
	whenZero(&opt.Queue, DefaultQueue)
	whenZero(&opt.Round, DefaultRound)
	whenZero(&opt.HotGroups, DefaultHotGroups)
	whenZero(&opt.HotEvents, DefaultHotEvents)
	whenZero(&opt.MostEvents, DefaultMostEvents)
	s := &Service{
		opt: opt, store: opt.Store, log: opt.Logger,
		signers:  make(map[protocol.Actor]trust.Signer, len(opt.Signers)),
		cores:    make(chan struct{}, runtime.GOMAXPROCS(0)),
		stopping: make(chan struct{}), stopped: make(chan struct{}),
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	for _, signer := range opt.Signers {
		s.signers[signer.Principal] = signer
	}
	s.policy.build = opt.Organization
	s.auditor = newAuditor(s)
	for i := range opt.Lanes {
		s.lanes = append(s.lanes, newLane(s, i))
	}
	return s, nil
}

func whenZero[T comparable](v *T, value T) {
	var zero T
	if *v == zero {
		*v = value
	}
}

// Run serves until the context ends, then finishes what is in the lanes.
func (s *Service) Run(ctx context.Context) error {
	view, err := s.opt.Directory.Current(ctx)
	if err != nil {
		return fmt.Errorf("authority: %w", err)
	}
	if err := s.policy.check(s, view); err != nil {
		return err
	}
	for _, l := range s.lanes {
		s.running.Go(func() { l.run() })
	}
	s.running.Go(func() { s.auditor.run() })
	<-ctx.Done()
	close(s.stopping)
	s.running.Wait()
	close(s.stopped)
	return nil
}

// policyCache keeps the Organization of the latest Registry revision.
type policyCache struct {
	build func(*registry.View) *groups.Organization

	mu      sync.Mutex
	current *policy
}

// policy is an Organization at one revision, with what is looked up often.
type policy struct {
	view *registry.View
	org  *groups.Organization

	once  sync.Once
	bound map[protocol.Actor]bool
}

func (c *policyCache) at(view *registry.View) *policy {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current != nil && c.current.view == view {
		return c.current
	}
	p := &policy{view: view, org: c.build(view)}
	if c.current == nil || c.current.view.Revision <= view.Revision {
		c.current = p
	}
	return p
}

// check fails at the start rather than at the first Command.
func (c *policyCache) check(s *Service, view *registry.View) error {
	org := c.at(view).org
	self, ok := s.signers[org.Authority]
	if !ok {
		return fmt.Errorf("authority: no signing key for %s", org.Authority.ID)
	}
	s.self = self
	for _, signer := range s.signers {
		key, ok := view.Evidence.Key(signer.KeyID)
		if !ok || key.Principal() != signer.Principal {
			return fmt.Errorf("authority: key %s is not registered for %s", signer.KeyID, signer.Principal.ID)
		}
	}
	return nil
}

// keyBound reports whether a Principal has a key binding.
func (p *policy) keyBound(actor protocol.Actor) bool {
	p.once.Do(func() {
		p.bound = map[protocol.Actor]bool{}
		for key := range p.view.Evidence.All() {
			p.bound[key.Principal()] = true
		}
	})
	return p.bound[actor]
}

// keyLive reports whether a key is the Principal's and valid at an instant.
func (p *policy) keyLive(keyID string, actor protocol.Actor, at time.Time) bool {
	key, ok := p.view.Evidence.Key(keyID)
	return ok && key.Principal() == actor && key.Interval().Contains(lexical.InstantOf(at))
}

// mint returns a fresh urn:uuid: UUIDv7.
func mint(at time.Time) string {
	var random [10]byte
	_, _ = rand.Read(random[:]) // never fails (crypto/rand)
	return lexical.UUIDv7(at, random)
}

// laneOf is the lane that decides the Groups of a tree.
func (s *Service) laneOf(tree int64) *lane {
	return s.lanes[uint64(tree)%uint64(len(s.lanes))] //nolint:gosec // only the bits matter
}
