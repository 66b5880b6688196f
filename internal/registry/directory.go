package registry

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/missionweave/server/internal/trust"
)

// Defaults of DirectoryOptions.
const (
	DefaultMaxAge     = 500 * time.Millisecond
	DefaultCheckEvery = 100 * time.Millisecond
	DefaultAuditEvery = 10 * time.Minute
	checkTimeout      = 5 * time.Second
)

// ErrNotCurrent is a Registry whose present revision could not be established
// within the bound. Nothing may be verified for the first time under it.
var ErrNotCurrent = errors.New("registry: evidence is not known to be current")

// DirectoryOptions configures a Directory; the zero value takes the defaults.
type DirectoryOptions struct {
	// MaxAge is how old the last check of the revision may be for a view to count
	// as current: the Organization's currency rule (PROTOCOL.md 6.4).
	MaxAge time.Duration
	// CheckEvery is how often Run looks for a new revision.
	CheckEvery time.Duration
	// AuditEvery is how often Run reads the whole Registry and compares it with
	// what was followed revision by revision.
	AuditEvery time.Duration
	Log        *slog.Logger
	// Now measures age; it needs a monotonic reading.
	Now func() time.Time
}

// Directory is the Registry in memory, for verification. Its view follows
// registry_head and is extended by what each revision brought.
//
// A view is current when the revision was looked up, and found to be the view's,
// at most MaxAge ago; Current makes that "after the call began". A Directory that
// cannot find out, or that finds records which break a rule of the Organization,
// answers with an error and with evidence that verifies nothing.
//
// A caller that commits under a view closes the remaining gap itself, by reading
// registry_head in its transaction and deciding again when it moved.
type Directory struct {
	pool *pgxpool.Pool
	opt  DirectoryOptions
	now  func() time.Time

	// state is replaced under work, so that a fault one reader found is not
	// painted over by another that began earlier.
	state atomic.Pointer[state]
	work  sync.Mutex

	mu      sync.Mutex
	waiting *check
	running bool
}

// state is a view and what is known about it.
type state struct {
	view    *View
	checked time.Time // when the last successful check began
	fault   error     // records that no view may be built from
}

type check struct {
	done chan struct{}
	view *View
	err  error
}

// NewDirectory returns a Directory without a view; the first call loads it.
func NewDirectory(pool *pgxpool.Pool, opt DirectoryOptions) *Directory {
	if opt.MaxAge <= 0 {
		opt.MaxAge = DefaultMaxAge
	}
	if opt.CheckEvery <= 0 {
		opt.CheckEvery = min(DefaultCheckEvery, opt.MaxAge/2)
	}
	if opt.AuditEvery <= 0 {
		opt.AuditEvery = DefaultAuditEvery
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Now == nil {
		opt.Now = time.Now
	}
	d := &Directory{pool: pool, opt: opt, now: opt.Now}
	d.state.Store(&state{})
	return d
}

// View returns a view that is current within MaxAge, without I/O when Run has
// looked recently. The error is ErrNotCurrent or says what is incoherent.
func (d *Directory) View(ctx context.Context) (*View, error) {
	s := d.state.Load()
	if s.fault == nil && s.view != nil && d.now().Sub(s.checked) <= d.opt.MaxAge {
		return s.view, nil
	}
	return d.Current(ctx)
}

// Current returns the view of a check that began after the call. Callers that
// arrive while one runs share the next one, so the database sees at most one
// look-up at a time.
func (d *Directory) Current(ctx context.Context) (*View, error) {
	d.mu.Lock()
	c := d.waiting
	if c == nil {
		c = &check{done: make(chan struct{})}
		d.waiting = c
	}
	if !d.running {
		d.running = true
		go d.runChecks()
	}
	d.mu.Unlock()
	select {
	case <-c.done:
		return c.view, c.err
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrNotCurrent, ctx.Err())
	}
}

// AtLeast returns a view that is not older than a revision that the caller has
// read from registry_head: current as of that reading, mostly without I/O.
func (d *Directory) AtLeast(ctx context.Context, revision int64) (*View, error) {
	if s := d.state.Load(); s.fault == nil && s.view != nil && s.view.Revision >= revision {
		return s.view, nil
	}
	return d.Current(ctx)
}

// Evidence is the evidence of a current view, or evidence that fails stage 4 and
// keeps the reason for the protected diagnostic.
func (d *Directory) Evidence(ctx context.Context) *trust.Evidence {
	view, err := d.View(ctx)
	if err != nil {
		return trust.UnavailableEvidence("", err)
	}
	return view.Evidence
}

