package authority

import "sync/atomic"

// counters since the start.
type counters struct {
	received, accepted, replayed, refused, pushedBack atomic.Int64
	rounds, redecided, recommitted, settled           atomic.Int64
	sweeps, timerEvents                               atomic.Int64
	loads, catchUps, evictions, auditsLost            atomic.Int64
}

// Stats are counters since the start, for metrics.
type Stats struct {
	// Received Commands; of them Accepted (first time), Replayed, Refused, and
	// PushedBack by a full queue (which are refused as well).
	Received, Accepted, Replayed, Refused, PushedBack int64
	// Rounds are transactions of lanes; Redecided those that lost a race;
	// Recommitted those committed again as they were, Settled those whose answer
	// got lost.
	Rounds, Redecided, Recommitted, Settled int64
	// Sweeps are Groups the timer sweeper looked at, TimerEvents what it wrote.
	Sweeps, TimerEvents int64
	// Loads and CatchUps are states read from the database.
	Loads, CatchUps, Evictions int64
	// AuditsLost counts records that went to the log instead of the database.
	AuditsLost int64
	// Waiting Commands in all lanes.
	Waiting int
}

// Stats returns the counters.
func (s *Service) Stats() Stats {
	c := &s.stats
	st := Stats{
		Received: c.received.Load(), Accepted: c.accepted.Load(), Replayed: c.replayed.Load(), Refused: c.refused.Load(),
		PushedBack: c.pushedBack.Load(), Rounds: c.rounds.Load(), Redecided: c.redecided.Load(),
		Recommitted: c.recommitted.Load(), Settled: c.settled.Load(),
		Sweeps: c.sweeps.Load(), TimerEvents: c.timerEvents.Load(), Loads: c.loads.Load(), CatchUps: c.catchUps.Load(),
		Evictions: c.evictions.Load(), AuditsLost: c.auditsLost.Load(),
	}
	for _, l := range s.lanes {
		st.Waiting += len(l.queue)
	}
	return st
}
