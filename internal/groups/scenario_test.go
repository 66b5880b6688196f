package groups

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

var update = flag.Bool("update", false, "rewrite the expected output of testdata/*.txt")

// TestScenarios plays the scripts in testdata. A script is a list of
// instructions, each followed by a line of dashes and what the core answered:
//
//	include FILE                   play a script of testdata first, silently
//	agent ID CAPABILITY…           register an Agent with a session
//	clock +90s                     let time pass
//	define NAME                    keep the JSON below under a name
//	send ACTOR KIND GROUP k=v…     send a Command with the JSON below
//	sweep GROUP                    write what has expired
//	snapshot NAME GROUP SERVICE    define the unsigned snapshot of a Group
//	let NAME PATH                  remember a value of the last primary Event
//	show OBJECT…                   print folded state
//	set agent ID k=v…              change what the world says of an Agent
//
// In JSON "@name" is a defined value, {"@": "name", …} one with members
// replaced, "$name" a remembered value, and "now+1h" a time. A #number stands
// for a minted id, t+90s for a time. Run with -update to accept the output.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			script, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := newScript(t).play(string(script))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(script), got); diff != "" {
				t.Errorf("answers differ (-want +got):\n%s", diff)
			}
		})
	}
}

type script struct {
	*lab
	defined map[string]any
	known   map[string]string
	last    *Draft
}

func newScript(t testing.TB) *script {
	return &script{lab: newLab(t), defined: map[string]any{}, known: map[string]string{}}
}

// play runs a script and returns it with the present answers.
func (s *script) play(text string) string {
	var out strings.Builder
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); {
		line := lines[i]
		i++
		if strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#") {
			out.WriteString(line + "\n")
			continue
		}
		instruction := line
		var body []string
		bodied := strings.HasPrefix(instruction, "send ") || strings.HasPrefix(instruction, "define ")
		for bodied && i < len(lines) && lines[i] != "----" && strings.TrimSpace(lines[i]) != "" {
			body = append(body, lines[i])
			i++
		}
		silent := i >= len(lines) || lines[i] != "----"
		if !silent {
			for i < len(lines) && strings.TrimSpace(lines[i]) != "" {
				i++ // the old answer
			}
		}
		out.WriteString(instruction + "\n")
		for _, b := range body {
			out.WriteString(b + "\n")
		}
		answer := s.run(strings.Fields(instruction), strings.Join(body, "\n"))
		if answer != "" {
			out.WriteString("----\n" + answer)
		}
	}
	s.refold()
	return strings.TrimRight(out.String(), "\n") + "\n"
}

func (s *script) run(f []string, body string) string {
	s.t.Helper()
	switch f[0] {
	case "agent":
		s.addAgent(f[1], f[2:]...)
	case "include":
		text, err := os.ReadFile(filepath.Join("testdata", f[1]))
		if err != nil {
			s.t.Fatal(err)
		}
		if got := s.play(string(text)); strings.Contains(got, "refused") {
			s.t.Fatalf("%s does not go through:\n%s", f[1], got)
		}
	case "sweep":
		return s.sweep(f[1])
	case "snapshot":
		s.snapshot(f[1], f[2], f[3])
	case "clock":
		d, err := time.ParseDuration(strings.TrimPrefix(f[1], "+"))
		if err != nil {
			s.t.Fatalf("%v: %v", f, err)
		}
		s.now = s.now.Add(d)
	case "define":
		s.defined[f[1]] = s.json(body)
	case "let":
		v, ok := s.lookup(f[2])
		if !ok {
			return "nothing there\n"
		}
		s.known[f[1]] = v
	case "set":
		s.set(f[1:])
	case "show":
		return s.show(f[1:])
	case "send":
		return s.sendLine(f[1:], body)
	default:
		s.t.Fatalf("unknown instruction %q", f[0])
	}
	return ""
}

func (s *script) set(f []string) {
	for _, kv := range f[2:] {
		k, v, _ := strings.Cut(kv, "=")
		n, _ := strconv.ParseInt(v, 10, 64)
		switch f[0] + "." + k {
		case "agent.session":
			s.agent[f[1]].CurrentSessionEpoch = n
		case "agent.card":
			s.agent[f[1]].Card.Status = v
		case "agent.expires":
			d, _ := time.ParseDuration(v)
			s.agent[f[1]].SessionExpiresAt = s.now.Add(d)
		case "limits.messages":
			s.org.Limits.MessagesPerMinute = int(n)
		case "limits.proposals":
			s.org.Limits.ProposalsPerMinute = int(n)
		case "limits.depth":
			s.org.Limits.DelegationDepth = n
		default:
			s.t.Fatalf("cannot set %s", k)
		}
	}
}

