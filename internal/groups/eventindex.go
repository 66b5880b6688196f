package groups

import (
	"encoding/hex"
	"strings"
)

// eventIndex remembers, in a few bytes per Event, which Event has which
// sequence and what it is about: a Command may name any earlier Event of its
// Group, and a Group may have hundreds of thousands.
type eventIndex struct {
	ids      [][16]byte
	about    []uint32
	bySeq    map[[16]byte]int64
	subjects []subject
	known    map[subject]uint32
}

// subject is what an Event concerns, as far as visibility depends on it.
type subject struct {
	Kind           string `json:"kind,omitempty"`
	WorkItemID     string
	ConversationID string
	// Member is the type and id of the Membership concerned.
	Member string `json:"member,omitempty"`
}

// subjectOf keeps the kind only where visibility depends on it, so that the
// table of subjects stays small.
func subjectOf(ev *Event) subject {
	sub := subject{WorkItemID: ev.WorkItemID, ConversationID: ev.ConversationID}
	switch p := ev.Payload.(type) {
	case *MembershipChanged:
		sub.Member = membershipAggregate(p.Membership.Member).ID
	case *MembershipEnded:
		sub.Member = membershipAggregate(p.Membership.Member).ID
	}
	switch ev.Kind {
	case "mission.cancelled", "mission.terminated", "group.archived":
		sub.Kind = ev.Kind
	}
	return sub
}

func (x *eventIndex) add(ev *Event) error {
	id, ok := packUUID(ev.EventID)
	if !ok {
		return integrity(ev, "eventId is not a urn:uuid:")
	}
	if x.bySeq == nil {
		x.bySeq, x.known = map[[16]byte]int64{}, map[subject]uint32{}
	}
	if _, twice := x.bySeq[id]; twice {
		return integrity(ev, "eventId was used before")
	}
	sub := subjectOf(ev)
	n, ok := x.known[sub]
	if !ok {
		n = uint32(len(x.subjects))
		x.subjects = append(x.subjects, sub)
		x.known[sub] = n
	}
	x.ids = append(x.ids, id)
	x.about = append(x.about, n)
	x.bySeq[id] = int64(len(x.ids))
	return nil
}

func (x *eventIndex) id(sequence int64) (string, bool) {
	if sequence < 1 || sequence > int64(len(x.ids)) {
		return "", false
	}
	return unpackUUID(x.ids[sequence-1]), true
}

// find returns an Event's sequence and subject.
func (x *eventIndex) find(eventID string) (int64, subject, bool) {
	id, ok := packUUID(eventID)
	if !ok {
		return 0, subject{}, false
	}
	seq, ok := x.bySeq[id]
	if !ok {
		return 0, subject{}, false
	}
	return seq, x.subjects[x.about[seq-1]], true
}

const uuidPrefix = "urn:uuid:"

// packUUID accepts exactly the spelling the Authority mints (COMMANDS.md D6).
func packUUID(urn string) ([16]byte, bool) {
	var out [16]byte
	s, ok := strings.CutPrefix(urn, uuidPrefix)
	if !ok || len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' ||
		strings.ToLower(s) != s {
		return out, false
	}
	n, err := hex.Decode(out[:], []byte(s[0:8]+s[9:13]+s[14:18]+s[19:23]+s[24:]))
	return out, err == nil && n == 16
}

func unpackUUID(b [16]byte) string {
	var s [36]byte
	hex.Encode(s[0:8], b[0:4])
	s[8] = '-'
	hex.Encode(s[9:13], b[4:6])
	s[13] = '-'
	hex.Encode(s[14:18], b[6:8])
	s[18] = '-'
	hex.Encode(s[19:23], b[8:10])
	s[23] = '-'
	hex.Encode(s[24:], b[10:16])
	return uuidPrefix + string(s[:])
}

// EventAt returns the id of the Event with a sequence.
func (s *State) EventAt(sequence int64) (string, bool) { return s.events.id(sequence) }

// SequenceOf returns the sequence of an Event of this Group.
func (s *State) SequenceOf(eventID string) (int64, bool) {
	seq, _, ok := s.events.find(eventID)
	return seq, ok
}
