package server

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/devorg"
	"github.com/missionweave/server/internal/devstack"
	"github.com/missionweave/server/internal/migrate"
)

// Dev is the dev stack: the three services in one process on a private
// PostgreSQL and NATS (or on those that the settings name), with an
// Organization of its own.
type Dev struct {
	// File is what dev.json says.
	File DevFile
	// Path is where dev.json stands.
	Path string

	log   *slog.Logger
	stack *devstack.Stack
	run   []func(context.Context) error
}

// DevFile is dev.json (API.md, dev stack contract).
type DevFile struct {
	OrganizationID string             `json:"organizationId"`
	AuthorityURL   string             `json:"authorityUrl"`
	RegistryURL    string             `json:"registryUrl"`
	AuthzURL       string             `json:"authzUrl"`
	WSURL          string             `json:"wsUrl"`
	NATSURL        string             `json:"natsUrl"`
	DatabaseURL    string             `json:"databaseUrl"`
	CAFile         string             `json:"caFile"`
	Principals     []devorg.Principal `json:"principals"`
	Policy         config.Policy      `json:"policy"`
}

// Stack is the private PostgreSQL and NATS.
func (d *Dev) Stack() *devstack.Stack { return d.stack }

// DevOptions says where a dev stack lives.
type DevOptions struct {
	Settings *config.Settings
	// PortBase is the Authority's port; the Registry has PortBase+10, authz
	// PortBase+20, and each management listener is one above. 0 takes free ports.
	PortBase int
	// Insecure serves plain HTTP and WebSocket.
	Insecure bool
	Log      *slog.Logger
}

// OpenDev starts everything but the services' listeners. The caller must call
// Run, which also stops it.
func OpenDev(ctx context.Context, o DevOptions) (_ *Dev, err error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	dir, err := filepath.Abs(o.Settings.DataDir)
	if err != nil {
		return nil, fmt.Errorf("server: data folder: %w", err)
	}
	d := &Dev{Path: filepath.Join(dir, "dev.json"), log: o.Log}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // the keys below have folders of their own
		return nil, fmt.Errorf("server: data folder: %w", err)
	}
	d.stack, err = devstack.Start(ctx, devstack.Options{
		DataDir: dir, DatabaseURL: o.Settings.DatabaseURL, NATSURL: o.Settings.NATSURL, Logger: o.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.stop())
		}
	}()
	// From here on this process owns the folder: what an earlier one wrote there
	// about addresses is no longer true.
	if err := os.Remove(d.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("server: %w", err)
	}
	settings := *o.Settings
	settings.DatabaseURL, settings.NATSURL, settings.DataDir = d.stack.DatabaseURL, d.stack.NATSURL, dir
	if d.stack.NATSIssuerSeed != "" {
		settings.NATSSystemURL, settings.NATSIssuerSeed = d.stack.NATSSystemURL, d.stack.NATSIssuerSeed
	}
	if _, err := migrate.Up(ctx, settings.DatabaseURL); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	keys, err := devorg.Open(filepath.Join(dir, "keys"), time.Now())
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	d.File = DevFile{
		OrganizationID: keys.ID, NATSURL: settings.NATSURL, DatabaseURL: settings.DatabaseURL,
		Principals: keys.Principals, Policy: settings.Policy,
	}
	// The socket costs less per round trip; clients are given the TCP address.
	settings.DatabaseURL = d.stack.SocketDatabaseURL
	return d, d.openServices(ctx, o, &settings, keys)
}

func (d *Dev) openServices(ctx context.Context, o DevOptions, settings *config.Settings, keys *devorg.Organization) error {
	var serverTLS *tls.Config
	scheme, ws := "http", "ws"
	if !o.Insecure {
		caFile := filepath.Join(settings.DataDir, "tls", "cert.pem")
		cert, err := devorg.Certificate(caFile, filepath.Join(settings.DataDir, "tls", "key.pem"), nil, time.Now())
		if err != nil {
			return fmt.Errorf("server: %w", err)
		}
		serverTLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13}
		d.File.CAFile = caFile
		scheme, ws = "https", "wss"
	}
	common := Options{Settings: settings, Keys: keys, TLS: serverTLS, Log: o.Log}
	if err := Found(ctx, common); err != nil {
		return err
	}
	ports := []int{0, 0, 0, 0, 0, 0}
	if o.PortBase != 0 {
		b := o.PortBase
		ports = []int{b, b + 1, b + 10, b + 11, b + 20, b + 21}
	}
	listeners, err := listen(ports)
	if err != nil {
		return err
	}
	at := func(i int) Options {
		s := common
		s.Listener, s.Management = listeners[i], listeners[i+1]
		return s
	}
	opened := func(err error) error {
		if err != nil {
			closeAll(listeners)
		}
		return err
	}
	authority, err := OpenAuthority(ctx, at(0))
	if err != nil {
		return opened(err)
	}
	registry, err := OpenRegistry(ctx, at(2), authority)
	if err != nil {
		return opened(err)
	}
	forAuthz := at(4)
	forAuthz.Submit = authority
	authz, err := OpenAuthz(ctx, forAuthz)
	if err != nil {
		return opened(err)
	}
	d.run = []func(context.Context) error{authority.Run, registry.Run, authz.Run}
	url := func(i int) string { return scheme + "://" + listeners[i].Addr().String() }
	d.File.AuthorityURL, d.File.RegistryURL, d.File.AuthzURL = url(0), url(2), url(4)
	d.File.WSURL = ws + "://" + listeners[0].Addr().String() + "/ws"
	return nil
}

func listen(ports []int) ([]net.Listener, error) {
	var all []net.Listener
	for _, port := range ports {
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))) //nolint:noctx // returns at once
		if err != nil {
			closeAll(all)
			return nil, fmt.Errorf("server: %w", err)
		}
		all = append(all, l)
	}
	return all, nil
}

func closeAll(listeners []net.Listener) {
	for _, l := range listeners {
		_ = l.Close()
	}
}

// Run serves until ctx ends, then stops everything. ready is called when every
// listener is bound and dev.json is written.
func (d *Dev) Run(ctx context.Context, ready func() error) (err error) {
	defer func() { err = errors.Join(err, d.stop()) }()
	services, serving := errgroup.WithContext(ctx)
	for _, run := range d.run {
		services.Go(func() error { return run(serving) })
	}
	services.Go(func() error {
		if err := d.write(); err != nil {
			return err
		}
		return ready()
	})
	return services.Wait() //nolint:wrapcheck // says which service
}

// write replaces dev.json in one step: a reader finds all of it or nothing.
func (d *Dev) write() error {
	b, err := json.MarshalIndent(d.File, "", "  ")
	if err != nil {
		return fmt.Errorf("server: dev.json: %w", err)
	}
	next := d.Path + ".next"
	// The URLs in it hold the passwords of the private servers.
	if err := os.WriteFile(next, append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("server: dev.json: %w", err)
	}
	if err := os.Rename(next, d.Path); err != nil {
		return fmt.Errorf("server: dev.json: %w", err)
	}
	return nil
}

func (d *Dev) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := d.stack.Stop(ctx); err != nil {
		return fmt.Errorf("server: stop the private servers: %w", err)
	}
	return nil
}
