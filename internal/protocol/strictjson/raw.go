package strictjson

// Raw is JSON that is carried, not interpreted. Decode fills it with canonical
// bytes; Marshal writes its canonical form, whatever spelling it holds, and
// refuses an empty Raw that is not omitted.
type Raw []byte

// Value parses the text strictly. The Value refers to r, which must not change.
func (r Raw) Value() (Value, error) {
	d, err := Parse(r)
	if err != nil {
		return Value{}, err
	}
	return d.Root(), nil
}

// Decode parses the text and decodes it into dst.
func (r Raw) Decode(dst any) error {
	v, err := r.Value()
	if err != nil {
		return err
	}
	return Decode(v, dst)
}
