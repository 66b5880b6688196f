package evidencesuite

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
	"regexp"

	"github.com/missionweave/server/internal/evidence"
)

var (
	errorName   = regexp.MustCompile(`\bE_[A-Z0-9_]+\b`)
	warningName = regexp.MustCompile(`\bW_[A-Z0-9_]+\b`)
)

// vector is one signed record of signed/vectors.json.
type vector struct {
	Name            string   `json:"name"`
	File            string   `json:"file"`
	CanonicalFile   string   `json:"canonical_file"`
	CanonicalSHA256 string   `json:"canonical_sha256"`
	CanonicalDrops  []string `json:"canonical_drops"`
	PublicKeyHex    string   `json:"public_key_hex"`
	UpstreamVerify  *bool    `json:"upstream_verify"`
	ExpectValidate  string   `json:"expect_validate"`
	ExpectSignature string   `json:"expect_signature"`
	Prev            string   `json:"prev"`
	PrevRecordHash  string   `json:"prev_record_hash"`
	SubjectDigest   string   `json:"subject_digest_matches_predicate"`
	WireVariant     *struct {
		File           string `json:"file"`
		UpstreamVerify *bool  `json:"upstream_verify"`
	} `json:"wire_variant"`
}

func (r *run) signatures() error {
	raw, err := r.read("signed/vectors.json")
	if err != nil {
		return err
	}
	var vectors []vector
	if err := decode(raw, &vectors); err != nil {
		return fmt.Errorf("signed/vectors.json: %w", err)
	}
	byName := map[string]vector{}
	for _, v := range vectors {
		byName[v.Name] = v
	}
	for _, v := range vectors {
		r.result(v.Name, r.vector(v, v.File, byName))
		if v.WireVariant != nil {
			r.result(v.Name+" (wire variant)", r.vector(v, v.WireVariant.File, byName))
		}
	}
	return r.chains()
}

func (r *run) vector(v vector, file string, all map[string]vector) string {
	raw, err := r.read(path.Join("signed", file))
	if err != nil {
		return err.Error()
	}
	opt := evidence.Options{Signature: true}
	record, rep := evidence.Check(raw, evidence.Options{})
	if record == nil {
		return show(rep.Names())
	}
	wantNames := errorName.FindAllString(v.ExpectValidate, -1)
	if !sameSet(rep.Names(), wantNames) {
		return fmt.Sprintf("validates as %s, want %s", show(rep.Names()), v.ExpectValidate)
	}
	if why := r.canonicalOf(v, record); why != "" {
		return why
	}
	opt.Keys = oneKey(record, v.PublicKeyHex)
	if v.Prev != "" {
		prev, err := r.read(path.Join("signed", all[v.Prev].File))
		if err != nil {
			return err.Error()
		}
		if opt.Previous, err = evidence.ParseValue(prev); err != nil {
			return err.Error()
		}
		if hash := evidence.RecordHash(opt.Previous); hash != v.PrevRecordHash {
			return "the record before has hash " + hash
		}
	}
	rep = evidence.CheckValue(record, opt)
	want, wantWarnings := errorName.FindAllString(v.ExpectSignature, -1), warningName.FindAllString(v.ExpectSignature, -1)
	if v.ExpectSignature == "" && v.UpstreamVerify != nil && !*v.UpstreamVerify {
		want = []string{"E_SIGNATURE_INVALID"}
	}
	if !sameSet(rep.Names(), append(want, wantNames...)) {
		return fmt.Sprintf("verifies as %s, want %s", show(rep.Names()), show(want))
	}
	for _, w := range wantWarnings {
		if !contains(rep.WarningNames(), w) {
			return "warning " + w + " is missing"
		}
	}
	if len(want) == 0 {
		if changed, err := evidence.WithMember(raw, "run_id", "another run"); err != nil {
			return err.Error()
		} else if _, rep := evidence.Check(changed, evidence.Options{Signature: true, Keys: opt.Keys}); rep.Signature == evidence.SignatureValid {
			return "verifies with another run_id"
		}
	}
	return ""
}

// canonicalOf compares canonical bytes with the file of them and with the hash.
func (r *run) canonicalOf(v vector, record *evidence.Value) string {
	got := evidence.Canonical(record, append([]string{"signature", "dsse_envelope"}, v.CanonicalDrops...)...)
	if v.CanonicalFile != "" {
		want, err := r.read(path.Join("signed", v.CanonicalFile))
		if err != nil {
			return err.Error()
		}
		if string(want) != string(got) {
			return "canonical bytes differ from " + v.CanonicalFile
		}
	}
	if sum := sha256.Sum256(got); v.CanonicalSHA256 != "" && hex.EncodeToString(sum[:]) != v.CanonicalSHA256 {
		return "canonical bytes have another hash"
	}
	return ""
}

func (r *run) chains() error {
	cases, err := r.list("signed/chain.json")
	if err != nil {
		return err
	}
	for _, c := range cases {
		status, broken := evidence.Chain(c.Get("records").Items())
		why := ""
		if want := c.Get("expect").Get("status").Str(); string(status) != want {
			why = fmt.Sprintf("chain is %s, want %s", status, want)
		} else if n, ok := c.Get("expect").Get("broken_at").Int(); ok && int(n) != broken {
			why = fmt.Sprintf("broken at %d, want %d", broken, n)
		}
		r.result("chain "+c.Get("name").Str(), why)
	}
	return nil
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}
