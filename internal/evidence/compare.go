package evidence

import (
	"regexp"
	"slices"
	"strings"
)

// Digest is a state digest with what it was taken over. Absent parts are nil or
// empty.
type Digest struct {
	Kind     *Value
	Coverage *Value
	Digest   *Value
}

// DigestOf reads {kind, coverage, digest}.
func DigestOf(v *Value) Digest {
	return Digest{Kind: v.Get("kind"), Coverage: v.Get("coverage"), Digest: v.Get("digest")}
}

// ActionDigests are the digests before and after an action: both have the one
// coverage of the action.
func ActionDigests(action *Value) (pre, post Digest) {
	kind, cov := action.Get("state_digest_kind"), action.Get("state_digest_coverage")
	return Digest{kind, cov, action.Get("pre_state_digest")}, Digest{kind, cov, action.Get("post_state_digest")}
}

// CompareState is one of the three answers of [Compare].
type CompareState string

// The answers. There is no fourth: what cannot be decided is not comparable.
const (
	Comparable                CompareState = "comparable"
	NotComparable             CompareState = "not-comparable"
	ComparableUnderAssumption CompareState = "comparable-under-assumption"
)

// Reasons for which two digests are not comparable.
const (
	ReasonNoCoverage   = "no-coverage"
	ReasonNoDigest     = "no-digest"
	ReasonKind         = "kind-mismatch"
	ReasonInvalid      = "coverage-invalid"
	ReasonAlgorithm    = "digest-algorithm-mismatch"
	ReasonIdentity     = "identity-mismatch"
	ReasonSelector     = "selector-mismatch"
	ReasonBoundary     = "boundary-mismatch"
	ReasonDigestInput  = "digest-input-mismatch"
	ReasonScratch      = "scratch-only"
	ReasonNoPartition  = "mixed-without-partition"
	ReasonBasisNone    = "mixed-basis-none"
	ReasonUnregistered = "other-kind-unregistered"
	ReasonAsymmetric   = "comparator-asymmetric"
)

// Assumptions under which digests may be compared.
const (
	AssumeNoSnapshot  = "best-effort, no snapshot"
	AssumeDurableOnly = "durable subset only"
)

// Comparison is the answer about two digests. The digests may be tested for
// equality only when they are comparable, if need be under every assumption
// named; DigestsEqual is nil otherwise.
type Comparison struct {
	State        CompareState `json:"state"`
	Reason       string       `json:"reason,omitempty"`
	Assumptions  []string     `json:"assumptions"`
	DigestsEqual *bool        `json:"digests_equal,omitempty"`
}

// Comparator compares the coverages of one vendor kind and version. It must be
// symmetric; an answer that depends on the order counts as not comparable. A
// reason that is not empty means not comparable.
type Comparator func(a, b *Value) (reason string, assumptions []string)

// Comparators are the registered ones, by "other_kind@coverage_schema_version".
type Comparators map[string]Comparator

// Compare tells whether two digests speak about the same state. It is
// symmetric, and any reason against beats any assumption.
func Compare(a, b Digest, registered Comparators) Comparison {
	reason, assumptions := compare(a, b, registered)
	if reason != "" {
		return Comparison{State: NotComparable, Reason: reason, Assumptions: []string{}}
	}
	equal := sameDigest(a.Digest.Str(), b.Digest.Str())
	slices.Sort(assumptions)
	assumptions = slices.Compact(assumptions)
	if len(assumptions) > 0 {
		return Comparison{State: ComparableUnderAssumption, Assumptions: assumptions, DigestsEqual: &equal}
	}
	return Comparison{State: Comparable, Assumptions: []string{}, DigestsEqual: &equal}
}

func present(v *Value) bool { return v.Exists() && v.Kind() != Null }

func compare(a, b Digest, registered Comparators) (string, []string) {
	switch {
	case !present(a.Kind) || !present(b.Kind) || !present(a.Coverage) || !present(b.Coverage):
		return ReasonNoCoverage, nil
	case !present(a.Digest) || !present(b.Digest):
		return ReasonNoDigest, nil
	case a.Kind.Kind() != b.Kind.Kind() || a.Kind.Str() != b.Kind.Str():
		return ReasonKind, nil
	case !coverageValid(a) || !coverageValid(b):
		return ReasonInvalid, nil
	}
	x, _ := digestParts(a.Digest.Str())
	y, _ := digestParts(b.Digest.Str())
	if x != y {
		return ReasonAlgorithm, nil
	}
	p := pair{a.Coverage, b.Coverage}
	switch a.Kind.Str() {
	case kindGit:
		return p.git(), nil
	case kindRows:
		return p.rows()
	case kindSandbox:
		return p.first(p.must(ReasonIdentity, "base_image_digest", "sandbox_root"),
			p.must(ReasonSelector, "include_predicates", "exclude_predicates"),
			p.must(ReasonBoundary, "symlink_policy", "generated_paths_included")), nil
	case kindDOM:
		return p.dom(), nil
	case kindKV, kindMemory:
		return p.keyed()
	}
	return p.other(registered)
}

func coverageValid(d Digest) bool {
	if d.Kind.Kind() != String || !slices.Contains(stateKinds, d.Kind.Str()) || d.Digest.Kind() != String {
		return false
	}
	c := &checker{v3: true}
	c.coverage(d.Kind, d.Coverage, "")
	return len(c.errors) == 0
}

// pair is two coverages of one kind.
type pair struct{ a, b *Value }

func (p pair) same(name string) bool { return sameValue(p.a.Get(name), p.b.Get(name)) }

func (p pair) both(name string) bool { return p.a.Get(name).Exists() && p.b.Get(name).Exists() }

