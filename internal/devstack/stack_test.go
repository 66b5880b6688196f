package devstack

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestStackKeepsItsDataPortsAndPasswordsOverAStop(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	s := startStack(t, Options{DataDir: dir})
	mustQuery(t, s.DatabaseURL, "CREATE TABLE kept AS SELECT 42 AS n")
	publish(t, s.NATSURL, "one")
	for _, name := range []string{"fsync", "synchronous_commit", "full_page_writes"} {
		if got := mustQuery(t, s.DatabaseURL, "SHOW "+name); got != "on" {
			t.Errorf("%s = %q, want on", name, got)
		}
	}
	stopStack(t, s)
	if pids := mustServing(t, dir); len(pids) != 0 {
		t.Fatalf("processes %v still serve after Stop", pids)
	}
	if state := controlState(t, dir); state != "shut down" {
		t.Errorf("cluster state after Stop = %q, want a clean shut down", state)
	}

	again := startStack(t, Options{DataDir: dir})
	if again.DatabaseURL != s.DatabaseURL || again.NATSURL != s.NATSURL {
		t.Error("the URLs changed although both ports were free")
	}
	if got := mustQuery(t, again.SocketDatabaseURL, "SELECT n FROM kept"); got != "42" {
		t.Errorf("row = %q, want 42", got)
	}
	if n := stored(t, again.NATSURL); n != 1 {
		t.Errorf("JetStream kept %d messages, want 1", n)
	}
}

func TestSecondStackOnTheSameDirectoryIsRefused(t *testing.T) {
	t.Parallel()
	dir := openDir(t)
	s := startStack(t, Options{DataDir: dir, fast: true})
	_, err := Start(testContext(t), Options{DataDir: dir, fast: true})
	if !errors.Is(err, ErrInUse) {
		t.Fatalf("error = %v, want ErrInUse", err)
	}
	if !strings.Contains(err.Error(), strconv.Itoa(os.Getpid())) {
		t.Errorf("error %q does not name the holder", err)
	}
	if got := mustQuery(t, s.DatabaseURL, "SELECT 1"); got != "1" {
		t.Error("the refused start disturbed the running stack")
	}
}

func TestPortsThatAreTakenAreReplaced(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	taken := ln.Addr().(*net.TCPAddr).Port
	s := startStack(t, Options{DataDir: openDir(t), PostgresPort: taken, NATSPort: taken, fast: true})
	for _, u := range []string{s.DatabaseURL, s.NATSURL} {
		parsed, err := url.Parse(u)
		if err != nil {
			t.Fatal(err)
		}
		if parsed.Port() == strconv.Itoa(taken) {
			t.Errorf("%s uses the port that was taken", parsed.Redacted())
		}
	}
}

func TestExternalServersAreUsedAndNotTouched(t *testing.T) {
	t.Parallel()
	s, err := Start(testContext(t), Options{DatabaseURL: "postgres://db.example/x", NATSURL: "nats://bus.example"})
	if err != nil {
		t.Fatal(err)
	}
	if s.DatabaseURL != "postgres://db.example/x" || s.NATSURL != "nats://bus.example" || s.Dir != "" {
		t.Errorf("stack = %q %q %q", s.DatabaseURL, s.NATSURL, s.Dir)
	}
	for what, err := range map[string]error{
		"StopPostgres": s.StopPostgres(testContext(t)), "KillPostgres": s.KillPostgres(),
		"StopNATS": s.StopNATS(), "StartNATS": s.StartNATS(),
	} {
		if !errors.Is(err, ErrExternal) {
			t.Errorf("%s = %v, want ErrExternal", what, err)
		}
	}
	stopStack(t, s)
}

func TestOnlyTheExternalHalfIsReplaced(t *testing.T) {
	t.Parallel()
	s := startStack(t, Options{DataDir: openDir(t), DatabaseURL: "postgres://db.example/x"})
	if s.cluster != nil || s.nats == nil {
		t.Fatal("want a private NATS beside an external database")
	}
	publish(t, s.NATSURL, "one")
}

