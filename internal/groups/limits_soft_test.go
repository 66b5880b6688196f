package groups

import (
	"fmt"
	"testing"
)

func (s *site) say(n int) string {
	s.t.Helper()
	return s.try("agent:wes message.post", fmt.Sprintf(`{"messageId": "message:%d", "content": [{"type": "text", "text": "x"}]}`, n),
		"conversation="+s.g().Group.MainConversationID)
}

// Soft thresholds are told once, by the act that reaches them, and refuse
// nothing (PROTOCOL.md 20).
func TestSoftThresholdsOfARate(t *testing.T) {
	for _, tc := range []struct {
		name           string
		percent, limit int
		told           int // the Message that tells, 0 for none
	}{
		{"off", 0, 5, 0},
		{"at eighty percent", 80, 5, 4},
		{"rounded up", 50, 5, 3},
		{"at the limit itself", 100, 5, 5},
		{"a rate that is switched off has no threshold", 80, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSite(t)
			s.org.Limits.MessagesPerMinute, s.org.Limits.SoftPercent = tc.limit, tc.percent
			for n := 1; n <= 5; n++ {
				head, revision := s.g().Head, s.g().Mission.Revision
				if got := s.say(n); got != "" {
					t.Fatal(got)
				}
				told := s.g().Head-head == 2
				if told != (n == tc.told) || told && s.logged(1)[0] != "ext.missionweave.authority.soft_limit_reached" {
					t.Errorf("Message %d: %v", n, s.logged(2))
				}
				if told != (s.g().Mission.Revision == revision+1) {
					t.Errorf("Message %d: Mission revision %d after %d", n, s.g().Mission.Revision, revision)
				}
			}
			want := ""
			if tc.limit > 0 {
				want = "RATE_LIMITED:message_rate at P23"
			}
			if got := s.say(6); got != want {
				t.Errorf("over the limit: %q, want %q", got, want)
			}
			s.done()
		})
	}
}

func TestSoftThresholdsOfLoad(t *testing.T) {
	s := newSite(t)
	s.org.Limits.QueuedWorkItems, s.org.Limits.ActiveWorkItems, s.org.Limits.SoftPercent = 2, 2, 50
	tells := func() bool {
		return s.logged(1)[0] == "ext.missionweave.authority.soft_limit_reached"
	}
	s.queued("work:a", "")
	if !tells() {
		t.Errorf("the first of two queued: %v", s.logged(2))
	}
	s.start("work:a", 1)
	if !tells() {
		t.Errorf("the first of two active: %v", s.logged(2))
	}
	s.done()
}

// A Group's own limits take the place of the Organization's, for that Group
// alone.
func TestLimitsOfOneGroup(t *testing.T) {
	for _, tc := range []struct {
		name string
		own  map[string]Limits
		most int
	}{
		{"none", nil, 3},
		{"narrower", map[string]Limits{"group:g": {MessagesPerMinute: 1}}, 1},
		{"wider", map[string]Limits{"group:g": {MessagesPerMinute: 4}}, 4},
		{"another Group's", map[string]Limits{"group:other": {MessagesPerMinute: 1}}, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSite(t)
			s.org.Limits.MessagesPerMinute, s.org.GroupLimits = 3, tc.own
			for n := 1; n <= tc.most; n++ {
				if got := s.say(n); got != "" {
					t.Fatalf("Message %d: %s", n, got)
				}
			}
			if got := s.say(tc.most + 1); got != "RATE_LIMITED:message_rate at P23" {
				t.Errorf("Message %d: %q", tc.most+1, got)
			}
			s.done()
		})
	}
}
