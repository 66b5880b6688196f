package authority

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/trust"
)

// record is a First-Admission Record in a round; fresh ones are written with it.
type record struct {
	protocol.FirstAdmissionRecord
	at    time.Time
	fresh bool
}

// mostNeeds bounds how often one decision may ask for more of the world.
const mostNeeds = 10_000

// cascades are the kinds that end, fence or archive work: they are never refused
// for how many Events they cause (COMMANDS.md 8.12).
var cascades = map[string]bool{
	"mission.cancel": true, "mission.terminate": true, "work.fail": true, "work.cancel": true,
	"membership.change": true, "membership.end": true, "mission.assign_coordinator": true,
	protocol.CommandSessionOpen: true, protocol.CommandAgentCardRegister: true,
	"ext.missionweaveprotocol.core.group_archive": true,
}

// decide is P8, P9, P12 and P13 to P24 for one Command, and applies what it
// causes to the states in memory. An error is none of the Command's.
func (r *round) decide(ctx context.Context, t *task) (*entry, error) {
	e := &entry{task: t, at: r.now}
	refuse := func(err *protocol.Error) (*entry, error) {
		e.refusal = err
		return e, nil
	}
	hash := t.verified.SigningHash
	if stored, ok := r.look.Receipts[t.key()]; ok {
		if stored.SigningHash != hash {
			return refuse(protocol.NewError(protocol.CodeActionIDCollision, "").WithStep("P8"))
		}
		e.stored = stored
		return e, nil
	}
	if twin, ok := r.accepted(t.key()); ok {
		if twin.task.verified.SigningHash != hash {
			return refuse(protocol.NewError(protocol.CodeActionIDCollision, "").WithStep("P8"))
		}
		e.twin = twin
		return e, nil
	}
	if !r.fresh(t) {
		return refuse(protocol.NewError(protocol.CodeAuthInvalidSignature, "").WithStep("P9").WithCause(errStale))
	}
	if t.held != nil {
		return refuse(t.held)
	}
	docs, refusal := r.admit(e)
	if refusal != nil {
		return refuse(refusal)
	}
	decision, err := r.ask(ctx, &groups.Command{
		Envelope: t.env, SigningHash: hash, Payload: t.payload, Docs: docs, Internal: t.internal,
	})
	if errors.As(err, &refusal) {
		if refusal.Code == protocol.CodeInternalError {
			return nil, &poison{t, refusal}
		}
		return refuse(refusal)
	}
	if err != nil {
		return nil, err
	}
	if len(decision.Drafts) == 0 || len(decision.Drafts) > r.s.opt.MostEvents && !cascades[t.env.Kind] {
		return nil, &poison{t, fmt.Errorf("%d Events", len(decision.Drafts))}
	}
	if err := r.apply(e, &decision); err != nil {
		return nil, &poison{t, err}
	}
	r.byKey[t.key()] = e
	r.world.Accepted[groups.ActionRef{Actor: t.env.Actor, ActionID: t.env.ActionID}] = true
	return e, nil
}

// accepted finds an acceptance of this round or of the one under way.
func (r *round) accepted(key events.ReceiptKey) (*entry, bool) {
	if e, ok := r.byKey[key]; ok {
		return e, true
	}
	if r.behind == nil {
		return nil, false
	}
	e, ok := r.behind.byKey[key]
	return e, ok
}

var errStale = errors.New("issuedAt outside the freshness window")

// fresh is P9.
func (r *round) fresh(t *task) bool {
	issued := t.verified.ProtectedTime
	return !issued.Before(lexical.InstantOf(r.now.Add(-r.s.opt.FreshnessPast))) &&
		!issued.After(lexical.InstantOf(r.now.Add(r.s.opt.FreshnessFuture)))
}

// admit is P12: the record of the Command, then those of its documents. Each is
// one that exists or one that is written with the round's outcome.
func (r *round) admit(e *entry) ([]groups.Document, *protocol.Error) {
	t := e.task
	if failure := r.admitDocument(t.verified); failure != nil {
		return nil, failure.Error().WithStep("P12")
	}
	e.admitted = true
	docs := make([]groups.Document, 0, len(t.docs))
	for _, d := range t.docs {
		if failure := r.admitDocument(d.verified); failure != nil {
			return nil, failure.Error().WithStep("P12")
		}
		docs = append(docs, groups.Document{Kind: d.kind, SigningHash: d.verified.SigningHash, Principal: d.verified.Principal})
	}
	return docs, nil
}

