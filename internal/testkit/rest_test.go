package testkit_test

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/testkit"
)

func TestCommandsOverREST(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	say := func() (client.Command, map[string]any) {
		return client.Command{Kind: "message.post", ConversationID: m.Conversation}, testkit.Message("hello")
	}
	cmd, payload := say()
	command := m.Sign(cmd, payload)
	head := func() int64 {
		n, _ := s.Get(m.Owner, client.Path("v1", "groups", m.GroupID, "cursor")).Value(t).Member("head").Int()
		return n
	}

	first := s.Post(command)
	if first.Status != http.StatusCreated || first.Header.Get("Idempotency-Replayed") != "" {
		t.Fatalf("first: %d %v %s", first.Status, first.Header, first.Body)
	}
	again := s.Post(command)
	if again.Status != http.StatusOK || again.Header.Get("Idempotency-Replayed") != "true" || !bytes.Equal(again.Body, first.Body) {
		t.Fatalf("replay: %d %v\n%s\n%s", again.Status, again.Header, again.Body, first.Body)
	}
	if n := head(); n != 2 {
		t.Fatalf("head %d after a replay", n)
	}

	t.Run("refusals leave the Group as it was", func(t *testing.T) {
		before := head()
		s.Post([]byte(`{`)).Refused(t, 400, "PROTOCOL_VIOLATION")
		s.Post([]byte(`{}`)).Refused(t, 400, "SCHEMA_VALIDATION_FAILED")
		s.Post(bytes.Replace(command, []byte("hello"), []byte("hullo"), 1)).Refused(t, 401, "AUTH_INVALID_SIGNATURE")
		s.Post(append([]byte("\xef\xbb\xbf"), command...)).Refused(t, 400, "PROTOCOL_VIOLATION")
		cmd, payload := say()
		doc, err := strictjson.Parse(command)
		if err != nil {
			t.Fatal(err)
		}
		cmd.ActionID = doc.Root().Member("actionId").Str()
		s.Post(m.Sign(cmd, payload)).Refused(t, 409, "ACTION_ID_COLLISION")
		stale, payload := say()
		stale.IssuedAt = client.Timestamp(time.Now().Add(-time.Hour))
		s.Post(m.Sign(stale, payload)).Refused(t, 401, "AUTH_INVALID_SIGNATURE")
		if n := head(); n != before {
			t.Errorf("head moved from %d to %d", before, n)
		}
	})
	t.Run("transport", func(t *testing.T) {
		url := s.AuthorityURL + "/v1/commands"
		send := func(body []byte, contentType string) testkit.Answer {
			return s.Do(testkit.Request{Method: "POST", URL: url, Body: body, Header: map[string]string{"Content-Type": contentType}})
		}
		send(command, "text/plain").Refused(t, 415, "PROTOCOL_VIOLATION")
		send(bytes.Repeat([]byte(" "), 1<<20+1), "application/json").Refused(t, 413, "PROTOCOL_VIOLATION")
		s.Do(testkit.Request{Method: "GET", URL: url}).Refused(t, 405, "PROTOCOL_VIOLATION")
		s.Do(testkit.Request{Method: "GET", URL: s.AuthorityURL + "/v1/nothing"}).Refused(t, 404, "PROTOCOL_VIOLATION")
		s.Do(testkit.Request{Method: "POST", URL: url + "?x=1", Body: command}).Refused(t, 400, "SCHEMA_VALIDATION_FAILED")
	})
	t.Run("batch", func(t *testing.T) {
		cmd, payload := say()
		good := m.Sign(cmd, payload)
		body := bytes.Join([][]byte{good, []byte(`{"x":1}`), good, command}, []byte("\n"))
		a := s.Do(testkit.Request{Method: "POST", URL: s.AuthorityURL + "/v1/commands:batch", Body: body, Header: map[string]string{"Content-Type": "application/x-ndjson"}})
		if a.Status != 200 || a.Header.Get("Content-Type") != "application/x-ndjson" {
			t.Fatalf("batch: %d %v %s", a.Status, a.Header, a.Body)
		}
		lines := bytes.Split(bytes.TrimSpace(a.Body), []byte("\n"))
		if len(lines) != 4 {
			t.Fatalf("%d lines: %s", len(lines), a.Body)
		}
		var got []int64
		for _, line := range lines {
			doc, err := strictjson.Parse(line)
			if err != nil {
				t.Fatalf("line %s: %v", line, err)
			}
			status, _ := doc.Root().Member("status").Int()
			got = append(got, status)
			if fault := protocol.Validate(protocol.KindError, doc.Root().Member("error")); status >= 400 && fault != nil {
				t.Errorf("line %s: %v", line, fault)
			}
		}
		if fmt.Sprint(got) != "[201 400 200 200]" {
			t.Errorf("statuses %v", got)
		}
		if !bytes.Contains(lines[3], first.Body) {
			t.Errorf("the receipt of a replay differs: %s", lines[3])
		}
		s.Do(testkit.Request{
			Method: "POST", URL: s.AuthorityURL + "/v1/commands:batch", Body: bytes.Repeat([]byte("\n"), 4000),
			Header: map[string]string{"Content-Type": "application/x-ndjson"},
		}).Refused(t, 413, "PROTOCOL_VIOLATION")
	})
}

