package registry_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/registry/registrytest"
	"github.com/missionweave/server/internal/trust"
)

// steppedClock is a clock that only the test moves.
type steppedClock struct{ offset atomic.Int64 }

func (c *steppedClock) now() time.Time {
	return time.Unix(1_700_000_000, 0).Add(time.Duration(c.offset.Load()))
}

func (c *steppedClock) move(d time.Duration) { c.offset.Add(int64(d)) }

func TestDirectoryFailsClosedWhenItCannotTellThatItIsCurrent(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	pool := registrytest.NewPool(t, org.DatabaseURL)
	var clock steppedClock
	d := registry.NewDirectory(pool, registry.DirectoryOptions{MaxAge: time.Second, Now: clock.now})
	if _, err := d.View(t.Context()); err != nil {
		t.Fatal(err)
	}
	keyID := registrytest.Human("mission-owner").KeyID

	pool.Close()
	clock.move(time.Second)
	if _, err := d.View(t.Context()); err != nil {
		t.Errorf("within the bound: %v", err)
	}
	if _, err := d.Current(t.Context()); !errors.Is(err, registry.ErrNotCurrent) {
		t.Errorf("Current without a database: %v", err)
	}
	clock.move(time.Nanosecond)
	if _, err := d.View(t.Context()); !errors.Is(err, registry.ErrNotCurrent) {
		t.Errorf("past the bound: %v", err)
	}
	if _, ok := d.Evidence(t.Context()).Key(keyID); ok {
		t.Error("old evidence is still handed out past the bound")
	}
	if err := d.Ready(t.Context()); err == nil {
		t.Error("ready without a current view")
	}
}

func TestDirectoryOfAnEmptyDatabaseHasNothingToSay(t *testing.T) {
	t.Parallel()
	org := registrytest.NewEmpty(t)
	if _, err := org.Directory.View(t.Context()); !errors.Is(err, registry.ErrNoOrganization) {
		t.Errorf("View: %v", err)
	}
}