func (s *script) sweep(groupID string) string {
	w := s.world()
	d := Sweep(w, s.group[groupID])
	s.accept(d)
	var out strings.Builder
	for i := range d.Drafts {
		out.WriteString(s.draft(&d.Drafts[i]))
	}
	if again := Sweep(w, s.group[groupID]); len(again.Drafts) > 0 {
		s.t.Fatalf("sweeping twice writes %s again", again.Drafts[0].Event.Kind)
	}
	if out.Len() == 0 {
		return "nothing has expired\n"
	}
	return out.String()
}

func (s *script) snapshot(name, groupID, by string) {
	d, err := s.group[groupID].DraftSnapshot("snapshot:"+name, principal(by), s.now.Format(time.RFC3339), s.messageDocs(groupID))
	if err != nil {
		s.t.Fatal(err)
	}
	b, err := strictjson.Marshal(&d)
	if err != nil {
		s.t.Fatal(err)
	}
	var v map[string]any
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		s.t.Fatal(err)
	}
	delete(v, "signature")
	s.defined[name] = v
}

func principal(id string) protocol.Actor {
	kind, _, _ := strings.Cut(id, ":")
	return protocol.Actor{Type: kind, ID: id}
}

func (s *script) sendLine(f []string, body string) string {
	c := command{}
	c.Actor, c.Kind = principal(f[0]), f[1]
	for _, kv := range f[2:] {
		k, v, ok := strings.Cut(kv, "=")
		if !ok {
			c.GroupID = kv
			continue
		}
		v = s.substitute(v)
		n, _ := strconv.ParseInt(v, 10, 64)
		switch k {
		case "work":
			c.WorkItemID = v
		case "conversation":
			c.ConversationID = v
		case "action":
			c.ActionID = v
		case "session":
			c.SessionEpoch = n
		case "membership":
			c.MembershipEpoch = n
		case "coordinator":
			c.CoordinatorEpoch = n
		case "revision":
			c.ExpectedRevision = &n
		case "override":
			c.CooperationOverrideGrantID = v
		case "caused":
			c.CausedByEventID = v
		case "internal":
			c.internal = v == "yes"
		case "signer":
			c.principal = principal(v)
		case "extensions":
			c.Extensions = s.marshal(s.defined[v])
		default:
			s.t.Fatalf("unknown envelope member %s", k)
		}
	}
	payload := map[string]any{}
	if body != "" {
		var ok bool
		if payload, ok = s.json(body).(map[string]any); !ok {
			s.t.Fatalf("payload is not an object: %s", body)
		}
	}
	s.signDocuments(c.Kind, payload)
	c.Payload = s.marshal(payload)
	d, err := s.send(c)
	if err != nil {
		var refusal *protocol.Error
		if !errors.As(err, &refusal) {
			s.t.Fatalf("%s: %v", c.Kind, err)
		}
		if refusal.Code == protocol.CodeInternalError {
			s.t.Fatalf("%s: %v", c.Kind, refusal)
		}
		return s.refusal(refusal)
	}
	var out strings.Builder
	for i := range d.Drafts {
		if d.Drafts[i].Primary {
			s.last = &d.Drafts[i]
		}
		out.WriteString(s.draft(&d.Drafts[i]))
	}
	return out.String()
}

// signDocuments adds what every embedded document needs and no script cares
// about.
func (s *script) signDocuments(kind string, payload map[string]any) {
	row, ok := KindOf(kind)
	if !ok {
		return
	}
	for _, d := range row.Documents {
		list, many := payload[d.Member].([]any)
		if one, ok := payload[d.Member].(map[string]any); ok && !many {
			list = []any{one}
		}
		member := protocol.SignedKinds[d.Kind].ProtectedTime
		for _, item := range list {
			doc, ok := item.(map[string]any)
			if !ok {
				continue
			}
			if doc[member] == nil {
				doc[member] = s.now.Format(time.RFC3339)
			}
			if doc["signature"] == nil {
				doc["signature"] = json.RawMessage(testSignature)
			}
		}
	}
}

