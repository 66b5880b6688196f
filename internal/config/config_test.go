package config_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/missionweave/server/internal/config"
)

func TestDefaultPolicyIsTheOneOfTheCommandProfile(t *testing.T) {
	t.Parallel()
	want := config.Policy{
		SessionLifeSeconds: 900, FreshnessPastSeconds: 300, FreshnessFutureSeconds: 30, SweepIntervalMs: 1000,
		ExecutionLeaseMaxSeconds: 3600, CapabilityTokenMaxSeconds: 900, MessageRatePerMinute: 120, ProposalRatePerMinute: 30,
		DelegationDepth: 3, QueuedWorkItems: 100, ActiveWorkItems: 4, CommandsPerSecondPerConnection: 50, HellosPerMinute: 12,
		MaxBodyBytes: 1048576, ArchiveTrim: false, MaxGraceSeconds: 900, ExecutionApprovalFrom: "never",
	}
	if diff := cmp.Diff(want, config.DefaultPolicy()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestPolicyJSONHasTheNamesOfTheSettings(t *testing.T) {
	t.Parallel()
	raw, err := json.Marshal(config.DefaultPolicy())
	if err != nil {
		t.Fatal(err)
	}
	var members map[string]any
	if err := json.Unmarshal(raw, &members); err != nil {
		t.Fatal(err)
	}
	fields := map[string]bool{}
	for _, f := range config.New().Fields() {
		fields[f.Name] = true
	}
	if len(members) != 17 {
		t.Errorf("the policy has %d members, want 17", len(members))
	}
	for name := range members {
		if !fields[name] {
			t.Errorf("policy member %s has no setting", name)
		}
	}
}

func TestOneNameMakesFlagAndVariable(t *testing.T) {
	t.Parallel()
	want := map[string][2]string{
		"sessionLifeSeconds":             {"session-life-seconds", "MW_SESSION_LIFE_SECONDS"},
		"sweepIntervalMs":                {"sweep-interval-ms", "MW_SWEEP_INTERVAL_MS"},
		"commandsPerSecondPerConnection": {"commands-per-second-per-connection", "MW_COMMANDS_PER_SECOND_PER_CONNECTION"},
		"databaseUrl":                    {"database-url", "MW_DATABASE_URL"},
		"natsUrl":                        {"nats-url", "MW_NATS_URL"},
	}
	for _, f := range config.New().Fields() {
		if w, ok := want[f.Name]; ok && (f.Flag() != w[0] || f.Env() != w[1]) {
			t.Errorf("%s: --%s and %s, want --%s and %s", f.Name, f.Flag(), f.Env(), w[0], w[1])
		}
		delete(want, f.Name)
	}
	for name := range want {
		t.Errorf("there is no setting %s", name)
	}
}

// load runs a loader over a file content ("" for none), environment and flags.
func load(file string, env, args []string) (*config.Loader, error) {
	l := config.NewLoader()
	l.ReadFile = func(name string) ([]byte, error) {
		switch name {
		case "settings":
			return []byte(file), nil
		case "secret":
			return []byte("postgres://u:geheim@db/x\n"), nil
		}
		return nil, fs.ErrNotExist
	}
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	l.Bind(flags)
	if err := flags.Parse(args); err != nil {
		return l, err
	}
	if file != "" {
		env = append(env, "MW_CONFIG=settings")
	}
	return l, l.Load(env)
}

func TestLaterSourcesWin(t *testing.T) {
	t.Parallel()
	const file = "sessionLifeSeconds: 10\nhellosPerMinute: 10\narchiveTrim: true\n"
	env := []string{"MW_SESSION_LIFE_SECONDS=20", "MW_HELLOS_PER_MINUTE=20", "MW_DELEGATION_DEPTH=", "HOME=/x"}
	l, err := load(file, env, []string{"--session-life-seconds=30"})
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]config.Source{}
	for _, e := range l.Entries() {
		sources[e.Name] = e.Source
	}
	p := l.Settings.Policy
	got := fmt.Sprint(p.SessionLifeSeconds, sources["sessionLifeSeconds"], " ", p.HellosPerMinute, sources["hellosPerMinute"], " ",
		p.ArchiveTrim, sources["archiveTrim"], " ", p.DelegationDepth, sources["delegationDepth"])
	if want := "30flag 20environment truefile 3default"; strings.ReplaceAll(got, "  ", " ") != want && got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestFaultsNameTheirPlace(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		file string
		env  []string
		args []string
		want []string // parts of the error
	}{
		"unknown file key":              {file: "sesionLife: 1", want: []string{"settings: sesionLife", "no such setting"}},
		"file key twice":                {file: "hellosPerMinute: 1\nhellosPerMinute: 2", want: []string{"settings", "hellosPerMinute"}},
		"file that is no mapping":       {file: "- 1", want: []string{"settings"}},
		"file value of another shape":   {file: "hellosPerMinute: [1]", want: []string{"settings: hellosPerMinute", "whole number"}},
		"fraction in a file":            {file: "hellosPerMinute: 1.5", want: []string{"settings: hellosPerMinute", "whole number"}},
		"missing file":                  {args: []string{"--config=gone"}, want: []string{"settings file"}},
		"word for a number in a flag":   {args: []string{"--session-life-seconds=1m"}, want: []string{"flag --session-life-seconds", `"1m"`, "whole number of s"}},
		"below the least":               {env: []string{"MW_SESSION_LIFE_SECONDS=0"}, want: []string{"environment MW_SESSION_LIFE_SECONDS", "between 1 and 3600"}},
		"above the most":                {env: []string{"MW_MAX_GRACE_SECONDS=901"}, want: []string{"MW_MAX_GRACE_SECONDS", "between 1 and 900"}},
		"a limit that cannot be off":    {env: []string{"MW_HELLOS_PER_MINUTE=0"}, want: []string{"MW_HELLOS_PER_MINUTE"}},
		"neither true nor false":        {env: []string{"MW_ARCHIVE_TRIM=ja"}, want: []string{"MW_ARCHIVE_TRIM", "neither true nor false"}},
		"a word that is no choice":      {env: []string{"MW_LOG_LEVEL=loud"}, want: []string{"MW_LOG_LEVEL", "debug, info, warn, error"}},
		"secret file that is not there": {env: []string{"MW_DATABASE_URL_FILE=gone"}, want: []string{"MW_DATABASE_URL_FILE"}},
		"all faults at once":            {file: "x: 1", env: []string{"MW_MAX_GRACE_SECONDS=0"}, args: []string{"--log-level=x"}, want: []string{"settings: x", "MW_MAX_GRACE_SECONDS", "--log-level"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := load(c.file, c.env, c.args)
			var fault *config.Error
			if !errors.As(err, &fault) {
				t.Fatalf("error = %v, want a *config.Error", err)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not say %q", err, part)
				}
			}
		})
	}
}

