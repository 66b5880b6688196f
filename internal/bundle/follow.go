package bundle

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/missionweave/server/internal/aeplog"
	"github.com/missionweave/server/internal/evidence"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/trust"
)

// follow takes a checked line in its order: what its neighbours and the folded
// state have to say about it.
func (v *verifier) follow(l *line, c *checked) {
	if !v.accept(l) {
		return
	}
	v.report.Signatures += c.signatures
	for _, p := range c.problems {
		v.problem(l, "", "%s", p)
	}
	if l.kind != kindAdmission {
		v.leftover(l)
		if l.kind != kindEvent {
			v.settle()
		}
	}
	switch l.kind {
	case kindCard:
		if c.verified != nil && !v.hasRole(c.verified.Principal, "registry") {
			v.problem(l, "", "signed by %s, which may not issue cards", c.verified.Principal.ID)
		}
	case kindCommand:
		v.report.Commands++
		v.report.Admissions++
		v.acts(l, c)
	case kindEvent:
		v.report.Events++
		v.report.Admissions++
		v.event(l, c)
	case kindAdmission:
		v.report.Admissions++
		v.admission(l, c)
	case kindPolicy:
		v.report.PolicyEntries++
		v.policy(l)
	case kindState:
		v.wholeState(l)
	case kindDecision:
		v.report.Decisions++
		v.decision(l, c)
	case kindRun:
		v.endRun(l)
		v.startRun(l)
	case kindEvidence:
		v.report.Records++
		v.evidenceRecord(l, c)
	case kindSeal:
		v.seal(l)
	}
}

// leftover reports documents of the last Event that got no record.
func (v *verifier) leftover(l *line) {
	for hash, doc := range v.pending {
		v.problem(l, string(doc.Kind)+" "+hash, "the document has no Admission Record")
	}
	clear(v.pending)
}

// event folds an Event and holds it against the Command before it.
func (v *verifier) event(l *line, c *checked) {
	if c.verified == nil || c.event == nil {
		v.stopFolding(l, "cannot be folded, nor what follows it")
		return
	}
	d := c.verified.Value
	v.report.Documents += int64(len(c.embedded))
	clear(v.anchoredHere)
	for _, doc := range c.embedded {
		v.pending[doc.SigningHash] = doc
	}
	v.cause(l, c.event)
	if !v.stopped {
		if want := v.state.Head + 1; c.event.Sequence != want {
			v.stopFolding(l, fmt.Sprintf("is #%d where #%d must be; nothing behind it can be folded", c.event.Sequence, want))
		} else if err := v.state.Apply(c.event); err != nil {
			v.stopFolding(l, fmt.Sprintf("cannot be folded, nor what follows it: %v", err))
		}
	}
	if !strings.HasPrefix(c.event.Kind, "message.") && (bytes.Contains(l.value, []byte(`"leaseId"`)) || bytes.Contains(l.value, []byte(`"approvalId"`))) {
		if at, err := lexical.ParseTimestamp(d.Member("occurredAt").Str()); err == nil {
			aeplog.Facts(d, at.Time().UnixMilli(), v.known)
			v.noteLeases(c.event)
		}
	}
}

func (v *verifier) stopFolding(l *line, why string) {
	if !v.stopped {
		v.problem(l, "", "%s", why)
	}
	v.stopped = true
}

func (v *verifier) admission(l *line, c *checked) {
	if len(c.problems) > 0 {
		return
	}
	doc, ok := v.pending[c.admission.SigningHash]
	if !ok {
		if v.anchoredHere[c.admission.SigningHash] {
			return // the document stands twice in one Event, and so does its record
		}
		v.problem(l, c.admission.SigningHash, "is the record of no document in the Event before it")
		return
	}
	delete(v.pending, c.admission.SigningHash)
	v.anchoredHere[c.admission.SigningHash] = true
	if problem := v.anchored(c.admission, doc); problem != "" {
		v.problem(l, string(doc.Kind)+" "+doc.SigningHash, "%s", problem)
	}
}

// policy compares an entry with the folded Policy Log.
func (v *verifier) policy(l *line) {
	i := v.policies
	v.policies++
	if v.stopped {
		return
	}
	if i >= len(v.state.PolicyLog) {
		v.problem(l, "", "the Events make no such entry")
		return
	}
	want, err := strictjson.Marshal(v.state.PolicyLog[i])
	if err != nil || !bytes.Equal(want, l.value) {
		v.problem(l, v.state.PolicyLog[i].EntryID, "differs from what the Events make")
	}
}

