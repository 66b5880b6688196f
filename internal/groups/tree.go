package groups

import "github.com/missionweave/server/internal/protocol"

// Questions about the whole Mission tree. They ask for other Groups only when
// the own one does not know the answer.

// inTree reports that some Group of the Mission tree satisfies ask: the own
// one, then those above it, then all below them.
func (x *Ctx) inTree(ask func(*State) bool) (bool, error) {
	if ask(x.Group) {
		return true, nil
	}
	top, asked := x.Group, map[string]bool{x.Group.GroupID: true}
	for top.IsChild() {
		parent, err := x.World.group(top.Mission.ParentGroupID)
		if err != nil {
			return false, err
		}
		if parent == nil {
			return false, &IntegrityError{Problem: "parent Group " + top.Mission.ParentGroupID + " is gone"}
		}
		top = parent
		asked[top.GroupID] = true
		if ask(top) {
			return true, nil
		}
	}
	return x.below(top, asked, ask)
}

func (x *Ctx) below(g *State, asked map[string]bool, ask func(*State) bool) (bool, error) {
	for _, id := range g.childGroups {
		child, err := x.World.group(id)
		if err != nil {
			return false, err
		}
		if child == nil {
			continue
		}
		if !asked[id] {
			asked[id] = true
			if ask(child) {
				return true, nil
			}
		}
		if ok, err := x.below(child, asked, ask); ok || err != nil {
			return ok, err
		}
	}
	return false, nil
}

// artifactInTree reports that the Mission tree has an Artifact with a content
// hash; classification is the highest under which it was published.
func (x *Ctx) artifactInTree(hash string) (known bool, classification string, err error) {
	known, err = x.inTree(func(g *State) bool {
		found := g.ArtifactsByHash(hash)
		for _, a := range found {
			classification = higher(classification, a.Manifest.Doc.Classification)
		}
		return len(found) > 0
	})
	return known, classification, err
}

// knownContent is the P18 row of content a Worker refers to: an Artifact of the
// Mission tree, an input of the contract, or an entry of the Organization's
// catalogue.
func (x *Ctx) knownContent(c *protocol.WorkContract, hash string) (classification string, err error) {
	known, classification, err := x.artifactInTree(hash)
	if err != nil || known {
		return classification, err
	}
	for _, in := range c.InputArtifacts {
		if in == hash {
			return "", nil
		}
	}
	if cat := x.World.Org.Catalogue; cat != nil {
		if class, ok := cat(hash); ok {
			return class, nil
		}
	}
	return "", invalid("unknown_reference")
}

var classifications = map[string]int{"": 0, "public": 1, "internal": 2, "confidential": 3, "restricted": 4}

// higher is the stricter of two classifications.
func higher(a, b string) string {
	if classifications[b] > classifications[a] {
		return b
	}
	return a
}