func TestRatesAndTheSweeperCanBeOff(t *testing.T) {
	t.Parallel()
	l, err := load("", []string{"MW_MESSAGE_RATE_PER_MINUTE=0", "MW_PROPOSAL_RATE_PER_MINUTE=0", "MW_COMMANDS_PER_SECOND_PER_CONNECTION=0", "MW_SWEEP_INTERVAL_MS=0"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p := l.Settings.Policy; p.MessageRatePerMinute+p.ProposalRatePerMinute+p.CommandsPerSecondPerConnection+p.SweepIntervalMs != 0 {
		t.Errorf("policy = %+v", p)
	}
}

func TestSecretsAreReadFromFilesAndHiddenWhenPrinted(t *testing.T) {
	t.Parallel()
	l, err := load("", []string{"MW_DATABASE_URL_FILE=secret", "MW_NATS_URL=nats://geheim@bus:4222"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := l.Settings
	if s.DatabaseURL != "postgres://u:geheim@db/x" {
		t.Errorf("database URL = %q", s.DatabaseURL)
	}
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := json.Marshal(l.Entries())
	if err != nil {
		t.Fatal(err)
	}
	for _, out := range []string{string(raw), string(entries), s.String(), fmt.Sprint(s), fmt.Sprintf("%+v", *s), fmt.Sprintf("%#v", *s), fmt.Sprintf("%v", s)} {
		if strings.Contains(out, "geheim") {
			t.Errorf("a secret is in %s", out)
		}
		if !strings.Contains(out, "@db/x") {
			t.Errorf("the server is not in %s", out)
		}
	}
}

func TestMisspeltVariablesAreListed(t *testing.T) {
	t.Parallel()
	l, err := load("", []string{"MW_SESION_LIFE=1", "MW_DATABASE_URL=x", "OTHER=1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"MW_SESION_LIFE"}, l.UnknownEnv()); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestRedact(t *testing.T) {
	t.Parallel()
	cases := map[string]string{
		"":                                    "",
		"postgres://u:p@h:1/d?sslmode=x":      "postgres://u:***@h:1/d?sslmode=x",
		"postgres://u@h/d":                    "postgres://***@h/d",
		"postgres://h/d?password=p":           "postgres://h/d?password=***",
		"nats://t@a:1,nats://u:p@b:2":         "nats://***@a:1,nats://u:***@b:2",
		"host=h password=p dbname=d":          "host=h password=*** dbname=d",
		"host=h password = 'a b' dbname=d":    "host=h password=*** dbname=d",
		"postgres://u:p@h:port/d":             "***",
		"just a word":                         "***",
		"postgres://u:p%2Fx@[::1]:1/d":        "postgres://u:***@[::1]:1/d",
		"postgres:///d?host=%2Frun&port=5432": "postgres:///d?host=%2Frun&port=5432",
	}
	for in, want := range cases {
		if got := config.Redact(in); got != want {
			t.Errorf("Redact(%q) = %q, want %q", in, got, want)
		}
	}
}
