package strictjson

import (
	"reflect"
	"slices"
	"strconv"
	"unicode/utf8"
)

// Marshal writes v as canonical JSON: members in UTF-16 order, ECMAScript
// numbers, no white space. omitempty leaves out false, 0, "", nil and empty
// slices, maps and Raws; omitzero leaves out what IsZero says or the zero of
// the type. Without them a nil slice is [], a nil map {}, a nil pointer null.
//
// A pointer is cheaper to marshal than a struct value. The error is a
// *CanonicalError, a *SyntaxError for a Raw that is not JSON, a *TypeError, or
// what an AppendJSON returned.
func Marshal(v any) ([]byte, error) { return AppendMarshal(nil, v) }

// AppendMarshal is Marshal onto dst; on failure dst comes back as it was.
func AppendMarshal(dst []byte, v any) ([]byte, error) {
	rv := reflect.ValueOf(v)
	if !rv.IsValid() {
		return append(dst, "null"...), nil
	}
	p, err := planFor(rv.Type())
	if err != nil {
		return dst, err
	}
	n := len(dst)
	if dst, err = p.append(dst, rv, 0); err != nil {
		return dst[:n], err
	}
	return dst, nil
}

// ValueOf marshals x and gives the result as a Value.
func ValueOf(x any) (Value, error) {
	b, err := Marshal(x)
	if err != nil {
		return Value{}, err
	}
	return Raw(b).Value()
}

// addressable gives rv, or a copy of it, with an address: a method on the
// pointer can then be called, and on a value without boxing it.
func addressable(rv reflect.Value) reflect.Value {
	if rv.CanAddr() {
		return rv
	}
	c := reflect.New(rv.Type()).Elem()
	c.Set(rv)
	return c
}

// append writes rv; depth counts the containers around it, so that whatever is
// written can be read back and a cyclic value ends.
func (p *plan) append(dst []byte, rv reflect.Value, depth int) ([]byte, error) {
	if p.appender {
		return addressable(rv).Addr().Interface().(Appender).AppendJSON(dst)
	}
	switch p.kind {
	case planString:
		return AppendString(dst, rv.String())
	case planInt:
		n := rv.Int()
		if n > MaxSafeInteger || n < -MaxSafeInteger {
			return dst, &CanonicalError{Reason: ReasonUnsafe}
		}
		return strconv.AppendInt(dst, n, 10), nil
	case planUint:
		n := rv.Uint()
		if n > MaxSafeInteger {
			return dst, &CanonicalError{Reason: ReasonUnsafe}
		}
		return strconv.AppendUint(dst, n, 10), nil
	case planFloat:
		return AppendFloat(dst, rv.Float())
	case planBool:
		return strconv.AppendBool(dst, rv.Bool()), nil
	case planRaw:
		raw := rv.Bytes()
		if len(raw) == 0 {
			return dst, &CanonicalError{Reason: ReasonMissing}
		}
		return AppendCanonical(dst, raw)
	case planPointer:
		if rv.IsNil() {
			return append(dst, "null"...), nil
		}
		if depth > 2*MaxDepth {
			return dst, &CanonicalError{Reason: ReasonDepth}
		}
		return p.elem.append(dst, rv.Elem(), depth)
	case planAny:
		if rv.IsNil() {
			return append(dst, "null"...), nil
		}
		rv = rv.Elem()
		inner, err := planFor(rv.Type())
		if err != nil {
			return dst, err
		}
		return inner.append(dst, rv, depth)
	}
	if depth >= MaxDepth {
		return dst, &CanonicalError{Reason: ReasonDepth}
	}
	switch p.kind {
	case planSlice, planArray:
		var err error
		dst = append(dst, '[')
		for i := range rv.Len() {
			if i > 0 {
				dst = append(dst, ',')
			}
			if dst, err = p.elem.append(dst, rv.Index(i), depth+1); err != nil {
				return dst, err
			}
		}
		return append(dst, ']'), nil
	case planMap:
		return p.appendMap(dst, rv, depth)
	case planStruct:
		return p.appendStruct(dst, rv, depth)
	}
	return dst, &TypeError{p.typ.String(), "cannot be written"}
}

func (p *plan) appendStruct(dst []byte, rv reflect.Value, depth int) ([]byte, error) {
	var err error
	dst = append(dst, '{')
	first := true
	for i := range p.fields {
		f := &p.fields[i]
		fv := f.of(rv)
		if f.omit != 0 && f.omitted(fv) {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(dst, f.label...)
		if dst, err = f.plan.append(dst, fv, depth+1); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

func (p *plan) appendMap(dst []byte, rv reflect.Value, depth int) ([]byte, error) {
	names := make([]string, 0, rv.Len())
	for iter := rv.MapRange(); iter.Next(); {
		names = append(names, iter.Key().String())
	}
	slices.SortFunc(names, compareUTF16)
	var err error
	dst = append(dst, '{')
	for i, name := range names {
		if i > 0 {
			dst = append(dst, ',')
		}
		if !utf8.ValidString(name) {
			return dst, &CanonicalError{Reason: ReasonText}
		}
		dst = append(appendQuoted(dst, name), ':')
		elem := rv.MapIndex(reflect.ValueOf(name).Convert(p.typ.Key()))
		if dst, err = p.elem.append(dst, elem, depth+1); err != nil {
			return dst, err
		}
	}
	return append(dst, '}'), nil
}

func (f *field) omitted(fv reflect.Value) bool {
	if f.omit&omitZero != 0 {
		if f.plan.hasIsZero {
			return addressable(fv).Addr().Interface().(interface{ IsZero() bool }).IsZero()
		}
		if fv.IsZero() {
			return true
		}
	}
	if f.omit&omitEmpty == 0 {
		return false
	}
	switch f.plan.kind {
	case planBool, planInt, planUint, planFloat, planString, planPointer, planAny:
		return fv.IsZero()
	case planSlice, planArray, planMap, planRaw:
		return fv.Len() == 0
	}
	return false
}
