package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/missionweave/server/internal/authority"
	"github.com/missionweave/server/internal/events"
)

// authorityMetrics reads the counters of the parts at each scrape. No label
// carries an id.
type authorityMetrics struct {
	service   *authority.Service
	publisher *events.Publisher
	hub       *events.Hub
	connected func() bool
}

func newAuthorityMetrics(s *authority.Service, p *events.Publisher, h *events.Hub, connected func() bool) *authorityMetrics {
	return &authorityMetrics{service: s, publisher: p, hub: h, connected: connected}
}

var (
	descCommands = prometheus.NewDesc("mw_commands_total", "Commands by fate.", []string{"fate"}, nil)
	descRounds   = prometheus.NewDesc("mw_lane_rounds_total", "Transactions of the lanes by course.", []string{"course"}, nil)
	descTimers   = prometheus.NewDesc("mw_timer_events_total", "Events written because something expired.", nil, nil)
	descLoads    = prometheus.NewDesc("mw_group_loads_total", "Group states read from the database.", []string{"how"}, nil)
	descWaiting  = prometheus.NewDesc("mw_lane_waiting", "Commands that wait in the lanes.", nil, nil)
	descAudits   = prometheus.NewDesc("mw_audit_lost_total", "Audit records that went to the log instead of the database.", nil, nil)
	descWatched  = prometheus.NewDesc("mw_watched", "Groups with local readers, and those readers.", []string{"what"}, nil)
	descDegraded = prometheus.NewDesc("mw_nats_degraded", "1 while NATS is away or takes no Events, and followers poll.", nil, nil)
	descPublish  = prometheus.NewDesc("mw_nats_events_total", "Events on their way to NATS: published, tries that failed.", []string{"fate"}, nil)
	descUnsent   = prometheus.NewDesc("mw_nats_waiting_groups", "Groups with Events that wait to be published.", nil, nil)
	descHub      = prometheus.NewDesc("mw_hub_total", "Wake-ups of readers, reads that went to the database, Events taken over from NATS.", []string{"what"}, nil)
)

// Describe implements prometheus.Collector.
func (m *authorityMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		descCommands, descRounds, descTimers, descLoads, descWaiting, descAudits, descWatched, descDegraded,
		descPublish, descUnsent, descHub,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *authorityMetrics) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, v int64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	s := m.service.Stats()
	counter(descCommands, s.Received, "received")
	counter(descCommands, s.Accepted, "accepted")
	counter(descCommands, s.Replayed, "replayed")
	counter(descCommands, s.Refused, "refused")
	counter(descCommands, s.PushedBack, "pushed_back")
	counter(descRounds, s.Rounds, "all")
	counter(descRounds, s.Redecided, "redecided")
	counter(descRounds, s.Settled, "settled")
	counter(descTimers, s.TimerEvents)
	counter(descLoads, s.Loads, "whole")
	counter(descLoads, s.CatchUps, "caught_up")
	gauge(descWaiting, float64(s.Waiting))
	counter(descAudits, s.AuditsLost)
	groups, readers := m.hub.Watched()
	gauge(descWatched, float64(groups), "groups")
	gauge(descWatched, float64(readers), "readers")
	hub := m.hub.Stats()
	counter(descHub, hub.Wakes, "wakes")
	counter(descHub, hub.Misses, "database_reads")
	counter(descHub, hub.Heard, "events_from_nats")
	published := m.publisher.Stats()
	counter(descPublish, published.Published, "published")
	counter(descPublish, published.Failures, "failed")
	gauge(descUnsent, float64(published.Waiting))
	degraded := 1.0
	if m.connected() && !published.Degraded {
		degraded = 0
	}
	gauge(descDegraded, degraded)
}
