package httpkit

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Timeouts of every listener. A body's time is bounded per route by
// Options.RequestTimeout; a stream's answer has no bound.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 32 << 10
)

// Server runs one handler on one listener: started by Serve, ended by its
// context. Hijacked connections (WebSocket) are the handler's to end: register
// what ends them with OnDrain.
type Server struct {
	http    *http.Server
	grace   time.Duration
	onDrain []func()
	log     *slog.Logger
}

// NewServer returns a Server for handler. tlsConfig nil means plain HTTP, which
// is for loopback only; otherwise TLS 1.3 is required. grace bounds how long
// requests may finish after the context has ended.
func NewServer(handler http.Handler, tlsConfig *tls.Config, grace time.Duration, log *slog.Logger) *Server {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if tlsConfig != nil {
		tlsConfig = tlsConfig.Clone()
		tlsConfig.MinVersion = tls.VersionTLS13
	}
	return &Server{
		http: &http.Server{
			Handler:           handler,
			TLSConfig:         tlsConfig,
			ReadHeaderTimeout: readHeaderTimeout,
			IdleTimeout:       idleTimeout,
			MaxHeaderBytes:    maxHeaderBytes,
			// OPTIONS * is answered by the router like any unknown route.
			DisableGeneralOptionsHandler: true,
			ErrorLog:                     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		},
		grace: grace,
		log:   log,
	}
}

// OnDrain adds a function that is called when the Server stops taking requests.
func (s *Server) OnDrain(f func()) { s.onDrain = append(s.onDrain, f) }

// Serve answers on ln until ctx ends, then drains. It returns nil after a clean
// drain, and takes ln over.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	for _, f := range s.onDrain {
		s.http.RegisterOnShutdown(f)
	}
	failed := make(chan error, 1)
	go func() {
		if s.http.TLSConfig != nil {
			failed <- s.http.ServeTLS(ln, "", "")
		} else {
			failed <- s.http.Serve(ln)
		}
	}()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.grace)
	defer cancel()
	err := s.http.Shutdown(drain)
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.Warn("requests cut off after the drain period", "grace", s.grace)
		err = s.http.Close()
	}
	if serr := <-failed; !errors.Is(serr, http.ErrServerClosed) {
		err = errors.Join(err, serr)
	}
	return err
}
