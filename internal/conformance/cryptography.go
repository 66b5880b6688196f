package conformance

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/trust"
)

const cryptographyManifest = "cryptography/manifest.json"

// stageComplete is the manifests' name for the outcome without a failure.
const stageComplete = "complete"

type cryptography struct {
	SemanticStages []string          `json:"semanticStages"`
	FixtureSchemas map[string]string `json:"fixtureSchemas"`
	ArtifactDigest string            `json:"artifactDigest"`
	Profiles       []profile         `json:"profiles"`
	Artifacts      []artifact        `json:"artifacts"`
	Cases          []cryptoCase      `json:"cases"`
}

type profile struct {
	ProfileID            string         `json:"profileId"`
	Schema               string         `json:"schema"`
	ProtectedTimePointer string         `json:"protectedTimePointer"`
	ExpectedSigner       expectedSigner `json:"expectedSigner"`
}

type expectedSigner struct {
	Rule      string `json:"rule"`
	Pointer   string `json:"pointer"`
	IDPointer string `json:"idPointer"`
}

type cryptoCase struct {
	ID          string             `json:"id"`
	Kind        string             `json:"kind"`
	Evaluations []cryptoEvaluation `json:"evaluations"`
}

type cryptoEvaluation struct {
	ProfileID  string             `json:"profileId"`
	Document   string             `json:"document"`
	Registry   string             `json:"registry"`
	SigningKey string             `json:"signingKey"`
	Fault      *cryptoFault       `json:"fault"`
	Expect     *cryptoExpectation `json:"expect"`

	Input       string `json:"input"`
	ExpectedJCS string `json:"expectedJcs"`
	SHA256      string `json:"sha256"`
}

type cryptoFault struct {
	ID    string `json:"id"`
	Basis struct {
		CaseID    string `json:"caseId"`
		ProfileID string `json:"profileId"`
	} `json:"basis"`
}

type cryptoExpectation struct {
	Stage    string          `json:"stage"`
	WireCode *string         `json:"wireCode"`
	Verified *cryptoVerified `json:"verified"`
}

type cryptoVerified struct {
	KeyID              string         `json:"keyId"`
	Principal          protocol.Actor `json:"principal"`
	ProtectedTime      string         `json:"protectedTime"`
	SigningBytes       string         `json:"signingBytes"`
	SigningHash        string         `json:"signingHash"`
	Signature          string         `json:"signature"`
	SignedDocumentHash string         `json:"signedDocumentHash"`
}

func runCryptography(c *checkout) Bundle {
	b := Bundle{Name: Cryptography}
	var m cryptography
	manifest, err := c.decode(cryptographyManifest, formCryptography, &m)
	if err != nil {
		b.miss(cryptographyManifest, "%v", err)
		return b
	}
	checkDigest(&b, cryptographyManifest, manifest, m.ArtifactDigest)
	files := pinned{}
	c.pin(&b, m.Artifacts, files)
	checkStages(&b, m.SemanticStages)
	checkProfiles(&b, m.Profiles, files)
	for _, name := range m.FixtureSchemas {
		for _, fault := range files.usable(name) {
			b.miss(cryptographyManifest, "fixture schema %s", fault)
		}
	}
	bases := map[[2]string]bool{}
	for _, k := range m.Cases {
		for _, e := range k.Evaluations {
			bases[[2]string{k.ID, e.ProfileID}] = e.Fault == nil
		}
	}
	for _, k := range m.Cases {
		for i, e := range k.Evaluations {
			faults := e.faults(c, files)
			if e.Fault != nil && !bases[[2]string{e.Fault.Basis.CaseID, e.Fault.Basis.ProfileID}] {
				faults = append(faults, "its basis "+e.Fault.Basis.CaseID+" is no accepting evaluation")
			}
			b.judge(e.vector(k.ID, i), faults)
		}
	}
	return b
}

// vector names an evaluation: case, position, and what tells it apart.
func (e cryptoEvaluation) vector(caseID string, i int) string {
	switch {
	case e.Fault != nil:
		return fmt.Sprintf("%s#%02d %s", caseID, i+1, e.Fault.ID)
	case e.Document != "":
		return fmt.Sprintf("%s#%02d %s", caseID, i+1, path.Base(e.Document))
	}
	return fmt.Sprintf("%s#%02d %s", caseID, i+1, path.Base(e.Input))
}

func (e cryptoEvaluation) faults(c *checkout, files pinned) []string {
	if e.Input != "" {
		return e.canonicalization(c, files)
	}
	faults := slices.Concat(files.usable(e.Document), files.usable(e.Registry))
	if len(faults) > 0 {
		return faults
	}
	kind := protocol.DocumentKind(e.ProfileID)
	content, err := c.read(e.Document)
	if err != nil {
		return []string{err.Error()}
	}
	ev, err := readRegistry(c, e.Registry)
	if err != nil {
		return []string{err.Error()}
	}
	verified, failure := trust.VerifyBytes(kind, content, ev)
	if faults := outcomeFaults(failure, e.Expect.Stage, e.Expect.WireCode); len(faults) > 0 || verified == nil {
		return faults
	}
	return e.verifiedFaults(c, files, verified)
}

