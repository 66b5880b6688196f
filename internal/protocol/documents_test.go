package protocol_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

var typed = map[protocol.DocumentKind]func() any{
	protocol.KindAgentCard:            func() any { return &protocol.AgentCard{} },
	protocol.KindApproval:             func() any { return &protocol.Approval{} },
	protocol.KindArtifact:             func() any { return &protocol.Artifact{} },
	protocol.KindCommand:              func() any { return &protocol.Command{} },
	protocol.KindContextPackage:       func() any { return &protocol.ContextPackage{} },
	protocol.KindConversation:         func() any { return &protocol.Conversation{} },
	protocol.KindEvent:                func() any { return &protocol.Event{} },
	protocol.KindEvidence:             func() any { return &protocol.Evidence{} },
	protocol.KindExtensionProfile:     func() any { return &protocol.ExtensionProfile{} },
	protocol.KindFirstAdmissionRecord: func() any { return &protocol.FirstAdmissionRecord{} },
	protocol.KindGroup:                func() any { return &protocol.Group{} },
	protocol.KindGroupSnapshot:        func() any { return &protocol.GroupSnapshot{} },
	protocol.KindLease:                func() any { return &protocol.Lease{} },
	protocol.KindMembership:           func() any { return &protocol.Membership{} },
	protocol.KindMessage:              func() any { return &protocol.Message{} },
	protocol.KindMission:              func() any { return &protocol.Mission{} },
	protocol.KindPresenceRecord:       func() any { return &protocol.PresenceRecord{} },
	protocol.KindWorkContract:         func() any { return &protocol.WorkContract{} },
	protocol.KindWorkItem:             func() any { return &protocol.WorkItem{} },
}

// emptyOptionals are optional members that a document may have empty and that
// the Go types then leave out.
var emptyOptionals = map[string]bool{`"description"`: true, `"toolVersion"`: true, `"modelVersion"`: true}

func dropEmptyOptionals(t *tree) {
	for i := 0; i < len(t.kids); i++ {
		if kid := t.kids[i]; t.kind == strictjson.Object && emptyOptionals[t.names[i]] && kid.text == `""` {
			t.kids = append(t.kids[:i], t.kids[i+1:]...)
			t.names = append(t.names[:i], t.names[i+1:]...)
			i--
			continue
		}
		dropEmptyOptionals(t.kids[i])
	}
}

// The Go types hold every member of every document: decoding and encoding a
// valid document gives its canonical bytes.
func TestGoTypesHoldEveryMember(t *testing.T) {
	seen := map[protocol.DocumentKind]bool{}
	for _, v := range ownVectors(t) {
		make, ok := typed[v.kind]
		if !ok || !v.valid {
			continue
		}
		seen[v.kind] = true
		t.Run(string(v.kind)+"/"+v.name, func(t *testing.T) {
			doc := v.doc.clone()
			dropEmptyOptionals(doc)
			want, err := strictjson.Canonicalize(doc.append(nil))
			if err != nil {
				t.Fatal(err)
			}
			value := make()
			if err := protocol.Raw(want).Decode(value); err != nil {
				t.Fatal(err)
			}
			got, err := strictjson.Marshal(value)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
	if len(seen) != len(typed) {
		t.Errorf("%d kinds covered, want %d", len(seen), len(typed))
	}
}
