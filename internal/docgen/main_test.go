package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestGeneratedDocumentsAreUpToDate(t *testing.T) {
	for name, want := range documents() {
		got, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("docs/%s is not what docgen makes (%v): run make generate", name, err)
		}
	}
}