func TestReadsAnswerDocuments(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	messageID := m.Say("hello")
	group := client.Path("v1", "groups", m.GroupID)
	get := func(path string) strictjson.Value {
		t.Helper()
		a := s.Get(m.Owner, path)
		if a.Status != 200 || a.Header.Get("X-Request-Id") == "" || a.Header.Get("Content-Type") != "application/json" {
			t.Fatalf("%s: %d %v %s", path, a.Status, a.Header, a.Body)
		}
		return a.Value(t)
	}
	document := func(path string, kind protocol.DocumentKind) strictjson.Value {
		t.Helper()
		v := get(path)
		if fault := protocol.Validate(kind, v); fault != nil {
			t.Errorf("%s: %v in %s", path, fault, v.Raw())
		}
		return v
	}
	items := func(path string, kind protocol.DocumentKind, atLeast int) strictjson.Value {
		t.Helper()
		v := get(path)
		if v.Member("items").Len() < atLeast {
			t.Errorf("%s: %d items", path, v.Member("items").Len())
		}
		for _, item := range v.Member("items").Items() {
			if fault := protocol.Validate(kind, item); fault != nil {
				t.Errorf("%s: %v in %s", path, fault, item.Raw())
			}
		}
		return v
	}
	document(group, protocol.KindGroup)
	items(group+"/memberships", protocol.KindMembership, 2)
	items(group+"/conversations", protocol.KindConversation, 1)
	messages := items(group+client.Path("conversations", m.Conversation, "messages"), protocol.KindMessage, 1)
	for _, message := range messages.Member("items").Items() {
		if message.Member("messageId").Str() != messageID {
			t.Errorf("message %s", message.Raw())
		}
	}
	items(group+"/artifacts", protocol.KindArtifact, 0)
	items(group+"/work-items", protocol.KindWorkItem, 0)
	items(group+"/leases", protocol.KindLease, 0)
	if get(group+"/budget").Member("accounts").Len() != 1 {
		t.Errorf("budget %s", get(group+"/budget").Raw())
	}
	if get(group+"/policy-log").Member("items").Len() != 1 {
		t.Errorf("policy log %s", get(group+"/policy-log").Raw())
	}
	mission := client.Path("v1", "missions", m.MissionID)
	document(mission, protocol.KindMission)
	items("/v1/missions", protocol.KindMission, 1)
	items("/v1/missions?state=active&coordinator="+m.Coordinator.Principal().ID, protocol.KindMission, 1)
	if n := get("/v1/missions?state=approved").Member("items").Len(); n != 0 {
		t.Errorf("%d approved Missions", n)
	}
	if get(mission+"/tree").Member("missions").Len() != 1 {
		t.Errorf("tree %s", get(mission+"/tree").Raw())
	}
	progress := get(mission + "/progress")
	if progress.Member("state").Str() != "active" {
		t.Errorf("progress %s", progress.Raw())
	}
	page := items(group+"/events", protocol.KindEvent, 2)
	if next, _ := page.Member("next").Int(); next != 2 {
		t.Errorf("next %s", page.Member("next").Raw())
	}
	if rest := get(group + "/events?after=2"); string(rest.Raw()) != `{"items":[]}` {
		t.Errorf("page at the head: %s", rest.Raw())
	}
	for _, path := range []string{
		group + client.Path("work-items", client.NewID()), group + client.Path("work-items", client.NewID(), "leases"),
		group + client.Path("conversations", client.NewID(), "messages"),
	} {
		s.Get(m.Owner, path).Refused(t, 404, "PROTOCOL_VIOLATION")
	}
	for _, path := range []string{
		group + "/events?limit=0", group + "/events?after=-1", group + "/events?x=1", group + "/work-items?state=doing",
		"/v1/missions?owner=not%20an%20id", "/v1/missions?after=%21", "/v1/groups/not%20an%20id",
		group + "/events/stream?mentionsOnly=yes", group + "/events/stream?conversationIds=a%20b",
	} {
		s.Get(m.Owner, path).Refused(t, 400, "SCHEMA_VALIDATION_FAILED")
	}
}

