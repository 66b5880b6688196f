package bundle

import (
	"bytes"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/trust"
)

// Members of the value of a Command and an Event.
const (
	pairAdmission = `{"admission":`
	pairDocument  = `,"document":`
	pairReceipt   = `,"receipt":`
)

// appendPair makes {"admission":A,"document":D}, with a receipt behind the document
// if there is one.
func appendPair(b, record, document, receipt []byte) []byte {
	b = append(append(b, pairAdmission...), record...)
	b = append(append(b, pairDocument...), document...)
	if receipt != nil {
		b = append(append(b, pairReceipt...), receipt...)
	}
	return append(b, '}')
}

// cutPair takes the value of a pair apart. Each part still has to be one JSON value:
// then a member's name that stands inside of a part has not misled the cut.
func cutPair(raw []byte, withReceipt bool) (record, document, receipt []byte, ok bool) {
	rest, ok := bytes.CutPrefix(raw, []byte(pairAdmission))
	if !ok {
		return nil, nil, nil, false
	}
	if rest, ok = bytes.CutSuffix(rest, []byte("}")); !ok {
		return nil, nil, nil, false
	}
	if record, document, ok = bytes.Cut(rest, []byte(pairDocument)); !ok || !withReceipt {
		return record, document, nil, ok
	}
	// The last one, found forwards: that is many times faster than backwards.
	end := -1
	for from := 0; ; {
		i := bytes.Index(document[from:], []byte(pairReceipt))
		if i < 0 {
			break
		}
		end = from + i
		from = end + len(pairReceipt)
	}
	if end < 0 {
		return nil, nil, nil, false
	}
	return record, document[:end], document[end+len(pairReceipt):], true
}

// recordOf reads a First-Admission Record. Almost all are what must stand there for
// the document, but for three members; they are compared and not parsed.
func recordOf(raw []byte, v *trust.Verified, scratch []byte) (rec protocol.FirstAdmissionRecord, kept []byte, err error) {
	rec = protocol.FirstAdmissionRecord{
		ProtocolVersion: protocol.Version, OrganizationID: v.OrganizationID, DocumentKind: string(v.Kind), SigningHash: v.SigningHash,
		KeyID: v.KeyID, Principal: v.Principal, AcceptedBy: protocol.Actor{Type: protocol.ActorService},
	}
	rest := raw
	ok := true
	text := func(before string) (s string) {
		if !ok {
			return ""
		}
		if rest, ok = bytes.CutPrefix(rest, []byte(before)); !ok {
			return ""
		}
		end := bytes.IndexByte(rest, '"')
		if ok = end >= 0 && bytes.IndexByte(rest[:end], '\\') < 0; !ok {
			return ""
		}
		s, rest = string(rest[:end]), rest[end:]
		return s
	}
	rec.AcceptedBy.ID = text(`{"acceptedBy":{"id":"`)
	rec.AdmissionRecordID = text(`","type":"service"},"admissionRecordId":"`)
	scratch = append(append(scratch[:0], `","documentKind":"`...), v.Kind...)
	for _, m := range [...]struct{ name, value string }{
		{`","keyId":`, v.KeyID},
		{`,"organizationId":`, v.OrganizationID},
		{`,"principal":{"id":`, v.Principal.ID},
		{`,"type":`, v.Principal.Type},
		{`},"protocolVersion":`, protocol.Version},
		{`,"signingHash":`, v.SigningHash},
	} {
		scratch = append(scratch, m.name...)
		if scratch, err = strictjson.AppendString(scratch, m.value); err != nil {
			ok = false
		}
	}
	scratch = append(scratch, `,"trustedAcceptedAt":"`...)
	if ok {
		rest, ok = bytes.CutPrefix(rest, scratch)
	}
	rec.TrustedAcceptedAt = text("")
	if ok && string(rest) == `"}` {
		return rec, scratch, nil
	}
	rec = protocol.FirstAdmissionRecord{}
	return rec, scratch, decodeExactly(raw, &rec)
}
