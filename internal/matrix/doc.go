// Package matrix plays the behavioural conformance matrix against a live server:
// per Command what must be accepted and what must be refused, per Event kind that
// it is emitted, valid and folded, per row of the transition tables that it is
// taken, per pair of rules which of them answers.
//
// The hazard is a matrix that looks greener than the server is. So the rows come
// from the tables of the Command profile and not from the cases: a row without a
// case is listed as missing. A case says what it expects by the row's name, and the
// code stands in the catalogue, so that a case cannot be bent to an answer. And a
// refusal counts only if nothing was left behind: the Group's head stays, and the
// same Action ID is accepted afterwards with the mistake corrected.
//
// Everything goes over the wire with real signatures; the one thing looked at from
// behind, when the stack names its database, is the verification of the whole log.
package matrix
