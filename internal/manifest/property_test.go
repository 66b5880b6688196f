package manifest

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// The properties of RULES.md section 5, one test each.

var sameDecision = cmp.Options{cmpopts.IgnoreUnexported(Context{}), cmpopts.EquateEmpty()}

func TestTheOrderOfAChainDoesNotMatter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, r := mustCompile(t, genDocument(t)), genRequest(t)
		first := m.Decide(r)
		shuffled := *r
		shuffled.Chain = rapid.Permutation(r.Chain).Draw(t, "order")
		if diff := cmp.Diff(first, m.Decide(&shuffled), sameDecision); diff != "" {
			t.Fatalf("another order decides otherwise (-first +other):\n%s", diff)
		}
	})
}

func TestATaintedOrUntrustedRecordNeverOpensAnything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := genDocument(t)
		m, r := mustCompile(t, d), genRequest(t)
		if len(r.Chain) == 0 {
			return // there is no data yet that could become worse
		}
		before := m.Decide(r)
		worse := *r
		records := maps.Clone(r.Records.(RecordMap))
		x := &Record{
			ID: "worse", Source: rapid.SampledFrom(append([]string{"unheard_of"}, genChannels...)).Draw(t, "source"),
			Trust: "trusted", Tainted: true, Transformations: []string{}, Parents: []string{}, Sessions: []string{"s"}, CreatedAt: "now",
		}
		if rapid.Bool().Draw(t, "untrusted") {
			x.Trust, x.Tainted = "untrusted", false
		}
		records["worse"] = x
		worse.Records, worse.Chain = records, append(slices.Clone(r.Chain), "worse")
		if after := m.Decide(&worse); after.Verdict == ALLOW && before.Verdict != ALLOW {
			t.Fatalf("%s by %s became ALLOW by %s", before.Verdict, before.RuleID, after.RuleID)
		}
	})
}

func TestBackgroundNeverAsks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, r := mustCompile(t, genDocument(t)), genRequest(t)
		r.Mode = Background
		if d := m.Decide(r); d.Verdict == ASK || len(d.Choices) > 0 {
			t.Fatalf("asked: %+v", d)
		}
	})
}

func TestLawsHoldUnderAnyRulesAndApprovals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := genDocument(t)
		bare := d.clone()
		bare.Rules, bare.Escalations = nil, nil
		m, r := mustCompile(t, d), genRequest(t)
		without := mustCompile(t, bare).Decide(r)
		approved := *r
		approved.Now = time.Unix(10, 0)
		digest, err := ParametersDigest(r.Parameters)
		if err != nil {
			t.Fatal(err)
		}
		approved.Approval = &Approval{
			ID: "a", ActionType: r.Action, ParametersDigest: digest, ArgsEquality: ArgsEquality, ManifestVersion: m.Version(),
			Session: r.Session, WorkItem: r.WorkItem, Actor: r.Actor, ExpiresAt: time.Unix(20, 0),
		}
		for _, mode := range Modes {
			approved.Mode = mode
			with := m.Decide(&approved)
			if !slices.Equal(without.Laws, with.Laws) {
				t.Fatalf("laws %v became %v", without.Laws, with.Laws)
			}
			if len(with.Laws) > 0 && (with.Verdict != DENY || with.Rule != with.Laws[0] || with.ApprovalID != "") {
				t.Fatalf("a violated law did not decide: %+v", with)
			}
		}
	})
}

