package evidencesuite

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/missionweave/server/internal/evidence"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// list reads a file that is one JSON array, without losing anything of the
// values in it: records are judged by their raw members.
func (r *run) list(name string) ([]*evidence.Value, error) {
	raw, err := r.read(name)
	if err != nil {
		return nil, err
	}
	v, err := evidence.ParseValue(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if v.Kind() != evidence.Array || len(v.Items()) == 0 {
		return nil, fmt.Errorf("%s is not a list of cases", name)
	}
	return v.Items(), nil
}

func (r *run) rules() error {
	cases, err := r.list("cases.json")
	if err != nil {
		return err
	}
	for _, c := range cases {
		r.result(c.Get("name").Str(), r.ruleCase(c))
	}
	return nil
}

func (r *run) ruleCase(c *evidence.Value) string {
	expect := c.Get("expect")
	if expect.Kind() != evidence.String && expect.Kind() != evidence.Array {
		return "the case expects nothing"
	}
	tier, _ := c.Get("tier").Int()
	opt := evidence.Options{}
	if tier >= 3 && !c.Get("skip_tier3").IsTrue() && (tier == 3 || c.Get("public_key_hex").Exists()) {
		opt.Signature = true
		opt.Keys = oneKey(c.Get("record"), c.Get("public_key_hex").Str())
	}
	if tier >= 4 {
		opt.Registry = registryOf(c.Get("registry"))
	}
	var rep *evidence.Report
	if rec := c.Get("record"); rec.Kind() == evidence.Object {
		rep = evidence.CheckValue(rec, opt)
	} else { // a record that is none
		_, rep = evidence.Check(evidence.Canonical(rec), opt)
	}
	want := []string{}
	if expect.Kind() == evidence.Array {
		for _, e := range expect.Items() {
			want = append(want, e.Str())
		}
	} else if expect.Str() != "valid" {
		want = []string{expect.Str()}
	}
	if got := rep.Names(); !sameSet(got, want) {
		return fmt.Sprintf("got %s, want %s", show(got), show(want))
	}
	wantRule := c.Get("rule_id").Str()
	if expect.Kind() == evidence.String && len(want) == 1 && wantRule != "" && !slices.ContainsFunc(rep.Errors, func(f evidence.Finding) bool { return f.Rule == wantRule }) {
		r.note("rules %s: %s stands under rule %s here, not %s", c.Get("name").Str(), want[0], rep.Errors[0].Rule, wantRule)
	}
	if w := c.Get("warnings"); w.Kind() == evidence.Array {
		wantWarnings := []string{}
		for _, x := range w.Items() {
			wantWarnings = append(wantWarnings, x.Str())
		}
		if got := rep.WarningNames(); !sameSet(got, wantWarnings) {
			return fmt.Sprintf("warnings %s, want %s", show(got), show(wantWarnings))
		}
	}
	return ""
}

func show(list []string) string {
	if len(list) == 0 {
		return "valid"
	}
	return strings.Join(list, ", ")
}

func sameSet(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(slices.Compact(a), slices.Compact(b))
}

// oneKey knows one key, under the id that the record names.
func oneKey(record *evidence.Value, keyHex string) evidence.KeyLookup {
	key, err := hex.DecodeString(keyHex)
	return func(id string) (ed25519.PublicKey, bool) {
		named := record.Get("signature").Get("key_id").Str() == id
		for _, s := range record.Get("dsse_envelope").Get("signatures").Items() {
			named = named || s.Get("keyid").Str() == id
		}
		return key, named && err == nil && len(key) == ed25519.PublicKeySize
	}
}

// registryOf reads the registry of a tier 4 case. A part that is not there is
// nil, so that its rules are skipped. The names of some parts differ between
// writers of cases, so each part has synonyms.
func registryOf(v *evidence.Value) *evidence.Registry {
	g := &evidence.Registry{UnknownNeedsApproval: v.Get("unknown_requires_approval").IsTrue()}
	part := func(names ...string) *evidence.Value {
		for _, n := range names {
			if p := v.Get(n); p.Exists() {
				return p
			}
		}
		return nil
	}
	g.Policies = set(part("policies", "policy_bundles", "policy_bundle_digests"))
	g.PolicyVersions = set(part("policy_versions"))
	g.Approvals = set(part("approvals", "approval_context_hashes"))
	g.ArgsEqualityVersions = set(part("args_equality_versions"))
	g.RedactionProfiles = set(part("redaction_profiles"))
	g.ExtensionNamespaces = set(part("extension_namespaces", "namespaces", "approval_extension_namespaces"))
	g.Actions = set(part("actions", "action_ids", "known_actions", "run_actions", "history", "run_history", "parent_actions", "parents"))
	if p := part("keys"); p.Exists() {
		g.Keys = map[string]evidence.KeyStatus{}
		for id, k := range entries(p) {
			s := evidence.KeyStatus{}
			if n, ok := k.Get("revoked_at_ms").Int(); ok {
				s.RevokedAtMS = &n
			}
			g.Keys[id] = s
		}
	}
	if p := part("leases"); p.Exists() {
		g.Leases = map[string][]evidence.LeaseWindow{}
		for id, l := range entries(p) {
			windows := l.Get("windows").Items()
			if windows == nil {
				windows = []*evidence.Value{l}
			}
			for _, w := range windows {
				g.Leases[id] = append(g.Leases[id], window(w))
			}
		}
	}
	if p := part("revocation_events", "revocations", "events"); p.Exists() {
		g.RevocationEvents = map[string]int64{}
		for id, e := range entries(p) {
			n, ok := e.Int()
			for _, name := range []string{"at_ms", "occurred_at_ms", "timestamp_ms", "created_at_ms", "revoked_at_ms"} {
				if !ok {
					n, ok = e.Get(name).Int()
				}
			}
			g.RevocationEvents[id] = n
		}
	}
	return g
}

func window(v *evidence.Value) evidence.LeaseWindow {
	num := func(names ...string) int64 {
		for _, n := range names {
			if x, ok := v.Get(n).Int(); ok {
				return x
			}
		}
		return 0
	}
	return evidence.LeaseWindow{
		SinceMS:     num("since_ms", "in_force_from_ms", "renewed_at_ms"),
		GrantedAtMS: num("granted_at_ms", "lease_granted_at_ms"),
		ExpiresAtMS: num("expires_at_ms", "lease_expires_at_ms"),
	}
}

// entries are the ids of a list of strings, of a list of objects with an id, or
// of an object by id.
func entries(v *evidence.Value) map[string]*evidence.Value {
	out := map[string]*evidence.Value{}
	for _, m := range v.Members() {
		out[m.Name] = m.Value
	}
	for _, item := range v.Items() {
		id := item.Str()
		for _, n := range []string{"id", "key_id", "lease_id", "event_id", "action_id", "hash", "digest", "version", "namespace"} {
			if id == "" {
				id = item.Get(n).Str()
			}
		}
		out[id] = item
	}
	return out
}

func set(v *evidence.Value) map[string]bool {
	if !v.Exists() {
		return nil
	}
	out := map[string]bool{}
	for id := range entries(v) {
		out[id] = true
	}
	return out
}

// reasons that the rules name; for the others a case may have another word.
var namedReasons = []string{
	evidence.ReasonNoCoverage, evidence.ReasonNoDigest, evidence.ReasonKind, evidence.ReasonInvalid, evidence.ReasonAlgorithm,
	evidence.ReasonIdentity, evidence.ReasonSelector, evidence.ReasonBoundary, evidence.ReasonDigestInput, evidence.ReasonBasisNone,
	evidence.ReasonUnregistered,
}

func (r *run) comparability() error {
	cases, err := r.list("comparability.json")
	if err != nil {
		return err
	}
	for _, c := range cases {
		name := c.Get("name").Str()
		registered := evidence.Comparators{}
		var assume []string
		for _, a := range c.Get("comparator_assumptions").Items() {
			assume = append(assume, a.Str())
		}
		for _, k := range c.Get("comparators").Items() {
			registered[k.Str()] = func(_, _ *evidence.Value) (string, []string) { return "", slices.Clone(assume) }
		}
		a, b := evidence.DigestOf(c.Get("a")), evidence.DigestOf(c.Get("b"))
		why := r.comparison(name, evidence.Compare(a, b, registered), c.Get("expect"))
		if why == "" {
			if why = r.comparison(name, evidence.Compare(b, a, registered), c.Get("expect")); why != "" {
				why = "the other way round: " + why
			}
		}
		r.result(name, why)
	}
	return nil
}

func (r *run) comparison(name string, got evidence.Comparison, want *evidence.Value) string {
	if s := want.Get("state").Str(); string(got.State) != s {
		return fmt.Sprintf("got %s %s, want %s", got.State, got.Reason, s)
	}
	assumptions := []string{}
	for _, a := range want.Get("assumptions").Items() {
		assumptions = append(assumptions, a.Str())
	}
	if !sameSet(got.Assumptions, assumptions) {
		return fmt.Sprintf("assumptions %q, want %q", got.Assumptions, assumptions)
	}
	if reason := want.Get("reason").Str(); reason != got.Reason && want.Get("reason").Exists() {
		if slices.Contains(namedReasons, reason) || slices.Contains(namedReasons, got.Reason) {
			return fmt.Sprintf("reason %s, want %s", got.Reason, reason)
		}
		r.note("comparability %s: reason %s is called %s here", name, reason, got.Reason)
	}
	if e := want.Get("digests_equal"); e.Exists() && (got.DigestsEqual == nil || *got.DigestsEqual != e.IsTrue()) {
		return fmt.Sprintf("digests_equal must be %v", e.IsTrue())
	}
	return ""
}

func (r *run) envelope() error {
	cases, err := r.list("envelope.json")
	if err != nil {
		return err
	}
	for _, c := range cases {
		r.result(c.Get("name").Str(), envelopeCase(c))
	}
	return nil
}

func envelopeCase(c *evidence.Value) string {
	rec := c.Get("record")
	if rep := evidence.CheckValue(rec, evidence.Options{}); !rep.OK() {
		return "the record is not valid: " + show(rep.Names())
	}
	for _, a := range rec.Get("actions").Items() {
		if a.Get("action_id").Str() != c.Get("action_id").Str() {
			continue
		}
		got, err := evidence.EnvelopeOf(rec, a).AppendJSON(nil)
		if err != nil {
			return err.Error()
		}
		if want := string(evidence.Canonical(c.Get("expect"))); string(got) != want {
			return fmt.Sprintf("got %s, want %s", got, want)
		}
		return ""
	}
	return "there is no such action"
}

func (r *run) canonical() error {
	cases, err := r.list("canon.json")
	if err != nil {
		return err
	}
	for _, c := range cases {
		r.result(c.Get("name").Str(), canonCase(c))
	}
	return nil
}

func canonCase(c *evidence.Value) string {
	text := []byte(c.Get("input_text").Str())
	v, err := evidence.ParseValue(text)
	if err != nil {
		return err.Error()
	}
	got := evidence.Canonical(v)
	want, err := base64.StdEncoding.DecodeString(c.Get("upstream_b64").Str())
	if err != nil {
		return "the case has no bytes"
	}
	if string(got) != string(want) {
		return fmt.Sprintf("got %s, want %s", got, want)
	}
	if sum := sha256.Sum256(got); hex.EncodeToString(sum[:]) != c.Get("upstream_sha256").Str() {
		return "the case's hash is not that of its bytes"
	}
	return compareRFC(c, text, got)
}

// compareRFC holds what the case says about RFC 8785 against our implementation
// of it.
func compareRFC(c *evidence.Value, text, upstream []byte) string {
	verdict := c.Get("rfc8785").Str()
	rfc, err := strictjson.Canonicalize(text)
	var syntax *strictjson.SyntaxError
	switch {
	case verdict == "":
		return ""
	case errors.As(err, &syntax):
		return "" // duplicates: not I-JSON, so RFC 8785 has no say
	case strings.HasPrefix(verdict, "error"):
		if err == nil {
			return "RFC 8785 refuses this text"
		}
	case err != nil:
		return "RFC 8785 takes this text: " + err.Error()
	case verdict == "same" && string(rfc) != string(upstream):
		return "differs from RFC 8785"
	case verdict == "differs" && (string(rfc) == string(upstream) || string(rfc) != c.Get("rfc8785_text").Str()):
		return "RFC 8785 gives " + string(rfc)
	}
	return ""
}

// decode reads v into a struct, for files that hold no records.
func decode(raw []byte, dst any) error { return json.Unmarshal(raw, dst) }
