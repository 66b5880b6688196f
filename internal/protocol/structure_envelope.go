package protocol

import (
	"slices"
	"strings"

	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/shape"
)

// coreCommandKinds are the Command kinds that the protocol itself names.
var coreCommandKinds = []string{
	"mission.create", "mission.assign_coordinator", "mission.renew_coordinator",
	"mission.submit_for_approval", "mission.approve", "mission.request_changes",
	"mission.cancel", "mission.terminate", "mission.create_child",
	"mission.create_follow_up", "membership.change", "membership.end",
	"membership.grant_delegation", "message.post", "message.correct",
	"message.retract", "message.redact", "work.propose", "work.authorize",
	"work.offer", "work.accept_offer", "work.start", "work.checkpoint",
	"work.block", "work.unblock", "work.submit", "work.accept_result",
	"work.fail", "work.cancel", "artifact.publish", "approval.grant_execution",
	"policy.grant_cooperation_override",
}

// coreEventKinds are the Event kinds that the protocol itself names.
var coreEventKinds = []string{
	"mission.created", "mission.coordinator.assigned", "mission.coordinator.renewed",
	"mission.submitted_for_approval", "mission.approved", "mission.changes_requested",
	"mission.cancelled", "mission.terminated", "mission.child.created",
	"mission.follow_up.created", "membership.changed", "membership.ended",
	"membership.delegation.granted", "message.posted", "message.corrected",
	"message.retracted", "message.redacted", "work.proposed", "work.authorized",
	"work.offer.created", "work.offer.accepted", "work.contract.revised",
	"work.started", "work.progressed", "work.checkpointed", "work.blocked",
	"work.unblocked", "work.submitted", "work.result.accepted", "work.failed",
	"work.cancelled", "artifact.published", "approval.execution.granted",
	"policy.cooperation_override.granted", "group.snapshot.created", "group.archived",
}

// The two Organization-scoped Commands and the Events they cause: no Group.
const (
	CommandAgentCardRegister = "ext.missionweaveprotocol.registry.agent_card_register"
	CommandSessionOpen       = "ext.missionweaveprotocol.identity.session_open"
	EventAgentCardRegistered = "ext.missionweaveprotocol.registry.agent_card_registered"
	EventSessionOpened       = "ext.missionweaveprotocol.identity.session_opened"
)

// CoreCommandKinds lists the Command kinds of command.schema.
func CoreCommandKinds() []string { return slices.Clone(coreCommandKinds) }

// CoreEventKinds lists the Event kinds of event.schema.
func CoreEventKinds() []string { return slices.Clone(coreEventKinds) }

// kindIn accepts the named kinds and every well-formed extension kind.
func kindIn(core []string) *shape.Shape {
	set := make(map[string]struct{}, len(core))
	for _, kind := range core {
		set[kind] = struct{}{}
	}
	return shape.String().Match(func(kind string) bool {
		if strings.HasPrefix(kind, "ext.") {
			return lexical.ValidExtensionKind(kind)
		}
		_, known := set[kind]
		return known
	})
}

// isCore holds for a kind that is not an extension kind. It decides conditions
// only, which matter once the kind itself is valid.
var isCore = shape.String().Match(func(kind string) bool { return !strings.HasPrefix(kind, "ext.") })

// ShapeCommandKind and ShapeEventKind are the kinds an envelope may carry.
var (
	ShapeCommandKind = kindIn(coreCommandKinds)
	ShapeEventKind   = kindIn(coreEventKinds)
)

var (
	isAgent   = shape.Const(ActorAgent)
	isHuman   = shape.Const(ActorHuman)
	isService = shape.Const(ActorService)
	isCreate  = shape.Enum("mission.create", "mission.create_follow_up")
	terminate = shape.Const("mission.terminate")
)

