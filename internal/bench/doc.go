// Package bench measures how many signed Commands the Authority commits per
// second, beside what the machine could do at best with the same bytes: a bare
// batched insert of them, and the same insert with one Ed25519 verification and
// one signature for each. Both run in the same process, on the same database,
// with batches of the size the Authority was seen to use, so that the ratios say
// something on any machine, loaded or not.
//
// Commands enter at the Authority's Submit, behind the transports; they are
// signed beforehand, because clients do that elsewhere.
package bench
