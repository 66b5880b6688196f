package registry

import "iter"

// layers is a persistent map in two layers: a change copies only the small
// recent one, so that following a registry of ten thousand Agents revision by
// revision does not copy ten thousand entries each time.
type layers[V any] struct {
	old    map[string]V
	recent map[string]V
}

func (l layers[V]) get(key string) (V, bool) {
	if v, ok := l.recent[key]; ok {
		return v, true
	}
	v, ok := l.old[key]
	return v, ok
}

func (l layers[V]) with(changes map[string]V) layers[V] {
	if len(changes) == 0 {
		return l
	}
	size := len(l.recent) + len(changes)
	if size*size > len(l.old) {
		merged := make(map[string]V, len(l.old)+size)
		for _, layer := range []map[string]V{l.old, l.recent, changes} {
			for key, v := range layer {
				merged[key] = v
			}
		}
		return layers[V]{old: merged}
	}
	recent := make(map[string]V, size)
	for _, layer := range []map[string]V{l.recent, changes} {
		for key, v := range layer {
			recent[key] = v
		}
	}
	return layers[V]{old: l.old, recent: recent}
}

func (l layers[V]) all() iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for key, v := range l.recent {
			if !yield(key, v) {
				return
			}
		}
		for key, v := range l.old {
			if _, newer := l.recent[key]; !newer && !yield(key, v) {
				return
			}
		}
	}
}