// ShapeCommand is command.schema, with its conditional envelope rules.
var ShapeCommand = shape.Object(
	shape.Req("protocolVersion", ShapeVersion),
	shape.Req("actionId", ShapeID),
	shape.Req("actor", ShapeActor),
	shape.Opt("sessionEpoch", ShapePositiveInteger),
	shape.Opt("membershipEpoch", ShapePositiveInteger),
	shape.Opt("coordinatorEpoch", ShapePositiveInteger),
	shape.Opt("groupId", ShapeID),
	shape.Opt("conversationId", ShapeID),
	shape.Opt("workItemId", ShapeID),
	shape.Opt("cooperationOverrideGrantId", ShapeID),
	shape.Req("kind", ShapeCommandKind),
	shape.Opt("expectedRevision", ShapeSafeInteger),
	shape.Req("correlationId", ShapeID),
	shape.Opt("causedByEventId", ShapeID),
	shape.Req("issuedAt", ShapeTimestamp),
	shape.Req("payload", shape.AnyObject),
	shape.Opt("extensions", ShapeExtensions),
	shape.Req("signature", ShapeSignature),
).Rules(
	shape.When("kind", terminate).
		Narrow("actor.type", shape.Enum(ActorAgent, ActorService)),
	shape.When("actor.type", isAgent).
		Require("groupId", "sessionEpoch", "membershipEpoch").
		Otherwise().Forbid("sessionEpoch"),
	shape.When("actor.type", isService).
		Forbid("membershipEpoch", "coordinatorEpoch"),
	shape.When("kind", isCore).
		Require("groupId"),
	shape.When("actor.type", isHuman).AndNot("kind", isCreate).
		Require("groupId", "membershipEpoch"),
	shape.When("kind", isCreate).
		Narrow("actor.type", isHuman).
		Forbid("membershipEpoch", "coordinatorEpoch"),
	shape.When("kind", shape.Enum(CommandAgentCardRegister, CommandSessionOpen)).
		Narrow("actor.type", isService).
		Forbid("groupId", "sessionEpoch", "membershipEpoch", "coordinatorEpoch"),
	shape.When("kind", shape.Enum(
		"mission.renew_coordinator", "mission.submit_for_approval", "mission.create_child",
		"membership.grant_delegation", "work.accept_result",
	)).
		Narrow("actor.type", isAgent).
		Require("coordinatorEpoch"),
	shape.When("kind", terminate).And("actor.type", isAgent).
		Require("coordinatorEpoch"),
)

// ShapeCause is the cause of an Event.
var ShapeCause = shape.Object(
	shape.Req("type", shape.Enum("command", "event", "timer", "policy")),
	shape.Req("id", ShapeID),
)

// ShapeEvent is event.schema.
var ShapeEvent = shape.Object(
	shape.Req("protocolVersion", ShapeVersion),
	shape.Req("eventId", ShapeID),
	shape.Opt("groupId", ShapeID),
	shape.Opt("sequence", ShapePositiveInteger),
	shape.Opt("aggregateRevision", ShapeSafeInteger),
	shape.Req("kind", ShapeEventKind),
	shape.Req("actor", ShapeActor),
	shape.Req("cause", ShapeCause),
	shape.Req("correlationId", ShapeID),
	shape.Opt("conversationId", ShapeID),
	shape.Opt("workItemId", ShapeID),
	shape.Req("occurredAt", ShapeTimestamp),
	shape.Req("payload", shape.AnyObject),
	shape.Req("acceptedBy", ShapeActor),
	shape.Opt("commandHash", ShapeSHA256),
	shape.Opt("extensions", ShapeExtensions),
	shape.Req("signature", ShapeSignature),
).Rules(
	shape.When("kind", shape.Enum(EventAgentCardRegistered, EventSessionOpened)).
		Narrow("actor.type", isService).
		Forbid("groupId", "sequence", "aggregateRevision").
		Otherwise().Require("groupId", "sequence", "aggregateRevision"),
)

// ShapeError is error.schema.
var ShapeError = shape.Object(
	shape.Req("code", shape.Enum(codeNames()...)),
	shape.Req("message", lengthText(2000)),
	shape.Req("retryable", shape.Bool),
	shape.Opt("fatal", shape.Bool),
	shape.Opt("relatedFrameId", ShapeID),
	shape.Opt("relatedActionId", ShapeID),
	shape.Opt("groupId", ShapeID),
	shape.Opt("expectedRevision", ShapeSafeInteger),
	shape.Opt("currentRevision", ShapeSafeInteger),
	shape.Opt("retryAfterMs", ShapeSafeInteger),
	shape.Opt("snapshotArtifactHash", ShapeSHA256),
	shape.Opt("details", shape.AnyObject),
	shape.Req("occurredAt", ShapeTimestamp),
)
