package evidence

import "slices"

// Registry is what the caller knows. A nil part is a registry that is not there:
// its rules are skipped. An empty part knows nothing: its rules fail.
type Registry struct {
	Keys                 map[string]KeyStatus     // by key id
	Policies             map[string]bool          // digests of policy bundles
	Leases               map[string][]LeaseWindow // by lease id, in the order in which they came into force
	Approvals            map[string]bool          // approval_context_hash
	RevocationEvents     map[string]int64         // Event id -> epoch ms; 0 when the time is not known
	PolicyVersions       map[string]bool
	ArgsEqualityVersions map[string]bool
	RedactionProfiles    map[string]bool
	ExtensionNamespaces  map[string]bool
	Actions              map[string]bool // action ids of the run's history
	UnknownNeedsApproval bool
	Payloads             func(actionID string) (approved, observed []byte, ok bool) // for recomputing drift
}

// KeyStatus is what a trust root says about a key.
type KeyStatus struct {
	RevokedAtMS *int64 // nil: not revoked
}

// LeaseWindow is the window of a lease as it was from SinceMS on.
type LeaseWindow struct {
	SinceMS     int64 // when it came into force; 0: from the start
	GrantedAtMS int64
	ExpiresAtMS int64
}

// windowAt is the window that was in force at the instant.
func windowAt(list []LeaseWindow, ms int64) (LeaseWindow, bool) {
	if len(list) == 0 {
		return LeaseWindow{}, false
	}
	w := list[0]
	for _, next := range list[1:] {
		if next.SinceMS <= ms {
			w = next
		}
	}
	return w, true
}

func (c *checker) tier4(g *Registry) {
	if key := c.root.Get(memberSignature).Get("key_id"); g.Keys != nil && key.Exists() {
		status, ok := g.Keys[key.Str()]
		created, _ := c.root.Get("created_at_ms").Float()
		switch {
		case !ok:
			c.fail("P-01", "E_KEY_UNTRUSTED", "/signature/key_id", "not in the trust root")
		case status.RevokedAtMS != nil && float64(*status.RevokedAtMS) <= created:
			c.fail("P-01", "E_KEY_REVOKED", "/signature/key_id", "revoked before the record was made")
		}
	}
	if p := c.root.Get("policy_bundle_digest"); g.Policies != nil && p.Exists() && !g.Policies[p.Str()] {
		c.fail("P-02", "E_POLICY_UNKNOWN", "/policy_bundle_digest", "no such policy")
	}
	if !c.v3 {
		return
	}
	own := map[string]bool{}
	for _, a := range c.root.Get("actions").Items() {
		own[a.Get("action_id").Str()] = true
	}
	for i, a := range c.root.Get("actions").Items() {
		path := atIndex("/actions", i)
		au := authorityOf(a)
		if au.grant == grantLease && au.ble.Exists() {
			c.leaseKnown(g, au, at(path, "bounded_lease_evidence"))
		}
		if g.Approvals != nil && au.grant == grantOneShot && !g.Approvals[au.context.Str()] {
			c.fail("P-05", "E_APPROVAL_UNKNOWN", at(path, "approval_context_hash"), "no such approval")
		}
		c.driftKnown(g, a, au, path)
		c.profileKnown(g, a.Get("state_digest_coverage").Get("redaction_profile"), at(path, "state_digest_coverage/redaction_profile"))
		if p := a.Get("parent_action_id"); g.Actions != nil && p.Exists() && !own[p.Str()] && !g.Actions[p.Str()] {
			c.fail("P-10", "E_PARENT_UNRESOLVED", at(path, "parent_action_id"), "no such action in the run")
		}
		c.namespaceKnown(g, au.extension, path)
		if g.UnknownNeedsApproval && classOf(a) == "unknown" && au.dec == decAllow && au.grant != grantOneShot && au.grant != grantLease {
			c.fail("P-12", "E_UNKNOWN_SIDE_EFFECT_POLICY", path, "effects are unknown and nobody approved")
		}
	}
	for i, d := range c.root.Get("capability_decisions").Items() {
		c.namespaceKnown(g, d.Get("approval_extension"), atIndex("/capability_decisions", i))
	}
}

