package conformance

import (
	"bytes"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/missionweave/server/internal/protocol"
)

var update = flag.Bool("update", false, "write testdata/own anew")

// ownBundle is the tree of testdata/own under construction.
type ownBundle struct {
	t     testing.TB
	files map[string][]byte
}

func (o *ownBundle) add(path string, content []byte) string {
	if old, ok := o.files[path]; ok && !bytes.Equal(old, content) {
		o.t.Fatalf("%s is written twice", path)
	}
	o.files[path] = content
	return path
}

// artifacts pins every file under the given prefixes.
func (o *ownBundle) artifacts(prefixes ...string) []any {
	var paths []string
	for path := range o.files {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(path, p) }) {
			paths = append(paths, path)
		}
	}
	sort.Strings(paths)
	var out []any
	for _, path := range paths {
		out = append(out, object{"path": path, "byteLength": len(o.files[path]), "sha256": digest(o.files[path])})
	}
	return out
}

// seal adds a manifest with its digest.
func (o *ownBundle) seal(path string, manifest object) string {
	sum := digest(canonical(o.t, manifest))
	manifest["artifactDigest"] = sum
	o.add(path, pretty(o.t, manifest))
	return sum
}

func buildOwn(t testing.TB) map[string][]byte {
	o := &ownBundle{t: t, files: map[string][]byte{}}
	for kind := range protocol.SignedKinds {
		o.stub(schemaOf(kind))
	}
	o.stub(schemaOf(protocol.KindFirstAdmissionRecord))
	o.stub("cryptography/registry-fixture.schema.json")
	o.stub("cryptography/signing-key-fixture.schema.json")
	o.structural()
	sum := o.cryptography()
	o.admission(sum)
	return o.files
}

// stub stands where the protocol's checkout has a schema; our structural rules
// are code.
func (o *ownBundle) stub(path string) {
	o.add(path, pretty(o.t, object{"title": "The structure is checked by internal/protocol."}))
}

func (o *ownBundle) structural() {
	var vectors []any
	add := func(name, kind, dir string, doc object, valid bool) {
		path := o.add("conformance/vectors/"+dir+"/"+kind+".json", pretty(o.t, doc))
		vectors = append(vectors, object{"name": name, "schema": schemaOf(protocol.DocumentKind(kind)), "instance": path, "valid": valid})
	}
	for _, p := range ownProfiles {
		add("a sound "+p.kind, p.kind, "valid", signOwn(o.t, p.kind, ownDocument(o.t, p.kind), p.key), true)
	}
	for _, c := range ownInvalid {
		doc := signOwn(o.t, c.kind, ownDocument(o.t, c.kind), keyBen)
		c.edit(o.t, doc)
		add(c.name, c.kind, "invalid", doc, false)
	}
	o.add(structuralManifest, pretty(o.t, vectors))
}

func soundRegistry() object {
	var bindings []any
	for _, k := range ownKeys {
		bindings = append(bindings, k.binding())
	}
	return object{"organizationId": "urn:test:organization:weavers", "bindings": bindings}
}

func documentPath(kind string) string { return "cryptography/vectors/valid/" + kind + ".json" }

const soundRegistryPath = "cryptography/keys/registry-sound.json"

func (o *ownBundle) cryptography() string {
	o.add(soundRegistryPath, pretty(o.t, soundRegistry()))
	var profiles, complete []any
	for _, p := range ownProfiles {
		profiles = append(profiles, object{
			"profileId": p.kind, "schema": schemaOf(protocol.DocumentKind(p.kind)),
			"protectedTimePointer": "/" + p.time, "expectedSigner": p.signer,
		})
		complete = append(complete, o.completeEvaluation(p.kind, p.key))
	}
	faults := map[string][]any{}
	for _, f := range ownFaults {
		faults[f.stage] = append(faults[f.stage], o.faultEvaluation(f))
	}
	cases := []any{object{"id": "accept.all-kinds", "kind": "profile-matrix", "evaluations": complete}}
	for _, stage := range []string{"parse", "schema", "signature-envelope", "key-resolution", "canonicalization", "signature"} {
		cases = append(cases, object{"id": "reject." + stage, "kind": "failure-matrix", "evaluations": faults[stage]})
	}
	input := o.add("cryptography/vectors/canonical/numbers-and-names.json", []byte(canonicalInput))
	output := o.add("cryptography/vectors/canonical/numbers-and-names.jcs", []byte(canonicalOutput))
	cases = append(cases, object{"id": "accept.canonical", "kind": "canonicalization", "evaluations": []any{
		object{"input": input, "expectedJcs": output, "sha256": digest([]byte(canonicalOutput))},
	}})
	return o.seal(cryptographyManifest, object{
		"$schema":         "https://missionweaveprotocol.dev/cryptography/0.1/manifest.schema.json",
		"manifestVersion": 1, "protocolVersion": "0.1",
		"profileId":      "missionweaveprotocol.signed-document-verification.v0.1",
		"semanticStages": []any{"parse", "schema", "signature-envelope", "key-resolution", "canonicalization", "signature", "complete"},
		"fixtureSchemas": object{
			"registry":   "cryptography/registry-fixture.schema.json",
			"signingKey": "cryptography/signing-key-fixture.schema.json",
		},
		"profiles": profiles, "artifacts": o.artifacts("cryptography/", "schemas/"), "cases": cases,
	})
}

