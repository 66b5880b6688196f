package trust

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// The unsigned documents of testdata/documents, one of each kind, are all about
// one lamp in one harbour and are signed by these Principals.
var documentSigners = map[protocol.DocumentKind]Signer{
	protocol.KindAgentCard:        gate,
	protocol.KindApproval:         ann,
	protocol.KindArtifact:         ben,
	protocol.KindCommand:          ben,
	protocol.KindContextPackage:   ben,
	protocol.KindEvent:            gate,
	protocol.KindEvidence:         ben,
	protocol.KindExtensionProfile: ann,
	protocol.KindGroupSnapshot:    gate,
}

// documentTime is the protected time of every document in testdata.
const documentTime = "2031-03-02T08:30:00.250000Z"

func signedKinds() []protocol.DocumentKind {
	kinds := make([]protocol.DocumentKind, 0, len(documentSigners))
	for kind := range documentSigners {
		kinds = append(kinds, kind)
	}
	slices.Sort(kinds)
	return kinds
}

func unsignedDocument(t testing.TB, kind protocol.DocumentKind) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "documents", string(kind)+".json"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func signedDocument(t testing.TB, kind protocol.DocumentKind) []byte {
	t.Helper()
	return resign(t, kind, unsignedDocument(t, kind), documentSigners[kind])
}

func resign(t testing.TB, kind protocol.DocumentKind, b []byte, s Signer) []byte {
	t.Helper()
	signed, _, err := SignDocument(kind, b, s)
	if err != nil {
		t.Fatalf("sign %s: %v", kind, err)
	}
	return signed
}

func testEvidence(t testing.TB) *Evidence {
	t.Helper()
	return mustEvidence(t, ann.Binding(day1), ben.Binding(day1), gate.Binding(day1))
}

func parse(t testing.TB, b []byte) strictjson.Value {
	t.Helper()
	doc, err := strictjson.Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	return doc.Root()
}

// setMember sets a member of a JSON object by a dotted path; value is JSON, an
// empty value deletes the member.
func setMember(t testing.TB, b []byte, path, value string) []byte {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(b))
	decoder.UseNumber()
	var root map[string]any
	if err := decoder.Decode(&root); err != nil {
		t.Fatal(err)
	}
	steps := strings.Split(path, ".")
	object := root
	for _, step := range steps[:len(steps)-1] {
		next, ok := object[step].(map[string]any)
		if !ok {
			t.Fatalf("no object at %s of %s", step, path)
		}
		object = next
	}
	last := steps[len(steps)-1]
	if value == "" {
		delete(object, last)
	} else {
		object[last] = json.RawMessage(value)
	}
	out, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}
