package routes_test

import (
	"bufio"
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/testkit"
	"github.com/missionweave/server/internal/testwait"
	"github.com/missionweave/server/internal/verify"
)

func TestGroupIsArchivedThroughREST(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	h := employ(t, s, m, "worker")
	m.Authorize()
	m.Say("one")
	archival := s.As("archival")
	path := client.Path("v1", "groups", m.GroupID, "snapshot")

	t.Run("only archival services see the draft", func(t *testing.T) {
		for _, reader := range []*client.Client{m.Owner, m.Coordinator, h.agent} {
			s.Get(reader, path).Refused(t, 404, "PROTOCOL_VIOLATION")
		}
		s.Get(s.Human("stranger"), path).Refused(t, 404, "GROUP_NOT_FOUND")
		s.Get(s.As("metering"), path).Refused(t, 404, "GROUP_NOT_FOUND")
		if d := draft(t, s, archival, m.GroupID); d.CreatedBy != archival.Principal() || d.Signature.Value != "" || d.ThroughSequence != m.Head {
			t.Errorf("draft %+v", d)
		}
	})
	t.Run("an active Mission is not archived", func(t *testing.T) {
		a, _ := archive(t, s, archival, draft(t, s, archival, m.GroupID))
		a.Refused(t, 409, "INVALID_STATE_TRANSITION")
	})
	cancel(t, s, m)
	t.Run("a snapshot that says something else is refused", func(t *testing.T) {
		for _, tc := range []struct {
			name   string
			change func(*protocol.GroupSnapshot)
			status int
			code   client.Code
		}{
			{"throughSequence", func(d *protocol.GroupSnapshot) { d.ThroughSequence-- }, 409, "REVISION_CONFLICT"},
			{"a missing Event", func(d *protocol.GroupSnapshot) { d.EventIDs = d.EventIDs[1:] }, 422, "INVALID_COMMAND"},
			{"stateHash", func(d *protocol.GroupSnapshot) { d.StateHash = sha([]byte("other")) }, 422, "INVALID_COMMAND"},
			{"policyLog", func(d *protocol.GroupSnapshot) { d.PolicyLog = d.PolicyLog[:1] }, 422, "INVALID_COMMAND"},
			{"a time before the last Event", func(d *protocol.GroupSnapshot) {
				d.CreatedAt = client.Timestamp(time.Now().Add(-time.Minute))
			}, 401, "AUTH_INVALID_SIGNATURE"}, // the key is younger
		} {
			d := draft(t, s, archival, m.GroupID)
			tc.change(&d)
			a, _ := archive(t, s, archival, d)
			a.Refused(t, tc.status, tc.code)
		}
	})

	d := draft(t, s, archival, m.GroupID)
	a, signed := archive(t, s, archival, d)
	if a.Status != 201 {
		t.Fatalf("group_archive: %d %s", a.Status, a.Body)
	}
	var kinds []string
	for _, e := range a.Value(t).Member("events").Items() {
		kinds = append(kinds, e.Member("kind").Str())
	}
	if got := strings.Join(kinds, " "); got != "group.snapshot.created membership.ended membership.ended group.archived" {
		t.Errorf("Events %s", got)
	}
	for _, reader := range []*client.Client{m.Owner, archival} {
		got := s.Get(reader, path)
		if got.Status != 200 || string(got.Body) != string(signed) {
			t.Errorf("snapshot: %d %s", got.Status, got.Body)
		}
		group := s.Get(reader, client.Path("v1", "groups", m.GroupID)).Value(t)
		if group.Member("state").Str() != "archived" || group.Member("archiveSnapshotId").Str() != d.SnapshotID {
			t.Errorf("Group %s", group.Raw())
		}
	}
	s.Get(h.agent, path).Refused(t, 403, "MEMBERSHIP_REQUIRED")
	s.Get(m.Coordinator, path).Refused(t, 403, "MEMBERSHIP_REQUIRED")
	again, _ := archive(t, s, archival, d)
	again.Refused(t, 422, "INVALID_COMMAND")
	sound(t, s)
}

