package authority

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"time"

	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/trust"
)

// Submission is one Command as a transport received it.
type Submission struct {
	// Body is the Command's exact bytes. It must not be changed afterwards.
	Body []byte
	// Peer names the sender's address, for the protected audit record.
	Peer string
	// ConnAgent is the Agent of the WebSocket connection, "" for other
	// transports (P7).
	ConnAgent string
}

// Result is an accepted Command.
type Result struct {
	// Receipt is the answer, byte-identical on every replay.
	Receipt  []byte
	Replayed bool
	// Events are the exact signed bytes of the Events the actor can read, in the
	// receipt's order. A replay has them only for a WebSocket connection.
	Events [][]byte
}

// task is a Command on its way through a lane.
type task struct {
	sub      Submission
	bodyHash [32]byte
	env      protocol.Command
	value    strictjson.Value
	payload  any
	verified *trust.Verified
	docs     []embedded
	// held is the first failure of P10 and P11, which counts only when there is
	// no receipt.
	held     *protocol.Error
	internal bool
	tree     int64

	sweep *sweepTask // set for timers, then everything above is empty

	done chan outcome // buffered
}

// embedded is a Signed Document of the payload that passed P11.
type embedded struct {
	kind     protocol.DocumentKind
	verified *trust.Verified
}

// outcome is what a lane answers.
type outcome struct {
	receipt  []byte
	replayed bool
	hidden   []int32
	events   [][]byte
	err      *protocol.Error
}

func (t *task) key() events.ReceiptKey {
	return events.ReceiptKey{Actor: t.env.Actor, ActionID: t.env.ActionID}
}

// Submit runs one Command. It returns when the outcome is durable, or, with
// INTERNAL_ERROR, when the context ends; the Command then still gets a definite
// fate, and sending the same bytes again tells which.
//
// Errors carry RelatedActionID once the envelope is known. Anything a stranger
// could learn from the difference between two errors is left to the audit
// record.
func (s *Service) Submit(ctx context.Context, sub Submission) (*Result, *protocol.Error) {
	return s.submit(ctx, sub, false)
}

// OpenSession submits a session_open that this server's own identity service
// signed; posted from outside the kind is refused. It returns the exact bytes of
// all Events the opening caused.
func (s *Service) OpenSession(ctx context.Context, command []byte) ([][]byte, *protocol.Error) {
	r, err := s.submit(ctx, Submission{Body: command, Peer: "internal"}, true)
	if err != nil {
		return nil, err
	}
	return r.Events, nil
}

func (s *Service) submit(ctx context.Context, sub Submission, internal bool) (*Result, *protocol.Error) {
	s.stats.received.Add(1)
	t := &task{sub: sub, internal: internal, done: make(chan outcome, 1)}
	if err := s.admitToCore(ctx, t); err != nil {
		return nil, s.refuse(t, err)
	}
	if err := s.enqueue(ctx, t); err != nil {
		return nil, s.refuse(t, err)
	}
	select {
	case o := <-t.done:
		return s.answer(ctx, t, o)
	case <-ctx.Done():
		return nil, related(t, protocol.Internal(ctx.Err()))
	case <-s.stopped:
	}
	select {
	case o := <-t.done: // the last round had it
		return s.answer(ctx, t, o)
	default:
		return nil, related(t, protocol.Internal(errStopping))
	}
}

// admitToCore verifies under one of the verification slots.
func (s *Service) admitToCore(ctx context.Context, t *task) *protocol.Error {
	select {
	case s.cores <- struct{}{}:
	case <-ctx.Done():
		return protocol.Internal(ctx.Err())
	}
	defer func() { <-s.cores }()
	return s.verify(ctx, t)
}

