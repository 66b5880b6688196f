// Package lexical decides whether a string is spelled the way the protocol
// demands, and reads the few spellings that carry a value: timestamps, semantic
// versions, base64url.
//
// The hazard it guards against is laxness by library. Date parsers round
// fractions and accept leap seconds, URI parsers accept relative references,
// raw Unicode and broken percent escapes, base64 decoders skip line breaks and
// ignore unused bits, and "$" in a pattern lets a final line feed through. Any
// of these gives two spellings to one identity or one instant. Every function
// here consumes the complete string and accepts exactly its grammar.
//
// Nothing is normalised: a spelling that is accepted is kept and compared byte
// for byte (PROTOCOL.md 2).
package lexical
