package groups

import (
	"strings"
	"testing"
)

// A child Mission without money still belongs to a tree that counts in one
// currency: it must not take money of another later.
func TestMoneylessChildKeepsTheTreesCurrency(t *testing.T) {
	for _, named := range []string{"", `"currency": "USD", "financialLimit": 0,`} {
		s := newSite(t)
		s.authorize("work:a", "")
		s.must("agent:cora mission.create_child", `{"missionId": "mission:c", "groupId": "group:c", "coordinatorAgentId": "agent:dora",
			"objective": "Part", "definitionOfDone": ["@criterion"], "budget": {`+named+` "modelTokenLimit": 500},
			"deadline": "now+240h", "coordinatorLeaseSeconds": 86400}`, "work=work:a")
		raise := func(currency string) string {
			return s.try("agent:cora ext.missionweave.budget.increase",
				`{"budget": {"currency": "`+currency+`", "financialLimit": 5, "modelTokenLimit": 500}, "reason": "r"}`, "group:c")
		}
		if got := raise("USD"); !strings.HasPrefix(got, "INVALID_COMMAND:currency_mismatch") {
			t.Errorf("%q: foreign money was answered with %q", named, got)
		}
		if got := raise("EUR"); got != "" {
			t.Errorf("%q: the tree's money was answered with %q", named, got)
		}
		s.done()
	}
}

// Whoever is given a provisional Membership anew gets a package of the Group as
// it is now.
func TestProvisionalMembershipGivenAnewBringsANewPackage(t *testing.T) {
	s := newSite(t)
	provisional := func(until string) {
		s.must("agent:cora membership.change", `{"member": {"type": "agent", "id": "agent:stranger"}, "role": "worker", "state": "provisional",
			"provisionalExpiresAt": "`+until+`"}`)
		s.keep("package", "contextPackage.contextPackageId")
	}
	provisional("now+1h")
	first := s.known["package"]
	provisional("now+2h")
	if second := s.known["package"]; second == first || second == "" {
		t.Errorf("package %q, then %q", first, second)
	}
	s.done()
}
