package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// The scenes do not reach into a Worker. What they want of it they write into a
// Conversation, as a Coordinator does, and what it answers they read there. A
// Message conveys no authority (spec section 9): a Worker asked to try a Command
// tries it under its own Membership and session, and says what the server said.

// request is what a Worker of the cast answers or does when it is mentioned.
type request struct {
	// GoOn ends the wait of a WorkItem at its Gate.
	GoOn bool `json:"goOn,omitempty"`
	// Report asks what the Worker has in this Group.
	Report bool `json:"report,omitempty"`
	// Try is a Command to send, Authz a request to the Authorization Service.
	Try   *attempt `json:"try,omitempty"`
	Authz *attempt `json:"authz,omitempty"`
	// Assess asks for a signed verdict, whatever it is worth.
	Assess *reviewTask `json:"assess,omitempty"`
}

// attempt names a Command kind or a path, and what to send.
type attempt struct {
	What       string     `json:"what"`
	WorkItemID string     `json:"workItemId,omitempty"`
	Payload    client.Raw `json:"payload"`
}

// reply is a Worker's answer; Re is the Message that it answers.
type reply struct {
	Re string `json:"re"`
	// Queue and Slots are the WorkItems of this Group that wait for a slot or have
	// one. A Group is told of no other Group's.
	Queue []string `json:"queue,omitempty"`
	Slots []string `json:"slots,omitempty"`
	// Learned is the last sequence of this Group that the Worker has dealt with.
	Learned int64 `json:"learned,omitempty"`
	// Accepted tells that what was tried was accepted; Code, Reason and Status are
	// the refusal.
	Accepted bool        `json:"accepted,omitempty"`
	Code     client.Code `json:"code,omitempty"`
	Reason   string      `json:"reason,omitempty"`
	Failure  string      `json:"failure,omitempty"`
	// Evidence is the verdict that was asked for.
	Evidence client.Raw `json:"evidence,omitempty"`
}

// err is the refusal that the Worker was given.
func (r reply) err() error {
	switch {
	case r.Accepted:
		return nil
	case r.Code == "":
		return fmt.Errorf("%w: %s", errNoAnswer, r.Failure)
	}
	return &client.Error{Code: r.Code, Reason: r.Reason}
}

func text(v any) []client.ContentPart {
	return []client.ContentPart{{Type: "text", Text: string(encode(v))}}
}

func encode(v any) client.Raw {
	b, err := strictjson.Marshal(v)
	if err != nil {
		panic(err) // strings, numbers and documents
	}
	return b
}

// parse reads the JSON of a Message; what is no JSON is conversation.
func parse(m client.Message, dst any) bool {
	return len(m.Content) == 1 && m.Content[0].Type == "text" && client.Decode([]byte(m.Content[0].Text), dst) == nil
}

// tell posts a request to a Worker, in a WorkItem's Conversation or with "" in the
// main one, and returns the Message's id.
func (s *scene) tell(ctx context.Context, m *mission, worker, workItemID string, q request) string {
	id := client.NewID()
	conversation := read(m.lead, func(b *client.Board) string { return b.MainConversation })
	if workItemID != "" {
		conversation = m.lead.item(workItemID).ConversationID
	}
	m.lead.do(ctx, s, client.Command{Kind: "message.post", ConversationID: conversation}, map[string]any{
		"messageId": id, "content": text(q), "mentions": []client.Actor{{Type: client.Agent, ID: s.agentID(worker)}},
	})
	return id
}

// patience is how long a Coordinator waits for an answer before it asks again. A
// Worker does not answer what was said before it had caught up with the log.
const patience = 3 * time.Second

// ask is tell, and waits for the Worker's answer in the Group. Only a report is
// asked for again: what is tried is tried once.
func (s *scene) ask(ctx context.Context, m *mission, worker, workItemID string, q request) (answer reply) {
	from := s.agentID(worker)
	for {
		id := s.tell(ctx, m, worker, workItemID, q)
		once, cancel := ctx, context.CancelFunc(func() {})
		if q.Report {
			once, cancel = context.WithTimeout(ctx, patience)
		}
		err := m.lead.until(once, func(*client.Board) bool {
			return slices.ContainsFunc(m.lead.log, func(d client.Delivery) bool {
				if d.Event.Kind != "message.posted" || d.Event.Actor.ID != from {
					return false
				}
				var posted struct {
					Message client.Message `json:"message"`
				}
				answer = reply{}
				return client.Decode(d.Event.Payload, &posted) == nil && parse(posted.Message, &answer) && answer.Re == id
			})
		})
		cancel()
		if q.Report && errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			continue
		}
		s.must(worker+" answers", err)
		return answer
	}
}

