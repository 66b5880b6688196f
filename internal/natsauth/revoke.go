package natsauth

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/sessions"
)

const (
	// cutWithin bounds one request to cut a connection, revokeWithin how long a
	// takeover waits for the connections of the older session to be cut.
	cutWithin    = time.Second
	revokeWithin = time.Second
	// lookWithin bounds one look at all connections.
	lookWithin = 10 * time.Second
	// recheckEvery is how often keys and Agent Cards are looked at: what ends them
	// tells nobody.
	recheckEvery = 5 * time.Second
)

// Run answers NATS and looks after the connections until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	asked, err := s.options.Conn.QueueSubscribe(calloutSubject, s.prefix, func(m *nats.Msg) {
		s.busy <- struct{}{}
		s.running.Go(func() {
			defer func() { <-s.busy }()
			s.asked(m)
		})
	})
	if err != nil {
		return fmt.Errorf("natsauth: %w", err)
	}
	left, err := s.options.System.QueueSubscribe("$SYS.ACCOUNT.*.DISCONNECT", s.prefix, s.left)
	if err != nil {
		return fmt.Errorf("natsauth: %w", err)
	}
	defer s.running.Wait()
	defer func() { _ = asked.Unsubscribe() }()
	defer func() { _ = left.Unsubscribe() }()
	every := time.NewTicker(s.options.Every)
	defer every.Stop()
	var rechecked time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.changed:
		case <-every.C:
		}
		look, cancel := context.WithTimeout(ctx, lookWithin)
		if err := s.revoke(look, ""); err != nil && ctx.Err() == nil {
			s.options.Log.Warn("subscribers of NATS not compared with the database", "err", err)
		}
		if time.Since(rechecked) >= recheckEvery {
			rechecked = time.Now()
			if err := s.recheck(look); err != nil && ctx.Err() == nil {
				s.options.Log.Warn("sessions of NATS subscribers not compared with the database", "err", err)
			}
		}
		cancel()
	}
}

// Changed tells that a Membership has changed. It does not wait.
func (s *Service) Changed() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// Opened has the connections of an Agent's older sessions cut. It returns when
// they are, or soon after (COMMANDS.md 8.3).
func (s *Service) Opened(ctx context.Context, agentID string) {
	ctx, cancel := context.WithTimeout(ctx, revokeWithin)
	defer cancel()
	if err := s.revoke(ctx, agentID); err != nil {
		s.Changed()
	}
}

// place is a connection at NATS.
type place struct {
	server string
	client int64
}

// revoke cuts the connections whose session was replaced or of which a Membership
// has ended or changed: all, or those of one Agent.
func (s *Service) revoke(ctx context.Context, agentID string) error {
	rows, err := s.options.Pool.Query(ctx, `
		SELECT c.server_id, c.client_id, c.expires_at < clock_timestamp() - interval '1 minute' FROM nats_connections c
		WHERE ($1 = '' OR c.agent_id = $1) AND (
			c.expires_at < clock_timestamp() - interval '1 minute'
			OR EXISTS (SELECT FROM agent_sessions s WHERE s.agent_id = c.agent_id AND s.session_epoch > c.session_epoch)
			OR EXISTS (
				SELECT FROM unnest(c.group_ids, c.membership_epochs) AS f(group_id, epoch)
				WHERE NOT EXISTS (
					SELECT FROM memberships m WHERE m.member_type = 'agent' AND m.member_id = c.agent_id
					AND m.group_id = f.group_id AND m.state = 'active' AND m.epoch = f.epoch)))`, agentID)
	if err != nil {
		return fmt.Errorf("natsauth: revoke: %w", err)
	}
	var end, over []place
	var p place
	var expired bool
	if _, err := pgx.ForEachRow(rows, []any{&p.server, &p.client, &expired}, func() error {
		if expired {
			over = append(over, p)
		} else {
			end = append(end, p)
		}
		return nil
	}); err != nil {
		return fmt.Errorf("natsauth: revoke: %w", err)
	}
	for _, p := range over { // NATS has ended these itself
		s.forget(ctx, p)
	}
	return s.cutAll(ctx, end)
}

