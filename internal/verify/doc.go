// Package verify recomputes a database from its logs and says where the two
// differ. It trusts nothing that can be derived: sequences, signatures, hashes,
// First-Admission Records, receipts, aggregate revisions, heads, timers, Policy
// Logs, projections and snapshots are all made again from the signed Events and
// Commands and the Registry's retained keys, and compared; Agent Cards and
// Extension Profiles are verified, and cards compared with their Events. Taken as
// given are the key bindings themselves and for which Groups content was stored,
// because nothing signed says either.
//
// It reads one snapshot of the database, so it may run beside a server that is
// at work, and it goes on after a difference: one broken Group does not hide
// another.
//
// The hazard it guards against is its own: a check that shares code with what it
// checks agrees with its mistakes. The fold and the projection functions are
// shared, because they are the definition; everything around them (columns,
// hashes, links between tables) is compared with the signed bytes.
package verify