func (c *checker) leaseKnown(g *Registry, au authority, path string) {
	e := leaseEvidenceOf(au.ble)
	if g.Leases != nil {
		w, ok := windowAt(g.Leases[e.id], e.started)
		switch {
		case !ok:
			c.fail("P-03", "E_LEASE_UNKNOWN", at(path, "lease_id"), "no such lease")
		case w.GrantedAtMS != e.granted || w.ExpiresAtMS != e.expires:
			c.fail("P-04", "E_LEASE_REGISTRY_MISMATCH", path, "the lease ran from %d to %d", w.GrantedAtMS, w.ExpiresAtMS)
		}
	}
	if g.RevocationEvents != nil && e.revokedBy != "" {
		when, ok := g.RevocationEvents[e.revokedBy]
		if !ok || when > e.started {
			c.fail("P-06", "E_REVOCATION_EVENT_UNKNOWN", at(path, "revocation_event_id"), "no such Event before the attempt")
		}
	}
	if g.PolicyVersions != nil && e.revokedPolicy != "" && !g.PolicyVersions[e.revokedPolicy] {
		c.fail("P-07", "E_POLICY_VERSION_UNKNOWN", at(path, "revocation_policy_version"), "no such policy version")
	}
}

func (c *checker) driftKnown(g *Registry, a *Value, au authority, path string) {
	version := au.drift.Get("args_equality_version")
	if !version.Exists() {
		return
	}
	p := at(path, "argument_drift")
	if g.ArgsEqualityVersions != nil && !g.ArgsEqualityVersions[version.Str()] {
		c.fail("P-08", "E_ARGS_EQUALITY_VERSION_UNKNOWN", at(p, "args_equality_version"), "not registered")
		return
	}
	if g.Payloads == nil {
		return
	}
	approved, observed, ok := g.Payloads(a.Get("action_id").Str())
	if !ok {
		return
	}
	for _, side := range []struct {
		name    string
		payload []byte
	}{{"approved_arg_digest", approved}, {"observed_arg_digest", observed}} {
		claimed := au.drift.Get(side.name)
		if side.payload == nil || !claimed.Exists() {
			continue
		}
		if got, err := ArgsDigest(version.Str(), side.payload); err != nil || got != claimed.Str() {
			c.fail("P-08", "E_DRIFT_RECOMPUTE_MISMATCH", at(p, side.name), "the payload has another digest")
		}
	}
}

func (c *checker) profileKnown(g *Registry, profile *Value, path string) {
	if g.RedactionProfiles == nil || !profile.Exists() || g.RedactionProfiles[profile.Str()] {
		return
	}
	named := func(v *Value) bool { return v.Get("redaction_profile").Str() == profile.Str() }
	if !named(c.root) && !slices.ContainsFunc(c.root.Get("output_refs").Items(), named) {
		c.fail("P-09", "E_REDACTION_PROFILE_UNKNOWN", path, "nobody names this profile")
	}
}

func (c *checker) namespaceKnown(g *Registry, extension *Value, path string) {
	if g.ExtensionNamespaces != nil && extension.Exists() && !g.ExtensionNamespaces[extension.Get("namespace").Str()] {
		c.fail("P-11", "E_EXTENSION_NAMESPACE_UNKNOWN", path, "the namespace of approval_extension is not registered")
	}
}

// Census counts vendor kinds over many records (P-13). The zero value has counted
// none.
type Census struct {
	records int
	kinds   map[string]int // how many records use each
}

// Add counts one record.
func (c *Census) Add(record *Value) {
	c.records++
	if c.kinds == nil {
		c.kinds = map[string]int{}
	}
	used := map[string]bool{}
	for _, a := range record.Get("actions").Items() {
		if a.Get("state_digest_kind").Str() == kindOther {
			used[a.Get("state_digest_coverage").Get("other_kind").Str()] = true
		}
	}
	for k := range used {
		c.kinds[k]++
	}
}

// Graduates are the vendor kinds that more than one record in twenty uses: candidates
// for a kind of their own. They are sorted.
func (c *Census) Graduates() []string {
	var out []string
	for k, n := range c.kinds {
		if n*20 > c.records {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}
