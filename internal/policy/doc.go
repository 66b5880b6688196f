// Package policy runs the World Manifest engine: it keeps manifest versions,
// makes Semantic Events of inputs, keeps provenance and memory, and decides
// Proposed Actions (manifest/RULES.md; COMMANDS.md 5.6, action approvals).
//
// The protocol of a Proposed Action: the Agent proposes under a Capability Token;
// the token is checked online, the trust context is computed from the stored
// records, the manifest in force decides. ALLOW and DENY are final. An ASK becomes
// an action request in the Group's log; a human's signed answer to it is used up
// by a Command in the same log, so that of two racing uses one wins, after every
// law was checked again. Decision, Policy Log entry and evidence record are one
// transaction: there are all three or none.
//
// The hazards it guards against:
//
//   - What a caller says about data. Records are made here, at the boundary and by
//     memory; an action names ids, and an id of another Group is one that does not
//     exist. An Agent cannot speak for a trusted channel.
//   - A crash between the steps. A row says how far an action is and holds the
//     signed Command that was on its way; whoever comes back sends the same one.
//   - The Authority out of reach, no manifest, a manifest that was withdrawn:
//     nothing is allowed.
package policy
