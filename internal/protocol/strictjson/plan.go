package strictjson

import (
	"reflect"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// Appender is a type that writes its own JSON. It must append one canonical
// value: Marshal does not look at it again.
type Appender interface {
	AppendJSON(dst []byte) ([]byte, error)
}

// Decoder is a type that reads its own JSON. The Value's strings may be kept.
type Decoder interface {
	DecodeJSON(v Value) error
}

var (
	appenderType = reflect.TypeFor[Appender]()
	decoderType  = reflect.TypeFor[Decoder]()
	rawType      = reflect.TypeFor[Raw]()
)

type planKind uint8

const (
	planBool planKind = iota
	planInt
	planUint
	planFloat
	planString
	planRaw
	planPointer
	planSlice
	planArray
	planMap
	planStruct
	planAny
	planCustom // both directions are the type's own
)

const (
	omitEmpty uint8 = 1 << iota
	omitZero
)

// plan says how one Go type is read and written. Plans are made once, shared
// and never changed afterwards.
type plan struct {
	typ       reflect.Type
	kind      planKind
	appender  bool // *T writes itself
	decoder   bool // *T reads itself
	hasIsZero bool // *T has IsZero() bool
	elem      *plan
	fields    []field // in UTF-16 order of name
}

type field struct {
	name  string
	label string // the name quoted, with its colon
	index []int
	plan  *plan
	omit  uint8
}

var plans sync.Map // reflect.Type -> *plan or error

func planFor(t reflect.Type) (*plan, error) {
	got, ok := plans.Load(t)
	if !ok {
		b := planner{made: map[reflect.Type]*plan{}}
		if p, err := b.plan(t); err != nil {
			got = err
		} else {
			got = p
		}
		plans.Store(t, got)
	}
	if err, failed := got.(error); failed {
		return nil, err
	}
	return got.(*plan), nil
}

type planner struct{ made map[reflect.Type]*plan }

func (b *planner) plan(t reflect.Type) (*plan, error) {
	if p := b.made[t]; p != nil {
		return p, nil
	}
	p := &plan{typ: t}
	b.made[t] = p // a recursive type meets its own plan
	if t.Kind() != reflect.Pointer && t.Kind() != reflect.Interface {
		ptr := reflect.PointerTo(t)
		p.appender, p.decoder = ptr.Implements(appenderType), ptr.Implements(decoderType)
		p.hasIsZero = ptr.Implements(reflect.TypeFor[interface{ IsZero() bool }]())
	}
	if t == rawType {
		p.kind = planRaw
		return p, nil
	}
	custom := p.appender && p.decoder
	var err error
	switch t.Kind() {
	case reflect.Bool:
		p.kind = planBool
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		p.kind = planInt
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		p.kind = planUint
	case reflect.Float32, reflect.Float64:
		p.kind = planFloat
	case reflect.String:
		p.kind = planString
	case reflect.Pointer:
		p.kind = planPointer
		p.elem, err = b.plan(t.Elem())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 && !custom {
			return nil, &TypeError{t.String(), "bytes have no single JSON form"}
		}
		p.kind = planSlice
		if !custom {
			p.elem, err = b.plan(t.Elem())
		}
	case reflect.Array:
		p.kind = planArray
		p.elem, err = b.plan(t.Elem())
	case reflect.Map:
		if t.Key().Kind() != reflect.String {
			return nil, &TypeError{t.String(), "member names must be strings"}
		}
		p.kind = planMap
		p.elem, err = b.plan(t.Elem())
	case reflect.Struct:
		p.kind = planStruct
		if !custom {
			err = b.fields(p, t, nil)
		}
	case reflect.Interface:
		if t.NumMethod() > 0 {
			return nil, &TypeError{t.String(), "interface with methods"}
		}
		p.kind = planAny
	default:
		if !custom {
			return nil, &TypeError{t.String(), "no JSON form"}
		}
		p.kind = planCustom
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// fields collects the exported fields of t, those of embedded structs as if
// they were t's own. Two fields of one name are refused: shadowing rules are a
// way to sign something else than one reads.
func (b *planner) fields(p *plan, t reflect.Type, at []int) error {
	for i := range t.NumField() {
		f := t.Field(i)
		tag, tagged := f.Tag.Lookup("json")
		if tag == "-" {
			continue
		}
		index := append(slices.Clone(at), i)
		name, options, _ := strings.Cut(tag, ",")
		if f.Anonymous && name == "" {
			if f.Type.Kind() != reflect.Struct {
				return &TypeError{t.String(), "embedded field is not a struct"}
			}
			if err := b.fields(p, f.Type, index); err != nil {
				return err
			}
			continue
		}
		if !f.IsExported() {
			continue
		}
		if name == "" {
			if tagged && options == "" {
				return &TypeError{t.String(), "empty json tag"}
			}
			name = f.Name
		}
		if !utf8.ValidString(name) {
			return &TypeError{t.String(), "member name is not valid UTF-8"}
		}
		var omit uint8
		for options != "" {
			var option string
			option, options, _ = strings.Cut(options, ",")
			switch option {
			case "omitempty":
				omit |= omitEmpty
			case "omitzero":
				omit |= omitZero
			default:
				return &TypeError{t.String(), "unknown json tag option"}
			}
		}
		fp, err := b.plan(f.Type)
		if err != nil {
			return err
		}
		at, found := slices.BinarySearchFunc(p.fields, name, func(f field, name string) int {
			return compareUTF16(f.name, name)
		})
		if found {
			return &TypeError{t.String(), "two fields of one name"}
		}
		label := string(append(appendQuoted(nil, name), ':'))
		p.fields = slices.Insert(p.fields, at, field{name: name, label: label, index: index, plan: fp, omit: omit})
	}
	return nil
}

func (f *field) of(rv reflect.Value) reflect.Value {
	if len(f.index) == 1 {
		return rv.Field(f.index[0])
	}
	return rv.FieldByIndex(f.index)
}