// outcomeFaults compares the first failing stage and what the wire would say.
func outcomeFaults(failure *trust.Failure, stage string, wireCode *string) []string {
	if failure == nil {
		if stage != stageComplete {
			return []string{"verification completes, want failure at " + stage}
		}
		return nil
	}
	if got := failure.Stage.String(); got != stage {
		return []string{fmt.Sprintf("stage %s (%s), want %s", got, failure, stage)}
	}
	wire := failure.Error()
	if wireCode == nil || string(wire.Code) != *wireCode {
		return []string{fmt.Sprintf("wire code %s, want %v", wire.Code, wireCode)}
	}
	return nil
}

// verifiedFaults compares everything that a completed verification establishes,
// and that the fixture's private key makes the same signature again.
func (e cryptoEvaluation) verifiedFaults(c *checkout, files pinned, v *trust.Verified) []string {
	want := e.Expect.Verified
	faults := slices.Concat(files.usable(want.SigningBytes), files.usable(e.SigningKey))
	if len(faults) > 0 {
		return faults
	}
	differ := func(what string, got, want any) {
		if got != want {
			faults = append(faults, fmt.Sprintf("%s is %v, want %v", what, got, want))
		}
	}
	signature := v.Value.Member("signature").Member("value").Str()
	differ("keyId", v.KeyID, want.KeyID)
	differ("principal", v.Principal, want.Principal)
	differ("protectedTime", v.ProtectedText, want.ProtectedTime)
	differ("signingHash", v.SigningHash, want.SigningHash)
	differ("signature", signature, want.Signature)
	signing, err := trust.SigningBytes(v.Value)
	if err != nil {
		return append(faults, err.Error())
	}
	expected, err := c.read(want.SigningBytes)
	if err != nil {
		return append(faults, err.Error())
	}
	if !bytes.Equal(signing, expected) {
		faults = append(faults, "signing bytes differ from "+want.SigningBytes)
	}
	differ("SHA-256 of the signing bytes", digest(expected), want.SigningHash)
	whole, err := v.Value.JCS()
	if err != nil {
		return append(faults, err.Error())
	}
	differ("signedDocumentHash", digest(whole), want.SignedDocumentHash)
	signer, err := readSigningKey(c, e.SigningKey, v.Principal)
	if err != nil {
		return append(faults, err.Error())
	}
	differ("fixture keyId", signer.KeyID, want.KeyID)
	differ("fixture public key", signer.PublicKey(), v.Binding().PublicKey)
	again, hash, err := trust.SignDocument(v.Kind, v.Value, signer)
	if err != nil {
		return append(faults, "signing again: "+err.Error())
	}
	differ("signing hash made again", hash, want.SigningHash)
	if !bytes.Equal(again, whole) {
		faults = append(faults, "signing again gives another document")
	}
	return faults
}

func (e cryptoEvaluation) canonicalization(c *checkout, files pinned) []string {
	faults := slices.Concat(files.usable(e.Input), files.usable(e.ExpectedJCS))
	if len(faults) > 0 {
		return faults
	}
	input, err := c.read(e.Input)
	if err != nil {
		return []string{err.Error()}
	}
	expected, err := c.read(e.ExpectedJCS)
	if err != nil {
		return []string{err.Error()}
	}
	got, err := strictjson.Canonicalize(input)
	switch {
	case err != nil:
		return []string{err.Error()}
	case !bytes.Equal(got, expected):
		return []string{"canonical bytes differ from " + e.ExpectedJCS}
	case digest(got) != e.SHA256:
		return []string{fmt.Sprintf("canonical bytes are %s, want %s", digest(got), e.SHA256)}
	}
	return nil
}

// checkStages compares the manifest's stage names with the verifier's.
func checkStages(b *Bundle, declared []string) {
	var stages []string
	for s := trust.StageParse; s <= trust.StageSignature; s++ {
		stages = append(stages, s.String())
	}
	if stages = append(stages, stageComplete); !slices.Equal(stages, declared) {
		b.miss(cryptographyManifest, "semanticStages are %v, want %v", stages, declared)
	}
}

