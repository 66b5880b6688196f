package naive

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// matcher compares what the model expects with what the core wrote, and learns
// the ids that the core minted.
type matcher struct {
	ids     map[string]string // placeholder to id
	holders map[string]string // id to placeholder
}

func (m *matcher) clone() matcher { return matcher{maps.Clone(m.ids), maps.Clone(m.holders)} }

// match returns "" or the first difference.
func (m *matcher) match(path string, want, got any) string {
	differs := func() string { return fmt.Sprintf("%s: want %v, got %v", path, show(want), show(got)) }
	switch w := want.(type) {
	case anything:
		return ""
	case maybe:
		return m.match(path, w.want, got)
	case either:
		for _, one := range w {
			try := m.clone()
			if try.match(path, one, got) == "" {
				*m = try
				return ""
			}
		}
		return differs()
	case moment:
		s, ok := got.(string)
		if !ok {
			return differs()
		}
		t, err := time.Parse(time.RFC3339Nano, s)
		if err != nil || !t.Equal(time.Time(w)) {
			return fmt.Sprintf("%s: want %s, got %v", path, time.Time(w).UTC().Format(time.RFC3339Nano), got)
		}
		return ""
	case part:
		return m.members(path, obj(w), got, true)
	case obj:
		return m.members(path, w, got, false)
	case unordered:
		return m.anyOrder(path, w, got)
	case []string:
		l := make([]any, len(w))
		for i := range w {
			l[i] = w[i]
		}
		return m.match(path, l, got)
	case []any:
		l, ok := got.([]any)
		if !ok || len(l) != len(w) {
			return differs()
		}
		for i := range w {
			if d := m.match(fmt.Sprintf("%s[%d]", path, i), w[i], l[i]); d != "" {
				return d
			}
		}
		return ""
	case string:
		s, ok := got.(string)
		if !ok {
			return differs()
		}
		if !strings.HasPrefix(w, "\x00") {
			if w != s {
				return differs()
			}
			return ""
		}
		if bound, ok := m.ids[w]; ok {
			if bound != s {
				return fmt.Sprintf("%s: want %s (%q), got %s", path, bound, w, s)
			}
			return ""
		}
		if other, ok := m.holders[s]; ok && other != w {
			return fmt.Sprintf("%s: %s is %q already, not %q", path, s, other, w)
		}
		m.ids[w], m.holders[s] = s, w
		return ""
	case bool:
		if got != w {
			return differs()
		}
		return ""
	case int, json.Number:
		n, ok := got.(json.Number)
		if !ok {
			return differs()
		}
		g, _ := n.Float64()
		var f float64
		switch w := w.(type) {
		case int:
			f = float64(w)
		case json.Number:
			f, _ = w.Float64()
		}
		if f != g {
			return differs()
		}
		return ""
	case nil:
		if got != nil {
			return differs()
		}
		return ""
	}
	panic(fmt.Sprintf("%s: the model expects a %T", path, want))
}

func (m *matcher) members(path string, want obj, got any, more bool) string {
	g, ok := got.(obj)
	if !ok {
		return fmt.Sprintf("%s: want an object, got %v", path, show(got))
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		v, there := g[name]
		if !there {
			if _, optional := want[name].(maybe); optional {
				continue
			}
			return fmt.Sprintf("%s.%s: absent, want %v", path, name, show(want[name]))
		}
		if d := m.match(path+"."+name, want[name], v); d != "" {
			return d
		}
	}
	if more {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(g)) {
		if !has(want, name) {
			return fmt.Sprintf("%s.%s: %v is there, the model expects none", path, name, show(g[name]))
		}
	}
	return ""
}

// anyOrder pairs elements greedily; the first that fits is taken.
func (m *matcher) anyOrder(path string, want unordered, got any) string {
	l, ok := got.([]any)
	if !ok || len(l) != len(want) {
		return fmt.Sprintf("%s: want %d elements %v, got %v", path, len(want), show([]any(want)), show(got))
	}
	left := slices.Clone(l)
	// What is known by id goes first, so that a placeholder cannot take it.
	for _, w := range want {
		why := ""
		at := slices.IndexFunc(left, func(g any) bool {
			try := m.clone()
			if why = try.match(path+"[]", w, g); why != "" {
				return false
			}
			*m = try
			return true
		})
		if at < 0 {
			return fmt.Sprintf("%s: no element like %v in %v (%s)", path, show(w), show(left), why)
		}
		left = slices.Delete(left, at, at+1)
	}
	return ""
}

func show(v any) string {
	switch v := v.(type) {
	case moment:
		return time.Time(v).UTC().Format(time.RFC3339Nano)
	case maybe:
		return "maybe " + show(v.want)
	case part:
		return "part " + show(obj(v))
	case obj:
		var b strings.Builder
		for _, k := range slices.Sorted(maps.Keys(v)) {
			fmt.Fprintf(&b, " %s=%s", k, show(v[k]))
		}
		return "{" + strings.TrimSpace(b.String()) + "}"
	case unordered:
		return "any order of " + show([]any(v))
	case []any:
		var s []string
		for _, e := range v {
			s = append(s, show(e))
		}
		return "[" + strings.Join(s, ", ") + "]"
	case string:
		return fmt.Sprintf("%q", v)
	}
	return fmt.Sprintf("%v", v)
}

// decode reads JSON as the model and the matcher take it.
func decode(b []byte) obj {
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.UseNumber()
	var o obj
	if err := d.Decode(&o); err != nil {
		panic(err)
	}
	return o
}