func (s *script) marshal(v any) protocol.Raw {
	b, err := json.Marshal(v)
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

func (s *script) json(text string) any {
	var v any
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		s.t.Fatalf("%v in\n%s", err, text)
	}
	return s.expand(v)
}

var reference = regexp.MustCompile(`\$[a-zA-Z0-9_]+`)

func (s *script) substitute(text string) string {
	return reference.ReplaceAllStringFunc(text, func(m string) string {
		v, ok := s.known[m[1:]]
		if !ok {
			return "urn:nothing-known-as:" + m[1:]
		}
		return v
	})
}

func (s *script) expand(v any) any {
	switch v := v.(type) {
	case string:
		if name, ok := strings.CutPrefix(v, "@"); ok {
			return s.template(name)
		}
		if rest, ok := strings.CutPrefix(v, "now"); ok && (rest == "" || rest[0] == '+' || rest[0] == '-') {
			d, err := time.ParseDuration(strings.TrimPrefix(rest+"0s", "+"))
			if err != nil {
				s.t.Fatal(err)
			}
			return lexical.FormatMicros(s.now.Add(d))
		}
		return s.substitute(v)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = s.expand(v[i])
		}
		return out
	case map[string]any:
		out := map[string]any{}
		if name, ok := v["@"].(string); ok {
			base, ok := s.template(name).(map[string]any)
			if !ok {
				s.t.Fatalf("%s is not an object", name)
			}
			maps.Copy(out, base)
		}
		for k, item := range v {
			if k == "@" {
				continue
			}
			if out[k] = s.expand(item); out[k] == "absent" {
				delete(out, k)
			}
		}
		return out
	}
	return v
}

// template is a fresh copy of a defined value.
func (s *script) template(name string) any {
	v, ok := s.defined[name]
	if !ok {
		s.t.Fatalf("%s is not defined", name)
	}
	var out any
	dec := json.NewDecoder(bytes.NewReader(s.marshal(v)))
	dec.UseNumber()
	if err := dec.Decode(&out); err != nil {
		s.t.Fatal(err)
	}
	return out
}

// lookup follows a dotted path in the payload of the last primary Event; the
// path eventId is the Event's own.
func (s *script) lookup(path string) (string, bool) {
	if s.last == nil {
		return "", false
	}
	if path == "eventId" {
		return s.last.Event.EventID, true
	}
	var v any
	if err := json.Unmarshal(s.last.Event.Payload, &v); err != nil {
		s.t.Fatal(err)
	}
	for step := range strings.SplitSeq(path, ".") {
		switch at := v.(type) {
		case map[string]any:
			v = at[step]
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i >= len(at) {
				return "", false
			}
			v = at[i]
		default:
			return "", false
		}
	}
	return fmt.Sprint(v), v != nil
}

func (s *script) refusal(e *protocol.Error) string {
	text := string(e.Code)
	if e.Reason != "" {
		text += ":" + e.Reason
	}
	text = fmt.Sprintf("refused %s at %s", text, e.Step)
	if e.ExpectedRevision != nil {
		text += fmt.Sprintf(" expected=%d current=%d", *e.ExpectedRevision, *e.CurrentRevision)
	}
	for _, k := range slices.Sorted(maps.Keys(e.Details)) {
		text += fmt.Sprintf(" %s=%v", k, e.Details[k])
	}
	return s.short(text) + "\n"
}

// draft prints one Event: where, what, whose aggregate, by whom, and the
// payload with documents abridged.
func (s *script) draft(d *Draft) string {
	ev := &d.Event
	mark := " "
	if d.Primary {
		mark = "*"
	}
	where := "organization"
	if d.GroupID != "" {
		where = fmt.Sprintf("%s %d", d.GroupID, ev.Sequence)
	}
	text := fmt.Sprintf("%s %s %s", mark, where, ev.Kind)
	if ev.AggregateRevision != nil {
		a := eventKinds[ev.Kind].aggregate(d.Folded())
		text += fmt.Sprintf(" [%s %s rev %d]", a.Type, a.ID, *ev.AggregateRevision)
	}
	text += " by " + ev.Actor.ID
	if ev.Cause.Type != "command" {
		text += fmt.Sprintf(" because of %s %s", ev.Cause.Type, ev.Cause.ID)
	}
	text += "\n"
	var payload map[string]any
	if err := json.Unmarshal(ev.Payload, &payload); err != nil {
		s.t.Fatal(err)
	}
	for _, k := range slices.Sorted(maps.Keys(payload)) {
		text += fmt.Sprintf("    %s: %s\n", k, abridge(payload[k]))
	}
	return s.short(text)
}

