package evidence

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// ArgsJCSNFC is the equality of arguments that this server uses unless a caller
// names another: docs/args-equality.md.
const ArgsJCSNFC = "mw-args-jcs-nfc/1"

// Errors of argument forms.
var (
	ErrArgsEqualityVersion = errors.New("evidence: args equality version is not registered")
	ErrArguments           = errors.New("evidence: arguments have no form under this version")
)

// argsEquality gives the form of arguments under one version: two payloads are
// equal exactly if their forms are the same bytes.
var argsEquality = map[string]func(payload []byte) ([]byte, error){
	ArgsJCSNFC: argsJCSNFC,
}

// ArgsEqualityVersions are the registered versions in order.
func ArgsEqualityVersions() []string { return slices.Sorted(maps.Keys(argsEquality)) }

// ArgsForm is the form of a JSON payload under a version. The error is
// ErrArgsEqualityVersion or ErrArguments.
func ArgsForm(version string, payload []byte) ([]byte, error) {
	form, ok := argsEquality[version]
	if !ok {
		return nil, fmt.Errorf("%w: %s", ErrArgsEqualityVersion, version)
	}
	b, err := form(payload)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrArguments, err)
	}
	return b, nil
}

// ArgsDigest is "sha256:" and the lower-case hexadecimal SHA-256 of [ArgsForm]:
// what an approval binds, what an execution is compared with.
func ArgsDigest(version string, payload []byte) (string, error) {
	b, err := ArgsForm(version, payload)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// ArgsEqual compares two payloads under a version.
func ArgsEqual(version string, a, b []byte) (bool, error) {
	x, err := ArgsForm(version, a)
	if err != nil {
		return false, err
	}
	y, err := ArgsForm(version, b)
	return err == nil && bytes.Equal(x, y), err
}

// argsJCSNFC is mw-args-jcs-nfc/1: every string and member name in Unicode
// normalisation form C, then RFC 8785. What has no such form (duplicate names,
// also after normalisation, numbers beyond binary64, lone surrogates) has no
// digest and can therefore neither be approved nor executed.
func argsJCSNFC(payload []byte) ([]byte, error) {
	doc, err := strictjson.Parse(payload)
	if err != nil {
		return nil, err
	}
	return appendNFC(nil, doc.Root())
}

// appendNFC normalises decoded strings and never the JSON text: in the text the n
// of a \n escape would compose with an accent that follows it.
func appendNFC(dst []byte, v strictjson.Value) ([]byte, error) {
	switch v.Kind() {
	case strictjson.String:
		if !v.Unicode() {
			return nil, errLoneSurrogate
		}
		return strictjson.AppendString(dst, norm.NFC.String(v.Str()))
	case strictjson.Array:
		dst = append(dst, '[')
		for i, item := range v.Items() {
			if i > 0 {
				dst = append(dst, ',')
			}
			var err error
			if dst, err = appendNFC(dst, item); err != nil {
				return nil, err
			}
		}
		return append(dst, ']'), nil
	case strictjson.Object:
		members := map[string]strictjson.Value{}
		var names []string
		for name, m := range v.Members() {
			if !utf8.ValidString(name) {
				return nil, errLoneSurrogate
			}
			name = norm.NFC.String(name)
			if _, dup := members[name]; dup {
				return nil, errSameName
			}
			members[name] = m
			names = append(names, name)
		}
		slices.SortFunc(names, func(a, b string) int { return slices.Compare(utf16Units(a), utf16Units(b)) })
		dst = append(dst, '{')
		for i, name := range names {
			if i > 0 {
				dst = append(dst, ',')
			}
			var err error
			if dst, err = strictjson.AppendString(dst, name); err != nil {
				return nil, err
			}
			if dst, err = appendNFC(append(dst, ':'), members[name]); err != nil {
				return nil, err
			}
		}
		return append(dst, '}'), nil
	}
	return v.AppendJCS(dst)
}

var (
	errLoneSurrogate = errors.New("a lone surrogate")
	errSameName      = errors.New("two member names are one after normalisation")
)
