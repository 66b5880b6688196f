// Package events keeps the Group Event logs in PostgreSQL and brings them to
// whoever waits for them.
//
// The protocol it keeps: a Group's log grows only by a transaction that still
// finds the head it was decided under (compare-and-set on head_sequence), under
// the Session Epochs it was decided under, and that brings everything the
// decision caused with it: Events, receipts, First-Admission Records, audit
// records, Policy Log and projections. What a process holds in memory is a cache
// in front of that condition; losing it, or having it outdated, costs time and
// never a fork.
//
// Hazards it guards against:
//
//   - Two replicas deciding on the same Group: one of them finds the head moved
//     (*HeadMoved) and must load and decide again.
//   - A Command of Session Epoch n committed after epoch n+1 was answered: each
//     commit holds a shared advisory lock on its Agents, a session opening an
//     exclusive one, and the epochs are compared inside the transaction.
//   - A commit whose answer got lost: the outcome is settled before anything
//     else is decided on that Group. The server process that may still be
//     working on it is ended first, so that "not there" cannot become "there"
//     later (settle.go).
//   - Deadlocks between replicas: every transaction takes advisory locks by
//     ascending key, then Group rows by ascending Group id, then receipt keys,
//     then admission keys, each in byte order.
//
// PostgreSQL decides, NATS wakes: publishing follows the commit, a reader never
// depends on it (publisher.go, hub.go).
package events
