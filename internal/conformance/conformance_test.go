package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
)

// sharedProtocol is the protocol checkout beside the repository, or MW_SHARED.
func sharedProtocol(t testing.TB) string {
	t.Helper()
	shared := os.Getenv("MW_SHARED")
	if shared == "" {
		dir, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		for ; ; dir = filepath.Dir(dir) {
			if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
				break
			}
			if dir == filepath.Dir(dir) {
				t.Fatal("no go.mod above the test")
			}
		}
		shared = filepath.Join(dir, "..", "shared")
	}
	root := filepath.Join(shared, "protocol")
	if _, err := os.Stat(root); err != nil {
		t.Skipf("no protocol checkout at %s (set MW_SHARED)", root)
	}
	return root
}

// The protocol's own bundles pass completely; how many evaluations there are is
// counted here without the runner.
func TestProtocolCheckout(t *testing.T) {
	root := sharedProtocol(t)
	report, err := Run(root)
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for _, b := range []struct{ name, manifest string }{
		{Structural, structuralManifest}, {Cryptography, cryptographyManifest}, {Admission, admissionManifest},
	} {
		n := countEvaluations(t, filepath.Join(root, b.manifest))
		fmt.Fprintf(&want, "%s %d/%d\n", b.name, n, n)
	}
	var got strings.Builder
	if _, err := report.WriteTo(&got); err != nil {
		t.Fatal(err)
	}
	if got.String() != want.String() || !report.OK() {
		t.Errorf("got\n%swant\n%s", got.String(), want.String())
	}
}

func countEvaluations(t *testing.T, path string) int {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var list []any
	if json.Unmarshal(b, &list) == nil {
		return len(list)
	}
	var m struct {
		Cases []struct {
			Evaluations []any `json:"evaluations"`
		} `json:"cases"`
	}
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, c := range m.Cases {
		n += len(c.Evaluations)
	}
	return n
}

// resealed changes a manifest and gives it, and the pin of the admission bundle,
// new digests: a wrong manifest that is intact.
func resealed(path string, change func(object)) func(testing.TB, map[string][]byte) {
	return func(t testing.TB, files map[string][]byte) {
		m := parseObject(t, files[path])
		change(m)
		seal(t, files, path, m)
	}
}

func seal(t testing.TB, files map[string][]byte, path string, m object) {
	t.Helper()
	delete(m, "artifactDigest")
	sum := digest(canonical(t, m))
	m["artifactDigest"] = sum
	files[path] = pretty(t, m)
	if path == cryptographyManifest {
		a := parseObject(t, files[admissionManifest])
		a["cryptography"].(object)["artifactDigest"] = sum
		seal(t, files, admissionManifest, a)
	}
}

func evaluationAt(m object, kase, i int) object {
	return m["cases"].([]any)[kase].(object)["evaluations"].([]any)[i].(object)
}

func expectation(m object, kase, i int) object { return evaluationAt(m, kase, i)["expect"].(object) }

