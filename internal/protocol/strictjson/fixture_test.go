package strictjson_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// sharedDir is the protocol checkout beside the repository, or the test is
// skipped.
func sharedDir(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("MW_SHARED")
	if dir == "" {
		at, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		for {
			if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
				break
			}
			if filepath.Dir(at) == at {
				t.Skip("no go.mod above the package")
			}
			at = filepath.Dir(at)
		}
		dir = filepath.Join(filepath.Dir(at), "shared")
	}
	if _, err := os.Stat(filepath.Join(dir, "protocol")); err != nil {
		t.Skip("no protocol checkout beside the repository; set MW_SHARED")
	}
	return filepath.Join(dir, "protocol")
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func parse(t testing.TB, text string) strictjson.Value {
	t.Helper()
	d, err := strictjson.Parse([]byte(text))
	if err != nil {
		t.Fatalf("Parse(%q): %v", text, err)
	}
	return d.Root()
}

// command is a Command of about 1.2 KB, members in the order of the schema and
// therefore not in canonical order.
const command = `{"protocolVersion":"0.1","actionId":"urn:uuid:018f2f5e-7c1a-7cc3-98c4-dc0c0c07398f",` +
	`"actor":{"type":"agent","id":"urn:example:agent:harbour-pilot"},"sessionEpoch":12,"membershipEpoch":3,` +
	`"coordinatorEpoch":2,"groupId":"urn:uuid:018f2f5e-7c1a-7cc3-98c4-dc0c0c073990",` +
	`"conversationId":"urn:uuid:018f2f5e-7c1a-7cc3-98c4-dc0c0c073991",` +
	`"workItemId":"urn:uuid:018f2f5e-7c1a-7cc3-98c4-dc0c0c073992","kind":"work.submit","expectedRevision":17,` +
	`"correlationId":"urn:uuid:018f2f5e-7c1a-7cc3-98c4-dc0c0c073993","issuedAt":"2026-07-15T08:30:00.125Z",` +
	`"payload":{"ownershipEpoch":4,"executionLeaseId":"urn:uuid:018f2f5e-7c1a-7cc3-98c4-dc0c0c073994",` +
	`"artifactHashes":["sha256:3a7bd3e2360a3d29eea436fcfb7e44c735d117c42d1c1835420b6b9942dd4f1b",` +
	`"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],"usage":{"modelTokens":18250,` +
	`"toolCalls":14,"computeSeconds":75.5,"financial":0.42,"currency":"EUR"},` +
	`"summary":"Tide tables checked; berth 4 is free from 09:00."},` +
	`"signature":{"algorithm":"Ed25519","keyId":"urn:example:key:harbour-pilot-1","createdAt":"2026-07-15T08:30:00.125Z",` +
	`"value":"iG90p5POJKZravPJOZVJQ18TQbltZY9ulWxWrq6hHcYSG1d9gH-npB5Jft-opLu4RyLhCcZ73CzpyM-pjy2qCw"}}`
