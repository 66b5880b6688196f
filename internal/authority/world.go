package authority

import (
	"context"
	"slices"
	"time"

	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/registry"
)

// agentRound is an Agent in a round. The groups.Agent moves with what the round
// decides; the rest is what the database said, which the commit compares.
type agentRound struct {
	*groups.Agent // nil when neither registered nor ever in session
	id            string
	session       events.Session
	load          *events.Load
	active        []string
	activeRead    bool
	opened        bool // this round opens a session
}

func (a *agentRound) condition() events.AgentCondition {
	return events.AgentCondition{
		AgentID: a.id, Epoch: a.session.Epoch, ExpiresAt: a.session.ExpiresAt,
		Exclusive: a.load != nil || a.activeRead || a.opened,
		Load:      a.load, ActiveGroups: a.active, CheckActiveGroups: a.activeRead,
	}
}

// set is an ordered set of ids.
type set struct {
	list []string
	has  map[string]bool
}

func (s *set) add(id string) {
	if id == "" || s.has[id] {
		return
	}
	if s.has == nil {
		s.has = map[string]bool{}
	}
	s.has[id] = true
	s.list = append(s.list, id)
}

// wantSet is what the tasks of a round will certainly or probably look at. A
// wrong guess costs nothing but a row, a missing one another round trip.
type wantSet struct{ agents, groups, missions, loads, active set }

// of adds the wants of one task.
func (w *wantSet) of(t *task) {
	env := &t.env
	w.groups.add(env.GroupID)
	if env.Actor.Type == protocol.ActorAgent {
		w.agents.add(env.Actor.ID)
	}
	switch env.Kind {
	case "work.accept_offer", "work.start":
		w.loads.add(env.Actor.ID)
	case protocol.CommandSessionOpen:
		id, _ := payloadText(t.value, "agentId")
		w.agents.add(id)
		w.active.add(id)
	case protocol.CommandAgentCardRegister:
		payload, _ := t.value.Get("payload")
		card, _ := payload.Get("agentCard")
		id := card.Member("agentId").Str()
		w.agents.add(id)
		w.active.add(id)
	case "mission.create", "mission.create_follow_up", "mission.create_child":
		mission, _ := payloadText(t.value, "missionId")
		source, _ := payloadText(t.value, "followUpToMissionId")
		group, _ := payloadText(t.value, "groupId")
		w.missions.add(mission)
		w.missions.add(source)
		w.groups.add(group)
		fallthrough
	case "mission.assign_coordinator":
		id, _ := payloadText(t.value, "coordinatorAgentId")
		w.agents.add(id)
	case "work.offer":
		payload, _ := t.value.Get("payload")
		candidates, _ := payload.Get("candidateAgentIds")
		if candidates.Kind() == strictjson.Array {
			for _, c := range candidates.Items() {
				w.agents.add(c.Str())
			}
		}
	}
}

// makeWorld makes the world of the round, or moves its clock and policy on.
func (r *round) makeWorld() {
	if r.world != nil {
		r.world.Now, r.world.Org = r.now, r.policy.org
		return
	}
	r.world = &groups.World{
		Now: r.now, Mint: func() string { return mint(r.now) }, Org: r.policy.org,
		Agents: map[string]*groups.Agent{}, Groups: map[string]*groups.State{}, Missions: map[string]string{},
		MessageDocs: map[string][]protocol.Message{}, Accepted: map[groups.ActionRef]bool{},
		KeyBound: func(p protocol.Actor) bool { return r.policy.keyBound(p) },
		KeyLive:  func(keyID string, p protocol.Actor) bool { return r.policy.keyLive(keyID, p, r.now) },
		CheckCard: func(card *protocol.AgentCard) error {
			if refusal := registry.CheckCard(r.policy.view, card, r.now, r.s.opt.FreshnessFuture); refusal != nil {
				return refusal
			}
			return nil
		},
	}
}

