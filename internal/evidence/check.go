package evidence

import (
	"crypto/ed25519"
)

// KeyLookup finds the public key of a key id; false if it is unknown.
type KeyLookup func(keyID string) (ed25519.PublicKey, bool)

// Options say what [Check] shall check beyond the record itself.
type Options struct {
	// Signature asks for tier 3. Keys may be nil: then every key is unknown.
	Signature bool
	Keys      KeyLookup
	// Archive lets records of v0.1 and v0.2 with lone surrogates or overflowing
	// numbers verify over the bytes their emitters signed, with a warning.
	// Members named __proto__ stay refused: they are never covered.
	Archive bool
	// Previous is the record that prev_record_hash shall name, if it is at hand.
	Previous *Value
	// Registry asks for tier 4.
	Registry *Registry
}

// Check judges the bytes of one record: tiers 1 and 2 always, 3 and 4 as the
// options ask. Tiers 2 and 4 do not run on a record whose shape is wrong. The
// value is nil exactly when the bytes are no JSON object.
func Check(raw []byte, opt Options) (*Value, *Report) {
	v, err := ParseValue(raw)
	if err != nil || v.Kind() != Object {
		msg := "the document is " + v.Kind().String()
		if err != nil {
			msg = err.Error()
		}
		return nil, &Report{Errors: []Finding{{"S-01", errNotObject, "", msg}}, Warnings: []Finding{}, Signature: SignatureNotChecked, Tiers: []int{}}
	}
	return v, CheckValue(v, opt)
}

// CheckValue is [Check] for a JSON object that was parsed already.
func CheckValue(v *Value, opt Options) *Report {
	c := &checker{root: v}
	rep := &Report{Signature: SignatureNotChecked, Tiers: []int{}}
	known := c.tier1()
	shaped := len(c.errors) == 0
	if shaped {
		rep.Tiers = append(rep.Tiers, 1, 2)
		if c.v3 {
			c.tier2()
		} else {
			c.oldVersion()
		}
	}
	if opt.Signature && known {
		rep.Signature = c.tier3(opt)
		rep.Tiers = append(rep.Tiers, 3)
	}
	if opt.Registry != nil && shaped {
		c.tier4(opt.Registry)
		rep.Tiers = append(rep.Tiers, 4)
	}
	rep.Errors, rep.Warnings = order(c.errors), order(c.warnings)
	return rep
}
