package server

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/natsauth"
)

// openDirect makes what lets Workers subscribe at NATS themselves, where it is
// configured.
func (a *Authority) openDirect() error {
	s := a.Settings
	if a.conn == nil || s.NATSSystemURL == "" || s.NATSIssuerSeed == "" {
		return nil
	}
	var err error
	if a.system, err = events.Connect(s.NATSSystemURL, nats.Name("missionweave-authority-system")); err != nil {
		return errors.New("server: the URL of NATS's system account cannot be used") // the error could show a password
	}
	url := s.NATSClientURL
	if url == "" {
		url = natsauth.PublicURL(s.NATSURL)
	}
	a.direct, err = natsauth.New(natsauth.Options{
		Pool: a.pool, Conn: a.conn, System: a.system, Issuer: s.NATSIssuerSeed,
		OrganizationID: a.Keys.ID, URL: url, Log: a.Log,
	})
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	a.add("subscribers of NATS", a.direct.Run)
	a.metrics.MustRegister(directMetrics{a.direct})
	return nil
}

// accessChanged is told by the Hub.
func (a *Authority) accessChanged() {
	if a.direct != nil {
		a.direct.Changed()
	}
}

// opened is told of every new session before it is answered.
func (a *Authority) opened(tell func(context.Context, string, int64)) func(context.Context, string, int64) {
	return func(ctx context.Context, agentID string, epoch int64) {
		tell(ctx, agentID, epoch)
		if a.direct != nil {
			a.direct.Opened(ctx, agentID)
		}
	}
}

// directMetrics reads the counters of direct subscriptions.
type directMetrics struct{ service *natsauth.Service }

var descDirect = prometheus.NewDesc("mw_nats_direct_total",
	"Direct subscriptions of Workers at NATS: credentials granted, connections admitted, refused and cut.", []string{"what"}, nil)

// Describe implements prometheus.Collector.
func (m directMetrics) Describe(ch chan<- *prometheus.Desc) { ch <- descDirect }

// Collect implements prometheus.Collector.
func (m directMetrics) Collect(ch chan<- prometheus.Metric) {
	s := m.service.Stats()
	for what, n := range map[string]int64{"granted": s.Granted, "admitted": s.Admitted, "refused": s.Refused, "cut": s.Cut} {
		ch <- prometheus.MustNewConstMetric(descDirect, prometheus.CounterValue, float64(n), what)
	}
}
