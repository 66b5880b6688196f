package lexical_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/missionweave/server/internal/protocol/lexical"
)

// cryptographyDir is the cryptography bundle of the protocol checkout beside
// the repository, or the test is skipped.
func cryptographyDir(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("MW_SHARED")
	for at, _ := os.Getwd(); dir == ""; at = filepath.Dir(at) {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			dir = filepath.Join(filepath.Dir(at), "shared")
		} else if filepath.Dir(at) == at {
			t.Skip("no go.mod above the package")
		}
	}
	dir = filepath.Join(dir, "protocol", "cryptography")
	if _, err := os.Stat(dir); err != nil {
		t.Skip("no protocol checkout beside the repository; set MW_SHARED")
	}
	return dir
}

func load(t *testing.T, into any, path ...string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, into); err != nil {
		t.Fatal(err)
	}
}

type registry struct {
	OrganizationID string `json:"organizationId"`
	Bindings       []struct {
		KeyID     string `json:"keyId"`
		Principal struct {
			ID string `json:"id"`
		} `json:"principal"`
		PublicKey       string `json:"publicKey"`
		ValidFrom       string `json:"validFrom"`
		ValidityHistory []struct {
			RecordedAt string `json:"recordedAt"`
			ValidUntil string `json:"validUntil"`
			RevokedAt  string `json:"revokedAt"`
		} `json:"validityHistory"`
	} `json:"bindings"`
}

func TestRegistryVectors(t *testing.T) {
	dir := cryptographyDir(t)
	badID := map[string]string{
		"registry-organization-id-relative-reference.json":       "organizations/acme",
		"registry-selected-service-principal-id-iri-only.json":   "https://例え.テスト/services/organization-registry",
		"registry-unrelated-key-id-trailing-line-feed.json":      "urn:missionweaveprotocol:key:crypto-vector-security-owner\n",
		"registry-unrelated-principal-id-malformed-percent.json": "urn:missionweaveprotocol:human:security-owner%GG",
	}
	badKey := map[string]bool{"registry-public-key-padded.json": true, "registry-public-key-nonzero-unused-pad-bits.json": true}
	files, _ := filepath.Glob(filepath.Join(dir, "keys", "registry-*.json"))
	if len(files) == 0 {
		t.Fatal("no registries")
	}
	for _, file := range files {
		name := filepath.Base(file)
		var r registry
		load(t, &r, file)
		ids, badKeys := []string{r.OrganizationID}, 0
		for _, b := range r.Bindings {
			ids = append(ids, b.KeyID, b.Principal.ID)
			if _, err := lexical.DecodeBase64URL(b.PublicKey); err != nil {
				badKeys++
			}
			times := []string{b.ValidFrom}
			for _, h := range b.ValidityHistory {
				times = append(times, h.RecordedAt, h.ValidUntil, h.RevokedAt)
			}
			for _, text := range times {
				if text != "" && !lexical.ValidTimestamp(text) {
					t.Errorf("%s: refused timestamp %s", name, text)
				}
			}
		}
		for _, id := range ids {
			if want := id != badID[name]; lexical.ValidID(id) != want {
				t.Errorf("%s: id %q valid %v", name, id, !want)
			}
		}
		if badKeys > 0 != badKey[name] {
			t.Errorf("%s: %d keys with a bad spelling", name, badKeys)
		}
	}
}

func TestTimestampVectors(t *testing.T) {
	dir := cryptographyDir(t)
	issuedAt := func(path ...string) string {
		var c struct {
			IssuedAt string `json:"issuedAt"`
		}
		load(t, &c, filepath.Join(append([]string{dir, "vectors", "signed-documents"}, path...)...))
		return c.IssuedAt
	}
	for _, name := range []string{"command-leap-second", "command-year-zero", "command-unknown-local-offset"} {
		if text := issuedAt("invalid", name+".json"); lexical.ValidTimestamp(text) {
			t.Errorf("%s: accepted %s", name, text)
		}
	}
	if text := issuedAt("invalid", "command-protected-time-not-utc-z.json"); !lexical.ValidTimestamp(text) || lexical.IsUTCZ(text) {
		t.Errorf("a protected time not in UTC Z: %s", text)
	}

	var r registry
	load(t, &r, dir, "keys", "registry-timestamp-fractional-precision.json")
	protected := instant(t, issuedAt("valid", "command-timestamp-fractional-precision.json"))
	until := instant(t, r.Bindings[0].ValidityHistory[0].ValidUntil)
	if !protected.Before(until) || !protected.Time().Equal(until.Time()) {
		t.Errorf("%v and %v differ below the nanosecond, in this order", protected, until)
	}

	load(t, &r, dir, "keys", "registry-timestamp-casing-and-offset-bounds.json")
	protected = instant(t, issuedAt("valid", "command-alternate-json-serialization.json"))
	if from := instant(t, r.Bindings[0].ValidFrom); protected.Before(from) {
		t.Errorf("%v is before %v", protected, from)
	}
	if until := instant(t, r.Bindings[0].ValidityHistory[0].ValidUntil); !protected.Before(until) {
		t.Errorf("%v is not before %v", protected, until)
	}
}
