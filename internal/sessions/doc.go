// Package sessions proves who a peer is: the HELLO handshake of Agents, their
// Session Epochs, and the bearer credentials of all Principals (PROTOCOL.md 6.3,
// COMMANDS.md 8.1 to 8.4, API.md General). It knows no transport; WebSocket and
// REST hand it frames.
//
// Hazards it guards against:
//
//   - Two runtimes under one Agent id. An epoch is opened only by the Command
//     session_open in the Authority's log, which fences the older one before the
//     new one is answered; a renewal is judged under the Agent's session lock,
//     the same that every commit of the Agent holds.
//   - An oracle for strangers. A challenge is made, stored and answered alike for
//     known and unknown Agents, and every failed proof is one neutral
//     AUTH_INVALID_SIGNATURE after the same work.
//   - A challenge used twice or late. It is taken out of the database by the
//     first response, right or wrong, whichever replica gets it.
//   - A credential that outlives its reason. A token names its key and epoch, and
//     each use looks at both, at the Agent's card, and at the Registry revision
//     of that moment.
package sessions