// wholeState compares the state with the fold: Mission, Memberships, WorkItems,
// leases, approvals, Artifacts, ledger, everything.
func (v *verifier) wholeState(l *line) {
	if v.stateSeen {
		v.problem(l, "", "is a second state")
	}
	v.stateSeen = true
	if v.stopped {
		return
	}
	if v.policies != len(v.state.PolicyLog) {
		v.problem(l, "", "%d Policy Log entries stand before it, the Events make %d", v.policies, len(v.state.PolicyLog))
	}
	dump, err := v.state.Canonical()
	if err != nil {
		v.problem(l, "", "the folded state cannot be written: %v", err)
		return
	}
	if !bytes.Equal(dump, l.value) {
		v.problem(l, "", "differs from what the Events make, from byte %d on", firstDifference(dump, l.value))
	}
}

func firstDifference(a, b []byte) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

func (v *verifier) startRun(l *line) {
	v.report.Runs++
	v.run, v.inRun, v.before = &runLine{}, 0, nil
	if err := decode(l, v.run); err != nil {
		v.problem(l, "", "%v", err)
		v.run = nil
	}
}

// endRun checks that a run ended where it was said to.
func (v *verifier) endRun(l *line) {
	if v.run == nil {
		return
	}
	head := ""
	if v.before != nil {
		head = evidence.RecordHash(v.before)
	}
	if v.inRun != v.run.Length || head != v.run.Head {
		v.problem(l, "run "+v.run.RunID, "has %d records that end with %s, not %d that end with %s", v.inRun, head, v.run.Length, v.run.Head)
	}
	v.run = nil
}

func (v *verifier) evidenceRecord(l *line, c *checked) {
	if c.record == nil {
		return
	}
	switch {
	case v.run == nil:
		v.problem(l, "", "belongs to no run")
	case c.record.Get("run_id").Str() != v.run.RunID:
		v.problem(l, "", "belongs to run %s", c.record.Get("run_id").Str())
	}
	v.inRun++
	link := c.record.Get("prev_record_hash")
	switch {
	case v.before == nil && link.Kind() == evidence.String:
		v.problem(l, "", "C-09 E_CHAIN_BROKEN: names a record before it, and is the first of its run")
	case v.before != nil && link.Str() != evidence.RecordHash(v.before):
		v.problem(l, "", "C-09 E_CHAIN_BROKEN: does not name the record before it")
	}
	v.before = c.record
	v.census.Add(c.record)
	if len(c.problems) > 0 {
		return
	}
	for _, f := range evidence.CheckValue(c.record, evidence.Options{Registry: v.known}).Errors {
		if !v.stopped || f.Rule == "P-01" { // without the whole log most things are unknown
			v.problem(l, "", "%s", f)
		}
	}
	for _, a := range c.record.Get("actions").Items() {
		v.actions[a.Get("action_id").Str()] = true
		if p := a.Get("parent_action_id").Str(); p != "" && !v.actions[p] {
			v.parents = append(v.parents, parent{l.at, p})
		}
	}
}

// seal verifies the signature over everything before it.
func (v *verifier) seal(l *line) {
	v.endRun(l)
	v.sealed = true
	v.report.Signatures++
	doc, err := strictjson.Parse(l.value)
	if err != nil {
		v.problem(l, "", "%v", err)
		return
	}
	var s seal
	if err := strictjson.Decode(doc.Root(), &s); err != nil {
		v.problem(l, "", "%v", err)
		return
	}
	by := protocol.Actor{Type: protocol.ActorService, ID: s.By}
	verified, failure := trust.VerifyBody(doc.Root(), by, v.ev)
	if failure != nil {
		v.problem(l, "", "%s", failure)
		return
	}
	if !v.hasRole(by, "group-authority") {
		v.problem(l, "", "signed by %s, which is no Group Authority", s.By)
	}
	for _, x := range []struct {
		what       string
		have, want any
	}{
		{"format", s.Format, Format},
		{"Group", s.GroupID, v.head.GroupID},
		{"head", s.Head, v.head.Head},
		{"number of lines", s.Lines, v.report.Lines - 1},
		{"hash", s.Hash, "sha256:" + l.before.String()},
	} {
		if x.have != x.want {
			v.problem(l, "", "the seal is over %s %v, the bundle has %v", x.what, x.have, x.want)
		}
	}
	key := verified.Binding()
	if _, ok := v.opt.Pin[key.KeyID]; len(v.opt.Pin) > 0 && !ok {
		v.problem(l, key.KeyID, "the seal is by a key that is not pinned")
	}
	v.report.SealedBy, v.report.SealedAt = s.By, doc.Root().Member("requestedAt").Str()
	v.report.SealKey, v.report.SealPublicKey = key.KeyID, key.PublicKey
}
