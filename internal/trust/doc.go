// Package trust decides whether a Signed Document may be believed
// (PROTOCOL.md 6.4).
//
// The order of work is the protocol's: bytes are parsed (stage 1), checked
// against the structure of their kind (2), their signature envelope is bound
// back to the protected content (3), the key is resolved from evidence of the
// whole Organization at one Registry revision (4), the signing bytes are
// produced (5) and the equation is checked (6). Only then may an Admission
// Record be looked up, prepared or validated. The first failing stage is the
// one reported, whatever was computed earlier.
//
// Hazards this package guards against:
//
//   - Ed25519 as commonly implemented accepts public keys and signatures that
//     this protocol forbids (identity and small-order keys, mixed-order points,
//     second spellings of a point). Every key is proven to be a prime-order
//     point before it can resolve anything.
//   - A Registry that is incomplete, or in which one unrelated record is wrong,
//     must resolve no key at all: an Evidence is built only from a set of
//     bindings that satisfies every Organization-wide rule, and a failure to
//     build one is itself an Evidence that fails stage 4.
//   - The caller must never learn which check failed. A Failure carries stage
//     and reason for the protected audit record; Failure.Error is what may be
//     shown.
//
// The package is pure: time, ids, keys and the Admission Log are arguments.
package trust
