package httpkit

import (
	"encoding/base64"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of list pages (API.md, General).
const (
	DefaultLimit = 100
	MaxLimit     = 1000
)

// Query holds decoded query parameters, each sent exactly once.
type Query map[string]string

// parseQuery refuses what is malformed, undeclared or repeated. The name of an
// undeclared parameter is not echoed.
func parseQuery(raw string, declared []string) (Query, error) {
	if raw == "" {
		return nil, nil
	}
	values, err := url.ParseQuery(raw)
	if err != nil {
		return nil, SchemaError("", "format")
	}
	query := make(Query, len(values))
	for name, all := range values {
		if !slices.Contains(declared, name) {
			return nil, SchemaError("", "additionalProperties")
		}
		if len(all) != 1 {
			return nil, badValue(name, "maxItems")
		}
		if !isText(all[0]) {
			return nil, badValue(name, "format")
		}
		query[name] = all[0]
	}
	return query, nil
}

// isText tells that a value can be one of the database's.
func isText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// Text returns a parameter that must not be empty when it is sent.
func (q Query) Text(name string) (string, bool, error) {
	value, ok := q[name]
	if ok && value == "" {
		return "", false, badValue(name, "minLength")
	}
	return value, ok, nil
}

// OneOf returns a parameter that must be one of the given words.
func (q Query) OneOf(name string, words ...string) (string, bool, error) {
	value, ok := q[name]
	if ok && !slices.Contains(words, value) {
		return "", false, badValue(name, "enum")
	}
	return value, ok, nil
}

// Int returns a whole number within bounds, written without sign, leading zero
// or fraction, or def when it was not sent.
func (q Query) Int(name string, def, low, high int64) (int64, error) {
	text, ok := q[name]
	if !ok {
		return def, nil
	}
	if text == "" || len(text) > 1 && text[0] == '0' || strings.Trim(text, "0123456789") != "" {
		return 0, badValue(name, "type")
	}
	value, err := strconv.ParseInt(text, 10, 64)
	switch {
	case err != nil || value > high:
		return 0, badValue(name, "maximum")
	case value < low:
		return 0, badValue(name, "minimum")
	}
	return value, nil
}

// Sequence returns a Group sequence or another safe integer from 0.
func (q Query) Sequence(name string, def int64) (int64, error) {
	return q.Int(name, def, 0, 1<<53-1)
}

// Page is the part of a list that a caller asks for.
type Page struct {
	Limit int
	// After is the decoded cursor, nil for the first page.
	After []string
}

// Page reads limit and after. parts is how many strings the list's cursor has;
// a cursor of another make is SCHEMA_VALIDATION_FAILED, and so is one with other
// bytes than a database holds as text.
func (q Query) Page(parts int) (Page, error) {
	limit, err := q.Int("limit", DefaultLimit, 1, MaxLimit)
	if err != nil {
		return Page{}, err
	}
	page := Page{Limit: int(limit)}
	text, ok := q["after"]
	if !ok {
		return page, nil
	}
	page.After, ok = decodeCursor(text)
	if !ok || len(page.After) != parts {
		return Page{}, badValue("after", "format")
	}
	return page, nil
}

// Cursor encodes the sort key of a page's last item. It is opaque to clients
// and holds nothing that the item itself does not show.
func Cursor(parts ...string) string {
	var b strings.Builder
	for _, part := range parts {
		b.WriteString(strconv.Itoa(len(part)))
		b.WriteByte(':')
		b.WriteString(part)
	}
	return base64.RawURLEncoding.EncodeToString([]byte(b.String()))
}

func decodeCursor(text string) ([]string, bool) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return nil, false
	}
	rest := string(raw)
	var parts []string
	for rest != "" {
		head, tail, ok := strings.Cut(rest, ":")
		n, err := strconv.ParseUint(head, 10, 31)
		if !ok || err != nil || n > math.MaxInt32 || int(n) > len(tail) ||
			!utf8.ValidString(tail[:n]) || strings.ContainsRune(tail[:n], 0) {
			return nil, false
		}
		parts = append(parts, tail[:n])
		rest = tail[n:]
	}
	return parts, true
}
