// Package shape states what JSON a document may be, and checks it.
//
// The hazard it guards against is validation that lives in many places and
// drifts: a bound checked in one handler, an unknown member let through in
// another, a conditional rule that only a schema file knows. Here a document's
// whole structure is one declaration,
//
//	shape.Object(
//		shape.Req("state", shape.Enum("active", "archived")),
//		shape.Opt("archivedAt", timestamp),
//	).Rules(
//		shape.When("state", shape.Const("archived")).Require("archivedAt"),
//	)
//
// and everything that is not declared is refused: objects are closed unless
// opened, null is a value of the wrong type unless the shape is Nullable.
//
// The meaning is that of JSON Schema draft 2020-12 with format assertion:
// lengths count Unicode code points (an unpaired surrogate is one), 1.0 and
// 1e0 are integers, numbers are compared by their exact decimal value and array
// items by JSON value, patterns and formats match the whole string. What JSON
// Schema cannot say is a Rule with a reason.
//
// A Shape is immutable: every modifier returns a changed copy, so shapes are
// shared freely and are safe for concurrent use. Build them once, in package
// variables; a mistake in a declaration panics there. Checking a valid value
// does not allocate.
package shape