// abridge prints the parts of a document that tell its state.
func abridge(v any) string {
	switch v := v.(type) {
	case map[string]any:
		var parts []string
		for _, k := range []string{
			"type", "id", "agentId", "member", "role", "leaseType", "state", "status", "revision", "membershipEpoch",
			"coordinatorEpoch", "ownershipEpoch", "contractVersion", "scopes", "visibilityStartSequence",
			"expiresAt", "startBy", "closureReason", "renewalCount", "decision", "currency", "financialLimit",
			"modelTokenLimit", "financial", "modelTokens",
		} {
			if x, ok := v[k]; ok {
				parts = append(parts, k+"="+abridge(x))
			}
		}
		return "{" + strings.Join(parts, " ") + "}"
	case []any:
		var parts []string
		for _, item := range v {
			parts = append(parts, abridge(item))
		}
		return "[" + strings.Join(parts, " ") + "]"
	}
	return fmt.Sprint(v)
}

var (
	mintedID  = regexp.MustCompile(`urn:uuid:00000000-0000-7000-8000-0*([0-9a-f]+)`)
	timestamp = regexp.MustCompile(`[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z`)
	longHash  = regexp.MustCompile(`sha256:([0-9a-f]{6})[0-9a-f]{58}`)
)

// short makes minted ids, times and hashes readable and stable.
func (s *script) short(text string) string {
	text = mintedID.ReplaceAllStringFunc(text, func(m string) string {
		n, _ := strconv.ParseInt(mintedID.FindStringSubmatch(m)[1], 16, 64)
		return fmt.Sprintf("#%d", n)
	})
	text = longHash.ReplaceAllString(text, "sha256:$1…")
	return timestamp.ReplaceAllStringFunc(text, func(m string) string {
		at, err := lexical.ParseTimestamp(m)
		if err != nil {
			return m
		}
		d := at.Time().Sub(labStart)
		if d < 0 {
			return "t" + d.String()
		}
		return "t+" + d.String()
	})
}

func (s *script) show(f []string) string {
	g := s.group[f[1]]
	var out strings.Builder
	switch f[0] {
	case "mission":
		fmt.Fprintf(&out, "%s rev %d state %s coordinator %s epoch %d lease %s live %v\n", g.Mission.MissionID,
			g.Mission.Revision, g.Mission.State, g.Mission.Coordinator.AgentID, g.Mission.Coordinator.CoordinatorEpoch,
			g.CoordinatorLease.State, g.CoordinatorLive(s.now))
	case "members":
		for _, m := range g.SortedMemberships() {
			fmt.Fprintf(&out, "%s %s %s epoch %d from %d %v\n", m.Member.ID, m.Role, m.State, m.MembershipEpoch,
				m.VisibilityStartSequence, m.Scopes)
		}
	case "work":
		for _, w := range sortedValues(g.WorkItems) {
			owner := "nobody"
			if w.Owner != nil {
				owner = w.Owner.AgentID
			}
			fmt.Fprintf(&out, "%s rev %d %s owner %s epoch %d", w.WorkItemID, w.Revision, w.State, owner, w.OwnershipEpoch)
			if w.OwnerFenced {
				out.WriteString(" fenced")
			}
			for _, l := range w.openLeases() {
				fmt.Fprintf(&out, " %s until %s", l.LeaseType, l.ExpiresAt)
			}
			out.WriteString("\n")
		}
	case "accounts":
		for _, a := range g.Ledger.Accounts() {
			fmt.Fprintf(&out, "%s %s limit %v claim %v usage %v remaining %v\n", a.Type, a.ID, a.Limit, a.Claim(),
				a.Usage(), a.Remaining())
		}
	case "policy":
		for _, e := range g.PolicyLog {
			fmt.Fprintf(&out, "%s %s by %s %s\n", e.EntryID, e.Decision, e.Actor.ID, e.Details)
		}
	case "visible":
		// show visible GROUP PRINCIPAL: the sequences the Principal may see.
		for _, b := range s.logs[f[1]] {
			ev := decodeStored(s.t, b)
			if Visible(g, principal(f[2]), ev, s.now) {
				fmt.Fprintf(&out, "%d %s\n", ev.Sequence, ev.Kind)
			}
		}
	}
	return s.short(out.String())
}
