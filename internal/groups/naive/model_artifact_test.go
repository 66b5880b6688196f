package naive

import "slices"

// Artifacts (section 5.5).

// producing is P17 of a manifest.
func producing(c *call) {
	if agentOf(text(c.p["artifact"].(obj)["producer"].(obj)["agentId"])) != c.cmd.actor {
		fail(af, "")
	}
}

func doPublish(c *call) {
	g, w := c.g, c.w
	a := c.p["artifact"].(obj)
	producer := a["producer"].(obj)
	id, hash := text(a["artifactId"]), text(a["contentHash"])
	if text(a["missionId"]) != g.mission || text(a["groupId"]) != g.id || text(a["workItemId"]) != w.id {
		fail(ic, "binding_mismatch")
	}
	if g.artifacts[id] != nil {
		fail(ic, "identifier_in_use")
	}
	for _, other := range w.artifacts {
		if other.hash == hash && other.epoch == number(c.p["ownershipEpoch"]) {
			fail(ic, "")
		}
	}
	highest := 0
	for _, h := range texts(a["sourceArtifactHashes"]) {
		if h == hash {
			continue // a cycle, P23
		}
		s := g.known(h)
		if s == nil {
			fail(ic, "unknown_reference")
		}
		highest = max(highest, slices.Index(classes, s.class))
	}
	c.owning()
	c.holding()
	c.itemRevision()
	c.missionActive()
	c.itemIn("active")
	if number(producer["agentCardVersion"]) != w.owner.card || !sameSet(list(producer["capabilities"]), w.owner.pins) {
		fail(ic, "binding_mismatch")
	}
	if slices.Contains(texts(a["sourceArtifactHashes"]), hash) {
		fail(ic, "cycle")
	}
	if slices.Index(classes, text(a["classification"])) < highest {
		fail(af, "classification")
	}
	art := &artifact{id: id, hash: hash, epoch: w.epoch, class: text(a["classification"]), item: w}
	g.artifacts[id] = art
	w.artifacts = append(w.artifacts, art)
	c.primary(c.emitItem(w, "artifact.published", obj{
		"artifact": a, "ownershipEpoch": w.epoch, "executionLeaseId": c.p["executionLeaseId"],
	}, ""))
}

var classes = []string{"public", "internal", "confidential", "restricted"}

// known finds an Artifact of the Mission tree's path upward by its hash, the
// most sensitive one when there are several.
func (g *group) known(hash string) *artifact {
	var found *artifact
	look := func(g *group) {
		for _, a := range g.artifacts {
			if a.hash == hash && (found == nil || slices.Index(classes, a.class) > slices.Index(classes, found.class)) {
				found = a
			}
		}
	}
	look(g)
	return found
}

func sameSet(a, b []any) bool {
	if len(a) != len(b) {
		return false
	}
	for _, x := range a {
		if !slices.ContainsFunc(b, func(y any) bool { return canonical(x) == canonical(y) }) {
			return false
		}
	}
	return true
}