func TestDirectorySeesWhatAnotherProcessCommitted(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	other, _ := org.Replica(t, nil)
	if _, err := other.Current(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := registrytest.Human("frank")
	org.AddKey(t, s)
	view, err := other.Current(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := view.Evidence.Key(s.KeyID); !ok {
		t.Error("a check that began after the commit does not see it")
	}
	revoked := registrytest.At(-time.Second)
	org.EndKey(t, s.KeyID, "", revoked)
	if view, err = other.Current(t.Context()); err != nil {
		t.Fatal(err)
	}
	key, _ := view.Evidence.Key(s.KeyID)
	if at := key.Interval().RevokedAt; at == nil || at.String() == "" || len(key.Binding().History) != 1 {
		t.Errorf("revocation not followed: %+v", key.Binding())
	}
}

// While keys and cards are registered, every view that anyone gets is one whole
// revision: as many keys as the Registry has at it, each card with its key.
func TestViewsAreCoherentWhileTheRegistryGrows(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	reader, _ := org.Replica(t, nil)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var ran sync.WaitGroup
	ran.Go(func() { _ = reader.Run(ctx) })

	const writers, each, readers = 3, 6, 4
	var seen sync.Map // revision -> number of keys
	var reading, writing sync.WaitGroup
	done := make(chan struct{})
	for range readers {
		reading.Go(func() {
			last := int64(0)
			for {
				view, err := reader.Current(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				if view.Revision < last || view.Evidence.Revision() != view.Revision {
					t.Errorf("revision %d with evidence %d after %d", view.Revision, view.Evidence.Revision(), last)
				}
				last = view.Revision
				seen.Store(view.Revision, view.Evidence.Len())
				for id, card := range view.Agents() {
					for _, k := range card.Card.PublicKeys {
						if _, ok := view.Evidence.Key(k.KeyID); !ok {
							t.Errorf("revision %d: card of %s without its key", view.Revision, id)
						}
					}
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for w := range writers {
		writing.Go(func() {
			for i := range each {
				s := registrytest.Agent(fmt.Sprintf("agent-%d-%d", w, i))
				org.AddAgent(t, s)
				if i%2 == 0 {
					org.EndKey(t, s.KeyID, registrytest.At(time.Hour), "")
				}
			}
		})
	}
	writing.Wait()
	close(done)
	reading.Wait()
	stop()
	ran.Wait()
	revisions := 0
	seen.Range(func(revision, keys any) bool {
		revisions++
		doc, err := org.Service.Evidence(t.Context(), revision.(int64))
		if err != nil {
			t.Fatal(err)
		}
		if len(doc.Bindings) != keys.(int) {
			t.Errorf("revision %d: a view with %d keys, the Registry has %d", revision, keys, len(doc.Bindings))
		}
		return true
	})
	if revisions < 2 {
		t.Errorf("only %d revisions were seen", revisions)
	}
	if err := reader.Audit(t.Context()); err != nil {
		t.Errorf("audit: %v", err)
	}
}

// tamper is what an intruder with the table owner's rights could do.
func tamper(t *testing.T, org *registrytest.Org, table, statement string, args ...any) {
	t.Helper()
	for _, step := range []string{
		`ALTER TABLE ` + table + ` DISABLE TRIGGER USER`, statement, `ALTER TABLE ` + table + ` ENABLE TRIGGER USER`,
	} {
		use := args
		if step != statement {
			use = nil
		}
		if _, err := org.Pool.Exec(t.Context(), step, use...); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRecordsThatBreakARuleCloseTheDirectory(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	s := registrytest.Human("grace")
	org.AddKey(t, s)
	org.EndKey(t, s.KeyID, registrytest.At(time.Hour), "")
	d, _ := org.Replica(t, nil)
	if _, err := d.Current(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A boundary moved later, written around the service.
	if _, err := org.Pool.Exec(t.Context(), `
		WITH r AS (UPDATE registry_head SET revision = revision + 1 RETURNING revision)
		INSERT INTO key_validity SELECT $1, 2, $2, NULL, $3, 'service', 'urn:x:y', revision FROM r`,
		s.KeyID, registrytest.At(48*time.Hour), registrytest.Now()); err != nil {
		t.Fatal(err)
	}
	var fault *trust.BindingFault
	for range 2 {
		if _, err := d.Current(t.Context()); !errors.As(err, &fault) || fault.Reason != trust.FaultBoundaryLater {
			t.Fatalf("after a rewritten boundary: %v", err)
		}
	}
	if _, failure := trust.VerifyBytes(protocol.KindAgentCard, []byte(`{}`), d.Evidence(t.Context())); failure == nil {
		t.Error("something verifies under incoherent evidence")
	}
	if err := d.Audit(t.Context()); !errors.As(err, &fault) {
		t.Errorf("audit: %v", err)
	}
	if _, _, err := org.Service.RegisterKey(t.Context(), registrar, registrytest.Human("heidi").Binding(registrytest.Now())); err == nil {
		t.Error("a key is registered on top of incoherent records")
	}

	tamper(t, org, "key_validity", `DELETE FROM key_validity WHERE sequence = 2`)
	if err := d.Audit(t.Context()); err != nil {
		t.Errorf("audit after the repair: %v", err)
	}
	if _, err := d.Current(t.Context()); err != nil {
		t.Errorf("after the repair: %v", err)
	}
}

func TestAuditFindsWhatWasTakenAway(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		what, table, statement, reason string
	}{
		{"a binding", "key_bindings", `DELETE FROM key_bindings WHERE key_id = $1`, trust.FaultBindingMissing},
		{"a validity record", "key_validity", `DELETE FROM key_validity WHERE key_id <> $1`, trust.FaultHistoryRewrite},
		{"a Principal", "key_bindings", `UPDATE key_bindings SET principal_id = 'urn:x:mallory' WHERE key_id = $1`, trust.FaultKeyIDReused},
	} {
		t.Run(tc.what, func(t *testing.T) {
			t.Parallel()
			org := registrytest.New(t)
			s, ended := registrytest.Human("ivan"), registrytest.Human("judy")
			org.AddKey(t, s)
			org.AddKey(t, ended)
			org.EndKey(t, ended.KeyID, registrytest.At(time.Hour), "")
			if err := org.Directory.Audit(t.Context()); err != nil {
				t.Fatal(err)
			}
			tamper(t, org, tc.table, tc.statement, s.KeyID)
			var fault *trust.BindingFault
			if err := org.Directory.Audit(t.Context()); !errors.As(err, &fault) || fault.Reason != tc.reason {
				t.Fatalf("audit: %v, want %s", err, tc.reason)
			}
			if _, err := org.Directory.View(t.Context()); !errors.As(err, &fault) {
				t.Errorf("the Directory still answers: %v", err)
			}
		})
	}
}
