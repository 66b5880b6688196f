package devstack

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nkeys"
)

// JetStreamSyncInterval is how often JetStream's files are synced to disk. A
// power cut can take the messages since the last time; they are copies of
// committed events and are published again from PostgreSQL.
const JetStreamSyncInterval = time.Minute

const (
	natsUser         = "missionweave"
	natsSystemUser   = "missionweave-system"
	natsSystem       = "SYS"
	natsReady        = 20 * time.Second
	natsAuthWithin   = 1500 * time.Millisecond
	natsMaxPayload   = 8 << 20
	jetStreamMemory  = 256 << 20
	jetStreamStorage = 4 << 30
)

// natsNode is the embedded NATS server; it can be stopped and started again on
// the same port and store.
type natsNode struct {
	layout layout
	// password and systemPassword are those of the server's users; issuer is the
	// seed of the key whose word the server takes for everybody else.
	password, systemPassword, issuer string
	log                              *slog.Logger

	mu   sync.Mutex
	port int
	srv  *server.Server
}

func (n *natsNode) url() string { return n.urlOf(natsUser, n.password) }

func (n *natsNode) systemURL() string { return n.urlOf(natsSystemUser, n.systemPassword) }

func (n *natsNode) urlOf(user, password string) string {
	u := url.URL{
		Scheme: "nats", User: url.UserPassword(user, password),
		Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(n.port)),
	}
	return u.String()
}

// start runs the server on wantPort if that is free, else on a free port; a
// fixed port must be had.
func (n *natsNode) start(wantPort int, fixed bool) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.srv != nil {
		return errors.New("NATS already runs")
	}
	port := wantPort
	if port == 0 || (!fixed && !portIsFree(port)) {
		port = server.RANDOM_PORT
	}
	if err := os.MkdirAll(n.layout.natsDir(), 0o700); err != nil {
		return err
	}
	issuer, err := publicKey(n.issuer)
	if err != nil {
		return err
	}
	system := server.NewAccount(natsSystem)
	srv, err := server.NewServer(&server.Options{
		ServerName:    "missionweave-devstack",
		Host:          "127.0.0.1",
		Port:          port,
		Accounts:      []*server.Account{system},
		SystemAccount: natsSystem,
		Users: []*server.User{
			{Username: natsUser, Password: n.password},
			{Username: natsSystemUser, Password: n.systemPassword, Account: system},
		},
		// Everybody else is for the Authority to let in. Where none runs, nobody
		// answers, and strangers are refused when the time is over.
		AuthTimeout:        natsAuthWithin.Seconds(),
		AuthCallout:        &server.AuthCallout{Issuer: issuer, AuthUsers: []string{natsUser, natsSystemUser}},
		NoSigs:             true, // signals belong to the program around it
		MaxPayload:         natsMaxPayload,
		JetStream:          true,
		StoreDir:           n.layout.natsDir(),
		SyncInterval:       JetStreamSyncInterval,
		JetStreamMaxMemory: jetStreamMemory,
		JetStreamMaxStore:  jetStreamStorage,
	})
	if err != nil {
		return fmt.Errorf("NATS: %w", err)
	}
	problems := &natsLog{log: n.log}
	srv.SetLogger(problems, false, false)
	srv.Start()
	if !srv.ReadyForConnections(natsReady) || !srv.JetStreamEnabled() {
		srv.Shutdown()
		srv.WaitForShutdown()
		return fmt.Errorf("NATS with JetStream in %s is not ready: %s", n.layout.natsDir(), problems.last())
	}
	bound := srv.Addr().(*net.TCPAddr).Port
	if n.port != bound { // unchanged on a restart, when others read it
		n.port = bound
	}
	n.srv = srv
	return nil
}

// newIssuer is the seed of an account key.
func newIssuer() (string, error) {
	key, err := nkeys.CreateAccount()
	if err != nil {
		return "", fmt.Errorf("NATS: %w", err)
	}
	seed, err := key.Seed()
	if err != nil {
		return "", fmt.Errorf("NATS: %w", err)
	}
	return string(seed), nil
}

func publicKey(seed string) (string, error) {
	key, err := nkeys.FromSeed([]byte(seed))
	if err != nil {
		return "", errors.New("NATS: the issuer's seed is damaged") // the error could show it
	}
	public, err := key.PublicKey()
	if err != nil {
		return "", fmt.Errorf("NATS: %w", err)
	}
	return public, nil
}

// stop ends the server and waits until its store is closed.
func (n *natsNode) stop() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.srv == nil {
		return
	}
	n.srv.Shutdown()
	n.srv.WaitForShutdown()
	n.srv = nil
}

// natsLog passes on what an operator should see and drops the chatter.
type natsLog struct {
	log *slog.Logger

	mu      sync.Mutex
	problem string
}

func (l *natsLog) last() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.problem
}

func (l *natsLog) note(level func(string, ...any), format string, args []any) {
	text := fmt.Sprintf(format, args...)
	l.mu.Lock()
	l.problem = text
	l.mu.Unlock()
	level("NATS: " + text)
}

func (l *natsLog) Noticef(string, ...any) {}
func (l *natsLog) Debugf(string, ...any)  {}
func (l *natsLog) Tracef(string, ...any)  {}

// Warnf drops the one warning that says nothing about this server: its password
// is random, guards a loopback port, and lies in a file of mode 0600 anyway.
func (l *natsLog) Warnf(format string, v ...any) {
	if !strings.HasPrefix(format, "Plaintext passwords detected") {
		l.note(l.log.Warn, format, v)
	}
}

func (l *natsLog) Errorf(format string, v ...any) {
	l.note(l.log.Error, format, v)
}

// Fatalf is an error here: the server then is not ready, and start says so. The
// program around it must not be ended from in here.
func (l *natsLog) Fatalf(format string, v ...any) { l.note(l.log.Error, format, v) }
