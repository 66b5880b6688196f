// Package groups is the Group Authority's core: it decides what a Command
// does and folds what happened, and does nothing else.
//
// The protocol it keeps: a Group is the fold of its Events. Decide looks at
// folded state, one reading of the clock and one verified Command and answers
// with the unsigned Events that the Command causes, or with the refusal that
// the first failing step gives (COMMANDS.md 2.2, P13 to P24). State.Apply folds
// one Event. Decide never changes state, Apply never refuses what Decide
// produced, and neither reads a clock, a database or a random source.
//
// The hazard it guards against is authority that outlives its fence: a
// Command of a replaced session, an ended Membership, a former Coordinator or
// a fenced owner must not act, however late it arrives and whatever else about
// it is right. Therefore one gate (fence.go) stands before every handler, and
// a handler cannot choose the order of its checks: it supplies one function
// per step and the driver (decide.go) runs the steps in the protocol's order.
//
// The caller's duties:
//
//   - Pass only Commands that went through P1 to P12, with CheckEnvelope at P2
//     and DecodePayload at P10, and with every embedded document verified and
//     admitted (Command.Docs); Decide refuses to look at fewer documents than
//     the payload embeds.
//   - Answer *Need by loading what it names (a nil entry says that the thing
//     does not exist) and calling Decide again with the same clock reading.
//   - Sign what Decision.Sign names, then encode, sign and append all Drafts
//     of one Decision in one transaction, in order, and apply them to the same
//     states that were decided on, or drop those states.
//   - Serialise: a State is used by one goroutine at a time.
//
// Documents held by a State are values: a change replaces the document and
// never writes through a pointer or slice of the old one, so that Drafts and
// readers may keep what they were given.
package groups

//go:generate go run -C ../.. ./internal/docgen