func TestPasswordsStayOutOfLogsAndCommandLines(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	dir := openDir(t)
	s := startStack(t, Options{DataDir: dir, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), fast: true})
	if err := s.KillPostgres(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a restart", func() bool {
		_, err := query(testContext(t), s.DatabaseURL, "SELECT 1")
		return err == nil
	})
	// A refused login is what servers like to log in full.
	bad := strings.Replace(s.DatabaseURL, s.cluster.password, "wrong", 1)
	if _, err := query(testContext(t), bad, "SELECT 1"); err == nil {
		t.Fatal("a wrong password was accepted")
	}
	state, err := layout{root: s.Dir}.loadState()
	if err != nil {
		t.Fatal(err)
	}
	places := map[string]string{"operator log": log.String()}
	for _, f := range []string{filepath.Join(s.Dir, "postgres.log")} {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		places[f] = string(raw)
	}
	for _, pid := range mustServing(t, s.Dir) {
		raw, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		places["command line"] += string(raw)
	}
	for place, text := range places {
		for _, secret := range []string{state.PostgresPassword, state.NATSPassword} {
			if strings.Contains(text, secret) {
				t.Errorf("a password is in the %s", place)
			}
		}
	}
	info, err := os.Stat(filepath.Join(s.Dir, "devstack.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("devstack.json: mode %v, error %v; want 0600", info.Mode(), err)
	}
}

func TestNATSAsksForItsPasswordAndKeepsItsStoreOverAnOutage(t *testing.T) {
	t.Parallel()
	s := startStack(t, Options{DataDir: openDir(t), DatabaseURL: "postgres://db.example/x"})
	u, err := url.Parse(s.NATSURL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := nats.Connect("nats://" + u.Host); !errors.Is(err, nats.ErrAuthorization) {
		t.Errorf("without a password: %v, want %v", err, nats.ErrAuthorization)
	}
	publish(t, s.NATSURL, "one")
	if err := s.StopNATS(); err != nil {
		t.Fatal(err)
	}
	if _, err := nats.Connect(s.NATSURL, nats.Timeout(time.Second)); err == nil {
		t.Fatal("connected during the outage")
	}
	if err := s.StartNATS(); err != nil {
		t.Fatal(err)
	}
	if n := stored(t, s.NATSURL); n != 1 {
		t.Errorf("kept %d messages, want 1", n)
	}
}

func TestStateThatDoesNotFitItsClusterIsAnError(t *testing.T) {
	t.Parallel()
	cases := map[string]func(l layout) error{
		"cluster without its password": func(l layout) error { return os.MkdirAll(l.dataDir(), 0o700) },
		"damaged state":                func(l layout) error { return os.WriteFile(l.stateFile(), []byte("{"), 0o600) },
		"state without a password":     func(l layout) error { return os.WriteFile(l.stateFile(), []byte("{}"), 0o600) },
	}
	for name, prepare := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lay, err := newLayout(openDir(t))
			if err != nil {
				t.Fatal(err)
			}
			if err := prepare(lay); err != nil {
				t.Fatal(err)
			}
			if _, err := Start(testContext(t), Options{DataDir: lay.root}); err == nil || !strings.Contains(err.Error(), "devstack.json") {
				t.Errorf("error = %v, want one that names devstack.json", err)
			}
		})
	}
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func withJetStream(t *testing.T, natsURL string, do func(jetstream.JetStream)) {
	t.Helper()
	nc, err := nats.Connect(natsURL)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	do(js)
}

func publish(t *testing.T, natsURL, text string) {
	t.Helper()
	withJetStream(t, natsURL, func(js jetstream.JetStream) {
		ctx := testContext(t)
		if _, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "kept", Subjects: []string{"kept.>"}}); err != nil {
			t.Fatal(err)
		}
		if _, err := js.Publish(ctx, "kept.x", []byte(text)); err != nil {
			t.Fatal(err)
		}
	})
}

func stored(t *testing.T, natsURL string) (n uint64) {
	t.Helper()
	withJetStream(t, natsURL, func(js jetstream.JetStream) {
		stream, err := js.Stream(testContext(t), "kept")
		if err != nil {
			t.Fatal(err)
		}
		n = stream.CachedInfo().State.Msgs
	})
	return n
}
