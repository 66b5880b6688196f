package e2e

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/demo"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/server"
)

// outage is a dev stack in this process whose servers can be stopped.
type outage struct {
	*server.Dev
	stack      *client.DevStack
	management string
}

func startOutage(t *testing.T) *outage {
	t.Helper()
	return startOutageWith(t, func(*config.Settings) {})
}

func startOutageWith(t *testing.T, change func(*config.Settings)) *outage {
	t.Helper()
	settings := config.New()
	settings.DataDir = t.TempDir()
	change(settings)
	base := freePorts(t)
	dev, err := server.OpenDev(t.Context(), server.DevOptions{Settings: settings, PortBase: base})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, stopped := make(chan struct{}), make(chan error, 1)
	go func() { stopped <- dev.Run(ctx, func() error { close(ready); return nil }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Errorf("the stack did not stop cleanly: %v", err)
		}
	})
	select {
	case <-ready:
	case err := <-stopped:
		stopped <- nil
		t.Fatal(err)
	}
	stack, err := client.ReadDevStack(dev.Path)
	if err != nil {
		t.Fatal(err)
	}
	return &outage{Dev: dev, stack: stack, management: fmt.Sprintf("http://127.0.0.1:%d", base+1)}
}

func (o *outage) readiness(t *testing.T) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, o.management+"/readyz", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	return res.StatusCode
}

// eventually asks again until the answer is the wanted one.
func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		select {
		case <-deadline:
			t.Fatalf("not within 30 s: %s", what)
		case <-tick.C:
		}
	}
}

func TestWithoutTheDatabaseCommandsAreRefusedRetryablyAndNothingIsLost(t *testing.T) {
	o := startOutage(t)
	owner, err := o.stack.Identity("mission-owner")
	if err != nil {
		t.Fatal(err)
	}
	c, err := o.stack.Connect(owner)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	seen := newWatcher(12)
	finished := make(chan error, 1)
	go func() {
		_, err := demo.Run(t.Context(), demo.Options{Stack: o.stack, File: mission(t), Out: seen, Limit: 2 * time.Minute})
		finished <- err
	}()
	<-seen.wait(12)
	if err := o.Stack().StopPostgres(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "readiness turns false", func() bool { return o.readiness(t) == http.StatusServiceUnavailable })
	signed, err := c.Sign(client.Command{Kind: "mission.create", GroupID: client.NewID()}, map[string]any{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.PostOnce(t.Context(), signed)
	if refusal, ok := errors.AsType[*client.Error](err); !ok || refusal.Code != "INTERNAL_ERROR" || !refusal.Retryable {
		t.Errorf("without the database: %v, want a retryable INTERNAL_ERROR", err)
	}
	if err := o.Stack().StartPostgres(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "readiness comes back", func() bool { return o.readiness(t) == http.StatusOK })
	if err := <-finished; err != nil {
		t.Fatalf("%v\n%s", err, seen)
	}
	verified(t, o.File.DatabaseURL)
}

func TestWithoutNATSCommandsCommitAndSubscribersCatchUp(t *testing.T) {
	o := startOutage(t)
	if err := o.Stack().StopNATS(); err != nil {
		t.Fatal(err)
	}
	seen := newWatcher()
	if _, err := demo.Run(t.Context(), demo.Options{Stack: o.stack, File: mission(t), Out: seen, Limit: time.Minute}); err != nil {
		t.Fatalf("%v\n%s", err, seen)
	}
	if got := o.readiness(t); got != http.StatusOK {
		t.Errorf("readiness without NATS: %d", got)
	}
	if err := o.Stack().StartNATS(); err != nil {
		t.Fatal(err)
	}
	verified(t, o.File.DatabaseURL)
}

func TestAnAuditorFindsWhyASignatureWasNotAcceptedAndItsSenderDoesNot(t *testing.T) {
	o := startOutage(t)
	owner, err := o.stack.Identity("mission-owner")
	if err != nil {
		t.Fatal(err)
	}
	stranger := owner
	stranger.KeyID = client.NewID() // a key that nobody registered
	c, err := o.stack.Connect(stranger)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	signed, err := c.Sign(client.Command{Kind: "mission.create", GroupID: client.NewID()}, map[string]any{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.PostOnce(t.Context(), signed)
	refusal, ok := errors.AsType[*client.Error](err)
	if !ok || refusal.Code != "AUTH_INVALID_SIGNATURE" || len(refusal.Details) != 0 {
		t.Fatalf("the sender is told %v", err)
	}
	pool, err := pgxpool.New(t.Context(), o.File.DatabaseURL)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	var found []events.AuditRecord
	eventually(t, "the audit record is there", func() bool {
		found, err = events.FindAudits(t.Context(), pool, events.AuditFilter{ActionID: signed.ActionID})
		return err != nil || len(found) > 0
	})
	if err != nil {
		t.Fatal(err)
	}
	if r := found[0]; r.Step != "P4" || r.Stage != "4" || r.Reason == "" {
		t.Errorf("the auditor finds %+v, want step P4, stage 4 and a reason", r)
	}
}

func TestRequestsOfOnePeerBeyondTheLimitAreToldWhenToComeBack(t *testing.T) {
	o := startOutageWith(t, func(s *config.Settings) { s.RequestsPerSecondPerPeer = 1 })
	roots, err := o.stack.RootCAs()
	if err != nil {
		t.Fatal(err)
	}
	h := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}}}
	defer h.CloseIdleConnections()
	eventually(t, "the limit answers 429", func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, o.stack.AuthorityURL+"/openapi.yaml", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := h.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusTooManyRequests && res.Header.Get("Retry-After") != ""
	})
}
