// Package manifest is the World Manifest: what the data that drives an action may
// do to the world. It reads a manifest, compiles it to a content-addressed
// version, and decides Proposed Actions under it (rule ids of
// `manifest/RULES.md`, sections 2 to 6).
//
// The hazards it guards against, and what stands against each:
//
//   - Instructions that arrive as data. Trust is a property of the channel and
//     taint follows the data: both are computed again, for every decision, from
//     the stored provenance records. What a caller says about them can only make
//     matters worse for the caller.
//   - A rule or an approval that opens what must stay shut. Three laws stand above
//     every rule, every approval and every mode; a manifest that would weaken them
//     does not load.
//   - A manifest that means less than it says. The loader refuses what it does not
//     know, what refers to nothing and what can never be reached, with path and
//     line; the importer of the other layout reports what it could not carry.
//   - Bad data that is better than no data. Conditions are directed: a deny or an
//     escalation that holds for a trust level holds for everything below it. So one
//     more tainted or untrusted record never turns DENY or ASK into ALLOW.
//   - A decision that differs tomorrow. Everything here is a pure function of the
//     manifest and the request; a predicate has a bounded cost, and one that fails
//     counts against the action.
//
// A decision costs the same whatever the manifest's size: rules are found by
// action, actor, resource and capability in tables made at compile time, and only
// predicates are evaluated one by one, of which an action has a bounded number.
package manifest
