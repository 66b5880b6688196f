// Package authority is the Group Authority around its pure core: it takes
// signed Commands, runs the pipeline of COMMANDS.md 2.2 and makes the outcome
// durable.
//
// The way of a Command:
//
//	bytes ─ P1..P7 verify, on all cores ─ P10, P11 payload and embedded documents
//	      └─ lane: one round for everything that waits
//	           look     one round trip: clock, receipts, records, sessions, heads
//	           decide   P8, P9, P12, P13..P24 one after another on states in memory
//	           sign     the Events, on all cores
//	           commit   one transaction for the whole round
//	           answer   receipts, refusals, replays; wake readers, publish
//
// P9 to P11 are computed before P8 is known, because they need no lock; their
// failure is held back until the lane has found no receipt, so that the first
// failing row still decides the code.
//
// Hazards it guards against:
//
//   - A decision on outdated state, in either direction. An acceptance and a
//     refusal commit under the same conditions (heads, sessions, registry
//     revision); when one has moved, the whole round is decided again.
//   - A state in memory that is ahead of the log: Events are applied before they
//     are committed, so a round that fails drops every state it touched.
//   - A Command whose fate is unknown: once a Command is in a lane its round goes
//     on without the caller, and an answer that got lost is settled before the
//     lane decides anything else.
//   - One Group, or one peer, that takes everything: queues are bounded and
//     answer BACKPRESSURE, refusals of strangers are recorded in bounded form.
package authority
