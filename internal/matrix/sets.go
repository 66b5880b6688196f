package matrix

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// maker makes the valid Command of a play afresh.
type maker func() *attempt

// sets plays the common sets of the row that need nothing but a valid Command.
func (p *play) sets(make maker) {
	for i := range len(p.row.sets) {
		switch p.row.sets[i] {
		case 'X':
			p.setX(make)
		case 'G':
			p.setG(make)
		case 'S':
			p.setS(make)
		case 'C':
			p.setC(make)
		case 'V':
			p.setV(make)
		case 'D':
			p.setD(make)
		case 'K':
			p.setK(make)
		}
	}
}

// members parses what was signed, for faults that no signer would make.
func members(b []byte) map[string]json.RawMessage {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(b, &m); err != nil {
		panic(err)
	}
	return m
}

func encode(m any) []byte {
	b, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

func (p *play) setX(make maker) {
	changed := func(edit func([]byte) []byte) *attempt {
		a := make()
		a.bytes = edit
		return a
	}
	p.refuse("byte changed", changed(func(b []byte) []byte {
		m := members(b)
		m["correlationId"] = encode(client.NewID())
		return encode(m)
	}))
	foreign, key := make(), p.registrar.Identity()
	if foreign.who == p.registrar {
		key = p.owner.Identity()
	}
	foreign.signer = &client.Identity{Principal: foreign.who.Principal(), KeyID: key.KeyID, Key: key.Key}
	p.refuse("foreign key", foreign)
	p.refuse("createdAt differs", changed(func(b []byte) []byte {
		m := members(b)
		var s map[string]any
		_ = json.Unmarshal(m["signature"], &s)
		s["createdAt"] = "2026-01-01T00:00:00Z"
		m["signature"] = encode(s)
		return encode(m)
	}))
	p.refuse("duplicate member", changed(func(b []byte) []byte {
		return slices.Concat([]byte(`{"protocolVersion":"0.1",`), b[1:])
	}))
	p.refuse("1e400", changed(func(b []byte) []byte {
		return bytes.Replace(b, []byte(`"payload":{`), []byte(`"payload":{"beyond":1e400,`), 1)
	}))
	p.refuse("unknown payload member", make().with("unheardOf", 1))
	p.framed(make)

	shape := p.kindRow().Shape
	names, required := shape.MemberNames()
	var missing, null, wrong []*attempt
	for _, name := range []string{"protocolVersion", "actionId", "actor", "kind", "correlationId", "issuedAt", "payload", "signature"} {
		missing = append(missing, changed(func(b []byte) []byte {
			m := members(b)
			delete(m, name)
			return encode(m)
		}))
	}
	for i, name := range names {
		if required[i] {
			missing = append(missing, make().without(name))
		}
	}
	valid := make()
	for _, name := range slices.Sorted(maps.Keys(valid.payload)) {
		null = append(null, make().with(name, nil))
		wrong = append(wrong, make().with(name, otherType(valid.payload[name])))
	}
	if len(null) == 0 {
		null = append(null, changed(func(b []byte) []byte { m := members(b); m["payload"] = []byte("null"); return encode(m) }))
		wrong = append(wrong, changed(func(b []byte) []byte { m := members(b); m["payload"] = []byte(`"x"`); return encode(m) }))
	}
	p.refuse("required member missing", missing...)
	p.refuse("null member", null...)
	p.refuse("wrong type", wrong...)

	past, okPast := p.policy("freshnessPastSeconds")
	future, okFuture := p.policy("freshnessFutureSeconds")
	if okPast && okFuture {
		at := func(d time.Duration) *attempt {
			return p.dated(make(), time.Now().Add(d))
		}
		p.refuse("too old", at(-time.Duration(past+1)*time.Second))
		p.refuse("too early", at(time.Duration(future+1+p.brief)*time.Second))
	}
	p.refuse("unknown critical extension", make().in("extensions", map[string]any{
		"urn:missionweave:matrix:critical": map[string]any{"version": "1.0.0", "critical": true, "data": map[string]any{}},
	}))
}

// dated gives a Command another time of issue.
func (p *play) dated(a *attempt, t time.Time) *attempt {
	return a.in("issuedAt", client.Timestamp(t))
}

// otherType is a value of another JSON type.
func otherType(v any) any {
	switch v.(type) {
	case string:
		return 7
	case bool, int, int64, float64:
		return "x"
	}
	return "x"
}

func (p *play) kindRow() groups.Kind {
	k, ok := groups.KindOf(p.row.kind)
	if !ok {
		panic(abort{fmt.Errorf("%s is not a kind of this server", p.row.kind)})
	}
	return k
}

func (p *play) setV(make maker) {
	c := p.find("too high")
	v, err := p.refusal(c, make().in("expectedRevision", int64(1)<<40))
	if err == nil {
		err = p.unchanged()
	}
	current, known := v.Member("currentRevision").Int()
	expected, echoed := v.Member("expectedRevision").Int()
	if err == nil && (!known || !echoed || expected != 1<<40) {
		err = fmt.Errorf("the error does not name both revisions: %s", v.Raw())
	}
	if err != nil {
		p.failed(c, "%v", err)
		return
	}
	p.passed(c)
	p.exact = &current
	if current > 0 && p.asks("too low") {
		p.refuse("too low", make().in("expectedRevision", current-1))
	}
}

// outside returns the members of set G that fit the actor of a Command: never a
// member, ended, lapsed and provisional.
func (p *play) outside(who *actor) (outsider, former, lapsed, visitor *actor) {
	role := "worker"
	outsider, former, lapsed, visitor = p.outsider, p.former, p.lapsed, p.visitor
	if !who.agent() {
		role = "observer"
		outsider, former, lapsed, visitor = p.outsiderHuman, p.formerHuman, p.lapsedHuman, p.visitorHuman
	}
	if p.outsiders[role] {
		return outsider, former, lapsed, visitor
	}
	p.outsiders[role] = true
	change := func(a *actor) *attempt {
		return p.as(p.lead, "membership.change").with("member", a.Principal(), "role", role)
	}
	p.do(change(former))
	p.do(p.as(p.lead, "membership.end").with("member", former.Principal()))
	soon := p.soon()
	p.do(change(lapsed).with("state", "provisional", "provisionalExpiresAt", client.Timestamp(soon)))
	p.do(change(visitor).with("state", "provisional", "provisionalExpiresAt", client.Timestamp(time.Now().Add(time.Hour))))
	p.wait(soon)
	return outsider, former, lapsed, visitor
}

func (p *play) setG(make maker) {
	if valid := make; make().who.Principal().Type == client.Service {
		// The Membership of whoever sends it is looked at before its authority.
		make = func() *attempt { return p.by(p.worker, valid()) }
	}
	who := make().who
	outsider, former, lapsed, visitor := p.outside(who)
	absent, errAbsent := p.refusal(p.find("absent Group"), make().in("groupId", client.NewID()))
	p.settle("absent Group", errAbsent)
	never, err := p.refusal(p.find("never a member"), p.by(outsider, make()))
	if err == nil && errAbsent == nil && !bytes.Equal(anonymous(absent), anonymous(never)) {
		err = fmt.Errorf("tells %s from %s", never.Raw(), absent.Raw())
	}
	p.settle("never a member", err)
	p.refuse("ended", p.by(former, make()))
	p.refuse("lapsed provisional", p.by(lapsed, make()))
	old := make()
	epoch := old.env["membershipEpoch"].(int64)
	if epoch > 1 {
		p.refuse("old epoch", old.in("membershipEpoch", epoch-1))
	}
	p.refuse("higher epoch", make().in("membershipEpoch", epoch+1))
	if p.asks("provisional member") {
		p.refuse("provisional member", p.by(visitor, make()))
	}
}

// settle ends a case whose answer was looked at: nothing may have been left.
func (p *play) settle(name string, err error) {
	if err == nil {
		err = p.unchanged()
	}
	if err != nil {
		p.failed(p.find(name), "%v", err)
		return
	}
	p.passed(p.find(name))
}

// anonymous is an error without what belongs to one request.
func anonymous(v strictjson.Value) []byte {
	m := members(v.Raw())
	delete(m, "relatedActionId")
	delete(m, "occurredAt")
	return encode(m)
}

func (p *play) setS(make maker) {
	a := make()
	if !a.who.agent() {
		return
	}
	epoch := a.who.sessionEpoch()
	p.refuse("future session", a.in("sessionEpoch", epoch+1))
	revoked, err := p.revokedAgent(p.ctx)
	p.must(err)
	p.refuse("revoked card", p.by(revoked, make()))
	p.refuseOver("foreign WebSocket", p.reviewer.session, make())
	p.run.later(func() { p.expired(make) })
}

// expired waits for the end of the idle Agent's session and sends the Command as
// that Agent. It runs after all plays.
func (p *play) expired(make maker) {
	defer func() {
		if v := recover(); v != nil {
			p.failed("stage", "%v", v)
		}
	}()
	life, ok := p.policy("sessionLifeSeconds")
	if !ok || life > 60 {
		return // listed as missing: the stack's sessions live too long to wait for
	}
	p.idleOver(time.Duration(life) * time.Second)
	p.refuse("expired session", p.by(p.idle, make()))
}

func (p *play) setC(make maker) {
	a := make()
	epoch, ok := a.env["coordinatorEpoch"].(int64)
	if !ok || epoch < 2 {
		return
	}
	p.refuse("old coordinatorEpoch", a.in("coordinatorEpoch", epoch-1))
	p.refuse("old coordinatorEpoch and membershipEpoch", make().in("coordinatorEpoch", epoch-1).in("membershipEpoch", a.env["membershipEpoch"].(int64)-1))
	missing := func(name string, a *attempt) {
		if schemaEpochKinds[p.row.kind] {
			p.settle(name, p.refusedOnce("SVF "+name, a))
			return
		}
		p.refuse(name, a)
	}
	missing("coordinatorEpoch missing", make().leaving("coordinatorEpoch"))
	missing("Worker without the epoch", p.by(p.other, make()).leaving("coordinatorEpoch"))
	p.refuse("Worker with the current epoch", p.by(p.other, make()))
}

// documentMember is the payload member that holds the row's embedded document.
func (p *play) documentMember(a *attempt) string {
	for _, d := range p.kindRow().Documents {
		if a.payload[d.Member] != nil {
			return d.Member
		}
	}
	panic(abort{errors.New("the Command embeds no document")})
}

// signerMember names who signs a document of a kind.
var signerMember = map[protocol.DocumentKind]string{
	protocol.KindApproval: "approver", protocol.KindEvidence: "generatedBy", protocol.KindContextPackage: "generatedBy",
	protocol.KindGroupSnapshot: "createdBy",
}

func (p *play) setD(make maker) {
	if p.documented != nil {
		make = p.documented
	}
	member := p.documentMember(make())
	with := func(edit func(*document)) *attempt {
		a := make()
		edit(a.doc(member))
		return a
	}
	pivot := "missionId"
	switch make().doc(member).kind {
	case protocol.KindAgentCard:
		pivot = "displayName"
	case protocol.KindGroupSnapshot:
		pivot = "snapshotId"
	}
	p.refuse("document tampered", with(func(d *document) {
		d.bytes = func(b []byte) []byte {
			m := members(b)
			m[pivot] = encode(client.NewID())
			canonical, err := strictjson.Canonicalize(encode(m))
			p.must(err)
			return canonical
		}
	}))
	p.refuse("document under an unknown key", with(func(d *document) { d.by.KeyID = client.NewID() }))
	p.refuse("document shape", with(func(d *document) { delete(d.fields, pivot) }))
	p.refuse("document of another Principal", with(func(d *document) {
		by := p.outsider
		if d.kind == protocol.KindApproval {
			by = p.outsiderHuman
		}
		if d.kind == protocol.KindAgentCard || d.kind == protocol.KindGroupSnapshot {
			by = p.authorizer()
		}
		p.sign(d, by)
	}))
	p.refuse("document key revoked", with(p.underEndedKey))
	if !p.asks("document of another place") {
		return
	}
	var others []*attempt
	for _, place := range []string{"groupId", "missionId", "workItemId"} {
		if _, ok := make().doc(member).fields[place]; ok {
			others = append(others, with(func(d *document) { d.fields[place] = client.NewID() }))
		}
	}
	p.refuse("document of another place", others...)
}

// underEndedKey signs a document as of a time when its key was still valid; that
// it is admitted only now, after the revocation, is what counts.
func (p *play) underEndedKey(d *document) {
	kind := client.Agent
	switch d.kind {
	case protocol.KindApproval:
		kind = client.Human
	case protocol.KindAgentCard, protocol.KindGroupSnapshot:
		kind = client.Service
	}
	p.sign(d, p.keyless[kind])
	for _, member := range []string{"occurredAt", "createdAt", "generatedAt", "issuedAt"} {
		if _, ok := d.fields[member]; ok {
			d.fields[member] = client.Timestamp(time.Now().Add(-time.Minute))
		}
	}
}

// sign gives a document another signer, and names that one as who made it.
func (p *play) sign(d *document, by *actor) {
	d.by = by.Identity()
	if name, ok := signerMember[d.kind]; ok {
		d.fields[name] = by.Principal()
	}
	if d.kind == protocol.KindArtifact {
		producer := maps.Clone(d.fields["producer"].(map[string]any))
		producer["agentId"] = by.Principal().ID
		d.fields["producer"] = producer
	}
}

// reuse sends a new Command whose document has the id of the accepted one.
func (p *play) reuse(make maker) {
	if !p.asks("document id reused") || p.first.attempt == nil {
		return
	}
	if p.documented != nil {
		return // the play has its own case
	}
	member := p.documentMember(p.first.attempt)
	known := p.first.attempt.doc(member)
	a := make()
	d := a.doc(member)
	for _, id := range []string{"approvalId", "artifactId", "evidenceId", "contextPackageId"} {
		if v, ok := known.fields[id]; ok {
			d.fields[id] = v
		}
	}
	p.refuse("document id reused", a)
}

func (p *play) setK(make maker) {
	edit := func(f func(c map[string]any)) *attempt { return make().change("contract", f) }
	p.refuse("contract member missing", edit(func(c map[string]any) { delete(c, "goal") }))
	p.refuse("contract member unknown", edit(func(c map[string]any) { c["unheardOf"] = 1 }))
	p.refuse("contract with both faults", edit(func(c map[string]any) { delete(c, "goal"); c["unheardOf"] = 1 }))
	p.refuse("high_risk without human_required", edit(func(c map[string]any) { c["sideEffectRisk"] = "high_risk" }))
	budget := func(c map[string]any, name string, value any) {
		b := maps.Clone(c["budget"].(map[string]any))
		b[name] = value
		c["budget"] = b
	}
	p.refuse("money of seven decimals", edit(func(c map[string]any) { budget(c, "financialLimit", client.Raw("1.0000001")) }))
	p.refuse("contract budget over the parent", edit(func(c map[string]any) { budget(c, "modelTokenLimit", int64(1)<<40) }))
	p.refuse("contract deadline after the Mission's", edit(func(c map[string]any) { c["deadline"] = client.Timestamp(p.deadline.Add(time.Hour)) }))
	p.refuse("resource not permitted", edit(func(c map[string]any) {
		c["allowedResources"] = []any{map[string]any{"resource": "urn:missionweave:matrix:forbidden", "operations": []string{"read"}}}
	}))
	forged := edit(func(c map[string]any) { c["requiredCapabilities"] = []any{capabilityRef(forbidden)} })
	if basis, ok := forged.payload["selectionBasis"].(map[string]any); ok {
		basis["requiredCapabilities"], basis["verifiedMatches"] = []any{capabilityRef(forbidden)}, []any{capabilityRef(forbidden)}
	}
	p.refuse("capability outside the ceiling", forged)
}

// ruin plays the cases that leave the stage unusable, so they come last: a second
// session, a lapsed Coordinator lease, scopes removed. build makes the Command from
// the present epochs; where the state has moved on it need not be acceptable.
func (p *play) ruin(build maker) {
	p.reuse(build)
	p.secondSession(build)
	p.withoutAuthority(build)
}

// secondSession opens a new session of the actor.
func (p *play) secondSession(build maker) {
	who := build().who
	if !who.agent() || !p.asks("resend after session change") || p.first.bytes == nil {
		return
	}
	old := who.sessionEpoch()
	p.newSession(who)
	p.settle("resend after session change", p.sameReceipt(p.first.bytes, p.first.receipt))
	if p.asks("old session") {
		p.refuse("old session", build().in("sessionEpoch", old))
	}
}

// newSession is a takeover by another runtime of an Agent.
func (p *play) newSession(who *actor) {
	who.session.Close()
	session, err := p.openSocket(p.ctx, who.Identity())
	p.must(err)
	who.session = session
	_, err = p.sync(p.ctx)
	p.must(err)
}

// withoutAuthority takes the Coordinator lease and the scope away.
func (p *play) withoutAuthority(build maker) {
	who := build().who
	if p.asks("lapsed lease") {
		p.do(p.as(p.owner, "mission.assign_coordinator").with("coordinatorAgentId", p.lead.Principal().ID, "leaseSeconds", p.brief))
		p.wait(p.soon())
		p.refuse("lapsed lease", build())
		p.do(p.as(p.owner, "mission.assign_coordinator").with("coordinatorAgentId", p.lead.Principal().ID, "leaseSeconds", 900))
	}
	if p.asks("scope removed") && who.Principal().Type != client.Service {
		p.scopeRemoved(who, build)
	}
}

func (p *play) scopeRemoved(who *actor, make maker) {
	scope := ""
	m, _ := p.state.Member(who.Principal())
	for _, row := range p.kindRow().Capacities {
		if row.Scope != "" && slices.Contains(m.Scopes, row.Scope) {
			scope = row.Scope
		}
	}
	if scope == "" {
		return
	}
	left := slices.DeleteFunc(slices.Clone(m.Scopes), func(s string) bool { return s == scope })
	by := p.lead
	if who == p.lead {
		by = p.owner
	}
	change := func(scopes []string) *attempt {
		return p.as(by, "membership.change").with("member", who.Principal(), "role", m.Role, "scopes", scopes)
	}
	p.do(change(left))
	p.refuse("scope removed", make())
	p.do(change(m.Scopes))
}
