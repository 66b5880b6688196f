package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/spf13/pflag"
)

// FileFlag and FileEnv name the optional settings file.
const (
	FileFlag = "config"
	FileEnv  = EnvPrefix + "CONFIG"
)

// Source says where a value came from: "default", "file", "environment" or
// "flag".
type Source string

// The sources, weakest first.
const (
	FromDefault Source = "default"
	FromFile    Source = "file"
	FromEnv     Source = "environment"
	FromFlag    Source = "flag"
)

// Error is a setting that cannot be used, with the place to mend.
type Error struct {
	Where string // "flag --x", "environment MW_X", "FILE: x"
	Err   error
}

func (e *Error) Error() string { return e.Where + ": " + e.Err.Error() }
func (e *Error) Unwrap() error { return e.Err }

// Loader binds settings to flags and fills them from all sources.
type Loader struct {
	// Settings is complete after Load.
	Settings *Settings
	// ReadFile reads the settings file and secret files; os.ReadFile by default.
	ReadFile func(name string) ([]byte, error)

	fields  []Field
	flags   *pflag.FlagSet
	values  map[string]*flagValue
	sources map[string]Source
	unknown []string
}

// NewLoader returns a loader over the defaults.
func NewLoader() *Loader {
	s := New()
	return &Loader{Settings: s, ReadFile: os.ReadFile, fields: s.Fields(), values: map[string]*flagValue{}, sources: map[string]Source{}}
}

// flagValue keeps what a flag was set to until Load: flags are parsed before
// weaker sources are read, but must win over them.
type flagValue struct {
	field Field
	given string
}

func (v *flagValue) String() string {
	if v.given != "" {
		return v.given
	}
	if v.field.Secret {
		return ""
	}
	return v.field.fallback
}

func (v *flagValue) Type() string { return v.field.kind }

func (v *flagValue) Set(s string) error { v.given = s; return nil }

// Bind adds a flag for each of the named settings, or for all without names,
// and the flag for the settings file. Settings without a flag still have their
// other sources.
func (l *Loader) Bind(flags *pflag.FlagSet, names ...string) {
	l.flags = flags
	flags.String(FileFlag, "", "settings file, YAML or JSON ("+FileEnv+")")
	for _, f := range l.fields {
		if len(names) > 0 && !slices.Contains(names, f.Name) {
			continue
		}
		v := &flagValue{field: f}
		l.values[f.Name] = v
		flag := flags.VarPF(v, f.Flag(), "", f.Help())
		if f.kind == "bool" {
			flag.NoOptDefVal = "true"
		}
	}
}

// Load fills the settings from the file, the environment (os.Environ form) and
// the flags, and checks all of them. Every fault is reported, each as *Error.
func (l *Loader) Load(environ []string) error {
	env := map[string]string{}
	for _, kv := range environ {
		if name, value, ok := strings.Cut(kv, "="); ok && strings.HasPrefix(name, EnvPrefix) {
			env[name] = value
		}
	}
	return errors.Join(l.loadFile(env[FileEnv]), l.loadEnv(env), l.loadFlags())
}

func (l *Loader) loadFile(name string) error {
	if l.flags != nil {
		if f := l.flags.Lookup(FileFlag); f != nil && f.Changed {
			name = f.Value.String()
		}
	}
	if name == "" {
		return nil
	}
	raw, err := l.ReadFile(name)
	if err != nil {
		return &Error{Where: "settings file", Err: err}
	}
	var content map[string]any
	if err := yaml.UnmarshalWithOptions(raw, &content, yaml.Strict()); err != nil {
		return &Error{Where: name, Err: errors.New(yaml.FormatError(err, false, false))}
	}
	var faults []error
	for key, value := range content {
		i := slices.IndexFunc(l.fields, func(f Field) bool { return f.Name == key })
		if i < 0 {
			faults = append(faults, &Error{Where: name + ": " + key, Err: errors.New("there is no such setting")})
			continue
		}
		switch value.(type) {
		case string, bool, int, int64, uint64:
			if err := l.set(l.fields[i], fmt.Sprint(value), FromFile); err != nil {
				faults = append(faults, &Error{Where: name + ": " + key, Err: err})
			}
		default:
			faults = append(faults, &Error{Where: name + ": " + key, Err: errors.New("the value must be a word, a whole number, true or false")})
		}
	}
	slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(faults...)
}