// recheckPage is how many connections are looked at by one query.
const recheckPage = 1000

// recheck cuts the connections whose key or Agent Card has ended, page by page to
// the last one.
func (s *Service) recheck(ctx context.Context) error {
	var failed error
	for after, more := (place{}), true; more; {
		places, ids, err := s.page(ctx, after)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			break
		}
		after, more = places[len(places)-1], len(places) == recheckPage
		refusals, err := s.sessions.Recheck(ctx, ids)
		if err != nil {
			return fmt.Errorf("natsauth: recheck: %w", err)
		}
		var end []place
		for i, refusal := range refusals {
			if refusal != nil {
				end = append(end, places[i])
			}
		}
		if err := s.cutAll(ctx, end); err != nil {
			failed = err // those that follow are looked at all the same
		}
	}
	return failed
}

// page reads the connections on record after a place.
func (s *Service) page(ctx context.Context, after place) (places []place, ids []sessions.Identity, err error) {
	rows, err := s.options.Pool.Query(ctx, `
		SELECT server_id, client_id, agent_id, key_id, session_epoch FROM nats_connections
		WHERE (server_id, client_id) > ($1, $2) ORDER BY server_id, client_id LIMIT $3`, after.server, after.client, recheckPage)
	if err != nil {
		return nil, nil, fmt.Errorf("natsauth: recheck: %w", err)
	}
	var p place
	id := sessions.Identity{Principal: protocol.Actor{Type: protocol.ActorAgent}, Kind: sessions.SessionToken}
	_, err = pgx.ForEachRow(rows, []any{&p.server, &p.client, &id.Principal.ID, &id.KeyID, &id.SessionEpoch}, func() error {
		places, ids = append(places, p), append(ids, id)
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("natsauth: recheck: %w", err)
	}
	return places, ids, nil
}

// cutAll has connections cut. One that could not be stays on record and is tried
// again; NATS ends it by itself when its credential expires.
func (s *Service) cutAll(ctx context.Context, places []place) error {
	var failed error
	for _, p := range places {
		request, err := json.Marshal(map[string]int64{"cid": p.client})
		if err != nil {
			return fmt.Errorf("natsauth: %w", err)
		}
		limited, cancel := context.WithTimeout(ctx, cutWithin)
		m, err := s.options.System.RequestWithContext(limited, "$SYS.REQ.SERVER."+p.server+".KICK", request)
		cancel()
		if err != nil {
			failed = fmt.Errorf("natsauth: NATS did not cut a connection: %w", err)
			continue
		}
		var answer struct {
			Error *struct{ Description string } `json:"error"`
		}
		if json.Unmarshal(m.Data, &answer) == nil && answer.Error != nil && !strings.Contains(answer.Error.Description, "no such client") {
			failed = fmt.Errorf("natsauth: NATS did not cut a connection: %s", answer.Error.Description)
			continue
		}
		s.cut.Add(1)
		s.forget(ctx, p)
	}
	return failed
}

func (s *Service) forget(ctx context.Context, p place) {
	// What stays on record is cut or forgotten at the next look.
	_, _ = s.options.Pool.Exec(ctx, `DELETE FROM nats_connections WHERE server_id = $1 AND client_id = $2`, p.server, p.client)
}

// left forgets a connection that NATS says has ended.
func (s *Service) left(m *nats.Msg) {
	var event struct {
		Server struct {
			ID string `json:"id"`
		} `json:"server"`
		Client struct {
			ID int64 `json:"id"`
		} `json:"client"`
	}
	if json.Unmarshal(m.Data, &event) != nil || event.Server.ID == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cutWithin)
	defer cancel()
	s.forget(ctx, place{event.Server.ID, event.Client.ID})
}