// TestRunnerNoticesEveryChange: a bundle with one thing wrong is not OK, and the
// miss names where.
func TestRunnerNoticesEveryChange(t *testing.T) {
	sound := readTree(t, ownRoot)
	const command, registry = "cryptography/vectors/valid/command.json", soundRegistryPath
	replaced := func(path, old, text string) func(testing.TB, map[string][]byte) {
		return func(t testing.TB, files map[string][]byte) {
			if !bytes.Contains(files[path], []byte(old)) {
				t.Fatalf("no %s in %s", old, path)
			}
			files[path] = bytes.Replace(files[path], []byte(old), []byte(text), 1)
		}
	}
	for _, c := range []struct {
		name   string
		change func(testing.TB, map[string][]byte)
		bundle string
		miss   string // in vector or detail
	}{
		{"an artifact was changed", replaced(command, "Lens", "lens"), Cryptography, command},
		{"an artifact was changed, seen by the other bundle", replaced(command, "Lens", "lens"), Admission, command},
		{"an artifact grew", func(_ testing.TB, f map[string][]byte) { f[registry] = append(f[registry], '\n') }, Cryptography, registry},
		{"an artifact is missing", func(_ testing.TB, f map[string][]byte) { delete(f, registry) }, Cryptography, registry},
		{"a record was changed", replaced("admission/records/command.json", "keeper", "reaper"), Admission, "admission/records/command.json"},
		{"a manifest was changed", replaced(cryptographyManifest, `"stage": "parse"`, `"stage": "schema"`), Cryptography, "artifactDigest"},
		{"the manifest has another digest", replaced(admissionManifest, `"artifactDigest": "sha256:`, `"artifactDigest": "sha256:0`), Admission, admissionManifest},
		{"the cryptography bundle is another one", resealedAlone(cryptographyManifest), Admission, "pins the cryptography bundle"},
		{"a manifest is no JSON", func(_ testing.TB, f map[string][]byte) { f[admissionManifest] = []byte("{") }, Admission, admissionManifest},
		{"a manifest is missing", func(_ testing.TB, f map[string][]byte) { delete(f, structuralManifest) }, Structural, structuralManifest},
		{"a manifest has an unknown member", resealed(cryptographyManifest, func(m object) { m["skip"] = true }), Cryptography, "form"},
		{"a manifest names a path outside", resealed(cryptographyManifest, func(m object) { evaluationAt(m, 0, 0)["document"] = "../secret.json" }), Cryptography, "form"},
		{"another stage is expected", resealed(cryptographyManifest, func(m object) { expectation(m, 1, 0)["stage"] = "schema" }), Cryptography, "stage parse"},
		{"another code is expected", resealed(cryptographyManifest, func(m object) { expectation(m, 1, 0)["wireCode"] = "AUTH_INVALID_SIGNATURE" }), Cryptography, "wire code"},
		{"success is expected of a forgery", resealed(cryptographyManifest, func(m object) {
			evaluationAt(m, 0, 3)["document"] = "cryptography/vectors/invalid/identity-r.json"
		}), Cryptography, "stage signature"},
		{"a failure is expected of a sound document", resealed(cryptographyManifest, func(m object) { evaluationAt(m, 6, 0)["document"] = command }), Cryptography, "verification completes"},
		{"another hash is expected", resealed(cryptographyManifest, func(m object) {
			expectation(m, 0, 3)["verified"].(object)["signingHash"] = "sha256:" + strings.Repeat("1", 64)
		}), Cryptography, "signingHash"},
		{"another signature is expected", resealed(cryptographyManifest, func(m object) {
			expectation(m, 0, 3)["verified"].(object)["signature"] = encode(make([]byte, 64))
		}), Cryptography, "signature"},
		{"another document hash is expected", resealed(cryptographyManifest, func(m object) {
			expectation(m, 0, 3)["verified"].(object)["signedDocumentHash"] = "sha256:" + strings.Repeat("1", 64)
		}), Cryptography, "signedDocumentHash"},
		{"other signing bytes are expected", resealed(cryptographyManifest, func(m object) {
			expectation(m, 0, 3)["verified"].(object)["signingBytes"] = "cryptography/vectors/canonical/event.jcs"
		}), Cryptography, "signing bytes"},
		{"another Principal is expected", resealed(cryptographyManifest, func(m object) {
			expectation(m, 0, 3)["verified"].(object)["principal"] = principal("agent", "benno")
		}), Cryptography, "principal"},
		{"another signing key", resealed(cryptographyManifest, func(m object) {
			evaluationAt(m, 0, 3)["signingKey"] = "cryptography/keys/signing-ann.json"
		}), Cryptography, "fixture keyId"},
		{"other canonical bytes are expected", resealed(cryptographyManifest, func(m object) {
			evaluationAt(m, 7, 0)["expectedJcs"] = "cryptography/vectors/canonical/event.jcs"
		}), Cryptography, "canonical bytes differ"},
		{"another canonical hash is expected", resealed(cryptographyManifest, func(m object) {
			evaluationAt(m, 7, 0)["sha256"] = "sha256:" + strings.Repeat("1", 64)
		}), Cryptography, "canonical bytes are"},
		{"a document that no manifest declares", func(t testing.TB, f map[string][]byte) {
			f["cryptography/vectors/valid/other.json"] = f[command]
			resealed(cryptographyManifest, func(m object) { evaluationAt(m, 0, 3)["document"] = "cryptography/vectors/valid/other.json" })(t, f)
		}, Cryptography, "not declared"},
		{"an artifact declared twice", resealed(cryptographyManifest, func(m object) {
			a := m["artifacts"].([]any)
			m["artifacts"] = append(a, a[0])
		}), Cryptography, "declared twice"},
		{"a fault without an accepting basis", resealed(cryptographyManifest, func(m object) {
			evaluationAt(m, 1, 0)["fault"].(object)["basis"].(object)["caseId"] = "reject.parse"
		}), Cryptography, "basis"},
		{"another protected time in the table", resealed(cryptographyManifest, func(m object) {
			m["profiles"].([]any)[3].(object)["protectedTimePointer"] = "/createdAt"
		}), Cryptography, "protected time"},
		{"another signer in the table", resealed(cryptographyManifest, func(m object) {
			m["profiles"].([]any)[3].(object)["expectedSigner"].(object)["pointer"] = "/owner"
		}), Cryptography, "expected signer"},
		{"a kind missing in the table", resealed(cryptographyManifest, func(m object) {
			m["profiles"] = m["profiles"].([]any)[1:]
		}), Cryptography, "missing in the manifest"},
		{"another order of the stages", resealed(cryptographyManifest, func(m object) {
			s := m["semanticStages"].([]any)
			s[2], s[3] = s[3], s[2]
		}), Cryptography, "semanticStages"},
		{"another admission reason is expected", resealed(admissionManifest, func(m object) { expectation(m, 2, 0)["reason"] = "record-conflict" }), Admission, "reason record-missing"},
		{"another admitted record is expected", resealed(admissionManifest, func(m object) { expectation(m, 0, 0)["record"] = "admission/records/event.json" }), Admission, "another record"},
		{"an append that must not happen", resealed(admissionManifest, func(m object) { evaluationAt(m, 0, 0)["append"] = nil }), Admission, "a record is appended"},
		{"an append that does not happen", resealed(admissionManifest, func(m object) {
			evaluationAt(m, 1, 9)["append"] = object{"status": "conflict"}
		}), Admission, "nothing is appended"},
		{"a committed record that was not the candidate", resealed(admissionManifest, func(m object) {
			evaluationAt(m, 1, 10)["append"].(object)["status"] = "committed"
		}), Admission, "not the committed record"},
		{"an admission that does not fail", resealed(admissionManifest, func(m object) {
			evaluationAt(m, 2, 0)["lookup"] = carrying("found", "admission/records/command.json")
		}), Admission, "is admitted"},
		{"an evaluation id used twice", resealed(admissionManifest, func(m object) { evaluationAt(m, 0, 1)["id"] = evaluationAt(m, 0, 0)["id"] }), Admission, "not unique"},
		{"a structural verdict turned round", replaced(structuralManifest, `"valid": true`, `"valid": false`), Structural, "is accepted"},
		{"a structural verdict turned round the other way", replaced(structuralManifest, `"valid": false`, `"valid": true`), Structural, "is refused"},
		{"a schema that nothing has", replaced(structuralManifest, "schemas/event.schema.json", "schemas/invoice.schema.json"), Structural, "no document kind"},
		{"a structural vector that is no JSON", func(_ testing.TB, f map[string][]byte) { f["conformance/vectors/invalid/event.json"] = []byte("nope") }, Structural, "event.json"},
		{"a structural vector that is missing", func(_ testing.TB, f map[string][]byte) { delete(f, "conformance/vectors/invalid/event.json") }, Structural, "event.json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := map[string][]byte{}
			for path, content := range sound {
				files[path] = bytes.Clone(content)
			}
			c.change(t, files)
			report := RunFS(mapFS(files))
			if report.OK() {
				t.Fatal("the report is OK")
			}
			for _, b := range report.Bundles {
				if b.Name != c.bundle {
					continue
				}
				for _, m := range b.Misses {
					if strings.Contains(m.Vector+" "+m.Detail, c.miss) {
						return
					}
				}
				t.Fatalf("no miss about %q in %+v", c.miss, b.Misses)
			}
		})
	}
}

