package strictjson

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// Decode stores v in the variable that dst points to.
//
// Members are matched by their json tag, exactly; members the type does not
// know are passed over, because document shapes refuse them before anything is
// decoded. Fields without a member keep their value. A null fits a pointer, a
// Raw, an any, and nothing else. Numbers must fit their type exactly. A string
// with an unpaired surrogate is refused. A Raw gets canonical bytes of its own;
// strings share the Document's text and keep it alive.
//
// The error is a *DecodeError or a *TypeError.
func Decode(v Value, dst any) error {
	rv := reflect.ValueOf(dst)
	if rv.Kind() != reflect.Pointer || rv.IsNil() {
		return &TypeError{fmt.Sprintf("%T", dst), "decoding needs a pointer"}
	}
	p, err := planFor(rv.Type().Elem())
	if err != nil {
		return err
	}
	if !v.Exists() {
		return &DecodeError{Reason: ReasonMissing}
	}
	return p.decode(v, rv.Elem())
}

func mismatch(want string) error { return &DecodeError{Reason: "not " + want} }

// custom makes a DecodeError of what a DecodeJSON returned, so that the fault
// gets a path.
func custom(err error) error {
	var e *DecodeError
	if err == nil || errors.As(err, &e) {
		return err
	}
	return &DecodeError{Reason: "refused by its type", Cause: err}
}

// under puts one step in front of an error's path. The step is a name of the
// Go type, an index, or *, never input.
func under(err error, step string) error {
	var e *DecodeError
	if !errors.As(err, &e) {
		return err
	}
	step = strings.ReplaceAll(strings.ReplaceAll(step, "~", "~0"), "/", "~1")
	return &DecodeError{Path: "/" + step + e.Path, Reason: e.Reason, Cause: e.Cause}
}

func (p *plan) decode(v Value, rv reflect.Value) error {
	if p.decoder {
		return custom(rv.Addr().Interface().(Decoder).DecodeJSON(v))
	}
	switch p.kind {
	case planString:
		if v.Kind() != String {
			return mismatch("a string")
		}
		if !v.Unicode() {
			return &DecodeError{Reason: ReasonSurrogate}
		}
		rv.SetString(v.Str())
	case planInt:
		n, ok := v.Int()
		if !ok || rv.OverflowInt(n) {
			return mismatch("an integer in range")
		}
		rv.SetInt(n)
	case planUint:
		n, ok := v.Int()
		if !ok || n < 0 || rv.OverflowUint(uint64(n)) {
			return mismatch("an integer in range")
		}
		rv.SetUint(uint64(n))
	case planFloat:
		f := v.Float()
		if v.Kind() != Number || !finite(f) || rv.OverflowFloat(f) {
			return mismatch("a finite number")
		}
		rv.SetFloat(f)
	case planBool:
		if v.Kind() != Bool {
			return mismatch("a boolean")
		}
		rv.SetBool(v.Bool())
	case planRaw:
		raw, reason := v.d.appendJCS(make([]byte, 0, len(v.Text())), v.i, "", false)
		if reason != "" {
			return &DecodeError{Reason: reason}
		}
		rv.SetBytes(raw)
	case planPointer:
		if v.Kind() == Null {
			rv.SetZero()
			return nil
		}
		if rv.IsNil() {
			rv.Set(reflect.New(p.elem.typ))
		}
		return p.elem.decode(v, rv.Elem())
	case planSlice:
		if v.Kind() != Array {
			return mismatch("an array")
		}
		n := v.Len()
		s := reflect.MakeSlice(p.typ, n, n)
		for i, item := range v.Items() {
			if err := p.elem.decode(item, s.Index(i)); err != nil {
				return under(err, strconv.Itoa(i))
			}
		}
		rv.Set(s)
	case planArray:
		if v.Kind() != Array || v.Len() != rv.Len() {
			return mismatch("an array of the right length")
		}
		for i, item := range v.Items() {
			if err := p.elem.decode(item, rv.Index(i)); err != nil {
				return under(err, strconv.Itoa(i))
			}
		}
	case planMap:
		return p.decodeMap(v, rv)
	case planStruct:
		return p.decodeStruct(v, rv)
	case planAny:
		x, err := v.any()
		if err != nil {
			return err
		}
		if x == nil {
			rv.SetZero()
			return nil
		}
		rv.Set(reflect.ValueOf(x))
	default:
		return &TypeError{p.typ.String(), "cannot be read"}
	}
	return nil
}

func (p *plan) decodeMap(v Value, rv reflect.Value) error {
	if v.Kind() != Object {
		return mismatch("an object")
	}
	m := reflect.MakeMapWithSize(p.typ, v.Len())
	n := v.node()
	for _, k := range v.d.order[n.c : n.c+n.b] {
		if v.d.nodes[k].flags&flagLone != 0 {
			return &DecodeError{Path: "/*", Reason: ReasonSurrogate}
		}
		elem := reflect.New(p.elem.typ).Elem()
		if err := p.elem.decode(Value{v.d, k + 1}, elem); err != nil {
			return under(err, "*")
		}
		m.SetMapIndex(reflect.ValueOf(v.d.name(k)).Convert(p.typ.Key()), elem)
	}
	rv.Set(m)
	return nil
}

// decodeStruct merges two sorted lists: the object's names and the fields.
func (p *plan) decodeStruct(v Value, rv reflect.Value) error {
	if v.Kind() != Object {
		return mismatch("an object")
	}
	n, next := v.node(), 0
	for _, k := range v.d.order[n.c : n.c+n.b] {
		name := v.d.name(k)
		for next < len(p.fields) && p.fields[next].name != name && compareUTF16(p.fields[next].name, name) < 0 {
			next++
		}
		if next == len(p.fields) {
			return nil
		}
		if f := &p.fields[next]; f.name == name {
			if err := f.plan.decode(Value{v.d, k + 1}, f.of(rv)); err != nil {
				return under(err, f.name)
			}
			next++
		}
	}
	return nil
}

// any is the value as map[string]any, []any, string, float64, bool or nil.
func (v Value) any() (any, error) {
	switch v.Kind() {
	case Bool:
		return v.Bool(), nil
	case Number:
		f := v.Float()
		if !finite(f) {
			return nil, mismatch("a finite number")
		}
		return f, nil
	case String:
		if !v.Unicode() {
			return nil, &DecodeError{Reason: ReasonSurrogate}
		}
		return v.Str(), nil
	case Array:
		s := make([]any, v.Len())
		for i, item := range v.Items() {
			x, err := item.any()
			if err != nil {
				return nil, under(err, strconv.Itoa(i))
			}
			s[i] = x
		}
		return s, nil
	case Object:
		m := make(map[string]any, v.Len())
		n := v.node()
		for _, k := range v.d.order[n.c : n.c+n.b] {
			if v.d.nodes[k].flags&flagLone != 0 {
				return nil, &DecodeError{Path: "/*", Reason: ReasonSurrogate}
			}
			x, err := Value{v.d, k + 1}.any()
			if err != nil {
				return nil, under(err, "*")
			}
			m[v.d.name(k)] = x
		}
		return m, nil
	}
	return nil, nil
}
