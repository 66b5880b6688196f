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
	want, err := conformance(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join("..", "..", conformanceFile))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not what docgen makes (%v): run make generate", conformanceFile, err)
	}
}

func TestAnIncompleteMatrixIsNotClaimed(t *testing.T) {
	r := results{Missing: []string{"case work.start: IST somewhere"}, Commands: tally{Passed: 1, Total: 2}}
	if text := r.tables(); !bytes.Contains(text, []byte("Not complete")) || !bytes.Contains(text, []byte("IST somewhere")) {
		t.Errorf("%s", text)
	}
}