// canonicalInput and canonicalOutput are written by hand after RFC 8785.
const (
	canonicalInput  = "{\"\\u20ac\": [1.0, -0, 1e21, 1E-7, 0.000001, 123456789012345680000, 5e-324],\n \"z\\/\": \"\\u001F\\u0041\\t\\uD83D\\uDE00\", \"\\r\": null, \"\\uE000\": 1, \"\\uD83D\\uDE00\": 2, \"A\": {\"b\": [], \"a\": {}}}"
	canonicalOutput = "{\"\\r\":null,\"A\":{\"a\":{},\"b\":[]},\"z/\":\"\\u001fA\\t\U0001F600\",\"\u20ac\":[1,0,1e+21,1e-7,0.000001,123456789012345680000,5e-324],\"\U0001F600\":2,\"\ue000\":1}"
)

func (o *ownBundle) completeEvaluation(kind string, k ownKey) object {
	doc := signOwn(o.t, kind, ownDocument(o.t, kind), k)
	signing := signingBytes(o.t, doc)
	seed := encode(bytes.Repeat([]byte{k.seed}, 32))
	return object{
		"profileId": kind,
		"document":  o.add(documentPath(kind), pretty(o.t, doc)),
		"registry":  soundRegistryPath,
		"signingKey": o.add("cryptography/keys/signing-"+k.name+".json", pretty(o.t, object{
			"testOnly": true, "keyId": k.id(), "algorithm": "Ed25519", "seed": seed, "publicKey": k.public(),
		})),
		"fault": nil,
		"expect": object{"stage": stageComplete, "wireCode": nil, "verified": object{
			"keyId": k.id(), "principal": k.signer, "protectedTime": doc[timeMember(kind)],
			"signingBytes": o.add("cryptography/vectors/canonical/"+kind+".jcs", signing),
			"signingHash":  digest(signing), "signature": doc["signature"].(object)["value"],
			"signedDocumentHash": digest(canonical(o.t, doc)),
		}},
	}
}

func (o *ownBundle) faultEvaluation(f ownFault) object {
	kind := f.kind
	if kind == "" {
		kind = "command"
	}
	document, registry := documentPath(kind), soundRegistryPath
	if f.edit != nil || f.text != nil {
		doc := signOwn(o.t, kind, ownDocument(o.t, kind), keyFor(kind))
		if f.edit != nil {
			f.edit(o.t, doc)
		}
		content := pretty(o.t, doc)
		if f.text != nil {
			content = f.text(content)
		}
		document = o.add("cryptography/vectors/invalid/"+f.id+".json", content)
	}
	if f.registry != nil {
		r := soundRegistry()
		f.registry(r)
		registry = o.add("cryptography/keys/registry-"+f.id+".json", pretty(o.t, r))
	}
	code := map[string]string{"parse": "PROTOCOL_VIOLATION", "canonicalization": "PROTOCOL_VIOLATION", "schema": "SCHEMA_VALIDATION_FAILED"}[f.stage]
	if code == "" {
		code = "AUTH_INVALID_SIGNATURE"
	}
	return object{
		"profileId": kind, "document": document, "registry": registry,
		"fault":  object{"id": f.id, "basis": object{"caseId": "accept.all-kinds", "profileId": kind}},
		"expect": object{"stage": f.stage, "wireCode": code},
	}
}

// TestOwnBundle: the committed bundle is what the tables say, and passes.
func TestOwnBundle(t *testing.T) {
	built := buildOwn(t)
	if *update {
		writeTree(t, ownRoot, built)
	}
	committed := readTree(t, ownRoot)
	if diff := cmp.Diff(keysOf(built), keysOf(committed)); diff != "" {
		t.Fatalf("files of %s (-tables +committed; rewrite with -update):\n%s", ownRoot, diff)
	}
	for path, content := range built {
		if !bytes.Equal(content, committed[path]) {
			t.Errorf("%s/%s is not what the tables say; rewrite with -update", ownRoot, path)
		}
	}
	report, err := Run(ownRoot)
	if err != nil {
		t.Fatal(err)
	}
	if !report.OK() {
		var out strings.Builder
		if _, err := report.WriteTo(&out); err != nil {
			t.Fatal(err)
		}
		t.Error(out.String())
	}
}

func keysOf(m map[string][]byte) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

func writeTree(t testing.TB, root string, files map[string][]byte) {
	t.Helper()
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	for path, content := range files {
		full := filepath.Join(root, filepath.FromSlash(path))
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func readTree(t testing.TB, root string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	dir := os.DirFS(root)
	err := fs.WalkDir(dir, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files[path], err = fs.ReadFile(dir, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}