// tooOld checks an answer of CURSOR_TOO_OLD against the snapshot it names.
func tooOld(t *testing.T, s *testkit.Stack, reader *client.Client, e strictjson.Value, groupID string, signed []byte) int64 {
	t.Helper()
	details := e.Member("details")
	if e.Member("code").Str() != "CURSOR_TOO_OLD" || e.Member("groupId").Str() != groupID ||
		e.Member("snapshotArtifactHash").Str() != sha(signed) || e.Member("fatal").Bool() {
		t.Errorf("error %s", e.Raw())
	}
	uri := details.Member("snapshotUri").Str()
	if uri != s.AuthorityURL+client.Path("v1", "groups", groupID, "snapshot") {
		t.Errorf("snapshotUri %q", uri)
	}
	a := s.Do(testkit.Request{Method: http.MethodGet, URL: uri, Token: s.Token(reader)})
	if a.Status != 200 || string(a.Body) != string(signed) {
		t.Errorf("%s: %d %s", uri, a.Status, a.Body)
	}
	doc, err := strictjson.Parse(signed)
	if err != nil {
		t.Fatal(err)
	}
	through := number(t, doc.Root().Member("throughSequence"))
	if doc.Root().Member("snapshotId").Str() != details.Member("snapshotId").Str() || number(t, details.Member("throughSequence")) != through {
		t.Errorf("details %s", details.Raw())
	}
	return through
}

func trimmed(t *testing.T, s *testkit.Stack, groupID string) (sequence int64) {
	t.Helper()
	err := s.Pool.QueryRow(t.Context(), "SELECT trimmed_sequence FROM groups WHERE group_id = $1", groupID).Scan(&sequence)
	if err != nil {
		t.Fatal(err)
	}
	return sequence
}

