package protocol

import (
	"slices"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// SignedKind binds a Signed Document's schema to its protected signed time and
// its expected signer (PROTOCOL.md 6.4).
type SignedKind struct {
	// ProtectedTime is the top-level member that signature.createdAt must equal
	// byte for byte.
	ProtectedTime string
	// Signer reads the expected signer from a document that has passed its
	// shape. An actor without an id stands for any Principal of its type: an
	// Agent Card names no signer, so any service of the Organization may have
	// signed it, and whether that service may issue cards is decided after
	// verification.
	Signer func(doc strictjson.Value) Actor
}

// SignedKinds are the nine kinds of Signed Document. It must not be changed.
var SignedKinds = map[DocumentKind]SignedKind{
	KindAgentCard: {"issuedAt", func(strictjson.Value) Actor {
		return Actor{Type: ActorService}
	}},
	KindApproval: {"occurredAt", actorMember("approver")},
	KindArtifact: {"createdAt", func(doc strictjson.Value) Actor {
		producer, _ := doc.Get("producer")
		agentID, _ := producer.Get("agentId")
		return Actor{Type: ActorAgent, ID: agentID.Str()}
	}},
	KindCommand:          {"issuedAt", actorMember("actor")},
	KindContextPackage:   {"generatedAt", actorMember("generatedBy")},
	KindEvent:            {"occurredAt", actorMember("acceptedBy")},
	KindEvidence:         {"createdAt", actorMember("generatedBy")},
	KindExtensionProfile: {"approvedAt", actorMember("approvedBy")},
	KindGroupSnapshot:    {"createdAt", actorMember("createdBy")},
}

func actorMember(name string) func(strictjson.Value) Actor {
	return func(doc strictjson.Value) Actor {
		actor, _ := doc.Get(name)
		return ActorOf(actor)
	}
}

// ActorOf reads an actor object that has passed its shape.
func ActorOf(v strictjson.Value) Actor {
	actorType, _ := v.Get("type")
	id, _ := v.Get("id")
	return Actor{Type: actorType.Str(), ID: id.Str()}
}

func signedKindNames() []string {
	var names []string
	for kind := range SignedKinds {
		names = append(names, string(kind))
	}
	slices.Sort(names)
	return names
}
