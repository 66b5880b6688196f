package protocol_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/missionweave/server/internal/protocol"
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