// admitDocument finds or prepares the record of a verified document and
// validates it. The record of a Command is written with its outcome.
func (r *round) admitDocument(v *trust.Verified) *trust.Failure {
	rec, ok := r.records[v.SigningHash]
	if !ok && r.behind != nil {
		if under, written := r.behind.records[v.SigningHash]; written {
			rec, ok = under, true
			rec.fresh = false // the commit under way writes it
			r.records[v.SigningHash] = rec
		}
	}
	if !ok {
		if found, exists := r.look.Admissions[v.SigningHash]; exists {
			at, err := parseTime(found.TrustedAcceptedAt)
			if err != nil {
				return &trust.Failure{Stage: trust.StageAdmission, Reason: trust.ReasonRecordSchema, Cause: err}
			}
			rec = record{FirstAdmissionRecord: found, at: at}
		} else {
			org := r.policy.org
			rec = record{at: r.now, fresh: true, FirstAdmissionRecord: trust.PrepareRecord(
				v, org.ID, events.RecordID(org.ID, v.SigningHash, r.now), r.now, org.Authority)}
		}
	}
	if failure := trust.ValidateRecord(rec.FirstAdmissionRecord, v, rec.AcceptedBy); failure != nil {
		return failure
	}
	if !ok {
		r.records[v.SigningHash] = rec
		if rec.fresh && v.Kind != protocol.KindCommand {
			r.batch.Admissions = append(r.batch.Admissions, events.Admission{Record: rec.FirstAdmissionRecord, At: rec.at})
		}
	}
	return nil
}

// ask calls the core until it has seen everything it needs.
func (r *round) ask(ctx context.Context, c *groups.Command) (groups.Decision, error) {
	for range mostNeeds {
		decision, err := groups.Decide(r.world, c)
		var need *groups.Need
		if !errors.As(err, &need) {
			return decision, err
		}
		if err := r.supply(ctx, need); err != nil {
			return groups.Decision{}, err
		}
	}
	return groups.Decision{}, errors.New("authority: a decision never had enough")
}

// apply signs the documents that the Authority itself issues, folds the Events
// into the states and makes the receipt.
func (r *round) apply(e *entry, d *groups.Decision) error {
	if err := r.seal(d.Sign); err != nil {
		return err
	}
	for i := range d.Drafts {
		x, err := r.applyDraft(&d.Drafts[i])
		if err != nil {
			return err
		}
		e.events = append(e.events, x)
	}
	return r.receipt(e)
}

// seal signs and admits documents of the Authority and its context generator.
func (r *round) seal(requests []groups.SignRequest) error {
	for _, req := range requests {
		signer, ok := r.s.signers[req.Signer]
		if !ok {
			return fmt.Errorf("no signing key for %s", req.Signer.ID)
		}
		signed, _, err := trust.SignDocument(req.Kind, req.Doc, signer)
		if err != nil {
			return err
		}
		verified, failure := trust.VerifyBytes(req.Kind, signed, r.policy.view.Evidence)
		if failure == nil {
			failure = r.admitDocument(verified)
		}
		if failure != nil {
			return failure.Diagnostic()
		}
		if err := req.Seal(signed); err != nil {
			return err
		}
	}
	return nil
}

