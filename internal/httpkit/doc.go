// Package httpkit is the HTTP plumbing that the three services share: routes as
// values, one error writer, strict query parameters, bounded bodies, bearer
// authentication, rate limits and the management listener.
//
// The hazard it guards against is drift between handlers. Everything a client
// may rely on in API.md "General" is decided here once: a handler only returns
// a value or an error. In particular
//
//   - a path is routed in its escaped form, so an id that contains "/" (sent as
//     %2F) is one segment, and it is unescaped exactly once;
//   - a query parameter that a route does not declare is refused, and so is one
//     that is sent twice;
//   - what fails inside reaches the log, never the wire;
//   - a route says in its declaration whether it needs a bearer credential, so a
//     test can walk all routes and find one that nobody protected.
package httpkit
