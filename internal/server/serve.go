package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/devorg"
	"github.com/missionweave/server/internal/registry/registryhttp"
)

// Service is one of the three services, to be run on its own.
type Service struct {
	Name string
	// Port is the usual loopback port; the management listener is one above.
	Port int
	open func(context.Context, Options) (runner, error)
}

type runner interface{ Run(context.Context) error }

// Services are the three services.
var Services = []Service{
	{Name: "authority", Port: 8420, open: func(ctx context.Context, o Options) (runner, error) { return OpenAuthority(ctx, o) }},
	{Name: "registry", Port: 8430, open: func(ctx context.Context, o Options) (runner, error) {
		submit, err := remoteAuthority(o.Settings)
		if err != nil {
			return nil, err
		}
		return OpenRegistry(ctx, o, submit)
	}},
	{Name: "authz", Port: 8440, open: func(ctx context.Context, o Options) (runner, error) { return OpenAuthz(ctx, o) }},
}

// Serve runs one service until ctx ends, against the database, NATS and key
// folder that the settings name.
func Serve(ctx context.Context, s Service, settings *config.Settings, log *slog.Logger) error {
	if settings.DatabaseURL == "" {
		return errors.New("server: databaseUrl is not set")
	}
	keys, err := devorg.Load(keysDir(settings))
	if err != nil {
		return fmt.Errorf("server: %w; mw init makes them", err)
	}
	o := Options{Settings: settings, Keys: keys, Log: log}
	if o.TLS, err = certificate(settings); err != nil {
		return err
	}
	if o.Listener, err = bind(settings.ListenAddress, s.Port); err != nil {
		return err
	}
	if o.Management, err = bind(settings.ManagementAddress, s.Port+1); err != nil {
		return errors.Join(err, o.Listener.Close())
	}
	service, err := s.open(ctx, o)
	if err != nil {
		return errors.Join(err, o.Listener.Close(), o.Management.Close())
	}
	return service.Run(ctx) //nolint:wrapcheck // says which service
}

func keysDir(s *config.Settings) string {
	if s.KeysDir != "" {
		return s.KeysDir
	}
	return filepath.Join(s.DataDir, "keys")
}

// certificate loads the configured certificate, or makes a self-signed one in
// the data folder. A service on its own never serves without TLS.
func certificate(s *config.Settings) (*tls.Config, error) {
	var cert tls.Certificate
	var err error
	if s.TLSCertFile != "" {
		cert, err = tls.LoadX509KeyPair(s.TLSCertFile, s.TLSKeyFile)
	} else {
		dir := filepath.Join(s.DataDir, "tls")
		cert, err = devorg.Certificate(filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), nil, time.Now())
	}
	if err != nil {
		return nil, fmt.Errorf("server: certificate: %w", err)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS13}, nil
}

func bind(address string, port int) (net.Listener, error) {
	if address == "" {
		address = fmt.Sprintf("127.0.0.1:%d", port)
	}
	l, err := net.Listen("tcp", address) //nolint:noctx // returns at once
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	return l, nil
}

func remoteAuthority(s *config.Settings) (registryhttp.Authority, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS13}
	if s.AuthorityCAFile != "" {
		pem, err := os.ReadFile(s.AuthorityCAFile)
		if err != nil {
			return nil, fmt.Errorf("server: the Authority's certificate: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, errors.New("server: the Authority's certificate file holds none")
		}
	}
	return &registryhttp.RemoteAuthority{BaseURL: s.AuthorityURL, Client: &http.Client{
		Timeout:   30 * time.Second,
		Transport: &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: true},
	}}, nil
}

// Init makes an Organization with its keys, and a certificate, in the
// configured places, and founds it in the database, which must have the schema.
// What is there already stays. hosts are names for the certificate.
func Init(ctx context.Context, settings *config.Settings, hosts []string, log *slog.Logger) (*devorg.Organization, error) {
	keys, err := devorg.Open(keysDir(settings), time.Now())
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	certFile, keyFile := settings.TLSCertFile, settings.TLSKeyFile
	if certFile == "" {
		dir := filepath.Join(settings.DataDir, "tls")
		certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	}
	if _, err := devorg.Certificate(certFile, keyFile, hosts, time.Now()); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	if settings.DatabaseURL == "" {
		return keys, nil
	}
	return keys, Found(ctx, Options{Settings: settings, Keys: keys, Log: log})
}
