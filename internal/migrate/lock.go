package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/pressly/goose/v3/lock"
)

// lockKey is the advisory lock of migrations, in the key space of one database.
// Every version of the program must use the same number.
const lockKey int64 = 0x6d77_7363_6865_6d61

const lockPoll = 50 * time.Millisecond

// advisoryLock waits for the lock by trying. A blocking pg_advisory_lock would
// hold a snapshot while it waits, for which a migration of the holder such as
// CREATE INDEX CONCURRENTLY waits in turn. How long to wait is the caller's
// context to say: a long migration elsewhere is no error.
type advisoryLock struct{}

var _ lock.SessionLocker = advisoryLock{}

func (advisoryLock) SessionLock(ctx context.Context, conn *sql.Conn) error {
	tick := time.NewTicker(lockPoll)
	defer tick.Stop()
	for {
		var locked bool
		if err := conn.QueryRowContext(ctx, "SELECT pg_try_advisory_lock($1)", lockKey).Scan(&locked); err != nil {
			return fmt.Errorf("take the migration lock: %w", err)
		}
		if locked {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for another replica's migration: %w", ctx.Err())
		case <-tick.C:
		}
	}
}

func (advisoryLock) SessionUnlock(ctx context.Context, conn *sql.Conn) error {
	// The caller's context may be over; the lock must go all the same, since the
	// connection returns to a pool and keeps its session.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	var unlocked bool
	if err := conn.QueryRowContext(ctx, "SELECT pg_advisory_unlock($1)", lockKey).Scan(&unlocked); err != nil {
		return fmt.Errorf("release the migration lock: %w", err)
	}
	if !unlocked {
		return errors.New("the migration lock was not held")
	}
	return nil
}
