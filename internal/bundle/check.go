package bundle

import (
	"crypto/ed25519"
	"errors"

	"github.com/missionweave/server/internal/evidence"
	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/trust"
)

// checked is what a worker found out about a line, without its neighbours.
type checked struct {
	problems []string
	verified *trust.Verified
	// event and embedded are set for Events.
	event    *groups.Event
	embedded []*trust.Verified
	// record is set for evidence, admission for lines of that kind.
	record     *evidence.Value
	report     *evidence.Report
	admission  protocol.FirstAdmissionRecord
	receipt    []byte // of a Command, in the line
	decision   *decisionLine
	rests      []rest
	signatures int64
}

func (c *checked) fail(text string) { c.problems = append(c.problems, text) }

// worker is what one of the workers has of its own.
type worker struct {
	*verifier
	scratch []byte
}

// check does what needs only the line and the keys.
func (v *worker) check(l *line, c *checked) {
	switch l.kind {
	case kindCard:
		c.document(protocol.KindAgentCard, l.value, v.ev)
	case kindCommand:
		v.checkPair(c, protocol.KindCommand, l.value, true)
	case kindEvent:
		v.checkPair(c, protocol.KindEvent, l.value, false)
		v.checkEvent(c)
	case kindAdmission:
		if err := decode(l, &c.admission); err != nil {
			c.fail(err.Error())
		}
	case kindDecision:
		c.checkDecision(l.value)
	case kindEvidence:
		v.checkEvidence(c, l.value)
	}
}

func (c *checked) document(kind protocol.DocumentKind, raw []byte, ev *trust.Evidence) {
	c.signatures++
	verified, failure := trust.VerifyBytes(kind, raw, ev)
	if failure != nil {
		c.fail(failure.String())
		return
	}
	c.verified = verified
}

// checkPair verifies the document of a pair by all six stages, and the record
// against the document.
func (v *worker) checkPair(c *checked, kind protocol.DocumentKind, raw []byte, withReceipt bool) {
	record, document, receipt, ok := cutPair(raw, withReceipt)
	if !ok {
		c.fail("is not a document with what belongs to it")
		return
	}
	c.receipt = receipt
	c.document(kind, document, v.ev)
	if c.verified == nil {
		return
	}
	var err error
	if c.admission, v.scratch, err = recordOf(record, c.verified, v.scratch); err != nil {
		c.fail("admission: " + err.Error())
		return
	}
	if problem := v.anchored(c.admission, c.verified); problem != "" {
		c.fail(problem)
	}
}

func (v *verifier) anchored(rec protocol.FirstAdmissionRecord, verified *trust.Verified) string {
	if failure := trust.ValidateRecord(rec, verified, rec.AcceptedBy); failure != nil {
		return "admission: " + failure.String()
	}
	if !v.services[rec.AcceptedBy] {
		return "admission: accepted by " + rec.AcceptedBy.ID + ", which is no service of the Organization"
	}
	return ""
}

func (v *worker) checkEvent(c *checked) {
	if c.verified == nil {
		return
	}
	d := c.verified.Value
	if !v.hasRole(c.verified.Principal, "group-authority") {
		c.fail("signed by " + c.verified.Principal.ID + ", which is no Group Authority")
	}
	if group := d.Member("groupId").Str(); group != v.head.GroupID {
		c.fail("is an Event of Group " + group)
	}
	var err error
	if c.event, err = groups.DecodeEvent(d); err != nil {
		c.fail(err.Error())
		return
	}
	err = eachSigned(d.Member("payload"), func(doc strictjson.Value) error {
		kind, ok := kindOf(doc)
		if !ok {
			return errors.New("holds a signed object of unknown kind")
		}
		c.signatures++
		verified, failure := trust.Verify(kind, doc, v.ev)
		if failure != nil {
			c.fail(string(kind) + ": " + failure.String())
			return nil
		}
		c.embedded = append(c.embedded, verified)
		return nil
	})
	if err != nil {
		c.fail(err.Error())
	}
}

// documentKinds tells the kind of an embedded Signed Document by the id that
// only this kind has.
var documentKinds = []struct {
	member string
	kind   protocol.DocumentKind
}{
	{"approvalId", protocol.KindApproval},
	{"artifactId", protocol.KindArtifact},
	{"evidenceId", protocol.KindEvidence},
	{"contextPackageId", protocol.KindContextPackage},
	{"snapshotId", protocol.KindGroupSnapshot},
	{"cardVersion", protocol.KindAgentCard},
}

func kindOf(doc strictjson.Value) (protocol.DocumentKind, bool) {
	for _, k := range documentKinds {
		if _, ok := doc.Get(k.member); ok {
			return k.kind, true
		}
	}
	return "", false
}

// checkEvidence judges a record by tiers 1 to 3; chain and registries need the
// order of the lines.
func (v *worker) checkEvidence(c *checked, raw []byte) {
	c.signatures++
	c.record, c.report = evidence.Check(raw, evidence.Options{Signature: true, Keys: func(id string) (ed25519.PublicKey, bool) {
		key, ok := v.ev.Key(id)
		if !ok {
			return nil, false
		}
		return key.PublicKey(), true
	}})
	for _, f := range c.report.Errors {
		c.fail(f.String())
	}
}
