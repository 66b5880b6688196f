package naive

import (
	"slices"
	"strings"
)

// Work Contract rules against state (3.3, 5.4, 7.6).

// granted reports that every wanted operation is allowed by a grant on its
// resource; a trailing * matches a prefix.
func granted(grants, wanted []any) bool {
	for _, w := range wanted {
		want := w.(obj)
		for _, op := range list(want["operations"]) {
			if !slices.ContainsFunc(grants, func(g any) bool {
				have := g.(obj)
				resource := text(have["resource"])
				fits := resource == text(want["resource"])
				if prefix, star := strings.CutSuffix(resource, "*"); star {
					fits = strings.HasPrefix(text(want["resource"]), prefix)
				}
				return fits && slices.Contains(texts(have["operations"]), text(op))
			}) {
				return false
			}
		}
	}
	return true
}

// underCeiling reports that a ceiling allows every capability; nil allows all.
func underCeiling(ceiling, wanted []any) bool {
	if ceiling == nil {
		return true
	}
	for _, w := range wanted {
		want := w.(obj)
		if !slices.ContainsFunc(ceiling, func(h any) bool {
			have := h.(obj)
			return text(have["id"]) == text(want["id"]) && satisfies(text(have["version"]), text(want["version"]))
		}) {
			return false
		}
	}
	return true
}

// contractDependencies is P18 of a contract.
func (c *call) contractDependencies(contract obj, self string) {
	for _, id := range texts(contract["dependencyWorkItemIds"]) {
		if id != self && c.g.items[id] == nil {
			fail(ic, "unknown_reference")
		}
	}
}

// dependsOn reports that a WorkItem depends, directly or not, on another; what
// replaces a dependency can satisfy it and so counts.
func (g *group) dependsOn(from []string, target string, seen map[string]bool) bool {
	for _, id := range from {
		if id == target {
			return true
		}
		w := g.items[id]
		if w == nil || seen[id] {
			continue
		}
		seen[id] = true
		next := texts(w.contract["dependencyWorkItemIds"])
		for _, other := range sortedItems(g) {
			if other.replaces == id {
				next = append(next, other.id)
			}
		}
		if g.dependsOn(next, target, seen) {
			return true
		}
	}
	return false
}

// contractValues are the P23 rows of a new or revised contract.
func (c *call) contractValues(contract obj, version int, id string) {
	deadline := when(contract["deadline"])
	switch {
	case number(contract["contractVersion"]) != version:
		fail(ic, "contract_version")
	case !deadline.After(c.m.now), deadline.After(c.g.deadline):
		fail(ic, "deadline")
	case id != "" && c.g.dependsOn(texts(contract["dependencyWorkItemIds"]), id, map[string]bool{}):
		fail(ic, "cycle")
	case !granted(c.g.permissions, list(contract["allowedResources"])):
		fail(af, "permission")
	case !underCeiling(c.g.ceiling, list(contract["requiredCapabilities"])):
		fail(af, "capability")
	case c.g.account.foreign(contract["budget"]):
		fail(ic, "currency_mismatch")
	}
}

func withoutVersion(contract obj) string {
	o := obj{}
	for k, v := range contract {
		if k != "contractVersion" {
			o[k] = v
		}
	}
	return canonical(o)
}

// duplicate is duplicate_decomposition under one parent.
func (g *group) duplicate(contract obj, parent, cited string) bool {
	want := withoutVersion(contract)
	for _, w := range g.items {
		if unfinished(w.state) && w.parent == parent && withoutVersion(w.contract) == want {
			return true
		}
	}
	for _, p := range g.proposals {
		if p.state == "open" && p.id != cited && p.parent == parent && withoutVersion(p.contract) == want {
			return true
		}
	}
	return false
}

// gated is section 7.4: what the start of work waits for.
func (c *call) gated(w *item) string {
	switch {
	case text(w.contract["executionApproval"]) == "human_required",
		slices.Contains([]string{"high_risk", "destructive"}, text(w.contract["sideEffectRisk"])),
		text(w.contract["sideEffectRisk"]) == "external" && c.g.highRisk:
		return "human"
	case text(w.contract["executionApproval"]) == "policy_required":
		return "policy"
	}
	return ""
}

// opened finds what satisfies the gate now.
func (c *call) opened(w *item) *execution {
	gate := c.gated(w)
	for _, e := range slices.Backward(w.approvals) {
		if w.owner == nil || e.epoch != w.owner.epoch {
			continue
		}
		if e.status == "denied" && e.gate {
			return nil
		}
		if e.status == "approved" && c.m.now.Before(e.expires) && (e.by.Type == "human" || gate == "policy") {
			return e
		}
	}
	return nil
}
