package groups

import (
	"errors"
	"fmt"
	"testing"

	"github.com/missionweave/server/internal/protocol"
)

// TestSessionOpenNeedsAUsableAgent: the Command never comes from outside, so no
// black-box test sees these refusals.
func TestSessionOpenNeedsAUsableAgent(t *testing.T) {
	for name, c := range map[string]struct {
		agent   string
		edit    func(s *site)
		outside bool
		want    string
	}{
		"known Agent":         {"agent:wes", func(*site) {}, false, ""},
		"unknown Agent":       {"agent:nobody", func(*site) {}, false, "INVALID_COMMAND:unknown_reference at P18"},
		"Agent without card":  {"agent:wes", func(s *site) { s.agent["agent:wes"].Card = nil }, false, "INVALID_COMMAND:unknown_reference at P18"},
		"revoked card":        {"agent:wes", func(s *site) { s.agent["agent:wes"].Card.Status = cardRevoked }, false, "INVALID_COMMAND:unknown_reference at P18"},
		"card past its end":   {"agent:wes", func(s *site) { s.agent["agent:wes"].Card.ValidUntil = "2020-01-01T00:00:00Z" }, false, "INVALID_COMMAND:unknown_reference at P18"},
		"from outside":        {"agent:wes", func(*site) {}, true, "AUTH_FORBIDDEN:policy at P17"},
		"unknown and outside": {"agent:nobody", func(*site) {}, true, "AUTH_FORBIDDEN:policy at P17"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			c.edit(s)
			cmd := command{internal: !c.outside}
			cmd.Actor, cmd.Kind = service("identity"), protocol.CommandSessionOpen
			cmd.Payload = []byte(`{"agentId":"` + c.agent + `"}`)
			_, err := s.send(cmd)
			got := ""
			if refusal := new(protocol.Error); errors.As(err, &refusal) {
				got = fmt.Sprintf("%s:%s at %s", refusal.Code, refusal.Reason, refusal.Step)
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
