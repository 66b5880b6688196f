package protocol_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/missionweave/server/internal/protocol"
)

// PROTOCOL.md 6.4: one protected time and one expected signer per Signed
// Document.
func TestSignedKinds(t *testing.T) {
	want := map[protocol.DocumentKind]struct {
		time   string
		signer protocol.Actor
	}{
		protocol.KindAgentCard:        {"issuedAt", protocol.Actor{Type: "service"}},
		protocol.KindApproval:         {"occurredAt", protocol.Actor{Type: "human", ID: "urn:loom:human:ines"}},
		protocol.KindArtifact:         {"createdAt", protocol.Actor{Type: "agent", ID: "urn:loom:agent:kestrel"}},
		protocol.KindCommand:          {"issuedAt", protocol.Actor{Type: "agent", ID: "urn:loom:agent:kestrel"}},
		protocol.KindContextPackage:   {"generatedAt", protocol.Actor{Type: "agent", ID: "urn:loom:agent:plover"}},
		protocol.KindEvent:            {"occurredAt", protocol.Actor{Type: "service", ID: "urn:loom:service:authority"}},
		protocol.KindEvidence:         {"createdAt", protocol.Actor{Type: "agent", ID: "urn:loom:agent:plover"}},
		protocol.KindExtensionProfile: {"approvedAt", protocol.Actor{Type: "service", ID: "urn:loom:service:authority"}},
		protocol.KindGroupSnapshot:    {"createdAt", protocol.Actor{Type: "service", ID: "urn:loom:service:authority"}},
	}
	if len(protocol.SignedKinds) != len(want) {
		t.Errorf("%d signed kinds, want %d", len(protocol.SignedKinds), len(want))
	}
	names := map[protocol.DocumentKind]string{
		protocol.KindAgentCard: "card", protocol.KindApproval: "final", protocol.KindArtifact: "manifest",
		protocol.KindCommand: "agent", protocol.KindContextPackage: "package", protocol.KindEvent: "group",
		protocol.KindEvidence: "evidence", protocol.KindExtensionProfile: "profile", protocol.KindGroupSnapshot: "snapshot",
	}
	for _, v := range ownVectors(t) {
		if v.name != "document "+names[v.kind] {
			continue
		}
		doc, err := protocol.Raw(v.doc.append(nil)).Value()
		if err != nil {
			t.Fatal(err)
		}
		row := protocol.SignedKinds[v.kind]
		if row.ProtectedTime != want[v.kind].time {
			t.Errorf("%s: protected time %s", v.kind, row.ProtectedTime)
		}
		if diff := cmp.Diff(want[v.kind].signer, row.Signer(doc)); diff != "" {
			t.Errorf("%s: %s", v.kind, diff)
		}
		if doc.Member("signature").Member("createdAt").Str() != doc.Member(row.ProtectedTime).Str() {
			t.Errorf("%s: the vector's times differ", v.kind)
		}
	}
	// Every kind whose shape demands a signature is a Signed Document, and no other.
	for _, kind := range protocol.DocumentKinds() {
		_, signed := protocol.SignedKinds[kind]
		if has := protocol.Shapes(kind).MemberShape("signature") != nil; has != signed {
			t.Errorf("%s: signature member %v, signed kind %v", kind, has, signed)
		}
	}
}