// verify is P1 to P7, and P10 and P11 with their failure held back.
func (s *Service) verify(ctx context.Context, t *task) *protocol.Error {
	t.bodyHash = sha256.Sum256(t.sub.Body)
	doc, err := strictjson.Parse(t.sub.Body)
	if err != nil {
		reason := "syntax"
		var syntax *strictjson.SyntaxError
		if errors.As(err, &syntax) {
			reason = syntax.Reason
		}
		f := &trust.Failure{Stage: trust.StageParse, Reason: reason, Cause: err}
		return f.Error()
	}
	t.value = doc.Root()
	if fault := protocol.Validate(protocol.KindCommand, t.value); fault != nil {
		f := &trust.Failure{Stage: trust.StageSchema, Reason: fault.Keyword, Path: fault.Path, Keyword: fault.Keyword}
		return f.Error()
	}
	undecoded := strictjson.Decode(t.value, &t.env)
	if undecoded != nil {
		// A value without canonical form is a matter of stage 5, which verification
		// below comes to; until then the envelope's scalars are enough.
		t.scalars()
	}
	if refusal := groups.CheckEnvelope(&t.env); refusal != nil {
		return refusal
	}
	view, refusal := s.view(ctx)
	if refusal != nil {
		return refusal
	}
	failure := t.authenticate(view)
	if failure != nil && failure.Stage == trust.StageKey {
		// A key that was registered a moment ago may be missing here; only a view
		// of a check that began now can say that it is unknown.
		current, err := s.opt.Directory.Current(ctx)
		if err != nil {
			return protocol.Internal(err).WithStep("P4")
		}
		if current.Revision != view.Revision {
			view = current
			failure = t.authenticate(view)
		}
	}
	if failure != nil {
		return failure.Error()
	}
	if undecoded != nil {
		return protocol.NewError(protocol.CodeSchemaValidationFailed, "").WithStep("P2").WithCause(undecoded)
	}
	if t.sub.ConnAgent != "" && t.env.Actor != (protocol.Actor{Type: protocol.ActorAgent, ID: t.sub.ConnAgent}) {
		return protocol.NewError(protocol.CodeAuthForbidden, "connection").WithStep("P7")
	}
	t.open(view)
	return nil
}

// scalars reads what P2 and the audit need of an envelope that does not decode.
func (t *task) scalars() {
	text := func(member string) string { return t.value.Member(member).Str() }
	actor := t.value.Member("actor")
	t.env = protocol.Command{
		Kind: text("kind"), ActionID: text("actionId"), GroupID: text("groupId"),
		WorkItemID: text("workItemId"), ConversationID: text("conversationId"),
		Actor: protocol.Actor{Type: actor.Member("type").Str(), ID: actor.Member("id").Str()},
	}
}

// view returns current Registry evidence. A Registry that cannot be reached is
// an internal failure; one whose records contradict each other verifies nothing.
func (s *Service) view(ctx context.Context) (*registry.View, *protocol.Error) {
	view, err := s.opt.Directory.View(ctx)
	switch {
	case err == nil:
		return view, nil
	case errors.Is(err, registry.ErrNotCurrent):
		return nil, protocol.Internal(err).WithStep("P4")
	}
	f := &trust.Failure{Stage: trust.StageKey, Reason: trust.ReasonEvidenceInvalid, Cause: err}
	return nil, f.Error()
}

// authenticate is stages 3 to 6 of the Command.
func (t *task) authenticate(view *registry.View) (failure *trust.Failure) {
	t.verified, failure = trust.VerifySigned(protocol.KindCommand, t.value, view.Evidence)
	return failure
}

// open is P10 and P11.
func (t *task) open(view *registry.View) {
	t.docs, t.payload, t.held = nil, nil, nil
	payload, _ := t.value.Get("payload")
	typed, docs, refusal := groups.DecodePayload(&t.env, payload)
	if refusal != nil {
		t.held = refusal
		return
	}
	t.payload = typed
	for i, d := range docs {
		verified, failure := trust.VerifySigned(d.Kind, d.Value, view.Evidence)
		if failure != nil {
			t.held = failure.Error().WithStep("P11").WithDetail("document", int64(i))
			return
		}
		t.docs = append(t.docs, embedded{d.Kind, verified})
	}
}

