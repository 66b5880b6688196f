package delivery

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/views"
)

// trimmed is a log whose beginning is gone.
type trimmed struct{}

func (trimmed) Watch(string) (<-chan struct{}, func()) { return make(chan struct{}), func() {} }
func (trimmed) Read(context.Context, string, int64, int) ([]events.StoredEvent, error) {
	return nil, events.ErrTrimmed
}
func (trimmed) AccessUnchanged(string, int64) bool { return true }
func (trimmed) Unredacted(string, int64) bool      { return true }

// A Feed below the trim point ends with CURSOR_TOO_OLD. While the database does not
// tell which snapshot stands for what is gone, it waits: INTERNAL_ERROR would
// end a subscription for good that only has to be answered later.
func TestTrimmedFeedWaitsForTheDatabaseToNameTheSnapshot(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none?connect_timeout=1")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	f := &Feed{
		source:  Source{Log: trimmed{}, Views: views.New(pool, nil)},
		request: Request{GroupID: "urn:g"}, access: &views.Access{GroupID: "urn:g"},
	}
	page, _, err := f.step(t.Context())
	if err == nil || page.End != nil || f.ended {
		t.Errorf("with the database away: page %+v, error %v, ended %v", page, err, f.ended)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if page, err := f.Next(ctx); err == nil {
		t.Errorf("Next gave %+v", page)
	}
}