func TestListsPageThroughEverythingOnce(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	for i := range 5 {
		m.Admit(s.Agent(strconv.Itoa(i)), "observer", 1)
		m.Say(strconv.Itoa(i))
	}
	for _, path := range []string{
		client.Path("v1", "groups", m.GroupID, "memberships"),
		client.Path("v1", "groups", m.GroupID, "conversations", m.Conversation, "messages"),
		client.Path("v1", "groups", m.GroupID, "policy-log"),
	} {
		all := s.Get(m.Owner, path).Value(t).Member("items")
		var got []string
		after := ""
		for {
			v := s.Get(m.Owner, path+"?limit=2"+after).Value(t)
			for _, item := range v.Member("items").Items() {
				got = append(got, string(item.Raw()))
			}
			next, more := v.Get("next")
			if !more {
				break
			}
			after = "&after=" + next.Str()
		}
		var want []string
		for _, item := range all.Items() {
			want = append(want, string(item.Raw()))
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("%s in pages:\n%s\nat once:\n%s", path, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

func TestArtifactContent(t *testing.T) {
	s := testkit.Start(t)
	m := s.NewMission()
	content := bytes.Repeat([]byte("0123456789"), 10_000)
	hash := client.Hash(content)
	at := func(hash, groupID string) string {
		return s.AuthorityURL + client.Path("v1", "artifacts", hash) + "?groupId=" + groupID
	}
	put := func(url string, body []byte) testkit.Answer {
		return s.Do(testkit.Request{Method: "PUT", URL: url, Token: m.Lead.Token, Body: body, Header: map[string]string{"Content-Type": "text/plain"}})
	}
	get := func(url, token string) testkit.Answer {
		return s.Do(testkit.Request{Method: "GET", URL: url, Token: token})
	}
	if a := put(at(hash, m.GroupID), content); a.Status != 201 {
		t.Fatalf("PUT: %d %s", a.Status, a.Body)
	}
	if a := put(at(hash, m.GroupID), content); a.Status != 200 {
		t.Errorf("PUT again: %d %s", a.Status, a.Body)
	}
	if a := get(at(hash, m.GroupID), m.Lead.Token); a.Status != 200 || !bytes.Equal(a.Body, content) || a.Header.Get("Content-Length") != strconv.Itoa(len(content)) {
		t.Errorf("GET: %d %v, %d bytes", a.Status, a.Header, len(a.Body))
	}
	if a := put(at(client.Hash(nil), m.GroupID), []byte{}); a.Status != 201 {
		t.Errorf("PUT of nothing: %d %s", a.Status, a.Body)
	}
	if a := get(at(client.Hash(nil), m.GroupID), m.Lead.Token); a.Status != 200 || len(a.Body) != 0 {
		t.Errorf("GET of nothing: %d %s", a.Status, a.Body)
	}
	put(at(hash, m.GroupID), content[1:]).Refused(t, 400, "PROTOCOL_VIOLATION")
	put(at("sha256:abc", m.GroupID), content).Refused(t, 400, "SCHEMA_VALIDATION_FAILED")
	get(s.AuthorityURL+client.Path("v1", "artifacts", hash), m.Lead.Token).Refused(t, 400, "SCHEMA_VALIDATION_FAILED")
	get(at(client.Hash([]byte("other")), m.GroupID), m.Lead.Token).Refused(t, 404, "PROTOCOL_VIOLATION")

	// Knowing a hash opens nothing through another Group.
	other := s.NewMission()
	get(at(hash, other.GroupID), other.Lead.Token).Refused(t, 404, "PROTOCOL_VIOLATION")
	get(at(hash, m.GroupID), other.Lead.Token).Refused(t, 404, "GROUP_NOT_FOUND")

	t.Run("damaged content never ends well", func(t *testing.T) {
		digits := strings.TrimPrefix(hash, "sha256:")
		file := filepath.Join(s.Settings.DataDir, "blobs", digits[:2], digits)
		if err := os.WriteFile(file, append([]byte("x"), content[1:]...), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Owner.GetArtifact(shortly(t), m.GroupID, hash); err == nil || strings.Contains(err.Error(), "the content is") {
			t.Errorf("the transfer did not break: %v", err)
		}
	})
}

func TestBodiesOfArchivalServicesMayBeLarger(t *testing.T) {
	s := testkit.Start(t)
	body := bytes.Repeat([]byte(" "), 2<<20)
	post := func(token string) testkit.Answer {
		return s.Do(testkit.Request{Method: "POST", URL: s.AuthorityURL + "/v1/commands", Body: body, Token: token})
	}
	post("").Refused(t, 413, "PROTOCOL_VIOLATION")
	post(s.Token(s.Owner)).Refused(t, 413, "PROTOCOL_VIOLATION")
	post(s.Token(s.As("archival"))).Refused(t, 400, "PROTOCOL_VIOLATION")
}