// tried is the refusal that a Worker got for a Command which it was asked to send.
func (s *scene) tried(ctx context.Context, m *mission, worker, workItemID, kind, target string, payload map[string]any) error {
	return s.ask(ctx, m, worker, workItemID, request{Try: &attempt{What: kind, WorkItemID: target, Payload: encode(payload)}}).err()
}

// goOn tells the owners of WorkItems that they may pass their gates.
func (s *scene) goOn(ctx context.Context, m *mission, ids ...string) {
	for _, id := range ids {
		owner := m.lead.item(id).Owner
		if owner == nil {
			s.must("go on with "+s.nameOf(id), errNoOwner)
		}
		s.tell(ctx, m, s.nameOf(owner.AgentID), id, request{GoOn: true})
		delete(s.held, id)
	}
}

// hear takes the Messages of a Worker's Groups. It must not hold up their reading.
func (e *employee) hear(ctx context.Context, room client.Room, m client.Message) {
	var q request
	if !slices.Contains(m.Mentions, e.c.Principal()) || !parse(m, &q) {
		return
	}
	if q.GoOn {
		e.pass(room.WorkItemID)
		return
	}
	e.talking.Go(func() {
		answer := e.answer(ctx, room, q)
		answer.Re = m.MessageID
		if err := room.Say(ctx, text(answer)[0].Text); err != nil && ctx.Err() == nil {
			e.note("%s could not answer: %v", e.name, err)
		}
	})
}

func (e *employee) answer(ctx context.Context, room client.Room, q request) reply {
	w := e.present()
	switch {
	case q.Report:
		r := reply{Queue: w.Queue(room.GroupID), Learned: w.Cursors()[room.GroupID]}
		for _, run := range w.Running() {
			if run.Group == room.GroupID {
				r.Slots = append(r.Slots, run.ID)
			}
		}
		return r
	case q.Try != nil:
		_, err := w.Session().CommandAs(ctx, client.Command{
			Kind: q.Try.What, GroupID: room.GroupID, WorkItemID: q.Try.WorkItemID, MembershipEpoch: 1,
		}, q.Try.Payload)
		return outcome(err)
	case q.Authz != nil:
		return outcome(w.Session().PostAuthz(ctx, q.Authz.What, q.Authz.Payload, nil)) // an answer may be a secret
	case q.Assess != nil:
		signed, err := e.c.Identity().SignEvidence(client.Evidence{
			EvidenceID: client.NewID(), MissionID: room.MissionID, GroupID: room.GroupID, WorkItemID: q.Assess.WorkItemID, Type: "reviewer_assessment",
			Subject: client.EvidenceSubject{Type: "work_item", ID: q.Assess.WorkItemID}, CriterionIDs: q.Assess.CriterionIDs,
			Method: "Looked at it.", Result: "passed", ArtifactHashes: q.Assess.ArtifactHashes, GeneratedBy: e.c.Principal(), CreatedAt: stamp(0),
		})
		r := outcome(err)
		r.Evidence = signed
		return r
	}
	return reply{Failure: "nothing was asked"}
}

func outcome(err error) reply {
	if err == nil {
		return reply{Accepted: true}
	}
	if e, ok := asError(err); ok {
		return reply{Code: e.Code, Reason: e.Reason}
	}
	return reply{Failure: err.Error()}
}

// letGo opens the gates that a scene has left closed.
func (s *scene) letGo(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for id, m := range s.held {
		item := m.lead.item(id)
		if item.Owner == nil {
			continue
		}
		_, _ = m.lead.try(ctx, client.Command{Kind: "message.post", ConversationID: item.ConversationID}, map[string]any{
			"messageId": client.NewID(), "content": text(request{GoOn: true}), "mentions": []client.Actor{{Type: client.Agent, ID: item.Owner.AgentID}},
		})
	}
}