// loadEnv also takes MW_X_FILE for a secret setting MW_X: containers hand
// secrets over as files.
func (l *Loader) loadEnv(env map[string]string) error {
	var faults []error
	known := map[string]bool{}
	for _, f := range l.fields {
		known[f.Env()] = true
		value, given := env[f.Env()]
		where := "environment " + f.Env()
		if f.Secret {
			fileVar := f.Env() + "_FILE"
			known[fileVar] = true
			if path := env[fileVar]; path != "" && !given {
				where = "environment " + fileVar
				raw, err := l.ReadFile(path)
				if err != nil {
					faults = append(faults, &Error{Where: where, Err: err})
					continue
				}
				value, given = strings.TrimSpace(string(raw)), true
			}
		}
		if !given || value == "" { // an empty variable is how shells unset one
			continue
		}
		if err := l.set(f, value, FromEnv); err != nil {
			faults = append(faults, &Error{Where: where, Err: err})
		}
	}
	l.unknown = nil
	for name := range env {
		if !known[name] && name != FileEnv {
			l.unknown = append(l.unknown, name)
		}
	}
	slices.Sort(l.unknown)
	slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(faults...)
}

// UnknownEnv lists the MW_ variables that Load found and that are no settings:
// other parts of the project use some, the rest is misspelt. Orchestrators put
// such names into the environment by themselves, so they are no error.
func (l *Loader) UnknownEnv() []string { return slices.Clone(l.unknown) }

func (l *Loader) loadFlags() error {
	if l.flags == nil {
		return nil
	}
	var faults []error
	for _, f := range l.fields {
		value, bound := l.values[f.Name]
		if !bound || !l.flags.Changed(f.Flag()) {
			continue
		}
		if err := l.set(f, value.given, FromFlag); err != nil {
			faults = append(faults, &Error{Where: "flag --" + f.Flag(), Err: err})
		}
	}
	return errors.Join(faults...)
}

func (l *Loader) set(f Field, value string, from Source) error {
	if err := f.Set(value); err != nil {
		return err
	}
	l.sources[f.Name] = from
	return nil
}

// Entry is one effective setting as mw config prints it.
type Entry struct {
	Name   string `json:"name"`
	Value  any    `json:"value"` // secrets hidden
	Unit   string `json:"unit,omitempty"`
	Source Source `json:"source"`
	Flag   string `json:"flag"`
	Env    string `json:"env"`
}

// Entries lists the effective settings in the order of the table.
func (l *Loader) Entries() []Entry {
	out := make([]Entry, 0, len(l.fields))
	for _, f := range l.fields {
		from := l.sources[f.Name]
		if from == "" {
			from = FromDefault
		}
		out = append(out, Entry{Name: f.Name, Value: f.JSONValue(), Unit: f.Unit, Source: from, Flag: "--" + f.Flag(), Env: f.Env()})
	}
	return out
}

// String is one line of all settings with secrets hidden; it is also what a
// log gets when a Settings is passed to it.
func (s Settings) String() string {
	var b strings.Builder
	for i, f := range s.Fields() {
		if i > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "%s=%s", f.Name, f.Display())
	}
	return b.String()
}

// GoString keeps %#v from printing the secrets.
func (s Settings) GoString() string { return "config.Settings{" + s.String() + "}" }

// MarshalJSON hides the secrets, so that no encoder lets them out.
func (s Settings) MarshalJSON() ([]byte, error) {
	out := map[string]any{}
	for _, f := range s.Fields() {
		out[f.Name] = f.JSONValue()
	}
	return json.Marshal(out)
}