func TestTrimmedLogLeadsToItsSnapshot(t *testing.T) {
	s := testkit.Start(t, testkit.Policy(func(p *config.Policy) { p.ArchiveTrim = true }))
	m := s.NewMission()
	secret := m.Say("something to be redacted later")
	// The Parent Coordinator is the MissionOwner of a child Mission, and an Agent:
	// it reads the archived child's log over WebSocket.
	item := m.Authorize()
	lead := s.Agent("child-coordinator")
	childGroup := client.NewID()
	money, tokens := client.Money(1000), int64(10)
	create := m.Sign(client.Command{Kind: "mission.create_child", WorkItemID: item}, map[string]any{
		"missionId": client.NewID(), "groupId": childGroup, "coordinatorAgentId": lead.Principal().ID,
		"objective": "Do a part.", "deadline": client.Timestamp(time.Now().Add(time.Hour)),
		"definitionOfDone": m.Creation()["definitionOfDone"],
		"budget":           client.Budget{Currency: "EUR", FinancialLimit: &money, ModelTokenLimit: &tokens},
	})
	if a := s.Post(create); a.Status != 201 {
		t.Fatalf("mission.create_child: %d %s", a.Status, a.Body)
	}
	archival := s.As("archival")
	end := s.Sign(m.Coordinator, client.Command{
		Kind: "mission.cancel", GroupID: childGroup, SessionEpoch: m.Lead.Epoch, MembershipEpoch: 1,
	}, map[string]any{"reason": "test"})
	if a := s.Post(end); a.Status != 201 {
		t.Fatalf("cancel the child: %d %s", a.Status, a.Body)
	}
	a, childSnapshot := archive(t, s, archival, draft(t, s, archival, childGroup))
	if a.Status != 201 {
		t.Fatalf("archive the child: %d %s", a.Status, a.Body)
	}
	through := number(t, parse(t, childSnapshot).Member("throughSequence"))
	testwait.Until(t, "trimming", func() bool { return trimmed(t, s, childGroup) == through })

	t.Run("WebSocket", func(t *testing.T) {
		id := m.Lead.Subscribe(childGroup, 0, nil)
		e := m.Lead.ExpectError("CURSOR_TOO_OLD", id)
		from := tooOld(t, s, m.Coordinator, e, childGroup, childSnapshot)
		m.Lead.Subscribe(childGroup, from, nil)
		m.Lead.ExpectEvent("group.snapshot.created")
		for range 2 { // the child's Coordinator and the root MissionOwner
			m.Lead.ExpectEvent("membership.ended")
		}
		m.Lead.ExpectEvent("group.archived")
	})
	path := client.Path("v1", "groups", childGroup, "events")
	t.Run("REST", func(t *testing.T) {
		e := s.Get(m.Coordinator, path).Refused(t, 410, "CURSOR_TOO_OLD")
		from := tooOld(t, s, m.Coordinator, e, childGroup, childSnapshot)
		page := s.Get(m.Coordinator, path+"?after="+string(appendInt(from))).Value(t).Member("items")
		if page.Len() != 4 || number(t, listed(page)[0].Member("sequence")) != from+1 {
			t.Errorf("%d Events after the snapshot", page.Len())
		}
	})
	t.Run("Server-Sent Events", func(t *testing.T) {
		e := s.Get(s.Owner, path+"/stream").Refused(t, 410, "CURSOR_TOO_OLD") // the root MissionOwner
		from := tooOld(t, s, s.Owner, e, childGroup, childSnapshot)
		ctx, stop := context.WithTimeout(t.Context(), testkit.Patience)
		defer stop()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.AuthorityURL+path+"/stream", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+s.Token(s.Owner))
		req.Header.Set("Last-Event-ID", string(appendInt(from)))
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = res.Body.Close() }()
		lines := bufio.NewScanner(res.Body)
		for lines.Scan() {
			if kind, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				if kind != "group.snapshot.created" {
					t.Errorf("first Event %s", kind)
				}
				break
			}
		}
	})
	t.Run("a Command that was accepted before is still answered", func(t *testing.T) {
		if a := s.Post(end); a.Status != 200 {
			t.Errorf("replay: %d %s", a.Status, a.Body)
		}
	})

	// The parent too, with a Message that is redacted afterwards.
	cancel(t, s, m)
	a, signed := archive(t, s, archival, draft(t, s, archival, m.GroupID))
	if a.Status != 201 {
		t.Fatalf("archive: %d %s", a.Status, a.Body)
	}
	through = number(t, parse(t, signed).Member("throughSequence"))
	testwait.Until(t, "trimming", func() bool { return trimmed(t, s, m.GroupID) == through })
	redact := func(id string) {
		t.Helper()
		a := s.Post(s.Sign(archival, client.Command{Kind: "message.redact", GroupID: m.GroupID}, map[string]any{
			"messageId": client.NewID(), "targetMessageId": id, "reason": "legal deletion",
		}))
		if a.Status != 201 {
			t.Fatalf("redact: %d %s", a.Status, a.Body)
		}
	}
	redact(secret)
	texts := s.Get(m.Owner, client.Path("v1", "groups", m.GroupID, "conversations", m.Conversation, "messages")).Value(t)
	if texts.Member("items").Len() != 2 {
		t.Errorf("Messages of a trimmed Group: %s", texts.Raw())
	}
	if report := sound(t, s); report.Trimmed != 0 {
		t.Errorf("%d Events counted as gone", report.Trimmed)
	}

	t.Run("what is derived is made again from the archive", func(t *testing.T) {
		store, err := events.Open(t.Context(), s.Settings.DatabaseURL, events.Options{OrganizationID: "x"})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		if err := verify.Rebuild(t.Context(), store, nil); err != nil {
			t.Fatal(err)
		}
		sound(t, s)
		g, err := store.LoadGroup(t.Context(), m.GroupID)
		if err != nil || g.SnapshotAt < through {
			t.Errorf("a trimmed Group lost its stored state: %d, %v", g.SnapshotAt, err)
		}
	})
	t.Run("when retention has ended, the signed snapshots stand", func(t *testing.T) {
		if _, err := s.Pool.Exec(t.Context(), "DELETE FROM archived_events"); err != nil {
			t.Fatal(err)
		}
		report := sound(t, s)
		if want := trimmed(t, s, m.GroupID) + trimmed(t, s, childGroup); report.Trimmed != want {
			t.Errorf("%d Events counted as gone, want %d", report.Trimmed, want)
		}
		_, url := s.Replica("other") // one that has nothing in memory
		a := s.Do(testkit.Request{Method: "GET", URL: url + client.Path("v1", "groups", m.GroupID, "events") + "?after=" + string(appendInt(through)), Token: s.Token(m.Owner)})
		if a.Status != 200 {
			t.Errorf("events of a Group without archive: %d %s", a.Status, a.Body)
		}
		if _, err := s.Pool.Exec(t.Context(), `UPDATE snapshots SET state = convert_to(replace(convert_from(state, 'UTF8'), $1, $2), 'UTF8')
			WHERE group_id = $3`, firstEvent(t, signed), client.NewID(), m.GroupID); err != nil {
			t.Fatal(err)
		}
		tampered, err := verify.Database(t.Context(), s.Pool, verify.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if tampered.OK() {
			t.Error("a stored state that differs from the signed snapshot was not found")
		}
	})
}

func parse(t *testing.T, b []byte) strictjson.Value {
	t.Helper()
	doc, err := strictjson.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return doc.Root()
}

func firstEvent(t *testing.T, signed []byte) string {
	t.Helper()
	return texts(parse(t, signed).Member("eventIds"))[0]
}
