package trust

import (
	"fmt"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// A signed body is the JSON object of a REST write that is no Command (API.md,
// Registry): it carries the signature envelope of a Signed Document over its JCS
// bytes without signature, with requestedAt as protected time. It has no kind
// and gets no Admission Record; freshness and one-time use are the caller's.

// bodyTime is the protected time of a signed body.
const bodyTime = "requestedAt"

// SignBody adds requestedAt (UTC Z) and the signature to a JSON object and
// returns its canonical bytes.
func SignBody(body []byte, requestedAt string, s Signer) ([]byte, error) {
	if !s.usable() {
		return nil, ErrSignerKey
	}
	if !lexical.IsUTCZ(requestedAt) {
		return nil, ErrTime
	}
	doc, err := strictjson.Parse(body)
	if err != nil {
		return nil, err
	}
	if doc.Root().Kind() != strictjson.Object {
		return nil, fmt.Errorf("%w: a signed body is an object", ErrNotSignable)
	}
	members := make(map[string]protocol.Raw, doc.Root().Len()+1)
	for name, v := range doc.Root().Members() {
		if members[name], err = v.JCS(); err != nil {
			return nil, err
		}
	}
	delete(members, "signature")
	if members[bodyTime], err = strictjson.Marshal(requestedAt); err != nil {
		return nil, err
	}
	signing, err := strictjson.Marshal(members)
	if err != nil {
		return nil, err
	}
	return splice(nil, signing, s.sign(requestedAt, signing))
}

// VerifyBody verifies a signed body as written by signer: the structure of the
// envelope (stage 2; the rest of the body is the caller's shape), then stages 3
// to 6. The Verified has no Kind.
func VerifyBody(v strictjson.Value, signer protocol.Actor, ev *Evidence) (*Verified, *Failure) {
	schema := func(path, keyword string) (*Verified, *Failure) {
		return nil, &Failure{Stage: StageSchema, Reason: keyword, Path: path, Keyword: keyword}
	}
	if signer.ID == "" {
		return nil, &Failure{Stage: StageKey, Reason: ReasonWrongPrincipal}
	}
	at, ok := v.Get(bodyTime)
	if !ok {
		return schema("/"+bodyTime, "required")
	}
	if !lexical.ValidTimestamp(at.Str()) {
		return schema("/"+bodyTime, "format")
	}
	sig, ok := v.Get("signature")
	if !ok {
		return schema("/signature", "required")
	}
	if fault := protocol.ShapeSignature.Check(sig); fault != nil {
		return schema("/signature"+fault.Path, fault.Keyword)
	}
	return verifySigned("", v, ev, bodyTime, signer)
}
