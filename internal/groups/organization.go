package groups

import (
	"slices"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
)

// agentCardRegister is the payload of agent_card_register.
type agentCardRegister struct {
	AgentCard *Signed[protocol.AgentCard] `json:"agentCard"`
}

func (p *agentCardRegister) documents() []documentRef {
	return []documentRef{{protocol.KindAgentCard, p.AgentCard.Doc.IssuedAt}}
}

// sessionOpen is the payload of session_open.
type sessionOpen struct {
	AgentID          string `json:"agentId"`
	KeyID            string `json:"keyId"`
	SessionExpiresAt string `json:"sessionExpiresAt"`
}

// orgPlan is what an Organization Command hands on.
type orgPlan struct {
	agent  *Agent
	groups []*State
}

func organizationKinds() []Kind {
	return []Kind{
		groupArchiveKind(),
		budgetIncreaseKind(),
		kind(Kind{
			Kind:       protocol.CommandAgentCardRegister,
			Capacities: []CapacityRow{{CapacityService, ""}}, Organization: true,
			Documents: []DocumentRow{{"agentCard", protocol.KindAgentCard, false}},
			Shape:     shape.Object(shape.Req("agentCard", protocol.ShapeAgentCard)),
		}, plan[agentCardRegister, orgPlan]{
			Extensions: func(x *Ctx, p *agentCardRegister, _ *orgPlan) error {
				return x.extensionsIn(p.AgentCard.Doc.Extensions)
			},
			Authority: func(x *Ctx, p *agentCardRegister, _ *orgPlan) error {
				issuer := x.Command.Docs[0].Principal
				if issuer.Type != protocol.ActorService || !x.World.Org.allows(issuer.ID, x.Kind.Kind) {
					return forbid("signer")
				}
				if p.AgentCard.Doc.OrganizationID != x.World.Org.ID {
					return forbid("organization")
				}
				return nil
			},
			References: func(x *Ctx, p *agentCardRegister, s *orgPlan) error {
				card := &p.AgentCard.Doc
				var err error
				if s.agent, err = x.World.agent(card.AgentID); err != nil {
					return err
				}
				stored := s.agent.cardVersion()
				if card.CardVersion < 1 || stored > 0 && card.CardVersion != stored+1 {
					return protocol.NewError(protocol.CodeRevisionConflict, "").WithRevision(card.CardVersion, stored)
				}
				if err := x.World.CheckCard(card); err != nil {
					return err
				}
				if card.Status != "revoked" {
					return nil
				}
				s.groups, err = x.activeGroups(s.agent)
				return err
			},
			Revision: func(_ *Ctx, _ *agentCardRegister, s *orgPlan) int64 { return s.agent.cardVersion() },
			Emit: func(x *Ctx, p *agentCardRegister, s *orgPlan) error {
				card := &p.AgentCard.Doc
				id := x.out.emit("", nil, "ext.missionweaveprotocol.registry.agent_card_registered", &AgentCardRegistered{
					AgentID: card.AgentID, CardVersion: card.CardVersion, AgentCard: p.AgentCard,
				}, emission{Primary: true, Accepted: x.World.Org.Registry})
				for _, g := range s.groups {
					x.revokeExecution(g, card.AgentID, revokeAgent, s.agent.CurrentSessionEpoch, id)
				}
				return nil
			},
		}),
		kind(Kind{
			Kind:       protocol.CommandSessionOpen,
			Capacities: []CapacityRow{{CapacityService, ""}}, Organization: true,
			Shape: shape.Object(
				shape.Req("agentId", protocol.ShapeID),
				shape.Opt("keyId", protocol.ShapeID),
				shape.Opt("sessionExpiresAt", protocol.ShapeTimestamp),
			),
		}, plan[sessionOpen, orgPlan]{
			Authority: func(x *Ctx, _ *sessionOpen, _ *orgPlan) error {
				if !x.Command.Internal {
					return forbid("policy")
				}
				return nil
			},
			References: func(x *Ctx, p *sessionOpen, s *orgPlan) error {
				a, err := x.World.agent(p.AgentID)
				if err != nil {
					return err
				}
				if a == nil || a.Unusable(x.World.Now) != "" ||
					p.KeyID != "" && !x.World.KeyLive(p.KeyID, protocol.Actor{Type: protocol.ActorAgent, ID: p.AgentID}) {
					return invalid("unknown_reference")
				}
				s.agent = a
				s.groups, err = x.activeGroups(a)
				return err
			},
			Revision: func(_ *Ctx, _ *sessionOpen, s *orgPlan) int64 { return s.agent.CurrentSessionEpoch },
			Emit: func(x *Ctx, p *sessionOpen, s *orgPlan) error {
				epoch := s.agent.CurrentSessionEpoch + 1
				id := x.out.emit("", nil, "ext.missionweaveprotocol.identity.session_opened", &SessionOpened{
					AgentID: p.AgentID, SessionEpoch: epoch, KeyID: p.KeyID, SessionExpiresAt: p.SessionExpiresAt,
				}, emission{Primary: true, Accepted: x.World.Org.Identity})
				for _, g := range s.groups {
					x.revokeExecution(g, p.AgentID, revokeSession, epoch, id)
				}
				return nil
			},
		}),
	}
}

// cardVersion is 0 for an Agent that has no card.
func (a *Agent) cardVersion() int64 {
	if a == nil || a.Card == nil {
		return 0
	}
	return a.Card.CardVersion
}

// activeGroups loads, in byte order, the Groups where the Agent works.
func (x *Ctx) activeGroups(a *Agent) ([]*State, error) {
	if a == nil {
		return nil, nil
	}
	var out []*State
	need := &Need{}
	for _, id := range slices.Sorted(slices.Values(a.ActiveGroups)) {
		g, known := x.World.Groups[id]
		switch {
		case !known:
			need.Groups = append(need.Groups, id)
		case g != nil:
			out = append(out, g)
		}
	}
	if len(need.Groups) > 0 {
		return nil, need
	}
	return out, nil
}

func organizationEvents() []EventKind {
	return append(archiveEvents(), budgetIncreasedEvent(),
		eventKind("ext.missionweaveprotocol.registry.agent_card_registered", AggregateNone, false,
			func(*AgentCardRegistered) string { return "" },
			func(*State, *Event, *AgentCardRegistered) error { return nil }),
		eventKind("ext.missionweaveprotocol.identity.session_opened", AggregateNone, false,
			func(*SessionOpened) string { return "" },
			func(*State, *Event, *SessionOpened) error { return nil }),
	)
}