// checkProfiles compares the manifest's table of protected times and signers with
// the one that verification uses.
func checkProfiles(b *Bundle, profiles []profile, files pinned) {
	seen := map[protocol.DocumentKind]bool{}
	for _, p := range profiles {
		vector := "profile " + p.ProfileID
		kind := protocol.DocumentKind(p.ProfileID)
		rule, ok := protocol.SignedKinds[kind]
		if !ok || seen[kind] {
			b.miss(vector, "unknown or repeated")
			continue
		}
		seen[kind] = true
		for _, fault := range files.usable(p.Schema) {
			b.miss(vector, "schema %s", fault)
		}
		if of, ok := kindOfSchema(p.Schema); !ok || of != kind {
			b.miss(vector, "schema is %s", p.Schema)
		}
		if p.ProtectedTimePointer != "/"+rule.ProtectedTime {
			b.miss(vector, "protected time is /%s, want %s", rule.ProtectedTime, p.ProtectedTimePointer)
		}
		sample, want := p.ExpectedSigner.sample()
		doc, err := strictjson.Parse([]byte(sample))
		if err != nil {
			b.miss(vector, "signer pointer: %v", err)
			continue
		}
		if got := rule.Signer(doc.Root()); got != want {
			b.miss(vector, "expected signer is %v, want %v", got, want)
		}
	}
	for kind := range protocol.SignedKinds {
		if !seen[kind] {
			b.miss("profile "+string(kind), "missing in the manifest")
		}
	}
}

// sample makes a document that holds a signer where the rule points, and the
// Principal that must be read from it.
func (s expectedSigner) sample() (string, protocol.Actor) {
	const id = "urn:conformance:signer"
	wrap := func(pointer, value string) string {
		tokens := strings.Split(strings.TrimPrefix(pointer, "/"), "/")
		for _, token := range slices.Backward(tokens) {
			value = `{"` + strings.NewReplacer("~1", "/", "~0", "~").Replace(token) + `":` + value + `}`
		}
		return value
	}
	switch s.Rule {
	case "principal-object":
		return wrap(s.Pointer, `{"type":"human","id":"`+id+`"}`), protocol.Actor{Type: protocol.ActorHuman, ID: id}
	case "agent-id":
		return wrap(s.IDPointer, `"`+id+`"`), protocol.Actor{Type: protocol.ActorAgent, ID: id}
	}
	return "{}", protocol.Actor{Type: protocol.ActorService}
}

// registryFixture is complete Registry evidence of one Organization.
type registryFixture struct {
	OrganizationID string `json:"organizationId"`
	Bindings       []struct {
		KeyID           string         `json:"keyId"`
		Principal       protocol.Actor `json:"principal"`
		Algorithm       string         `json:"algorithm"`
		PublicKey       string         `json:"publicKey"`
		ValidFrom       string         `json:"validFrom"`
		ValidityHistory []struct {
			Sequence   int64  `json:"sequence"`
			RecordedAt string `json:"recordedAt"`
			ValidUntil string `json:"validUntil"`
			RevokedAt  string `json:"revokedAt"`
		} `json:"validityHistory"`
	} `json:"bindings"`
}

// readRegistry turns a Registry fixture into evidence. Bindings that break a
// rule of the Registry make evidence that fails stage 4; the error is about the
// fixture itself.
func readRegistry(c *checkout, name string) (*trust.Evidence, error) {
	var f registryFixture
	if _, err := c.decode(name, formRegistry, &f); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	bindings := make([]trust.Binding, 0, len(f.Bindings))
	for _, fb := range f.Bindings {
		b := trust.Binding{
			KeyID: fb.KeyID, Principal: fb.Principal, Algorithm: fb.Algorithm,
			PublicKey: fb.PublicKey, ValidFrom: fb.ValidFrom,
		}
		for _, s := range fb.ValidityHistory {
			b.History = append(b.History, trust.Validity(s))
		}
		bindings = append(bindings, b)
	}
	ev, err := trust.NewEvidence(f.OrganizationID, 1, bindings)
	if err != nil {
		return trust.UnavailableEvidence(f.OrganizationID, err), nil
	}
	return ev, nil
}

// readSigningKey turns a test-only key fixture into a signer for a Principal.
func readSigningKey(c *checkout, name string, principal protocol.Actor) (trust.Signer, error) {
	var f struct {
		KeyID     string `json:"keyId"`
		Seed      string `json:"seed"`
		PublicKey string `json:"publicKey"`
	}
	if _, err := c.decode(name, formSigningKey, &f); err != nil {
		return trust.Signer{}, fmt.Errorf("%s: %w", name, err)
	}
	seed, err := lexical.DecodeBase64URL(f.Seed)
	if err != nil {
		return trust.Signer{}, fmt.Errorf("%s: seed: %w", name, err)
	}
	signer, err := trust.NewSigner(f.KeyID, principal, seed)
	if err == nil && signer.PublicKey() != f.PublicKey {
		err = fmt.Errorf("%s: publicKey is not the seed's", name)
	}
	return signer, err
}
