package matrix

import (
	"fmt"
	"maps"
	"time"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/trust"
)

// attempt is a Command in the making. Its envelope and payload are plain members,
// so that a case can make them wrong in any way, and are signed as they are.
type attempt struct {
	who     *actor
	env     map[string]any
	payload map[string]any
	// signer signs instead of who's key; the actor stays who.
	signer *client.Identity
	// bytes changes what has been signed.
	bytes func([]byte) []byte
}

// document is an embedded Signed Document in the making.
type document struct {
	kind   protocol.DocumentKind
	fields map[string]any
	by     client.Identity
	// bytes changes what has been signed.
	bytes func([]byte) []byte
}

func (d *document) sign() (client.Raw, error) {
	b, err := strictjson.Marshal(d.fields)
	if err != nil {
		return nil, err
	}
	signed, _, err := trust.SignDocument(d.kind, client.Raw(b), trust.Signer{KeyID: d.by.KeyID, Principal: d.by.Principal, Private: d.by.Key})
	if err != nil {
		return nil, fmt.Errorf("sign the %s: %w", d.kind, err)
	}
	if d.bytes != nil {
		signed = d.bytes(signed)
	}
	return signed, nil
}

// with sets payload members: name, value, name, value.
func (a *attempt) with(pairs ...any) *attempt {
	for i := 0; i < len(pairs); i += 2 {
		a.payload[pairs[i].(string)] = pairs[i+1]
	}
	return a
}

// without removes a payload member.
func (a *attempt) without(name string) *attempt {
	delete(a.payload, name)
	return a
}

// in sets an envelope member.
func (a *attempt) in(name string, value any) *attempt {
	a.env[name] = value
	return a
}

// leaving removes an envelope member.
func (a *attempt) leaving(name string) *attempt {
	delete(a.env, name)
	return a
}

// change lets a function edit a nested object of the payload, such as contract.
func (a *attempt) change(name string, edit func(map[string]any)) *attempt {
	edit(a.payload[name].(map[string]any))
	return a
}

// doc is the first embedded document of a payload member.
func (a *attempt) doc(name string) *document {
	switch v := a.payload[name].(type) {
	case *document:
		return v
	case []any:
		return v[0].(*document)
	}
	panic("matrix: " + name + " holds no document")
}

// sign returns the bytes to send, and the signing hash's Action ID they carry.
func (a *attempt) sign() ([]byte, error) {
	env := maps.Clone(a.env)
	if _, ok := env["issuedAt"]; !ok {
		env["issuedAt"] = client.Timestamp(time.Now())
	}
	payload := map[string]any{}
	for name, v := range a.payload {
		resolved, err := resolve(v)
		if err != nil {
			return nil, err
		}
		payload[name] = resolved
	}
	env["payload"] = payload
	b, err := strictjson.Marshal(env)
	if err != nil {
		return nil, fmt.Errorf("encode the Command: %w", err)
	}
	id := a.who.Identity()
	if a.signer != nil {
		id = *a.signer
	}
	signed, _, err := trust.SignDocument(protocol.KindCommand, client.Raw(b), trust.Signer{KeyID: id.KeyID, Principal: id.Principal, Private: id.Key})
	if err != nil {
		return nil, fmt.Errorf("sign the Command: %w", err)
	}
	if a.bytes != nil {
		signed = a.bytes(signed)
	}
	return signed, nil
}

func resolve(v any) (any, error) {
	switch v := v.(type) {
	case *document:
		return v.sign()
	case []any:
		out := make([]any, len(v))
		for i := range v {
			var err error
			if out[i], err = resolve(v[i]); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return v, nil
}
