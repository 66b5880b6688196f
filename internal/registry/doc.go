// Package registry is the Agent Registry: the Organization's signing-key
// bindings with their validity history, its Agent Cards, the duties of its
// services, and its Extension Profiles (PROTOCOL.md 6.1, 6.4, 18).
//
// Everything that verification rests on comes from here, so the hazards are
//
//   - a key that is accepted and breaks a rule of the whole Organization. Every
//     change is made under the lock of the registry head and tried on the
//     evidence of exactly the revision before it (trust.Evidence.Extend); unique
//     keys and append-only triggers in the database stand behind that;
//   - evidence that mixes revisions, misses a record or is out of date. A
//     Directory extends a coherent view revision by revision and answers with an
//     error, never with an old view, when it cannot tell that its view is
//     current;
//   - history that is rewritten. Nothing here is updated in place: a binding
//     never changes, its boundaries only move earlier, by adding a record.
//
// Mutations raise registry_head.revision in their own transaction.
package registry
