// Package strictjson is the byte boundary of the protocol: it reads JSON the
// way a verifier must (PROTOCOL.md 6.4, stage 1), writes the RFC 8785
// canonical form that signatures cover (stage 5), and moves values between
// those bytes and Go structs.
//
// The hazard it guards against is two readers of one signed text that
// disagree. General-purpose decoders keep the last of two equal member names,
// replace broken UTF-8, stop at the first complete value, or round a number
// before anybody compared it; each of these lets one signature stand for two
// meanings. Here:
//
//   - Parse makes one pass and refuses invalid UTF-8, a byte-order mark,
//     anything after the value, equal decoded member names at any depth, and
//     nesting beyond a limit. It keeps everything else as it was written:
//     numbers keep their text and unpaired surrogates survive, because a
//     number outside binary64 and an unpaired surrogate are failures of a
//     later stage and must not be reported as syntax.
//   - A Value is a cursor into the parsed text. AppendJCS writes its canonical
//     form and only there are non-finite numbers and unpaired surrogates
//     refused, as *CanonicalError.
//   - Decode and Marshal use reflection plans made once per type. Marshal
//     writes canonical bytes directly, so what is signed and what is stored
//     cannot drift apart.
//
// Two views of a number exist, and the difference is deliberate. Structural
// rules (stage 2) see its exact decimal value: Int, Sign, IsInteger, Equal.
// Whatever is computed with or signed is the correctly rounded binary64 of
// PROTOCOL.md 2: Float and the canonical form. An integer that passes the
// protocol's bounds is the same in both.
//
// No error of this package repeats any part of its input.
package strictjson