// Revision is the revision of the last view, current or not; 0 before the first.
func (d *Directory) Revision() int64 {
	if view := d.state.Load().view; view != nil {
		return view.Revision
	}
	return 0
}

// Age is how long ago the last successful check began; ok is false before the
// first. It is the lag of this follower.
func (d *Directory) Age() (age time.Duration, ok bool) {
	s := d.state.Load()
	if s.checked.IsZero() {
		return 0, false
	}
	return d.now().Sub(s.checked), true
}

// Ready reports whether a current view can be had: a readiness probe.
func (d *Directory) Ready(ctx context.Context) error {
	_, err := d.View(ctx)
	return err
}

// Run keeps the view current until ctx ends.
func (d *Directory) Run(ctx context.Context) error {
	look := time.NewTicker(d.opt.CheckEvery)
	defer look.Stop()
	audit := time.NewTicker(d.opt.AuditEvery)
	defer audit.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
			if _, err := d.Current(ctx); err != nil && ctx.Err() == nil {
				d.opt.Log.WarnContext(ctx, "registry view not refreshed", "err", err)
			}
		case <-audit.C:
			if err := d.Audit(ctx); err != nil && ctx.Err() == nil {
				d.opt.Log.ErrorContext(ctx, "registry audit failed", "err", err)
			}
		}
	}
}

func (d *Directory) runChecks() {
	for {
		d.mu.Lock()
		c := d.waiting
		d.waiting = nil
		if c == nil {
			d.running = false
			d.mu.Unlock()
			return
		}
		d.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
		c.view, c.err = d.refresh(ctx)
		cancel()
		close(c.done)
	}
}

func (d *Directory) refresh(ctx context.Context) (*View, error) {
	d.work.Lock()
	defer d.work.Unlock()
	began := d.now()
	s := d.state.Load()
	if s.fault != nil {
		return nil, s.fault
	}
	if s.view != nil {
		organizationID, revision, err := readHead(ctx, d.pool)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNotCurrent, err)
		}
		if organizationID == s.view.OrganizationID && revision == s.view.Revision {
			d.state.Store(&state{view: s.view, checked: began})
			return s.view, nil
		}
	}
	var view *View
	err := snapshot(ctx, d.pool, func(tx pgx.Tx) error {
		organizationID, revision, err := readHead(ctx, tx)
		if err != nil {
			return err
		}
		view, err = s.view.next(ctx, tx, organizationID, revision)
		return err
	})
	if err != nil {
		return nil, d.failed(s.view, err)
	}
	d.state.Store(&state{view: view, checked: began})
	return view, nil
}

// failed keeps a fault of the records themselves: it does not go away by asking
// again, only by Audit finding the whole Registry in order.
func (d *Directory) failed(view *View, err error) error {
	var fault *trust.BindingFault
	if errors.As(err, &fault) {
		d.opt.Log.Error("registry records break a rule of the Organization", "err", err)
		d.state.Store(&state{view: view, fault: err})
		return err
	}
	return fmt.Errorf("%w: %w", ErrNotCurrent, err)
}

// Audit reads the whole Registry anew and compares: nothing that was known may
// be missing, changed or shortened. A contradiction closes the Directory until a
// later Audit finds none.
func (d *Directory) Audit(ctx context.Context) error {
	d.work.Lock()
	defer d.work.Unlock()
	before := d.state.Load().view
	var whole *View
	err := snapshot(ctx, d.pool, func(tx pgx.Tx) error {
		organizationID, revision, err := readHead(ctx, tx)
		if err != nil {
			return err
		}
		var nothing *View
		whole, err = nothing.next(ctx, tx, organizationID, revision)
		return err
	})
	if err == nil && before != nil && whole.Revision >= before.Revision {
		keys := make([]trust.Binding, 0, whole.Evidence.Len())
		for k := range whole.Evidence.All() {
			keys = append(keys, k.Binding())
		}
		_, err = before.Evidence.Reload(whole.Revision, keys)
	}
	if err != nil {
		return d.failed(before, err)
	}
	if s := d.state.Load(); s.fault != nil {
		d.state.Store(&state{view: s.view})
	}
	return nil
}

// snapshot runs f on one consistent state of the database.
func snapshot(ctx context.Context, pool *pgxpool.Pool, f func(tx pgx.Tx) error) error {
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, pool, options, f)
}
