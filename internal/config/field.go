package config

import (
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// EnvPrefix begins every environment variable of the server.
const EnvPrefix = "MW_"

// Field is one setting: its names, its bounds and where its value lives.
type Field struct {
	Name    string   // camelCase: key in files and in dev.json
	Usage   string   // one line for help
	Unit    string   // unit of a number, "" for a plain count
	Secret  bool     // hidden when printed; may be read from a file
	Choices []string // allowed words of a choice

	kind     string // "int", "bool", "string"
	fallback string
	min, max int64
	number   *int64
	toggle   *bool
	text     *string
}

func number(name string, p *int64, fallback, least, most int64, unit, usage string) Field {
	return Field{Name: name, Usage: usage, Unit: unit, kind: "int", fallback: strconv.FormatInt(fallback, 10), min: least, max: most, number: p}
}

func toggle(name string, p *bool, fallback bool, usage string) Field {
	return Field{Name: name, Usage: usage, kind: "bool", fallback: strconv.FormatBool(fallback), toggle: p}
}

func text(name string, p *string, fallback, usage string) Field {
	return Field{Name: name, Usage: usage, kind: "string", fallback: fallback, text: p}
}

func choice(name string, p *string, fallback string, words []string, usage string) Field {
	f := text(name, p, fallback, usage)
	f.Choices = words
	return f
}

func (f Field) hidden() Field { f.Secret = true; return f }

// Flag is the command line name: sessionLifeSeconds -> session-life-seconds.
func (f Field) Flag() string { return strings.Join(words(f.Name), "-") }

// Env is the environment name: sessionLifeSeconds -> MW_SESSION_LIFE_SECONDS.
func (f Field) Env() string {
	return EnvPrefix + strings.ToUpper(strings.Join(words(f.Name), "_"))
}

// Default is the value without any source, as it would be written.
func (f Field) Default() string { return f.fallback }

// Help is the usage line with unit, bounds and environment name.
func (f Field) Help() string {
	var notes []string
	if f.kind == "int" {
		notes = append(notes, strings.TrimSpace(fmt.Sprintf("%d to %d %s", f.min, f.max, f.Unit)))
	}
	if len(f.Choices) > 0 {
		notes = append(notes, strings.Join(f.Choices, ", "))
	}
	notes = append(notes, f.Env())
	return fmt.Sprintf("%s (%s)", f.Usage, strings.Join(notes, "; "))
}

// words splits camelCase into lower-case words.
func words(name string) []string {
	var out []string
	start := 0
	for i, r := range name {
		if i > 0 && unicode.IsUpper(r) {
			out = append(out, strings.ToLower(name[start:i]))
			start = i
		}
	}
	return append(out, strings.ToLower(name[start:]))
}

// Set parses and stores a value. The error does not repeat a secret.
func (f Field) Set(value string) error {
	switch f.kind {
	case "int":
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return fmt.Errorf("%q is not a whole number of %s", value, orCount(f.Unit))
		}
		if n < f.min || n > f.max {
			return fmt.Errorf("%d is not between %d and %d %s", n, f.min, f.max, f.Unit)
		}
		*f.number = n
	case "bool":
		b, err := strconv.ParseBool(value)
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", value)
		}
		*f.toggle = b
	default:
		if len(f.Choices) > 0 && !slices.Contains(f.Choices, value) {
			return fmt.Errorf("%q is not one of %s", value, strings.Join(f.Choices, ", "))
		}
		*f.text = value
	}
	return nil
}

func orCount(unit string) string {
	if unit == "" {
		return "things"
	}
	return unit
}

func (f Field) reset() {
	if err := f.Set(f.fallback); err != nil {
		panic("config: default of " + f.Name + ": " + err.Error())
	}
}

// Value is the present value as it would be written, secrets in full.
func (f Field) Value() string {
	switch f.kind {
	case "int":
		return strconv.FormatInt(*f.number, 10)
	case "bool":
		return strconv.FormatBool(*f.toggle)
	default:
		return *f.text
	}
}

// JSONValue is the present value for JSON output, secrets hidden.
func (f Field) JSONValue() any {
	switch f.kind {
	case "int":
		return *f.number
	case "bool":
		return *f.toggle
	default:
		return f.Display()
	}
}

// Display is the present value with secrets hidden.
func (f Field) Display() string {
	if f.Secret {
		return Redact(f.Value())
	}
	return f.Value()
}

const mask = "***"

var keywordPassword = regexp.MustCompile(`(?i)(password|sslpassword|token)\s*=\s*('(?:[^'\\]|\\.)*'|\S+)`)

// Redact hides the credentials in a connection string and keeps what tells two
// servers apart. What it cannot read it hides whole.
func Redact(s string) string {
	if s == "" {
		return ""
	}
	if strings.Contains(s, "://") {
		parts := strings.Split(s, ",") // a list of NATS servers
		for i, part := range parts {
			parts[i] = redactURL(part)
		}
		return strings.Join(parts, ",")
	}
	if strings.Contains(s, "=") {
		return keywordPassword.ReplaceAllString(s, "$1="+mask)
	}
	return mask
}

func redactURL(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Opaque != "" {
		return mask
	}
	out := u.Scheme + "://"
	if u.User != nil {
		name := u.User.Username()
		if _, has := u.User.Password(); has {
			out += url.User(name).String() + ":" + mask + "@"
		} else {
			out += mask + "@" // NATS puts a token there
		}
	}
	out += u.Host + u.EscapedPath()
	query := u.Query()
	for key := range query {
		if k := strings.ToLower(key); strings.Contains(k, "password") || strings.Contains(k, "token") {
			query.Set(key, mask)
		}
	}
	if len(query) > 0 {
		out += "?" + strings.ReplaceAll(query.Encode(), url.QueryEscape(mask), mask)
	}
	return out
}
