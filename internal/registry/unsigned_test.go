package registry_test

import (
	"testing"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// unsigned is a card as a client posts it: without signature.
func unsigned(t *testing.T, card protocol.AgentCard) strictjson.Value {
	t.Helper()
	text, err := strictjson.Marshal(card)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := strictjson.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return doc.Root()
}