// applyDraft folds one Event and queues it for its signature.
func (r *round) applyDraft(d *groups.Draft) (*signing, error) {
	if err := d.Encode(); err != nil {
		return nil, err
	}
	signer, ok := r.s.signers[d.Event.AcceptedBy]
	if !ok {
		return nil, fmt.Errorf("no signing key for %s", d.Event.AcceptedBy.ID)
	}
	x := &signing{draft: d, folded: d.Folded(), signer: signer, at: r.now}
	r.unsure = append(r.unsure, x)
	if d.GroupID == "" {
		r.noteFact(x)
		return x, nil
	}
	gr, err := r.groupOf(d)
	if err != nil {
		return nil, err
	}
	item := d.Event.WorkItemID
	before := heldBy(gr.State, item, r.now)
	entries := len(gr.State.PolicyLog)
	if err := gr.State.Apply(x.folded); err != nil {
		return nil, err
	}
	r.recount(gr.GroupID, before, heldBy(gr.State, item, r.now))
	gr.touched.Event(x.folded)
	if x.folded.MessageDoc() != nil {
		delete(r.world.MessageDocs, gr.GroupID) // no longer all of them
	}
	gr.events = append(gr.events, x)
	for _, entry := range gr.State.PolicyLog[entries:] {
		row, err := events.NewPolicyEntry(gr.TreeID, gr.GroupID, d.Event.Sequence, &entry)
		if err != nil {
			return nil, err
		}
		gr.policy = append(gr.policy, row)
	}
	return x, nil
}

// groupOf is the Group of a draft; the first Event of a new Group makes it.
func (r *round) groupOf(d *groups.Draft) (*groupRound, error) {
	if gr, ok := r.groups[d.GroupID]; ok {
		return gr, nil
	}
	if d.TreeID == "" {
		return nil, fmt.Errorf("draft for Group %s, which was not loaded", d.GroupID)
	}
	created, ok := d.Payload.(*groups.MissionCreated)
	if !ok {
		return nil, fmt.Errorf("%s cannot create a Group", d.Event.Kind)
	}
	tree := events.TreeKey(d.TreeID)
	state := groups.New()
	state.TreeID = d.TreeID
	gr := &groupRound{
		Group: &events.Group{
			GroupRow: events.GroupRow{TreeID: tree, GroupID: d.GroupID, MissionID: created.Mission.MissionID, RootMissionID: d.TreeID},
			State:    state,
		},
		create:  &events.NewGroup{MissionID: created.Mission.MissionID, RootMissionID: d.TreeID, CreatedAt: r.now},
		foreign: r.s.laneOf(tree) != r.l,
	}
	r.groups[d.GroupID] = gr
	r.world.Groups[d.GroupID] = state
	r.world.Missions[created.Mission.MissionID] = d.GroupID
	return gr, nil
}

// noteFact lets the rest of the round see a fact of the Organization.
func (r *round) noteFact(x *signing) {
	p, ok := x.draft.Payload.(*groups.SessionOpened)
	if !ok {
		return
	}
	if a := r.agents[p.AgentID]; a != nil && a.Agent != nil {
		a.opened = true
		a.CurrentSessionEpoch, a.SessionExpiresAt = p.SessionEpoch, r.sessionEnd(p)
	}
}

func (r *round) sessionEnd(p *groups.SessionOpened) time.Time {
	if at, err := parseTime(p.SessionExpiresAt); err == nil {
		return at
	}
	return r.now.Add(r.s.opt.SessionLife)
}

// enterFacts adds an entry's facts of the Organization to the batch.
func (r *round) enterFacts(e *entry) error {
	b := &r.batch
	for _, x := range e.events {
		if x.draft.GroupID != "" {
			continue
		}
		fact := events.OrgEvent{
			EventID: x.draft.Event.EventID, Kind: x.draft.Event.Kind, OccurredAt: x.at, CommandHash: x.draft.Event.CommandHash,
			SigningHash: x.hash, AcceptedBy: x.draft.Event.AcceptedBy, KeyID: x.signer.KeyID, Document: x.document,
		}
		switch p := x.draft.Payload.(type) {
		case *groups.SessionOpened:
			fact.SubjectID = p.AgentID
			b.Sessions = append(b.Sessions, events.SessionOpened{
				AgentID: p.AgentID, Epoch: p.SessionEpoch, KeyID: p.KeyID, OpenedAt: x.at, ExpiresAt: r.sessionEnd(p),
			})
		case *groups.AgentCardRegistered:
			fact.SubjectID = p.AgentID
			hash, err := p.AgentCard.SigningHash()
			if err != nil {
				return err
			}
			document, by := p.AgentCard.Bytes(), e.task.env.Actor
			b.Within = func(ctx context.Context, tx pgx.Tx) error {
				return registry.ApplyCard(ctx, tx, r.s.opt.Directory, document, hash, by, r.s.opt.FreshnessFuture)
			}
		default:
			return fmt.Errorf("unknown fact of the Organization %s", fact.Kind)
		}
		b.OrgEvents = append(b.OrgEvents, fact)
	}
	return nil
}

