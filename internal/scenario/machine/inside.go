package machine

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/missionweave/server/internal/events"
)

// Hold locks a Group's row: commits to it wait in the database, and with them the
// Commands in the server. waiting counts the transactions that wait for a lock;
// release may be called more than once, and after the database went away.
func (s *Server) Hold(ctx context.Context, groupID string) (waiting func(context.Context) (int, error), release func(), err error) {
	conn, err := pgx.Connect(ctx, s.DatabaseURL)
	if err != nil {
		return nil, nil, fmt.Errorf("machine: hold: %w", err)
	}
	let := func() { _ = conn.Close(context.WithoutCancel(ctx)) } // ends the transaction, too
	tx, err := conn.Begin(ctx)
	if err == nil {
		_, err = tx.Exec(ctx, "SELECT FROM groups WHERE group_id = $1 FOR UPDATE", groupID)
	}
	if err != nil {
		let()
		return nil, nil, fmt.Errorf("machine: hold: %w", err)
	}
	waiting = func(ctx context.Context) (n int, err error) {
		err = tx.QueryRow(ctx, "SELECT count(*) FROM pg_locks WHERE NOT granted").Scan(&n)
		if err != nil {
			return 0, fmt.Errorf("machine: hold: %w", err)
		}
		return n, nil
	}
	return waiting, let, nil
}

// Published reads how far a Group's Events are published, and its head.
func (s *Server) Published(ctx context.Context, groupID string) (published, head int64, err error) {
	conn, err := pgx.Connect(ctx, s.DatabaseURL)
	if err != nil {
		return 0, 0, fmt.Errorf("machine: published: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	err = conn.QueryRow(ctx, "SELECT published_sequence, head_sequence FROM groups WHERE group_id = $1", groupID).Scan(&published, &head)
	if err != nil {
		return 0, 0, fmt.Errorf("machine: published: %w", err)
	}
	return published, head, nil
}

// RepeatOnBus publishes an Event again under its message id and under another one.
func (s *Server) RepeatOnBus(ctx context.Context, groupID string, sequence int64) (sameID, otherID bool, err error) {
	conn, err := nats.Connect(s.stack.NATSURL, nats.Timeout(5*time.Second))
	if err != nil {
		return false, false, fmt.Errorf("machine: NATS: %w", err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return false, false, fmt.Errorf("machine: NATS: %w", err)
	}
	m, err := published(ctx, js, groupID, sequence)
	if err != nil {
		return false, false, err
	}
	again := &nats.Msg{Subject: m.Subject(), Header: m.Headers(), Data: m.Data()}
	first, err := js.PublishMsg(ctx, again)
	if err != nil {
		return false, false, fmt.Errorf("machine: NATS: %w", err)
	}
	again.Header.Set(nats.MsgIdHdr, m.Headers().Get(nats.MsgIdHdr)+":again:"+strconv.FormatInt(time.Now().UnixNano(), 36))
	second, err := js.PublishMsg(ctx, again)
	if err != nil {
		return false, false, fmt.Errorf("machine: NATS: %w", err)
	}
	// The server's own subscription is served before this is answered.
	return first.Duplicate, !second.Duplicate, conn.FlushWithContext(ctx) //nolint:wrapcheck // says what it is
}

// published finds the message of an Event, and waits for one that is on its way.
func published(ctx context.Context, js jetstream.JetStream, groupID string, sequence int64) (jetstream.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	c, err := js.OrderedConsumer(ctx, events.StreamName, jetstream.OrderedConsumerConfig{FilterSubjects: []string{events.Subject(groupID)}})
	if err != nil {
		return nil, fmt.Errorf("machine: NATS: %w", err)
	}
	for ctx.Err() == nil {
		m, err := c.Next(jetstream.FetchMaxWait(time.Second))
		switch {
		case errors.Is(err, nats.ErrTimeout):
		case err != nil:
			return nil, fmt.Errorf("machine: NATS: %w", err)
		case m.Headers().Get("Mw-Sequence") == strconv.FormatInt(sequence, 10):
			return m, nil
		}
	}
	return nil, fmt.Errorf("machine: Event %d of the Group is not in the stream", sequence)
}