func mapFS(files map[string][]byte) fstest.MapFS {
	m := fstest.MapFS{}
	for path, content := range files {
		m[path] = &fstest.MapFile{Data: content}
	}
	return m
}

// resealedAlone gives the manifest another valid digest without telling the
// admission bundle.
func resealedAlone(path string) func(testing.TB, map[string][]byte) {
	return func(t testing.TB, files map[string][]byte) {
		m := parseObject(t, files[path])
		cases := m["cases"].([]any)
		cases[0], cases[1] = cases[1], cases[0]
		delete(m, "artifactDigest")
		m["artifactDigest"] = digest(canonical(t, m))
		files[path] = pretty(t, m)
	}
}

// The numbers come from the manifests: fewer evaluations are fewer.
func TestTotalsAreTheManifests(t *testing.T) {
	files := readTree(t, ownRoot)
	before := countEvaluations(t, filepath.Join(ownRoot, cryptographyManifest))
	resealed(cryptographyManifest, func(m object) {
		c := m["cases"].([]any)[1].(object)
		c["evaluations"] = c["evaluations"].([]any)[1:]
	})(t, files)
	report := RunFS(mapFS(files))
	var out strings.Builder
	if _, err := report.WriteTo(&out); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("cryptography %d/%d\n", before-1, before-1); !strings.Contains(out.String(), want) || !report.OK() {
		t.Errorf("%s, want %s", out.String(), want)
	}
}

