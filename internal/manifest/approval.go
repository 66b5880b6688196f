package manifest

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"strings"
	"sync"
	"time"

	"golang.org/x/text/unicode/norm"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// ArgsEquality names the equality of parameters under which digests are made: RFC
// 8785 canonical JSON whose strings are in Unicode normalization form C.
const ArgsEquality = "mw-args-jcs-nfc/1"

// ErrNoDigest is a value that has no canonical form: a number outside binary64, an
// unpaired surrogate, or member names that are equal once normalized.
var ErrNoDigest = errors.New("manifest: the parameters have no canonical form")

var buffers = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

// ParametersDigest is `sha256:` and the hex digest of the parameters under
// ArgsEquality.
func ParametersDigest(v strictjson.Value) (string, error) {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	out, err := v.AppendJCS((*buf)[:0])
	if err != nil {
		return "", ErrNoDigest
	}
	*buf = out
	if !norm.NFC.IsNormal(out) {
		// Decoded strings are normalized and not this text, in which the last letter of
		// an escape would compose with an accent after it. The order of members may
		// change, and two names may become one.
		if out, err = strictjson.Canonicalize(appendNFC(nil, v)); err != nil {
			return "", ErrNoDigest
		}
	}
	sum := sha256.Sum256(out)
	var text [7 + 2*sha256.Size]byte
	copy(text[:], "sha256:")
	hex.Encode(text[7:], sum[:])
	return string(text[:]), nil
}

// appendNFC writes a value that has a canonical form with every string normalized.
func appendNFC(dst []byte, v strictjson.Value) []byte {
	switch v.Kind() {
	case strictjson.String:
		return appendText(dst, norm.NFC.String(v.Str()))
	case strictjson.Array:
		dst = append(dst, '[')
		for i, item := range v.Items() {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendNFC(dst, item)
		}
		return append(dst, ']')
	case strictjson.Object:
		dst = append(dst, '{')
		first := true
		for name, item := range v.Members() {
			if !first {
				dst = append(dst, ',')
			}
			first = false
			dst = append(appendText(dst, norm.NFC.String(name)), ':')
			dst = appendNFC(dst, item)
		}
		return append(dst, '}')
	}
	return append(dst, v.Text()...)
}

// Approval is a human's answer to one ASK: this action, once.
type Approval struct {
	ID               string
	ActionType       string
	ParametersDigest string
	ArgsEquality     string
	ManifestVersion  string
	Session          string
	WorkItem         string
	Actor            string
	ExpiresAt        time.Time
	// Consumed is true once it was used. Who keeps approvals makes sure that only
	// one use sees false.
	Consumed bool
}

// Covers reports whether the approval answers exactly this request now; otherwise
// why not.
func (a *Approval) Covers(r *Request, digest, version string) (bool, string) {
	var why []string
	not := func(differs bool, what string) {
		if differs {
			why = append(why, what)
		}
	}
	not(a.Consumed, "it was used")
	not(!r.Now.Before(a.ExpiresAt), "it has expired")
	not(a.ActionType != r.Action, "it is for another action")
	not(a.ParametersDigest != digest, "it is for other parameters")
	not(a.ArgsEquality != ArgsEquality, "its digest is of another kind")
	not(a.ManifestVersion != version, "it is for another manifest version")
	not(a.Session != r.Session, "it is for another session")
	not(a.WorkItem != r.WorkItem, "it is for another WorkItem")
	not(a.Actor != r.Actor, "it is for another actor")
	return len(why) == 0, strings.Join(why, ", ")
}
