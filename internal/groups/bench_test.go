package groups

import (
	"fmt"
	"testing"

	"github.com/missionweave/server/internal/protocol"
)

// benchLab is a Group with so many WorkItems and Messages.
func benchLab(b *testing.B, items, messages int) (*lab, *Command) {
	b.Helper()
	s := newScript(b)
	s.unchecked = true
	s.play("include base.inc\n")
	g := s.group["group:g"]
	s.org.Limits.MessagesPerMinute, s.org.Limits.DuplicateDecompositionOff = 0, true
	s.run([]string{"send", "human:olga", "ext.missionweave.budget.increase", "group:g"},
		`{"budget": {"currency": "EUR", "financialLimit": 1000000, "modelTokenLimit": 100000000}, "reason": "bench"}`)
	for i := range items {
		s.run([]string{"send", "agent:cora", "work.authorize", "group:g", fmt.Sprintf("work=work:%d", i)},
			`{"contract": "@contract"}`)
	}
	conversation := "conversation=" + g.Group.MainConversationID
	for i := range messages {
		s.run([]string{"send", "agent:wes", "message.post", "group:g", conversation},
			fmt.Sprintf(`{"messageId": "message:%d", "content": [{"type": "text", "text": "hello"}]}`, i))
	}
	c := command{}
	c.Actor, c.Kind, c.GroupID, c.ConversationID = agentActor("agent:wes"), "message.post", "group:g", g.Group.MainConversationID
	s.envelope(&c)
	payload := protocol.Raw(`{"messageId":"message:x","content":[{"type":"text","text":"hello"}]}`)
	v, err := payload.Value()
	if err != nil {
		b.Fatal(err)
	}
	typed, _, refusal := DecodePayload(&c.Command, v)
	if refusal != nil {
		b.Fatal(refusal)
	}
	return s.lab, &Command{Envelope: c.Command, SigningHash: hashOf(nil), Payload: typed}
}

// BenchmarkDecide decides and encodes a Message in Groups of growing size; the
// cost must not grow with the Group.
func BenchmarkDecide(b *testing.B) {
	for _, size := range [][2]int{{10, 100}, {1000, 1000}, {5000, 10000}} {
		b.Run(fmt.Sprintf("items=%d,messages=%d", size[0], size[1]), func(b *testing.B) {
			l, cmd := benchLab(b, size[0], size[1])
			w := l.world()
			w.Agents["agent:wes"], w.Groups["group:g"] = l.agent["agent:wes"], l.group["group:g"]
			b.ReportAllocs()
			for b.Loop() {
				d, err := Decide(w, cmd)
				if err != nil {
					b.Fatal(err)
				}
				if err := d.Drafts[0].Encode(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkFold decodes and applies a log.
func BenchmarkFold(b *testing.B) {
	l, _ := benchLab(b, 1000, 10000)
	log := l.logs["group:g"]
	b.ReportAllocs()
	for b.Loop() {
		s := New()
		for _, stored := range log {
			if err := s.Apply(decodeStored(b, stored)); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(log)), "ns/event")
}

// BenchmarkParseState reads the dump of a Group.
func BenchmarkParseState(b *testing.B) {
	l, _ := benchLab(b, 1000, 10000)
	dump, err := l.group["group:g"].Canonical()
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(dump)))
	for b.Loop() {
		if _, err := ParseState(dump); err != nil {
			b.Fatal(err)
		}
	}
}
