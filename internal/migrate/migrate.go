// Package migrate brings a database to the schema this program was built with.
//
// Several replicas may start at once against an empty or old database. All work
// is therefore done under a session-level advisory lock: one replica migrates,
// the others wait and then find nothing to do. The lock ends with its database
// session, so a replica that dies in the middle blocks nobody, and each
// migration file runs in one transaction, so it leaves nothing half done.
//
// A database that was migrated by a newer program is refused (ErrNewerSchema):
// this program does not know what the newer schema means.
package migrate

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/missionweave/server/migrations"
)

// ErrNewerSchema says that the database knows migrations this program does not.
var ErrNewerSchema = errors.New("the database schema is newer than this program")

// ErrPending says that the database lacks migrations this program needs.
var ErrPending = errors.New("the database schema is older than this program; run mw migrate up")

// Migration is one step of the schema and whether a database has it.
type Migration struct {
	Version   int64      `json:"version"`
	Name      string     `json:"name"`
	AppliedAt *time.Time `json:"appliedAt,omitempty"` // nil: pending
}

// Up applies every pending migration and returns those it applied, in order.
func Up(ctx context.Context, databaseURL string) ([]Migration, error) {
	return up(ctx, databaseURL, migrations.Files)
}

func up(ctx context.Context, databaseURL string, files fs.FS) (_ []Migration, err error) {
	p, err := open(databaseURL, files)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	results, err := p.Up(ctx)
	if err != nil {
		if ctx.Err() == nil {
			if newer := p.refuseNewer(ctx); newer != nil {
				return nil, newer
			}
		}
		var partial *goose.PartialError
		if errors.As(err, &partial) && partial.Failed != nil {
			return nil, fmt.Errorf("migrate %s: %w", partial.Failed.Source.Path, err)
		}
		return nil, fmt.Errorf("migrate: %w", err)
	}
	if err := p.refuseNewer(ctx); err != nil {
		return nil, err
	}
	applied := make([]Migration, 0, len(results))
	now := time.Now()
	for _, r := range results {
		applied = append(applied, Migration{Version: r.Source.Version, Name: r.Source.Path, AppliedAt: &now})
	}
	return applied, nil
}

// Status lists all migrations of this program in order. It changes nothing but
// goose's own version table, which it makes when absent.
func Status(ctx context.Context, databaseURL string) ([]Migration, error) {
	return status(ctx, databaseURL, migrations.Files)
}

func status(ctx context.Context, databaseURL string, files fs.FS) (_ []Migration, err error) {
	p, err := open(databaseURL, files)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	states, err := p.Status(ctx)
	if err != nil {
		return nil, fmt.Errorf("migration status: %w", err)
	}
	if err := p.refuseNewer(ctx); err != nil {
		return nil, err
	}
	all := make([]Migration, 0, len(states))
	for _, s := range states {
		m := Migration{Version: s.Source.Version, Name: s.Source.Path}
		if s.State == goose.StateApplied {
			m.AppliedAt = &s.AppliedAt
		}
		all = append(all, m)
	}
	return all, nil
}

// Check returns nil when the database has exactly this program's schema, and
// else ErrPending or ErrNewerSchema. Readiness and the start of a service use it.
func Check(ctx context.Context, databaseURL string) error {
	all, err := Status(ctx, databaseURL)
	if err != nil {
		return err
	}
	for _, m := range all {
		if m.AppliedAt == nil {
			return fmt.Errorf("%w: %s is missing", ErrPending, m.Name)
		}
	}
	return nil
}

// Fingerprint identifies the schema this program was built with: a hash over
// the names and contents of all migrations.
func Fingerprint() (string, error) { return fingerprint(migrations.Files) }

func fingerprint(files fs.FS) (string, error) {
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return "", err
	}
	h := sha256.New()
	for _, name := range names {
		body, err := fs.ReadFile(files, name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", name, len(body))
		h.Write(body)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// provider is goose's provider with the database it was made for.
type provider struct {
	*goose.Provider
	db *sql.DB
}

func open(databaseURL string, files fs.FS) (*provider, error) {
	cfg, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		// pgx hides the password in its message.
		return nil, fmt.Errorf("database URL: %w", err)
	}
	db := stdlib.OpenDB(*cfg)
	p, err := goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithSessionLocker(advisoryLock{}),
		goose.WithDisableGlobalRegistry(true),
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("migrations: %w", err), db.Close())
	}
	return &provider{Provider: p, db: db}, nil
}

func (p *provider) refuseNewer(ctx context.Context) error {
	current, target, err := p.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("schema version: %w", err)
	}
	if current > target {
		return fmt.Errorf("%w: it has version %d, this program knows up to %d", ErrNewerSchema, current, target)
	}
	return nil
}
