package testkit_test

import (
	"slices"
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/testkit"
)

// kinds are the kinds of a page of Events.
func kinds(page strictjson.Value) []string {
	out := []string{}
	for _, e := range page.Member("items").Items() {
		out = append(out, e.Member("kind").Str())
	}
	return out
}

func TestProvisionalMemberSeesItsOfferOnly(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	candidate := s.Agent("candidate")
	other := s.Agent("other")
	m.Admit(other, "worker", 1)
	m.Do(client.Command{Kind: "membership.change"}, map[string]any{
		"member": candidate.Principal(), "role": "worker", "state": "provisional",
		"provisionalExpiresAt": client.Timestamp(time.Now().Add(time.Hour)),
	})
	k := s.Login(candidate)
	k.Subscribe(m.GroupID, 0, nil)
	k.ExpectEvent("membership.changed")

	offered, hidden := m.Authorize(), m.Authorize()
	m.Say("among members")
	m.Offer(hidden, other)
	m.Offer(offered, candidate)
	e := k.Next()
	for e.Member("frameType").Str() == "ACK" {
		e = k.Next()
	}
	if e.Member("event").Member("workItemId").Str() != offered {
		t.Fatalf("frame %s", e.Raw())
	}
	m.Offer(hidden, other, candidate)
	for e = k.Next(); e.Member("frameType").Str() == "ACK"; {
		e = k.Next()
	}
	if e.Member("event").Member("workItemId").Str() != hidden {
		t.Fatalf("frame %s", e.Raw())
	}

	group := client.Path("v1", "groups", m.GroupID)
	page := s.Get(candidate, group+"/events").Value(t)
	// Now both WorkItems were offered to it, so their beginnings are visible too.
	want := []string{"membership.changed", "work.authorized", "work.authorized", "work.offer.created", "work.offer.created", "work.offer.created"}
	if got := kinds(page); !slices.Equal(got, want) {
		t.Errorf("Events %v, want %v", got, want)
	}
	count := func(path string, n int) {
		t.Helper()
		if got := s.Get(candidate, group+path).Value(t).Member("items").Len(); got != n {
			t.Errorf("%s has %d items, want %d", path, got, n)
		}
	}
	count("/memberships", 1)
	count("/conversations", 2)
	count("/work-items", 2)
	count("/policy-log", 0)
	if n := s.Get(candidate, "/v1/offers").Value(t).Member("items").Len(); n != 2 {
		t.Errorf("%d offers", n)
	}
	if n := s.Get(candidate, group+"/budget").Value(t).Member("accounts").Len(); n != 0 {
		t.Errorf("%d accounts", n)
	}
	third := m.Authorize()
	s.Get(candidate, group+client.Path("work-items", third)).Refused(t, 404, "PROTOCOL_VIOLATION")
	s.Get(candidate, group+client.Path("conversations", m.Conversation, "messages")).Refused(t, 404, "PROTOCOL_VIOLATION")
	if a := s.Do(testkit.Request{
		Method: "PUT", URL: s.AuthorityURL + client.Path("v1", "artifacts", client.Hash([]byte("x"))) + "?groupId=" + m.GroupID,
		Token: k.Token, Body: []byte("x"),
	}); a.Status != 403 {
		t.Errorf("PUT of a provisional member: %d %s", a.Status, a.Body)
	}
}

func TestProvisionalMembershipLapses(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	candidate := s.Agent("candidate")
	m.Do(client.Command{Kind: "membership.change"}, map[string]any{
		"member": candidate.Principal(), "role": "worker", "state": "provisional",
		"provisionalExpiresAt": client.Timestamp(time.Now().Add(1500 * time.Millisecond)),
	})
	k := s.Login(candidate)
	k.Subscribe(m.GroupID, 0, nil)
	k.ExpectEvent("membership.changed")
	// The timer may write the end before or after the subscription notices it.
	v := k.Next()
	if v.Member("event").Member("kind").Str() == "membership.ended" {
		v = k.Next()
	}
	if v.Member("error").Member("code").Str() != "MEMBERSHIP_REQUIRED" {
		t.Fatalf("frame %s", v.Raw())
	}
	s.Get(candidate, client.Path("v1", "groups", m.GroupID)).Refused(t, 403, "MEMBERSHIP_REQUIRED")
}

func TestRedactedMessagesAreForTheLeadersOnly(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	member := s.Agent("member")
	m.Admit(member, "observer", 1)
	secret := m.Say("secret") // sequence 3
	m.Say("open")             // sequence 4
	correction := testkit.Message("secret, corrected")
	correction["targetMessageId"] = secret
	correction["reason"] = "spelling"
	m.Do(client.Command{Kind: "message.correct", ConversationID: m.Conversation}, correction) // sequence 5
	m.Do(client.Command{Kind: "message.redact", ConversationID: m.Conversation}, map[string]any{
		"messageId": client.NewID(), "targetMessageId": secret, "reason": "personal data",
	}) // sequence 6

	path := client.Path("v1", "groups", m.GroupID)
	for _, tc := range []struct {
		reader *client.Client
		events []int64
		texts  int
	}{
		{m.Owner, upTo(1, 6), 4}, {m.Coordinator, upTo(1, 6), 4}, {member, []int64{1, 2, 4, 6}, 2},
	} {
		var got []int64
		for _, e := range s.Get(tc.reader, path+"/events").Value(t).Member("items").Items() {
			n, _ := e.Member("sequence").Int()
			got = append(got, n)
		}
		if !slices.Equal(got, tc.events) {
			t.Errorf("%s sees %v, want %v", tc.reader.Principal().ID, got, tc.events)
		}
		messages := s.Get(tc.reader, path+client.Path("conversations", m.Conversation, "messages")).Value(t).Member("items")
		if messages.Len() != tc.texts {
			t.Errorf("%s reads %d Messages, want %d", tc.reader.Principal().ID, messages.Len(), tc.texts)
		}
	}
	k := s.Login(member)
	k.Subscribe(m.GroupID, 0, nil)
	expectSequences(t, k.Barrier(), []int64{1, 2, 4, 6})
}

func TestMembershipFromLaterOnSeesNothingEarlier(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	m.Say("early")
	late := s.Agent("late")
	m.Admit(late, "observer", 3)
	m.Say("late")
	path := client.Path("v1", "groups", m.GroupID)
	if got := kinds(s.Get(late, path+"/events?after=0").Value(t)); !slices.Equal(got, []string{"membership.changed", "message.posted"}) {
		t.Errorf("Events %v", got)
	}
	if n := s.Get(late, path+client.Path("conversations", m.Conversation, "messages")).Value(t).Member("items").Len(); n != 1 {
		t.Errorf("%d Messages", n)
	}
	if n := s.Get(late, path+"/policy-log").Value(t).Member("items").Len(); n != 0 {
		t.Errorf("%d entries of the Policy Log", n)
	}
	if n := s.Get(late, "/v1/missions").Value(t).Member("items").Len(); n != 1 {
		t.Errorf("%d Missions", n)
	}
}