func TestRunNeedsADirectory(t *testing.T) {
	if _, err := Run(filepath.Join(t.TempDir(), "absent")); err == nil {
		t.Error("a missing checkout is no error")
	}
	report, err := Run(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if report.OK() || len(report.Bundles) != 3 {
		t.Errorf("an empty checkout: %+v", report)
	}
	for _, b := range report.Bundles {
		if b.OK() || len(b.Misses) == 0 || b.Total != 0 {
			t.Errorf("an empty checkout: %+v", b)
		}
	}
	if (Report{}).OK() {
		t.Error("a report about nothing is OK")
	}
}

// A checkout cannot lead the runner out of its directory.
func TestLinksOutOfTheCheckoutAreRefused(t *testing.T) {
	files := readTree(t, ownRoot)
	outside := filepath.Join(t.TempDir(), "outside.json")
	if err := os.WriteFile(outside, files["conformance/vectors/valid/event.json"], 0o600); err != nil {
		t.Fatal(err)
	}
	root := filepath.Join(t.TempDir(), "checkout")
	writeTree(t, root, files)
	link := filepath.Join(root, "conformance", "vectors", "valid", "event.json")
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, link); err != nil {
		t.Skip(err)
	}
	report, err := Run(root)
	if err != nil {
		t.Fatal(err)
	}
	if report.Bundles[0].OK() {
		t.Error("a file outside the checkout was read")
	}
}

func TestPathsAndNames(t *testing.T) {
	for path, want := range map[string]bool{
		"a": true, "a/b.json": true, "a/b-c_d.0.json": true, "0/1": true,
		"": false, "/a": false, "a/": false, "a//b": false, "../a": false, "a/../b": false, "a/./b": false,
		".a": false, "a/.b": false, "A": false, "a b": false, "a\n": false, "é": false, "a\\b": false,
	} {
		if got := repositoryPath(path); got != want {
			t.Errorf("repositoryPath(%q) = %v", path, got)
		}
	}
	for id, want := range map[string]bool{
		"a": true, "a.b-c.0": true, "": false, ".": false, "a.": false, "-a": false, "a..b": false, "a.-b": false, "A": false, "a\n": false,
	} {
		if got := vectorID(id); got != want {
			t.Errorf("vectorID(%q) = %v", id, got)
		}
	}
}
