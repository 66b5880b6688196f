package protocol

import "github.com/missionweave/server/internal/protocol/shape"

// ShapeWebSocketFrame is websocket-frame.schema, nested documents included.
var ShapeWebSocketFrame = frameShape(ShapeCommand, ShapeEvent)

// shapeOuterFrame is a frame whose nested Command or Event is not looked into:
// those bytes have a verification of their own (COMMANDS.md 8.5).
var shapeOuterFrame = frameShape(shape.Any, shape.Any)

var (
	shapeHelloClientInit = frame("HELLO",
		shape.Req("phase", shape.Const("client_init")),
		shape.Req("agentId", ShapeID),
		shape.Req("keyId", ShapeID),
		shape.Req("clientNonce", ShapeBase64URL),
		shape.Req("supportedVersions", shape.Array(ShapeVersion).Min(1).Unique()),
	)
	shapeHelloServerChallenge = frame("HELLO",
		shape.Req("phase", shape.Const("server_challenge")),
		shape.Req("selectedVersion", ShapeVersion),
		shape.Req("clientNonce", ShapeBase64URL),
		shape.Req("serverNonce", ShapeBase64URL),
		shape.Req("challenge", ShapeBase64URL),
	)
	shapeHelloClientResponse = frame("HELLO",
		shape.Req("phase", shape.Const("client_response")),
		shape.Req("agentId", ShapeID),
		shape.Req("keyId", ShapeID),
		shape.Req("clientNonce", ShapeBase64URL),
		shape.Req("serverNonce", ShapeBase64URL),
		shape.Req("challengeSignature", ShapeBase64URL),
	)
	shapeHelloServerAccept = frame("HELLO",
		shape.Req("phase", shape.Const("server_accept")),
		shape.Req("selectedVersion", ShapeVersion),
		shape.Req("sessionToken", shape.String().Min(16).Max(8192)),
		shape.Req("sessionEpoch", ShapePositiveInteger),
		shape.Req("expiresAt", ShapeTimestamp),
	)
	shapeSubscribe = frame("SUBSCRIBE",
		shape.Req("subscriptionId", ShapeID),
		shape.Req("groups", shape.Array(shape.Object(
			shape.Req("groupId", ShapeID),
			shape.Req("afterSequence", ShapeSafeInteger),
			shape.Opt("attention", ShapeAttention),
		)).Min(1)),
	)
	shapeAck = frame("ACK",
		shape.Req("acknowledgements", shape.Array(shape.Object(
			shape.Req("groupId", ShapeID),
			shape.Req("sequence", ShapeSafeInteger),
		)).Min(1)),
		shape.Req("sentAt", ShapeTimestamp),
	)
	shapePing = frame("PING",
		shape.Req("nonce", ShapeBase64URL),
		shape.Opt("replyToNonce", ShapeBase64URL),
		shape.Req("sentAt", ShapeTimestamp),
		shape.Opt("presence", ShapePresenceRecord),
	)
)

// ShapeAttention is the attention filter of a subscription.
var ShapeAttention = shape.Object(
	shape.Opt("eventKinds", shape.Array(ShapeKind).Unique()),
	shape.Opt("conversationIds", ids()),
	shape.Opt("workItemIds", ids()),
	shape.Opt("mentionsOnly", shape.Bool),
	shape.Opt("announcements", shape.Bool),
)

func frame(frameType string, members ...shape.Member) *shape.Shape {
	return shape.Object(
		shape.Req("protocolVersion", ShapeVersion),
		shape.Req("frameId", ShapeID),
		shape.Req("frameType", shape.Const(frameType)),
	).Extend(members...)
}

func frameShape(command, event *shape.Shape) *shape.Shape {
	return shape.Union("frameType", map[string]*shape.Shape{
		"HELLO": shape.Union("phase", map[string]*shape.Shape{
			"client_init":      shapeHelloClientInit,
			"server_challenge": shapeHelloServerChallenge,
			"client_response":  shapeHelloClientResponse,
			"server_accept":    shapeHelloServerAccept,
		}),
		"SUBSCRIBE": shapeSubscribe,
		"COMMAND":   frame("COMMAND", shape.Req("command", command)),
		"EVENT":     frame("EVENT", shape.Req("event", event)),
		"ACK":       shapeAck,
		"PING":      shapePing,
		"ERROR":     frame("ERROR", shape.Req("error", ShapeError)),
	})
}