func TestCompilingOneManifestDoesNotTouchAnother(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := genDocument(t), genDocument(t)
		requests := []*Request{genRequest(t), genRequest(t), genRequest(t)}
		alone := mustCompile(t, b)
		var before []Decision
		for _, r := range requests {
			before = append(before, alone.Decide(r))
		}
		var wg sync.WaitGroup
		var after *Manifest
		wg.Go(func() { _, _ = compile(a, false) })
		wg.Go(func() { after, _ = compile(b.clone(), false) })
		wg.Wait()
		if after.Version() != alone.Version() {
			t.Fatalf("version %s became %s", alone.Version(), after.Version())
		}
		for i, r := range requests {
			if diff := cmp.Diff(before[i], after.Decide(r), sameDecision); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

func TestAnExtensionIsAnotherVersionAndRedefinesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, r := mustCompile(t, genDocument(t)), genRequest(t)
		version, canonical, before := m.Version(), m.Canonical(), m.Decide(r)
		change := fmt.Sprintf(`{"actions":{"extended":{"requires":[%q]}}}`, rapid.SampledFrom(genCaps).Draw(t, "requires"))
		x, err := m.Extend("change", []byte(change))
		if err != nil {
			t.Fatal(err)
		}
		if x.Version() == version || m.Version() != version || !bytes.Equal(m.Canonical(), canonical) {
			t.Fatal("the extension must have a version of its own and leave the old one")
		}
		if after := m.Decide(r); cmp.Diff(before, after, sameDecision) != "" {
			t.Fatal("the old version decides otherwise than before")
		}
		extended := x.Decide(r)
		if extended.ManifestVersion = version; cmp.Diff(before, extended, sameDecision) != "" {
			t.Fatalf("an action that the extension does not name is decided otherwise:\n%s", cmp.Diff(before, extended, sameDecision))
		}
		for _, name := range genActions {
			if _, err := x.Extend("change", fmt.Appendf(nil, `{"actions":{%q:{"requires":[]}}}`, name)); err == nil {
				t.Fatalf("%s was redefined", name)
			}
		}
	})
}

func TestTheCanonicalFormIsAManifestOfTheSameVersion(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, r := mustCompile(t, genDocument(t)), genRequest(t)
		d, report, err := Load("canonical", m.Canonical())
		if err != nil {
			t.Fatal(err)
		}
		again := mustCompile(t, d)
		if again.Version() != m.Version() || report.Layout != Format || len(report.NotCarried) != 0 {
			t.Fatalf("%s became %s", m.Version(), again.Version())
		}
		if diff := cmp.Diff(m.Decide(r), again.Decide(r), sameDecision); diff != "" {
			t.Fatal(diff)
		}
	})
}

func TestATraceDecidedAgainUnderItsVersionIsTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := genDocument(t)
		m := mustCompile(t, d)
		var text []byte
		for range 3 {
			r := genRequest(t)
			decision := m.Decide(r)
			var err error
			if text, err = decision.Entry(r).AppendJSONLine(text); err != nil {
				t.Fatal(err)
			}
		}
		trace, err := ReadTrace(text)
		if err != nil {
			t.Fatal(err)
		}
		if s := m.Simulate(trace); s.Same != 3 || len(s.Differences) != 0 {
			t.Fatalf("%+v", s)
		}
		if diff := Compare(m, m); !diff.Empty() {
			t.Fatalf("a manifest differs from itself: %+v", diff)
		}
		other := mustCompile(t, genDocument(t))
		for _, x := range other.Simulate(trace).Differences {
			if x.Was == x.Is && x.WasRule == x.IsRule {
				t.Fatalf("told a difference that is none: %+v", x)
			}
		}
	})
}

// TestEveryProcessDecidesTheSame runs itself in other processes, whose maps are in
// other orders.
func TestEveryProcessDecidesTheSame(t *testing.T) {
	const child = "MW_MANIFEST_CHILD"
	if os.Getenv(child) != "" {
		fmt.Print(fixedDecisions())
		return
	}
	want := fixedDecisions()
	for range 3 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestEveryProcessDecidesTheSame$")
		cmd.Env = append(os.Environ(), child+"=1")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if got, _, _ := strings.Cut(string(out), "PASS"); got != want {
			t.Fatalf("another process decides otherwise:\n%s\nwant\n%s", got, want)
		}
	}
}

func fixedDecisions() string {
	var b strings.Builder
	for i := range 20 {
		d := rapid.Custom(genDocument).Example(i)
		m, err := compile(d, false)
		if err != nil {
			return err.Error()
		}
		fmt.Fprintln(&b, m.Version())
		for j := range 5 {
			r := rapid.Custom(genRequest).Example(i*5 + j)
			decision := m.Decide(r)
			line, err := decision.Entry(r).AppendJSONLine(nil)
			fmt.Fprintf(&b, "%s%v\n", line, err)
		}
	}
	return b.String()
}
