package matrix

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// play carries out the cases of one row in a Mission of its own.
type play struct {
	*stand
	ctx context.Context
	run *run
	row *row
	*scene

	// actionID is shared by all refusals up to the next acceptance, which proves
	// that none of them left a receipt.
	actionID string
	// exact is the revision that the next acceptance names, if V found one.
	exact *int64
	// first is the first accepted Command with its receipt.
	first struct {
		attempt        *attempt
		bytes, receipt []byte
	}
	// documented makes the valid Command for set D when the play's own embeds no
	// document.
	documented maker
	made       []*actor
}

// abort ends a play whose stage could not be set; the runner turns it into a
// failure of the row.
type abort struct{ err error }

func (p *play) must(err error) {
	if err != nil {
		panic(abort{err})
	}
}

// find is the catalogue's case of a name.
func (p *play) find(name string) string {
	for _, c := range p.row.cases() {
		if caseName(c) == name {
			return c
		}
	}
	panic("matrix: " + p.row.kind + " has no case " + name)
}

// asks reports whether the row asks for a case.
func (p *play) asks(name string) bool {
	return slices.ContainsFunc(p.row.cases(), func(c string) bool { return caseName(c) == name })
}

func (p *play) passed(c string) { p.run.pass(p.row.kind + ": " + c) }

func (p *play) failed(c, format string, args ...any) {
	p.run.fail(p.row.kind+": "+c, fmt.Sprintf(format, args...))
}

// refuse sends a Command that must be refused with the case's code and leave the
// Group as it was. The case counts as passed when all its attempts are refused.
func (p *play) refuse(name string, attempts ...*attempt) {
	c := p.find(name)
	ok := true
	for _, a := range attempts {
		if err := p.refusedOnce(c, a); err != nil {
			ok = false
			p.failed(c, "%v", err)
		}
	}
	if ok {
		p.passed(c)
	}
}

func (p *play) refusedOnce(c string, a *attempt) error {
	if _, err := p.refusal(c, a); err != nil {
		return err
	}
	return p.unchanged()
}

// refusal sends a Command and holds the answer against the code of a case.
func (p *play) refusal(c string, a *attempt) (strictjson.Value, error) {
	if _, ok := a.env["actionId"]; !ok {
		a.env["actionId"] = p.actionID
	}
	_, got := p.send(a)
	p.run.refused(a, c)
	code, reason := expectation(c)
	return checkRefusal(got, code, reason)
}

// refuseOver is refuse over the connection of an Agent.
func (p *play) refuseOver(name string, k *socket, a *attempt) {
	c := p.find(name)
	if _, ok := a.env["actionId"]; !ok {
		a.env["actionId"] = p.actionID
	}
	b, err := a.sign()
	p.must(err)
	got, err := p.overSocket(p.ctx, k, b)
	p.run.refused(a, c)
	if err == nil {
		code, reason := expectation(c)
		_, err = checkRefusal(got, code, reason)
	}
	p.settle(name, err)
}

// framed plays a refusal over WebSocket: a Command whose payload is at fault over
// the Agent's own connection, or any Command of a kind that is not for Agents.
func (p *play) framed(make maker) {
	a := make()
	switch {
	case !p.row.ofAgents():
		p.refuseOver("refused over WebSocket", p.reviewer.session, a)
	case a.who.agent() && a.who.session != nil:
		p.refuseOver("refused over WebSocket", a.who.session, a.with("unheardOf", 1))
	}
}

// checkRefusal holds an answer against a code and, if it is not empty, a reason.
func checkRefusal(got answer, code protocol.Code, reason string) (strictjson.Value, error) {
	v, err := got.value()
	if err != nil {
		return v, err
	}
	if got.status < 400 {
		return v, fmt.Errorf("accepted, want %s", string(code))
	}
	if fault := protocol.Validate(protocol.KindError, v); fault != nil {
		return v, fmt.Errorf("not an error object: %w", fault)
	}
	info, _ := protocol.InfoOf(code)
	if v.Member("code").Str() != string(code) || got.status != info.HTTP {
		return v, fmt.Errorf("%d %s, want %d %s", got.status, got.body, info.HTTP, string(code))
	}
	if r := v.Member("details").Member("reason").Str(); reason != "" && r != reason {
		return v, fmt.Errorf("%s with reason %q, want %q", string(code), r, reason)
	}
	return v, nil
}

