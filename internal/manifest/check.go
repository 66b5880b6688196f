package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// Limits of a compiled manifest.
const (
	maxCapabilities = 512
	maxCombinations = 4096 // of the names in one condition
)

// check finds what the layout alone cannot say: names that refer to nothing or
// are given twice, and classes that contradict what an action requires.
func (d *Document) check(f *faults) {
	declared := map[string]bool{}
	for _, c := range d.Capabilities {
		declared[c] = true
	}
	if len(d.Capabilities) > maxCapabilities {
		f.add("capabilities", "are more than %d", maxCapabilities)
	}
	for _, level := range slices.Sorted(maps.Keys(d.Matrix)) {
		for i, c := range d.Matrix[level] {
			if !declared[c] {
				f.add(fmt.Sprintf("capability_matrix.%s[%d]", level, i), "the capability %s is not declared under capabilities", strconv.Quote(c))
			}
		}
	}
	for _, name := range sortedKeys(d.Actions) {
		d.Actions[name].check(f, "actions."+name, declared)
	}
	for i, name := range d.Provenance {
		if !slices.Contains(RecordFields, name) {
			f.add(fmt.Sprintf("provenance[%d]", i), "%s is not a field of a provenance record", strconv.Quote(name))
		}
	}
	operations := map[string]bool{}
	for i, t := range d.TaintRules {
		if operations[t.Operation] {
			f.add(fmt.Sprintf("taint_rules[%d]", i), "there is a rule for %s already", strconv.Quote(t.Operation))
		}
		operations[t.Operation] = true
	}
	d.checkRules(f)
}

func (a *Action) check(f *faults, path string, declared map[string]bool) {
	for i, c := range a.Requires {
		if !declared[c] {
			f.add(fmt.Sprintf("%s.requires[%d]", path, i), "the capability %s is not declared under capabilities", strconv.Quote(c))
		}
	}
	external := slices.Contains(a.Requires, ExternalSideEffects)
	switch at := path + ".side_effect_class"; {
	case a.Class == ClassRead && (external || slices.Contains(a.Requires, MemoryWrite)):
		f.add(at, "an action that requires %s or %s is not a read", ExternalSideEffects, MemoryWrite)
	case a.Class == ClassMutateLocal && external:
		f.add(at, "an action that requires %s is not local", ExternalSideEffects)
	case (a.Class == ClassMutateExternal || a.Class == ClassNetworkEgress) && !external:
		f.add(at, "a class with effects outside needs the capability %s, or the laws could not contain it", ExternalSideEffects)
	}
	if n := a.schemaNode; n != nil {
		before := len(f.list)
		f.checkKeywords(n, path+".schema")
		if len(f.list) > before {
			return
		}
		schema, err := canonicalJSON(n)
		if err != nil {
			f.add(path+".schema", "%v", err)
			return
		}
		a.Schema = schema
	}
}

// class is the side effect class, told from the capabilities where it is not said.
func (a *Action) class() string {
	switch {
	case a.Class != "":
		return a.Class
	case slices.Contains(a.Requires, ExternalSideEffects):
		return ClassMutateExternal
	case slices.Contains(a.Requires, MemoryWrite):
		return ClassMutateLocal
	case len(a.Requires) == 1 && a.Requires[0] == Read:
		return ClassRead
	}
	return ClassUnknown
}

func (d *Document) checkRules(f *faults) {
	ids := map[string]bool{}
	for _, list := range [][]Rule{d.Rules, d.Escalations} {
		for i := range list {
			r := &list[i]
			if r.ID != "" && ids[r.ID] {
				f.add(r.path+".id", "%s is the id of another rule already", strconv.Quote(r.ID))
			}
			ids[r.ID] = true
			combinations := 1
			for _, names := range [][]string{r.Condition.Actions, r.Condition.Actors, r.Condition.Resources, r.Condition.Capabilities} {
				combinations *= max(1, len(names))
			}
			if combinations > maxCombinations {
				f.add(r.path+".condition", "names more than %d combinations", maxCombinations)
			}
			for _, name := range r.Condition.Actions {
				if d.Actions[name] == nil {
					f.put(Fault{
						Path: f.deepest(r.path, ".condition", ".action"), Kind: FaultUndeclaredAction, Subject: name,
						Reason: fmt.Sprintf("the action %s is not declared: no rule can create it", strconv.Quote(name)),
					})
				}
			}
		}
	}
}