// reverify repeats what depends on the Registry when its revision has moved
// since: keys may have come, ended or been revoked.
func (t *task) reverify(view *registry.View) *protocol.Error {
	same := func(v *trust.Verified) bool {
		key, ok := view.Evidence.Key(v.KeyID)
		return ok && key == v.Key
	}
	unchanged := same(t.verified) && t.held == nil
	for _, d := range t.docs {
		unchanged = unchanged && same(d.verified)
	}
	if unchanged {
		return nil
	}
	before := t.verified
	if failure := t.authenticate(view); failure != nil {
		t.verified = before // who sent it stays known
		return failure.Error()
	}
	t.open(view)
	return nil
}

// enqueue puts the task into the lane of its tree.
func (s *Service) enqueue(ctx context.Context, t *task) *protocol.Error {
	tree, err := s.placement(ctx, t)
	if err != nil {
		return protocol.Internal(err).WithStep("P25")
	}
	t.tree = tree
	l := s.laneOf(tree)
	select {
	case <-s.stopping:
		return protocol.Internal(errStopping)
	default:
	}
	select {
	case l.queue <- t:
		return nil
	default:
		s.stats.pushedBack.Add(1)
		e := protocol.NewError(protocol.CodeBackpressure, "").WithRetryAfter(retryAfterMs)
		if t.env.GroupID != "" {
			e.GroupID = t.env.GroupID
		}
		return e
	}
}

// retryAfterMs is what a full queue asks for: some rounds later.
const retryAfterMs = 250

// placement is the tree of the Command's Group. A Group that does not exist has
// none; then any lane can say so, and for a creation it is the lane where its
// tree will be.
func (s *Service) placement(ctx context.Context, t *task) (int64, error) {
	if t.env.GroupID == "" {
		agent, _ := payloadText(t.value, "agentId")
		return events.AgentLockKey(agent), nil
	}
	if row, ok := groups.KindOf(t.env.Kind); ok && row.Creates {
		mission, _ := payloadText(t.value, "missionId")
		return events.TreeKey(mission), nil
	}
	tree, err := s.store.Tree(ctx, t.env.GroupID)
	if errors.Is(err, events.ErrGroupUnknown) {
		return events.TreeKey(t.env.GroupID), nil
	}
	return tree, err
}

// payloadText reads a string member of the payload.
func payloadText(command strictjson.Value, member string) (string, bool) {
	payload, _ := command.Get("payload")
	v, ok := payload.Get(member)
	if !ok || v.Kind() != strictjson.String {
		return "", false
	}
	return v.Str(), true
}

// refuse records a refusal that came before the lane.
func (s *Service) refuse(t *task, err *protocol.Error) *protocol.Error {
	s.stats.refused.Add(1)
	switch err.Code {
	case protocol.CodeBackpressure:
	case protocol.CodeInternalError:
		level := slog.LevelError
		if errors.Is(err.Cause, context.Canceled) {
			level = slog.LevelDebug // the sender went away, which is no fault of ours
		}
		s.log.Log(context.Background(), level, "Command not decided", "step", err.Step, "err", err)
	default:
		s.auditor.record(t.audit(err, time.Now().UTC()))
	}
	return related(t, err)
}

func related(t *task, err *protocol.Error) *protocol.Error {
	if t.env.ActionID != "" {
		err.RelatedActionID = t.env.ActionID
	}
	return err
}

// answer turns an outcome into what Submit returns.
func (s *Service) answer(ctx context.Context, t *task, o outcome) (*Result, *protocol.Error) {
	if o.err != nil {
		s.stats.refused.Add(1)
		return nil, related(t, o.err)
	}
	r := &Result{Receipt: o.receipt, Replayed: o.replayed, Events: o.events}
	if !o.replayed {
		s.stats.accepted.Add(1)
		return r, nil
	}
	s.stats.replayed.Add(1)
	if t.sub.ConnAgent != "" || t.internal {
		events, err := s.replayEvents(ctx, o)
		if err != nil {
			return nil, related(t, protocol.Internal(err))
		}
		r.Events = events
	}
	return r, nil
}
