// Package naive holds the Group Authority's core against a second model of it.
//
// The protocol it keeps is the one internal/groups keeps; the hazard it guards
// against is a rule that the core and its own tests misread in the same way.
// The model here was written from the Command profile's text alone, with maps
// and loops, without one line of the core, and recomputes everything that the
// core keeps up to date (claims, revisions, live owners, gates). A random
// driver sends the same Commands, valid and not, to both and compares the
// answer (error code and reason token, or every Event with its payload), the
// folded state and the invariants. Where they differ one of them is wrong, and
// the protocol's text says which.
//
// The package is for tests only: everything but this comment is in test files,
// and the model's files import nothing of ours, which a test checks.
// TestEveryKindIsModelled lists the Command kinds that are covered and why the
// others are not.
package naive
