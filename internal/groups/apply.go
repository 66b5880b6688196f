package groups

// Apply folds the next Event. It is total: it accepts every Event that Decide
// made on this state, and answers *IntegrityError, with the state partly
// changed and to be dropped, for anything else. An Event that was applied
// already (its sequence is not above Head) changes nothing, so that delivering
// a log twice is harmless.
func (s *State) Apply(ev *Event) error {
	if ev.Sequence <= s.Head && s.Head > 0 {
		if id, ok := s.events.id(ev.Sequence); !ok || id != ev.EventID {
			return integrity(ev, "sequence %d belongs to another Event", ev.Sequence)
		}
		return nil
	}
	if ev.Sequence != s.Head+1 {
		return integrity(ev, "sequence %d after head %d", ev.Sequence, s.Head)
	}
	if s.Head == 0 {
		s.GroupID = ev.GroupID
	}
	if ev.GroupID != s.GroupID {
		return integrity(ev, "belongs to Group %s", ev.GroupID)
	}
	row, known := eventKinds[ev.Kind]
	if known {
		if row.Aggregate == AggregateNone {
			return integrity(ev, "is a fact of the Organization")
		}
		if (s.Mission == nil) != createsGroup(ev.Kind) {
			return integrity(ev, "cannot stand at sequence %d", ev.Sequence)
		}
		agg := row.aggregate(ev)
		next := s.revisions[agg] + 1
		if ev.AggregateRevision == nil || *ev.AggregateRevision != next {
			return integrity(ev, "revises %s %s to another revision than %d", agg.Type, agg.ID, next)
		}
		s.revisions[agg] = next
		s.changed.touch(agg)
		if err := row.fold(s, ev); err != nil {
			return err
		}
		s.logPolicy(ev)
		s.schedule(agg)
	}
	if err := s.events.add(ev); err != nil {
		return err
	}
	s.Head, s.LastEventAt = ev.Sequence, ev.OccurredAt
	return nil
}

func createsGroup(kind string) bool {
	return kind == "mission.created" || kind == "mission.follow_up.created"
}

// ChangeSet names the aggregates that Apply touched since ClearChanged, for
// whoever keeps projections. The sets are unordered.
type ChangeSet struct {
	Aggregates map[Aggregate]bool
	PolicyLog  bool
}

func (c *ChangeSet) touch(a Aggregate) {
	if c.Aggregates == nil {
		c.Aggregates = map[Aggregate]bool{}
	}
	c.Aggregates[a] = true
}

// Changed returns what Apply touched since the last ClearChanged.
func (s *State) Changed() ChangeSet { return s.changed }

// ClearChanged forgets what was touched.
func (s *State) ClearChanged() { s.changed = ChangeSet{} }
