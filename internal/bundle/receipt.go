package bundle

import (
	"bytes"
	"crypto/sha256"
	"strconv"

	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/trust"
)

// acting is the Command whose Events are being read. Its receipt names them all, so
// it is judged when another line than theirs comes.
type acting struct {
	verified            *trust.Verified
	line                line
	record              string // id of its First-Admission Record
	action, correlation string
	receipt             []byte
	// at is when its Events say they happened; events is the list of them as a
	// receipt spells it.
	at     string
	events []byte
}

// acts takes the next Command.
func (v *verifier) acts(l *line, c *checked) {
	a := &v.command
	*a = acting{verified: c.verified, receipt: append(a.receipt[:0], c.receipt...), events: a.events[:0], record: c.admission.AdmissionRecordID}
	a.line = line{at: l.at, kind: l.kind}
	if c.verified == nil {
		return
	}
	doc := c.verified.Value
	a.action, a.correlation = doc.Member("actionId").Str(), doc.Member("correlationId").Str()
	if doc.Member("groupId").Str() != v.head.GroupID {
		v.problem(l, "", "is a Command for another Group")
	}
	var room [512]byte
	id := append(appendText(room[:0], c.verified.Principal.ID), c.verified.Principal.Type...)
	sum := sha256.Sum256(appendText(id, a.action))
	key := [16]byte(sum[:])
	if _, twice := v.acted[key]; twice {
		v.problem(l, a.action, "is a second Command with this action id of %s", c.verified.Principal.ID)
	}
	v.acted[key] = struct{}{}
}

// cause checks that an Event comes from the Command that stands before it.
func (v *verifier) cause(l *line, ev *groups.Event) {
	a := &v.command
	fromHere := ev.Cause.Type == causeCommand
	switch {
	case !v.head.Commands || ev.CommandHash == "":
		return
	case a.verified == nil || a.verified.SigningHash != ev.CommandHash:
		if fromHere {
			v.problem(l, "", "its Command %s does not stand before it", ev.CommandHash)
		}
		return
	}
	if fromHere {
		for _, x := range [...]struct{ what, event, command string }{
			{"actor", ev.Actor.ID, a.verified.Principal.ID},
			{"actor type", ev.Actor.Type, a.verified.Principal.Type},
			{"action", ev.Cause.ID, a.action},
			{"correlation", ev.CorrelationID, a.correlation},
		} {
			if x.event != x.command {
				v.problem(l, "", "%s is %q in the Event and %q in its Command", x.what, x.event, x.command)
			}
		}
	}
	if len(a.events) > 0 {
		a.events = append(a.events, ',')
	}
	a.at = ev.OccurredAt
	a.events = appendNamed(a.events, namedEvent{ev.EventID, ev.GroupID, ev.Kind, ev.Sequence})
}

// receiptDoc is what a receipt says.
type receiptDoc struct {
	AcceptedAt        string       `json:"acceptedAt"`
	ActionID          string       `json:"actionId"`
	AdmissionRecordID string       `json:"admissionRecordId"`
	Events            []namedEvent `json:"events"`
	GroupID           string       `json:"groupId,omitempty"`
	ProtocolVersion   string       `json:"protocolVersion"`
	SigningHash       string       `json:"signingHash"`
}

type namedEvent struct {
	EventID  string `json:"eventId"`
	GroupID  string `json:"groupId,omitempty"`
	Kind     string `json:"kind"`
	Sequence int64  `json:"sequence,omitempty"`
}

// appendText writes a text that is in a document that was verified, so that it can
// be written.
func appendText(b []byte, s string) []byte {
	b, _ = strictjson.AppendString(b, s)
	return b
}

func appendNamed(b []byte, e namedEvent) []byte {
	b = appendText(append(b, `{"eventId":`...), e.EventID)
	b = appendText(append(b, `,"groupId":`...), e.GroupID)
	b = appendText(append(b, `,"kind":`...), e.Kind)
	return append(strconv.AppendInt(append(b, `,"sequence":`...), e.Sequence, 10), '}')
}

// settle holds the receipt of the last Command against it and its Events.
func (v *verifier) settle() {
	a := &v.command
	if a.verified == nil || a.receipt == nil {
		return
	}
	v.report.Receipts++
	var room [768]byte
	want := appendText(append(room[:0], `{"acceptedAt":`...), a.at)
	want = appendText(append(want, `,"actionId":`...), a.action)
	want = appendText(append(want, `,"admissionRecordId":`...), a.record)
	want = append(append(append(want, `,"events":[`...), a.events...), ']')
	want = appendText(append(want, `,"groupId":`...), v.head.GroupID)
	want = appendText(append(want, `,"protocolVersion":`...), protocol.Version)
	want = appendText(append(want, `,"signingHash":`...), a.verified.SigningHash)
	if !bytes.Equal(append(want, '}'), a.receipt) {
		v.unlikeReceipt(a)
	}
	a.verified = nil
}

// unlikeReceipt says what in a receipt is not as the Command and its Events make it.
// A receipt may name Events in other Groups, which are in the bundles of these.
func (v *verifier) unlikeReceipt(a *acting) {
	var r receiptDoc
	if err := decodeExactly(a.receipt, &r); err != nil {
		v.problem(&a.line, "", "receipt: %v", err)
		return
	}
	for _, x := range []struct{ what, have, want string }{
		{"acceptedAt", r.AcceptedAt, a.at},
		{"actionId", r.ActionID, a.action},
		{"admissionRecordId", r.AdmissionRecordID, a.record},
		{"groupId", r.GroupID, v.head.GroupID},
		{"protocolVersion", r.ProtocolVersion, protocol.Version},
		{"signingHash", r.SigningHash, a.verified.SigningHash},
	} {
		if x.have != x.want {
			v.problem(&a.line, "", "receipt: %s is %q, not %q", x.what, x.have, x.want)
		}
	}
	var here []byte
	for i, e := range r.Events {
		switch {
		case e.GroupID == v.head.GroupID:
			if len(here) > 0 {
				here = append(here, ',')
			}
			here = appendNamed(here, e)
		case !lexical.ValidID(e.EventID) || e.Kind == "" || (e.GroupID == "") != (e.Sequence == 0) || e.Sequence < 0:
			v.problem(&a.line, "", "receipt: Event %d is none", i+1)
		}
	}
	if !bytes.Equal(here, a.events) {
		v.problem(&a.line, "", "receipt: names other Events of this Group than the Command has: %s, not %s", here, a.events)
	}
}