// receiptJSON is the receipt of COMMANDS.md 2.6.
type receiptJSON struct {
	ProtocolVersion   string         `json:"protocolVersion"`
	ActionID          string         `json:"actionId"`
	SigningHash       string         `json:"signingHash"`
	GroupID           string         `json:"groupId,omitempty"`
	Events            []receiptEvent `json:"events"`
	AcceptedAt        string         `json:"acceptedAt"`
	AdmissionRecordID string         `json:"admissionRecordId"`
}

type receiptEvent struct {
	EventID  string `json:"eventId"`
	GroupID  string `json:"groupId,omitempty"`
	Sequence int64  `json:"sequence,omitempty"`
	Kind     string `json:"kind"`
}

// receipt makes the answer: the Events of Groups that the actor may read, own
// Group first, and which of them it cannot see itself.
func (r *round) receipt(e *entry) error {
	t := e.task
	own := t.env.GroupID
	readable := map[string]bool{own: true, "": true}
	kept := e.events[:0:0]
	for _, x := range e.events {
		id := x.draft.GroupID
		ok, known := readable[id]
		if !known {
			ok = t.env.Actor.Type == protocol.ActorService
			if !ok {
				_, ok = r.groups[id].State.MemberNow(t.env.Actor, r.now)
			}
			readable[id] = ok
		}
		if ok {
			kept = append(kept, x)
		}
	}
	slices.SortStableFunc(kept, func(a, b *signing) int {
		x, y := a.draft, b.draft
		if (x.GroupID == own) != (y.GroupID == own) {
			if x.GroupID == own {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(x.GroupID, y.GroupID), cmp.Compare(x.Event.Sequence, y.Event.Sequence))
	})
	e.events = kept
	rec := r.records[t.verified.SigningHash]
	answer := receiptJSON{
		ProtocolVersion: protocol.Version, ActionID: t.env.ActionID, SigningHash: t.verified.SigningHash, GroupID: own,
		Events: make([]receiptEvent, len(kept)), AcceptedAt: lexical.FormatMicros(r.now), AdmissionRecordID: rec.AdmissionRecordID,
	}
	for i, x := range kept {
		ev := &x.draft.Event
		answer.Events[i] = receiptEvent{EventID: ev.EventID, GroupID: ev.GroupID, Sequence: ev.Sequence, Kind: ev.Kind}
		if t.env.Actor.Type != protocol.ActorService && ev.GroupID != "" &&
			!groups.Visible(r.groups[ev.GroupID].State, t.env.Actor, x.folded, r.now) {
			e.hidden = append(e.hidden, int32(i)) //nolint:gosec // bounded by the drafts
		}
	}
	var err error
	e.receipt, err = strictjson.Marshal(&answer)
	return err
}

// replayEvents reads the Events of a stored receipt that the actor can see.
func (s *Service) replayEvents(ctx context.Context, o outcome) ([][]byte, error) {
	doc, err := strictjson.Parse(o.receipt)
	if err != nil {
		return nil, err
	}
	var answer receiptJSON
	if err := strictjson.Decode(doc.Root(), &answer); err != nil {
		return nil, err
	}
	var out [][]byte
	for i, ev := range answer.Events {
		if slices.Contains(o.hidden, int32(i)) { //nolint:gosec // bounded by the receipt
			continue
		}
		document, err := s.store.EventDocument(ctx, ev.GroupID, ev.Sequence, ev.EventID)
		if err != nil {
			return nil, err
		}
		out = append(out, document)
	}
	return out, nil
}

func parseTime(s string) (time.Time, error) {
	at, err := lexical.ParseTimestamp(s)
	if err != nil {
		return time.Time{}, err
	}
	return at.Time(), nil
}
