// Package devstack runs a private PostgreSQL cluster and an embedded NATS
// server for development and tests.
//
// The hazard it guards against is a data directory served twice, or a server
// that outlives the program which started it. The order below is therefore kept
// on every start:
//
//  1. An exclusive lock on the stack's directory is taken and held for life; a
//     second program on the same directory is refused (ErrInUse). The kernel
//     drops the lock when its holder dies, however it dies.
//  2. Whatever an earlier, killed program left behind on the data directory is
//     ended: a postmaster that still runs is asked for a fast shutdown, orphaned
//     backends are ended, and a postmaster.pid whose process id now belongs to
//     a stranger is removed. A running postmaster is never adopted: it could not
//     be waited for, and would not die with its new owner.
//  3. PostgreSQL starts as a child that the kernel tells of its parent's death
//     (Linux), in a process group of its own so that a Ctrl-C in the terminal
//     does not reach it before the program has finished with it.
//
// PostgreSQL refuses to run as root. Started by root, the stack runs it under
// an unprivileged account ("postgres" if there is one, else "nobody"), which
// owns the cluster's files and nothing else. A data directory below a folder
// which that account may not enter (a typical /root) is handed over as an open
// directory instead of a path, so no permission of a foreign folder is changed.
//
// Durability: fsync and synchronous_commit are on, and only the clusters of
// ForTest turn them off. JetStream is a cache in front of the event log and
// never the log, so its files are synced at JetStreamSyncInterval and not per
// message; what a power cut takes from it is published again from PostgreSQL.
//
// Security: both servers listen on the loopback interface only and ask for a
// password made on first start (SCRAM for PostgreSQL), because every local
// account can reach a loopback port. Both are in DIR/devstack.json, mode 0600,
// and in the URLs of Stack; neither is written to a log or a command line.
// PostgreSQL's unix socket asks for none: it lies in a folder, mode 0700, of the
// database account.
//
// Files below the stack's directory:
//
//	devstack.lock   held while a stack runs
//	devstack.json   passwords and last ports
//	postgres.log    PostgreSQL's own log, kept to about 16 MiB
//	postgres/data   the cluster
//	postgres/run    its unix socket, when the path is short enough and reachable
//	nats/           JetStream's store
package devstack
