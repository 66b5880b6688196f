package wsapi

import (
	"context"
	"errors"
	"time"

	"github.com/missionweave/server/internal/sessions"
)

// recheckChunk bounds one query over all connections.
const recheckChunk = 1000

// answerWithin is how long the database may take where a connection waits for it.
const answerWithin = 10 * time.Second

// Run closes connections whose session ended elsewhere: what NATS did not tell,
// and keys and Agent Cards that have ended. A look at the database brings what
// changed since the one before, so that connections to which nothing happens cost
// nothing here.
func (s *Server) Run(ctx context.Context) error {
	var known upkeep
	for {
		wait := s.Timing.Recheck
		if wait == 0 {
			if wait = time.Second; s.Connections.connected() {
				wait = 5 * time.Second
			}
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
		if err := s.look(ctx, &known); err != nil && !errors.Is(err, context.Canceled) {
			s.Log.WarnContext(ctx, "sessions not compared with the database", "err", err)
		}
	}
}

// upkeep is what looks leave for the next one.
type upkeep struct {
	look sessions.Look
	// revision is that of the Registry under which all connections were judged, and
	// until the first time at which a key or an Agent Card of theirs ends; zero for
	// never.
	revision int64
	until    time.Time
}

func (s *Server) look(ctx context.Context, known *upkeep) error {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	// A connection is registered before its session is checked for the last time:
	// what changes after that check is in a look, and the connection is among those
	// that are asked for now or later.
	changes, err := s.Sessions.Changed(ctx, known.look)
	if err != nil {
		return err //nolint:wrapcheck // logged
	}
	if changes.Complete {
		if err := s.recheckAll(ctx); err != nil {
			return err
		}
	}
	now := s.Now()
	all := s.extended.Swap(false) || changes.Complete || changes.Revision != known.revision ||
		!known.until.IsZero() && !now.Before(known.until)
	conns, until := s.Connections.of(changes.Epochs), known.until
	if all {
		conns, until = s.Connections.all(), time.Time{}
	}
	for _, c := range conns {
		end, refusal := changes.Holds(c.identity())
		if refusal != nil {
			c.end(fatal(refusal))
			continue
		}
		if !end.IsZero() && (until.IsZero() || end.Before(until)) {
			until = end
		}
	}
	known.look, known.revision, known.until = changes.Look, changes.Revision, until
	return nil
}

// recheckAll reads the sessions of all connections: at the start, and when the
// database is not the one it was.
func (s *Server) recheckAll(ctx context.Context) error {
	all := s.Connections.all()
	for len(all) > 0 {
		conns := all[:min(len(all), recheckChunk)]
		all = all[len(conns):]
		ids := make([]sessions.Identity, len(conns))
		for i, c := range conns {
			ids[i] = c.identity()
		}
		refusals, err := s.Sessions.Recheck(ctx, ids)
		if err != nil {
			return err //nolint:wrapcheck // logged
		}
		for i, refusal := range refusals {
			if refusal != nil {
				conns[i].end(fatal(refusal))
			}
		}
	}
	return nil
}