// must gives reason if any of the members differs; absent and present differ.
func (p pair) must(reason string, names ...string) string {
	for _, n := range names {
		if !p.same(n) {
			return reason
		}
	}
	return ""
}

// where gives reason if any member is on both sides and differs.
func (p pair) where(reason string, names ...string) string {
	for _, n := range names {
		if p.both(n) && !p.same(n) {
			return reason
		}
	}
	return ""
}

func (pair) first(reasons ...string) string {
	for _, r := range reasons {
		if r != "" {
			return r
		}
	}
	return ""
}

func (p pair) git() string {
	excludes := ""
	if len(p.a.Get("excludes").Items())+len(p.b.Get("excludes").Items()) > 0 { // absent is empty
		excludes = p.must(ReasonSelector, "excludes")
	}
	return p.first(p.must(ReasonIdentity, "tree_sha", "tree_root"), p.must(ReasonSelector, "path_predicate"), excludes)
}

// rows: the text of the predicate never decides, its hash does.
func (p pair) rows() (string, []string) {
	reason := p.first(p.must(ReasonIdentity, "database_id", "schema", "table"), p.must(ReasonSelector, "query_hash"),
		p.where(ReasonBoundary, "isolation_level", "snapshot_id"))
	if reason == "" && !p.both("snapshot_id") {
		return "", []string{AssumeNoSnapshot}
	}
	return reason, nil
}

func (p pair) dom() string {
	reason := p.first(p.must(ReasonIdentity, "origin", "route_path", "frame_path"), p.must(ReasonSelector, "selector_root", "selector_kind"),
		p.must(ReasonBoundary, "capture_phase", "attribute_order", "whitespace_policy", "capture_timestamp_ms"))
	if reason == "" && p.a.Get("text_only").IsTrue() != p.b.Get("text_only").IsTrue() {
		return ReasonDigestInput
	}
	return reason
}

var storeVersions = []string{"vector_clock", "read_timestamp_ms", "generation_number"}

func (p pair) keyed() (string, []string) {
	reason := p.first(p.must(ReasonIdentity, "namespace"), p.must(ReasonSelector, "key_predicate"),
		p.must(ReasonBoundary, "redaction_profile", "durable_vs_scratch"))
	if reason != "" {
		return reason, nil
	}
	mode := p.a.Get("durable_vs_scratch").Str()
	if mode == "scratch-only" {
		return ReasonScratch, nil
	}
	if reason := p.where(ReasonBoundary, storeVersions...); reason != "" {
		return reason, nil
	}
	var assume []string
	if mode == "mixed" {
		if !p.both("mixed_partition") {
			return ReasonNoPartition, nil
		}
		if basis := func(v *Value) string { return v.Get("mixed_partition").Get("audit_equality_basis").Str() }; basis(p.a) == "none" || basis(p.b) == "none" {
			return ReasonBasisNone, nil
		}
		assume = append(assume, AssumeDurableOnly)
	}
	if reason := p.where(ReasonBoundary, "mixed_partition"); reason != "" {
		return reason, nil
	}
	if !slices.ContainsFunc(storeVersions, p.both) {
		assume = append(assume, AssumeNoSnapshot)
	}
	return "", assume
}

func (p pair) other(registered Comparators) (string, []string) {
	if reason := p.first(p.must(ReasonIdentity, "other_kind"), p.must(ReasonBoundary, "coverage_schema_version")); reason != "" {
		return reason, nil
	}
	cmp := registered[p.a.Get("other_kind").Str()+"@"+p.a.Get("coverage_schema_version").Str()]
	if cmp == nil {
		return ReasonUnregistered, nil
	}
	reason, assume := cmp(p.a, p.b)
	back, assumeBack := cmp(p.b, p.a)
	slices.Sort(assume)
	slices.Sort(assumeBack)
	if reason != back || !slices.Equal(assume, assumeBack) {
		return ReasonAsymmetric, nil
	}
	return reason, assume
}

// sameValue compares JSON values: numbers by value, strings byte by byte, arrays
// in order, objects by members whatever their order. Both absent is the same.
// The canonical form would not do, since it leaves members out.
func sameValue(a, b *Value) bool {
	if a.Kind() != b.Kind() {
		return false
	}
	switch a.Kind() {
	case Object:
		return coveredBy(a, b) && coveredBy(b, a)
	case Array:
		return slices.EqualFunc(a.items, b.items, sameValue)
	case String:
		return a.text == b.text
	case Bool:
		return a.truth == b.truth
	case Number:
		x, okX := a.Float()
		y, okY := b.Float()
		return okX && okY && x == y
	}
	return true
}

func coveredBy(a, b *Value) bool {
	return !slices.ContainsFunc(a.members, func(m Member) bool { return !sameValue(a.Get(m.Name), b.Get(m.Name)) })
}

var (
	digestWithColon = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9_.+-]*):([0-9A-Fa-f]+)$`)
	digestWithDash  = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9_.+-]*)-([0-9A-Fa-f]+)$`)
	bareSHA256      = regexp.MustCompile(`^[0-9A-Fa-f]{64}$`)
)

// digestParts splits alg:hex and alg-hex; bare 64 digits are SHA-256. Anything
// else is opaque: the algorithm is empty and the digest is the text.
func digestParts(s string) (alg, digest string) {
	if bareSHA256.MatchString(s) {
		return "sha256", strings.ToLower(s)
	}
	for _, form := range []*regexp.Regexp{digestWithColon, digestWithDash} {
		if m := form.FindStringSubmatch(s); m != nil {
			return strings.ToLower(m[1]), strings.ToLower(m[2])
		}
	}
	return "", s
}

func sameDigest(a, b string) bool {
	algA, a := digestParts(a)
	algB, b := digestParts(b)
	return algA == algB && a == b
}