// unchanged checks that no Event but a timer's came to any Group of the play.
func (p *play) unchanged() error {
	if p.scene == nil {
		return nil
	}
	for _, g := range p.groups {
		added, err := g.sync(p.ctx)
		if err != nil {
			return err
		}
		for _, e := range added {
			if e.Cause.Type != "timer" {
				return fmt.Errorf("the refused Command left %s in the Group", e.Kind)
			}
		}
	}
	return nil
}

// accept sends a Command that must be accepted: a positive case of the row. The
// first one also carries what the sets X and V ask of an accepted Command.
func (p *play) accept(name string, a *attempt) strictjson.Value {
	if !slices.Contains(p.row.positives, name) {
		panic("matrix: " + p.row.kind + " has no positive case " + name)
	}
	c := "positive " + name
	first := p.first.bytes == nil
	a.env["actionId"] = p.actionID
	if first {
		a.env["extensions"] = map[string]any{noteURI: map[string]any{"version": "1.0.0", "critical": false, "data": map[string]any{"n": 1}}}
		if p.exact != nil {
			a.env["expectedRevision"] = *p.exact
		}
	}
	send := p.send
	if !first {
		send = p.carry
	}
	b, got := send(a)
	if name := "exact"; first && p.exact != nil && got.status == http.StatusConflict && p.asks(name) {
		// A timer may have written in between; the error says where it stands now.
		if v, err := got.value(); err == nil && v.Member("code").Str() == string(protocol.CodeRevisionConflict) {
			if current, ok := v.Member("currentRevision").Int(); ok {
				a.env["expectedRevision"] = current
				b, got = send(a)
			}
		}
	}
	receipt, err := got.value()
	if err != nil || got.status != http.StatusCreated {
		p.failed(c, "%d %s", got.status, got.body)
		p.actionID = client.NewID()
		return receipt
	}
	p.passed(c)
	p.accepted(a, receipt)
	if first {
		p.first.attempt, p.first.bytes, p.first.receipt = a, b, got.body
		p.again(a, b, got, receipt)
	}
	p.actionID = client.NewID()
	return receipt
}

// send signs and posts once.
func (p *play) send(a *attempt) ([]byte, answer) {
	b, err := a.sign()
	p.must(err)
	got, err := p.post(p.ctx, b)
	p.must(err)
	return b, got
}

// carry sends what should be accepted: an Agent's Command over its connection,
// everything else over REST, so that both doors are used.
func (p *play) carry(a *attempt) ([]byte, answer) {
	if !a.who.agent() || a.who.session == nil {
		return p.send(a)
	}
	b, err := a.sign()
	p.must(err)
	got, err := p.overSocket(p.ctx, a.who.session, b)
	p.must(err)
	if got.status == http.StatusCreated {
		p.run.pass(a.env["kind"].(string) + ": OK accepted over WebSocket")
	}
	return b, got
}

// accepted notes a Command for the causes of its Events and reads them.
func (p *play) accepted(a *attempt, receipt strictjson.Value) {
	action := a.env["actionId"].(string)
	p.sent(action, a.env["kind"].(string))
	p.run.took(a)
	if p.scene == nil {
		return
	}
	told := map[string]bool{}
	for _, ref := range receipt.Member("events").Items() {
		told[ref.Member("eventId").Str()] = true
	}
	for _, g := range p.groups {
		added, err := g.sync(p.ctx)
		p.must(err)
		if g.id != a.env["groupId"] {
			continue
		}
		for _, e := range added {
			if e.Cause.ID == action && e.Actor == a.who.Principal() && !told[e.EventID] && p.readsAll(g, a.who) {
				p.failed("answer", "the answer to %s does not name %s", a.env["kind"], e.Kind)
			}
		}
	}
}

