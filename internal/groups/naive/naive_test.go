package naive

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestCoreAnswersLikeTheSecondModel plays random histories against both.
func TestCoreAnswersLikeTheSecondModel(t *testing.T) {
	counts := map[string]int{}
	rapid.Check(t, func(rt *rapid.T) {
		d := newDriver(rt, rapid.Uint64().Draw(rt, "seed"))
		d.run(d.between(40, 260))
		for what, n := range d.counts {
			counts[what] += n
		}
	})
	if testing.Verbose() {
		for _, what := range slices.Sorted(maps.Keys(counts)) {
			t.Logf("%7d %s", counts[what], what)
		}
	}
}

// TestHistoriesReachEveryKind plays fixed histories, so that a driver which no
// longer gets anywhere does not pass for agreement.
func TestHistoriesReachEveryKind(t *testing.T) {
	if testing.Short() {
		t.Skip("plays many histories")
	}
	seen := map[string]bool{}
	for seed := range uint64(200) {
		d := newDriver(t, seed*0x9E3779B97F4A7C15)
		d.run(220)
		for what := range d.counts {
			seen[what] = true
			if _, refused, ok := strings.Cut(what, " refused "); ok {
				code, _, _ := strings.Cut(refused, ":")
				seen[code] = true
			}
		}
	}
	for _, kind := range sortedKeys(rules) {
		if !seen[kind+" accepted"] {
			t.Errorf("%s was never accepted", kind)
		}
	}
	for _, code := range []string{af, apr, asc, ass, be, gnf, ic, ist, mr, ms, rc, rl, svf, wao, wle, woe, wso} {
		if !seen[code] {
			t.Errorf("%s was never answered", code)
		}
	}
	for _, event := range []string{
		"ext.missionweave.authority.lease_expired", "ext.missionweave.authority.ownership_released",
		"ext.missionweave.authority.offers_withdrawn", "ext.missionweave.authority.mission_owner_transferred",
		"ext.missionweave.authority.cooperation_override_consumed", "ext.missionweave.authority.budget_exhausted",
		"ext.missionweave.authority.child_budget_reserved", "ext.missionweave.approval.execution_expired",
		"ext.missionweaveprotocol.core.work_execution_lease_revoked", "work.contract.revised", "work.progressed",
	} {
		if !seen["event "+event] {
			t.Errorf("%s was never written", event)
		}
	}
}
