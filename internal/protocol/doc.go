// Package protocol holds the vocabulary of MissionWeaveProtocol 0.1: the Go
// types of its documents and WebSocket frames, the structural rules every
// document obeys, and the registry of its errors.
//
// The hazard it guards against is a second reading of the same bytes. A
// document is accepted by exactly one set of structural rules (structure*.go),
// whichever door it came through; ids and timestamps keep the spelling they
// arrived with; JSON that the server does not interpret stays bytes; and a
// refusal leaves the server only through Error, which discloses what the
// error registry (errors.json) allows for its code and nothing else.
//
// The package is pure: no clock, no randomness, no I/O.
package protocol