// addAgent puts an Agent into the world as a look found it.
func (r *round) addAgent(id string, look *events.View) {
	if _, known := r.agents[id]; known {
		return
	}
	a := &agentRound{id: id, session: look.Sessions[id]}
	card, registered := r.policy.view.Agent(id)
	if registered || a.session.Epoch > 0 {
		a.Agent = &groups.Agent{ID: id, CurrentSessionEpoch: a.session.Epoch, SessionExpiresAt: a.session.ExpiresAt}
		if registered {
			a.Card = &card.Card
		}
	}
	if load, ok := look.Loads[id]; ok {
		a.load = &load
		if a.Agent != nil {
			a.Load = groups.Load{Queued: int(load.Queued), Active: int(load.Active)}
		}
	}
	if active, ok := look.ActiveWork[id]; ok {
		a.active, a.activeRead = active, true
		if a.Agent != nil {
			a.ActiveGroups = slices.Clone(active)
		}
	}
	r.agents[id] = a
	r.world.Agents[id] = a.Agent
}

// supply answers a *groups.Need.
func (r *round) supply(ctx context.Context, need *groups.Need) error {
	wanted := events.Look{Agents: need.Agents, Groups: need.Groups, Missions: need.Missions}
	for _, a := range need.Actions {
		wanted.Receipts = append(wanted.Receipts, events.ReceiptKey{Actor: a.Actor, ActionID: a.ActionID})
	}
	look, err := r.s.store.Look(ctx, wanted)
	if err != nil {
		return err
	}
	for _, id := range need.Agents {
		r.addAgent(id, look)
	}
	for _, id := range need.Missions {
		if _, known := r.world.Missions[id]; !known {
			r.world.Missions[id] = look.Missions[id]
		}
	}
	for i, a := range need.Actions {
		_, stored := look.Receipts[wanted.Receipts[i]]
		_, now := r.accepted(wanted.Receipts[i])
		r.world.Accepted[a] = stored || now
	}
	for _, id := range need.MessageDocs {
		if r.world.MessageDocs[id], err = r.messageDocs(ctx, id); err != nil {
			return err
		}
	}
	return r.loadGroups(ctx, need.Groups, look.Groups)
}

// messageDocs are the Message documents of a Group's log, those of this round
// included.
func (r *round) messageDocs(ctx context.Context, groupID string) ([]protocol.Message, error) {
	gr, ok := r.groups[groupID]
	if !ok {
		return nil, nil
	}
	docs, err := r.s.store.MessageDocs(ctx, gr.TreeID, groupID, gr.start)
	if err != nil {
		return nil, err
	}
	for _, x := range gr.events {
		if m := x.folded.MessageDoc(); m != nil {
			docs = append(docs, *m)
		}
	}
	return docs, nil
}

// held tells how a WorkItem counts for its owner.
type held struct {
	agent          string
	queued, active bool
	inState        bool // state active, live lease or not
}

func heldBy(s *groups.State, workItemID string, now time.Time) held {
	w, ok := s.WorkItems[workItemID]
	if !ok || w.Owner == nil {
		return held{}
	}
	h := held{agent: w.Owner.AgentID, queued: w.State == protocol.WorkQueued, inState: w.State == protocol.WorkActive}
	if h.inState && w.Execution != nil {
		if at, err := parseTime(w.Execution.ExpiresAt); err == nil {
			h.active = now.Before(at)
		}
	}
	return h
}

// recount keeps the Agents' loads true while the round goes on.
func (r *round) recount(groupID string, before, after held) {
	count := func(h held, n int) {
		a := r.agents[h.agent]
		if a == nil || a.Agent == nil {
			return
		}
		if h.queued {
			a.Load.Queued += n
		}
		if h.active {
			a.Load.Active += n
		}
		if n > 0 && h.inState && a.activeRead && !slices.Contains(a.ActiveGroups, groupID) {
			a.ActiveGroups = append(a.ActiveGroups, groupID)
		}
	}
	if before != after {
		count(before, -1)
		count(after, 1)
	}
}
