// Package evidence reads, judges, signs and compares agent evidence records
// (aep/v0.1 to v0.3, and bodies of v0.4).
//
// A record says what an agent did in one run and under which authority: what
// was available (a lease, an approval, a policy), what was exercised, and
// whether the arguments changed in between. Whoever reads it later has only the
// record and a public key. Three hazards follow.
//
//   - A signature covers the members as they came over the wire. Any parse that
//     fills in defaults, drops unknown members or merges duplicates changes the
//     signed bytes. So the raw bytes are kept, a signature is verified over the
//     canonical form of the wire members, and typed structs are a second,
//     separate reading.
//   - The canonical form is not RFC 8785: array-index names come first and in
//     numeric order, a member named __proto__ is not covered at all, a lone
//     surrogate is signed as its escape, an overflowing number as null. Old
//     signatures only verify if all of that is kept (canon.go). New records that
//     contain any of it are refused.
//   - A record that is wrong in one place is not evidence in another. Every rule
//     that fails is reported with its id, its error name and its path; nothing is
//     repaired.
//
// The rules have four tiers: shape, agreement between members, canonical bytes
// and signature, and existence in registries that the caller knows. Tier 2 does
// not run on a record whose shape is wrong. The table of rules is [Rules];
// docs/evidence-rules.md is made from it.
//
// The package is pure: keys, registries and comparators are arguments.
package evidence
