package testkit_test

import (
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/testkit"
	"github.com/missionweave/server/internal/testwait"
)

// natsProgram in the environment makes the test program a NATS server.
const natsProgram = "MW_TEST_NATS_SERVER"

// runNATS does what the program nats-server does with its arguments, and never
// returns.
func runNATS() {
	fail := func(err error) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	options, err := server.ConfigureOptions(flag.NewFlagSet("nats-server", flag.ExitOnError), os.Args[1:], nil, nil, nil)
	if err != nil {
		fail(err)
	}
	s, err := server.NewServer(options)
	if err != nil {
		fail(err)
	}
	s.ConfigureLogger()
	if err := server.Run(s); err != nil {
		fail(err)
	}
	s.WaitForShutdown()
	os.Exit(0)
}

// external is a NATS server in a process of its own, set up as
// docs/operations.md says.
type external struct {
	t           *testing.T
	dir, issuer string
	port        int
	process     *exec.Cmd
}

const (
	natsPassword       = "the-password"
	natsSystemPassword = "the-system-password"
)

// documentedConfig is the block of docs/operations.md, with a public key where it
// leaves room for one.
func documentedConfig(t *testing.T, issuer string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```\n(jetstream.*?)```").FindAllStringSubmatch(string(b), -1)
	if len(blocks) != 1 {
		t.Fatalf("docs/operations.md has %d configurations of NATS", len(blocks))
	}
	const room = "issuer: A…"
	if strings.Count(blocks[0][1], room) != 1 {
		t.Fatalf("no %q in the configuration", room)
	}
	return strings.Replace(blocks[0][1], room, "issuer: "+issuer, 1)
}

func startExternal(t *testing.T) *external {
	t.Helper()
	n := &external{t: t, dir: t.TempDir()}
	keys, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := keys.Seed()
	if err != nil {
		t.Fatal(err)
	}
	public, err := keys.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	n.issuer = string(seed)
	if err := os.WriteFile(filepath.Join(n.dir, "nats.conf"), []byte(documentedConfig(t, public)), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n.port = l.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // it is TCP
	_ = l.Close()
	n.start()
	t.Cleanup(n.kill)
	return n
}

func (n *external) url(user, password string) string {
	return (&url.URL{Scheme: "nats", User: url.UserPassword(user, password), Host: "127.0.0.1:" + strconv.Itoa(n.port)}).String()
}

func (n *external) store() string { return filepath.Join(n.dir, "store") }

func (n *external) start() {
	n.t.Helper()
	self, err := os.Executable()
	if err != nil {
		n.t.Fatal(err)
	}
	n.process = exec.Command(self, "-c", filepath.Join(n.dir, "nats.conf"), //nolint:gosec,noctx // this program; ended by kill
		"-a", "127.0.0.1", "-p", strconv.Itoa(n.port), "-sd", n.store(), "-l", filepath.Join(n.dir, "log"))
	n.process.Env = append(os.Environ(), natsProgram+"=1", "PASSWORD="+natsPassword, "SYSTEM_PASSWORD="+natsSystemPassword)
	n.process.Stderr = os.Stderr
	if err := n.process.Start(); err != nil {
		n.t.Fatal(err)
	}
	testwait.Until(n.t, "NATS takes connections", func() bool {
		conn, err := nats.Connect(n.url("missionweave", natsPassword), nats.NoReconnect())
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// kill ends the process with SIGKILL.
func (n *external) kill() {
	_ = n.process.Process.Kill()
	_ = n.process.Wait()
}

func (n *external) option() testkit.Option {
	return testkit.Setting(func(s *config.Settings) {
		s.NATSURL, s.NATSSystemURL = n.url("missionweave", natsPassword), n.url("missionweave-system", natsSystemPassword)
		s.NATSIssuerSeed = n.issuer
	})
}

// eachNATS runs a test at the NATS of the tests and at one in a process of its
// own that has the documented configuration.
func eachNATS(t *testing.T, test func(t *testing.T, options ...testkit.Option)) {
	t.Helper()
	t.Run("embedded", func(t *testing.T) { test(t) })
	t.Run("external", func(t *testing.T) { test(t, startExternal(t).option()) })
}

// health reads a page of a service's management.
func health(t *testing.T, s *testkit.Stack, service, page string) (status int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.ManagementURL(service)+page, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = a.Body.Close() }()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a.StatusCode, string(b)
}

// NATS is killed while Messages flow, loses its store, and comes back empty:
// readers at two replicas get every Event once and in order all the while, the
// services stay ready, and Workers at NATS go on afterwards.
func TestNATSIsKilledUnderLoadAndLosesItsStore(t *testing.T) {
	n := startExternal(t)
	s := testkit.Start(t, testkit.Policy(noLimits), n.option())
	m := s.NewMission()
	near, far := s.Agent("near"), s.Agent("far")
	m.Admit(near, "worker", 1)
	m.Admit(far, "worker", 1)
	_, other := s.Replica("second")
	here, there := s.Login(near), s.LoginAt(other, far)
	for _, k := range []*testkit.Socket{here, there} {
		k.Subscribe(m.GroupID, 3, nil)
		k.Barrier()
	}
	const before = 3 // Events of the preparation
	kills := scaled(10)
	const between = 30
	total := int64(before + (2*kills+1)*between)

	var posted atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for posted.Load() < total-before {
			post(t, s, m, "under load")
			posted.Add(1)
		}
	}()
	reached := func(messages int) {
		testwait.Until(t, fmt.Sprintf("%d Messages", messages), func() bool { return posted.Load() >= int64(messages) })
	}
	for i := range kills {
		reached((2*i + 1) * between)
		n.kill()
		testwait.Until(t, "the metric shows that NATS is away", func() bool {
			_, metrics := health(t, s, "authority", "/metrics")
			return strings.Contains(metrics, "\nmw_nats_degraded 1\n")
		})
		for _, service := range []string{"authority", "second"} {
			if status, body := health(t, s, service, "/readyz"); status != http.StatusOK {
				t.Errorf("%s without NATS: %d %s", service, status, body)
			}
		}
		if err := os.RemoveAll(n.store()); err != nil {
			t.Fatal(err)
		}
		reached((2*i + 2) * between) // committed without NATS
		n.start()
	}
	follow(t, here, before+1, total)
	follow(t, there, before+1, total)
	<-done
	for _, k := range []*testkit.Socket{here, there} {
		for _, v := range k.Barrier() {
			if v.Member("event").Exists() {
				t.Errorf("after the last Event came %s", v.Raw())
			}
		}
	}

	// The empty server is taken into use again: stream, Workers, and the metric.
	published(t, s, m.GroupID, total)
	testwait.Until(t, "the metric shows that NATS is back", func() bool {
		_, metrics := health(t, s, "authority", "/metrics")
		return strings.Contains(metrics, "\nmw_nats_degraded 0\n")
	})
	c := natsCredentials(t, s, here.Token, `{}`)
	var d *direct
	testwait.Until(t, "Workers are let in again", func() bool {
		var err error
		d, err = c.dial(t)
		return err == nil
	})
	d.subscribe(c.subjects[m.GroupID])
	m.Say("last")
	d.expect(total + 1)
	follow(t, there, total+1, total+1)
}
