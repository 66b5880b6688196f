package natsauth

import (
	"context"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/missionweave/server/internal/devstack"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/sessions"
)

func TestMain(m *testing.M) {
	code := m.Run()
	_ = devstack.StopShared(context.Background())
	os.Exit(code)
}

// counting is a session service to which every session still holds.
type counting struct {
	seen  map[string]int
	pages int
}

func (*counting) Check(context.Context, sessions.Identity) *protocol.Error { return nil }

func (c *counting) Recheck(_ context.Context, ids []sessions.Identity) ([]*protocol.Error, error) {
	c.pages++
	for _, id := range ids {
		c.seen[id.Principal.ID]++
	}
	return make([]*protocol.Error, len(ids)), nil
}

func TestRecheckLooksAtEveryConnectionOnce(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), devstack.ForTest(t).NewDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	const connections = 12_500 // of several NATS servers, and no multiple of a page
	_, err = pool.Exec(t.Context(), `
		INSERT INTO nats_connections (server_id, client_id, agent_id, key_id, session_epoch, group_ids, membership_epochs, expires_at)
		SELECT 'N' || i % 3, i, 'urn:agent:' || i, 'urn:key:' || i, 1, '{}', '{}', clock_timestamp() + interval '1 hour'
		FROM generate_series(1, $1::int) AS i`, connections)
	if err != nil {
		t.Fatal(err)
	}
	c := &counting{seen: map[string]int{}}
	s := &Service{options: Options{Pool: pool}, sessions: c}
	if err := s.recheck(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(c.seen) != connections {
		t.Errorf("%d of %d connections were looked at", len(c.seen), connections)
	}
	for agent, n := range c.seen {
		if n != 1 {
			t.Fatalf("%s was looked at %d times", agent, n)
		}
	}
	if c.pages != (connections+recheckPage-1)/recheckPage {
		t.Errorf("%d pages", c.pages)
	}
}
