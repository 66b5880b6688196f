package evidence

import (
	"regexp"
	"slices"
)

// State kinds.
const (
	kindGit     = "git-tree"
	kindSandbox = "sandbox-fs"
	kindRows    = "db-rowset"
	kindDOM     = "browser-dom"
	kindKV      = "kv-snapshot"
	kindMemory  = "memory-bag"
	kindOther   = "other"
)

var stateKinds = []string{kindGit, kindSandbox, kindRows, kindDOM, kindKV, kindMemory, kindOther}

// bucket says what a coverage member means for comparing two digests.
type bucket byte

const (
	identity      bucket = 'I' // what was observed: must match
	selector      bucket = 'S' // which part of it: must match
	boundary      bucket = 'B' // the frame of the observation: must match where both have it
	observational bucket = 'O' // told for people: never decides
)

type coverageMember struct {
	name     string
	bucket   bucket
	required bool
	check    func(*Value) bool
	want     string
}

func needs(name string, b bucket, t typ) coverageMember {
	return coverageMember{name, b, true, t.holds, t.String()}
}

func may(name string, b bucket, t typ) coverageMember {
	return coverageMember{name, b, false, t.holds, t.String()}
}

func needsOne(name string, b bucket, set ...string) coverageMember {
	return coverageMember{name, b, true, oneOf(set...), "one of its values"}
}

func oneOf(set ...string) func(*Value) bool {
	return func(v *Value) bool { return v.Kind() == String && slices.Contains(set, v.text) }
}

var keyedStore = []coverageMember{
	needs("namespace", identity, typString),
	may("key_predicate", selector, typString),
	{"vector_clock", boundary, false, isClock, "an object of finite numbers"},
	may("read_timestamp_ms", boundary, typNumber),
	may("generation_number", boundary, typInteger),
	needs("redaction_profile", boundary, typString),
	needsOne("durable_vs_scratch", boundary, "durable-only", "scratch-only", "mixed"),
	{"mixed_partition", boundary, false, isPartition, "an object with durable_keys, scratch_keys and audit_equality_basis"},
}

// coverageMembers classifies every member of every kind. Members of a closed
// kind that are not here cannot be classified and are therefore errors.
var coverageMembers = map[string][]coverageMember{
	kindGit: {
		needs("tree_sha", identity, typString),
		needs("tree_root", identity, typString),
		may("path_predicate", selector, typString),
		may("excludes", selector, typStrings),
	},
	kindRows: {
		needs("database_id", identity, typString),
		needs("schema", identity, typString),
		needs("table", identity, typString),
		needs("rows_predicate", selector, typString),
		needs("query_hash", selector, typString),
		may("snapshot_id", boundary, typString),
		may("isolation_level", boundary, typString),
		may("row_count", observational, typInteger),
	},
	kindSandbox: {
		needs("base_image_digest", identity, typString),
		needs("sandbox_root", identity, typString),
		needs("include_predicates", selector, typStrings),
		needs("exclude_predicates", selector, typStrings),
		needsOne("symlink_policy", boundary, "follow", "no-follow", "reject"),
		needs("generated_paths_included", boundary, typBool),
		may("file_count", observational, typInteger),
	},
	kindDOM: {
		needs("origin", identity, typString),
		needs("route_path", identity, typString),
		needs("frame_path", identity, typString),
		needs("selector_root", selector, typString),
		needsOne("selector_kind", selector, "css", "xpath"),
		needsOne("capture_phase", boundary, "pre-hydration", "post-hydration", "post-tool-result", "stable-quiescent"),
		may("capture_timestamp_ms", boundary, typNumber),
		needsOne("attribute_order", boundary, "as-is", "sorted-asc"),
		needsOne("whitespace_policy", boundary, "preserve", "collapse"),
		may("text_only", observational, typBool),
	},
	kindKV:     keyedStore,
	kindMemory: keyedStore,
	kindOther: {
		needs("other_kind", identity, typString),
		needs("coverage_schema_version", boundary, typString),
		needs("description", observational, typString),
	},
}

func isClock(v *Value) bool {
	return v.Kind() == Object && !slices.ContainsFunc(v.members, func(m Member) bool { return !typNumber.holds(m.Value) })
}

var partitionMembers = []string{"durable_keys", "scratch_keys", "audit_equality_basis"}

func isPartition(v *Value) bool {
	keys := func(v *Value) bool { return typString.holds(v) || typStrings.holds(v) }
	return v.Kind() == Object && keys(v.Get("durable_keys")) && keys(v.Get("scratch_keys")) &&
		oneOf("durable-only", "none")(v.Get("audit_equality_basis"))
}

var (
	otherKindPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)+$`)
	semverPattern    = regexp.MustCompile(`^(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)(-(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)(\.(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*)?(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$`)
)

// coverage checks S-15 to S-18. A coverage whose kind is unknown can only be
// checked for being an object.
func (c *checker) coverage(kind, v *Value, path string) {
	if v.Kind() != Object {
		c.fail("S-15", errCoverageShape, path, "state_digest_coverage must be an object, not %s", v.Kind())
		return
	}
	list, known := coverageMembers[kind.Str()]
	if !known {
		return
	}
	shaped := true
	for _, m := range list {
		x := v.Get(m.name)
		switch {
		case !x.Exists() && m.required:
			c.fail("S-15", errCoverageShape, at(path, m.name), "%s is required for %s", m.name, kind.Str())
			shaped = false
		case x.Exists() && !m.check(x):
			c.fail("S-15", errCoverageShape, at(path, m.name), "%s must be %s", m.name, m.want)
			shaped = false
		}
	}
	if kind.Str() == kindOther {
		if k := v.Get("other_kind"); k.Kind() == String && !otherKindPattern.MatchString(k.text) {
			c.fail("S-17", errOtherKind, at(path, "other_kind"), "other_kind must be a DNS-like name of two or more labels")
		}
		if k := v.Get("coverage_schema_version"); k.Kind() == String && !semverPattern.MatchString(k.text) {
			c.fail("S-18", errCoverageVersion, at(path, "coverage_schema_version"), "not a semantic version")
		}
		return
	}
	if !shaped {
		return // probably another vocabulary altogether: its members say nothing more
	}
	for _, m := range v.members {
		if !slices.ContainsFunc(list, func(k coverageMember) bool { return k.name == m.Name }) {
			c.fail("S-16", errCoverageUnknown, at(path, m.Name), "not a member of %s coverage", kind.Str())
		}
	}
	for _, m := range v.Get("mixed_partition").Members() {
		if !slices.Contains(partitionMembers, m.Name) {
			c.fail("S-16", errCoverageUnknown, at(at(path, "mixed_partition"), m.Name), "not a member of a partition")
		}
	}
}
