package protocol_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
)

func TestPublishedStructuralVectors(t *testing.T) {
	root := sharedRoot(t)
	vectors := readVectors(t, root)
	if len(vectors) != 58 {
		t.Fatalf("manifest has %d vectors, want 58", len(vectors))
	}
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			kind, ok := protocol.KindOf(strings.TrimSuffix(filepath.Base(v.Schema), ".schema.json"))
			if !ok {
				t.Fatalf("no kind for %s", v.Schema)
			}
			b, err := os.ReadFile(filepath.Join(root, v.Instance))
			if err != nil {
				t.Fatal(err)
			}
			_, err = protocol.ValidateBytes(kind, b)
			if (err == nil) != v.Valid {
				t.Errorf("valid = %v, want %v (%v)", err == nil, v.Valid, err)
			}
			if testing.Verbose() && err != nil {
				t.Log(err)
			}
		})
	}
}

func TestOwnStructuralVectors(t *testing.T) {
	kinds := map[protocol.DocumentKind]int{}
	for _, v := range ownVectors(t) {
		t.Run(string(v.kind)+"/"+v.name, func(t *testing.T) {
			_, err := protocol.ValidateBytes(v.kind, v.doc.append(nil))
			if v.valid {
				if err != nil {
					t.Errorf("%v", err)
				}
				return
			}
			var f *shape.Fault
			if !errors.As(err, &f) {
				t.Fatalf("got %v, want a fault at %s", err, v.path)
			}
			if f.Path != v.path || f.Keyword != v.keyword {
				t.Errorf("got %s %s, want %s %s", f.Path, f.Keyword, v.path, v.keyword)
			}
		})
		kinds[v.kind]++
	}
	for _, kind := range protocol.DocumentKinds() {
		if kind != protocol.KindCommon && kinds[kind] == 0 {
			t.Errorf("no vector of kind %s", kind)
		}
	}
}