// readsAll reports that an actor reads every Event of a Group, as far as its own
// Membership goes.
func (p *play) readsAll(g *group, who *actor) bool {
	m, ok := g.state.Member(who.Principal())
	return !ok || m.State == "active" && m.VisibilityStartSequence <= 1
}

// do sends a Command that only sets the stage.
func (p *play) do(a *attempt) strictjson.Value {
	if _, ok := a.env["actionId"]; !ok {
		a.env["actionId"] = client.NewID()
	}
	_, got := p.carry(a)
	receipt, err := got.value()
	p.must(err)
	if got.status != http.StatusCreated {
		panic(abort{fmt.Errorf("%s to set the stage: %d %s", a.env["kind"], got.status, got.body)})
	}
	p.accepted(a, receipt)
	return receipt
}

// noteURI is an extension that nobody knows.
const noteURI = "urn:missionweave:matrix:note"

// again is what the sets X and V ask of a Command that was accepted.
func (p *play) again(a *attempt, b []byte, first answer, receipt strictjson.Value) {
	check := func(name string, err error) {
		if !p.asks(name) {
			return
		}
		if err != nil {
			p.failed(p.find(name), "%v", err)
			return
		}
		p.passed(p.find(name))
	}
	check("identical resend", p.sameReceipt(b, first.body))
	if p.exact != nil {
		check("exact", nil)
		p.exact = nil
	}
	other := *a
	other.env = clone(a.env)
	other.env["correlationId"] = client.NewID()
	check("other content", p.refusedOnce("AIC other content", &other))
	if p.kindRow().Organization {
		p.run.relays(a.env["actionId"].(string), p.row.kind+": "+p.find("unknown noncritical extension"))
		return
	}
	check("unknown noncritical extension", p.relayed(receipt))
}

// sameReceipt resends bytes: the answer is the receipt that is known, and nothing
// happens. An Agent's Command is resent over its connection too.
func (p *play) sameReceipt(b, receipt []byte) error {
	got, err := p.post(p.ctx, b)
	p.must(err)
	if got.status != http.StatusOK || !got.replayed || !bytes.Equal(got.body, receipt) {
		return fmt.Errorf("resent: %d %s", got.status, got.body)
	}
	return p.unchanged()
}

// relayed checks that the primary Event carries the Command's extensions.
func (p *play) relayed(receipt strictjson.Value) error {
	for _, ref := range receipt.Member("events").Items() {
		for _, g := range p.groups {
			if e, ok := g.events[ref.Member("eventId").Str()]; ok && bytes.Contains(e.Extensions, []byte(noteURI)) {
				return nil
			}
		}
	}
	return errors.New("no Event carries the extension")
}

// soon is when what is meant to end soon may end.
func (p *play) soon() time.Time { return time.Now().Add(time.Duration(p.brief) * time.Second) }

// wait sleeps until a time has passed, on the server's clock as far as it is this
// machine's.
func (p *play) wait(until time.Time) { p.waitExactly(until.Add(20 * time.Millisecond)) }

// waitExactly waits for an instant itself: what ends there has ended.
func (p *play) waitExactly(until time.Time) { p.must(pause(p.ctx, time.Until(until))) }

// await reads the log until something has come, such as the Event of a timer.
func (p *play) await(what string, come func() bool) {
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); {
		for _, g := range p.groups {
			_, err := g.sync(p.ctx)
			p.must(err)
		}
		if come() {
			return
		}
		p.must(pause(p.ctx, 50*time.Millisecond))
	}
	panic(abort{errors.New("waited in vain for " + what)})
}

func clone(m map[string]any) map[string]any {
	out := make(map[string]any, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}
