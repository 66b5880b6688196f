// Package config holds every setting of the server and where it came from.
//
// The hazard is a limit that silently is not what the operator wrote: a
// misspelt variable, a number in the wrong unit, a secret in a log. So each
// setting is declared once, in the table of this package, with its unit and
// bounds; flag, environment variable and file key are derived from that one
// name; an unknown key or a value out of bounds is an error that names its
// source; and Settings prints with secrets hidden.
//
// Order of sources, the later one wins: default, file, environment, flag.
package config

import "time"

// Policy is what an Organization may tune without changing the protocol. Its
// JSON form is the "policy" member of dev.json. Sources of the defaults are the
// sections of the Command profile named beside each setting.
type Policy struct {
	SessionLifeSeconds             int64 `json:"sessionLifeSeconds"`             // 8.3
	FreshnessPastSeconds           int64 `json:"freshnessPastSeconds"`           // P9
	FreshnessFutureSeconds         int64 `json:"freshnessFutureSeconds"`         // P9
	SweepIntervalMs                int64 `json:"sweepIntervalMs"`                // 7.8; 0: sweeper off
	ExecutionLeaseMaxSeconds       int64 `json:"executionLeaseMaxSeconds"`       // 7.3
	CapabilityTokenMaxSeconds      int64 `json:"capabilityTokenMaxSeconds"`      // 7.3
	MessageRatePerMinute           int64 `json:"messageRatePerMinute"`           // 7.6; 0: no limit
	ProposalRatePerMinute          int64 `json:"proposalRatePerMinute"`          // 7.6; 0: no limit
	DelegationDepth                int64 `json:"delegationDepth"`                // 7.6
	QueuedWorkItems                int64 `json:"queuedWorkItems"`                // 7.6
	ActiveWorkItems                int64 `json:"activeWorkItems"`                // 7.6
	CommandsPerSecondPerConnection int64 `json:"commandsPerSecondPerConnection"` // 8.10; 0: no limit
	HellosPerMinute                int64 `json:"hellosPerMinute"`                // 8.12
	MaxBodyBytes                   int64 `json:"maxBodyBytes"`                   // 8.12
	ArchiveTrim                    bool  `json:"archiveTrim"`                    // 8.11
	MaxGraceSeconds                int64 `json:"maxGraceSeconds"`                // 7.7
	// ExecutionApprovalFrom is the least side-effect risk whose start needs an
	// approval because the Organization says so; "never" asks for none (7.4).
	ExecutionApprovalFrom string `json:"executionApprovalFrom"`
}

// Durations of the policy, for callers that compute with time.

// SessionLife is how long a session token is valid.
func (p Policy) SessionLife() time.Duration { return seconds(p.SessionLifeSeconds) }

// FreshnessPast is how old a Command's issuedAt may be.
func (p Policy) FreshnessPast() time.Duration { return seconds(p.FreshnessPastSeconds) }

// FreshnessFuture is how far ahead a Command's issuedAt may be.
func (p Policy) FreshnessFuture() time.Duration { return seconds(p.FreshnessFutureSeconds) }

// SweepInterval is the pause between two sweeps; 0 means no sweeper.
func (p Policy) SweepInterval() time.Duration {
	return time.Duration(p.SweepIntervalMs) * time.Millisecond
}

// ExecutionLeaseMax is the longest Execution Lease that is granted.
func (p Policy) ExecutionLeaseMax() time.Duration { return seconds(p.ExecutionLeaseMaxSeconds) }

// CapabilityTokenMax is the longest life of a Capability Token.
func (p Policy) CapabilityTokenMax() time.Duration { return seconds(p.CapabilityTokenMaxSeconds) }

// MaxGrace is the longest offline grace of a Worker.
func (p Policy) MaxGrace() time.Duration { return seconds(p.MaxGraceSeconds) }

func seconds(n int64) time.Duration { return time.Duration(n) * time.Second }

// Settings is everything a service reads at its start.
type Settings struct {
	Policy Policy

	DatabaseURL      string // secret
	DatabaseMaxConns int64
	NATSURL          string // secret
	// NATSSystemURL reaches NATS's system account, and NATSIssuerSeed is the account
	// key that NATS believes. With both, Workers may subscribe at NATS themselves,
	// at NATSClientURL or, if that is empty, at NATSURL without its account.
	NATSSystemURL  string // secret
	NATSIssuerSeed string // secret
	NATSClientURL  string
	DataDir        string

	// ListenAddress and ManagementAddress are host:port of a service's two
	// servers, empty for the service's usual loopback ports.
	ListenAddress     string
	ManagementAddress string
	// TLSCertFile and TLSKeyFile are PEM files; empty means that the service
	// makes a self-signed certificate in DataDir.
	TLSCertFile string
	TLSKeyFile  string
	// AuthorityURL is where the Registry reaches the Authority, and
	// AuthorityCAFile the PEM certificate it then trusts, empty for the system's.
	AuthorityURL    string
	AuthorityCAFile string
	// GroupLimitsFile is a JSON file with cooperation limits of single Groups.
	GroupLimitsFile string
	// SoftLimitPercent is the part of a rate, or of an Agent's queued or active
	// work, at which its Group is told; 0 tells nobody.
	SoftLimitPercent int64
	// KeysDir holds the Ed25519 seeds of the service Principals this process acts
	// as; empty means DataDir/keys.
	KeysDir string

	// RequestsPerSecondPerPeer bounds the HTTP requests of one peer address, all
	// routes of a service together; 0 means no bound.
	RequestsPerSecondPerPeer int64

	LogLevel        string
	LogFormat       string
	ShutdownSeconds int64
}

// ShutdownPatience is how long a stopping service waits for work in flight.
func (s *Settings) ShutdownPatience() time.Duration { return seconds(s.ShutdownSeconds) }

const (
	day  = 24 * 60 * 60
	gib  = 1 << 30
	huge = 1_000_000_000
)

// policyFields declares the policy settings.
func (s *Settings) policyFields() []Field {
	p := &s.Policy
	return []Field{
		number("sessionLifeSeconds", &p.SessionLifeSeconds, 900, 1, 3600, "s", "life of a session token"),
		number("freshnessPastSeconds", &p.FreshnessPastSeconds, 300, 1, day, "s", "how old a Command may be"),
		number("freshnessFutureSeconds", &p.FreshnessFutureSeconds, 30, 0, 3600, "s", "how far ahead a Command's time may be"),
		number("sweepIntervalMs", &p.SweepIntervalMs, 1000, 0, 3_600_000, "ms", "pause between two sweeps for expired objects; 0 switches the sweeper off"),
		number("executionLeaseMaxSeconds", &p.ExecutionLeaseMaxSeconds, 3600, 1, 3600, "s", "longest Execution Lease"),
		number("capabilityTokenMaxSeconds", &p.CapabilityTokenMaxSeconds, 900, 1, 900, "s", "longest life of a Capability Token"),
		number("messageRatePerMinute", &p.MessageRatePerMinute, 120, 0, huge, "1/min", "Messages of one actor in one Group; 0 switches the limit off"),
		number("proposalRatePerMinute", &p.ProposalRatePerMinute, 30, 0, huge, "1/min", "Proposals of one actor in one Group; 0 switches the limit off"),
		number("delegationDepth", &p.DelegationDepth, 3, 1, 1000, "", "depth of Missions and delegated WorkItems"),
		number("queuedWorkItems", &p.QueuedWorkItems, 100, 1, huge, "", "queued WorkItems of one Agent over all Groups"),
		number("activeWorkItems", &p.ActiveWorkItems, 4, 1, huge, "", "active WorkItems of one Agent over all Groups, if its card allows as many"),
		number("commandsPerSecondPerConnection", &p.CommandsPerSecondPerConnection, 50, 0, huge, "1/s", "Commands over one WebSocket connection; 0 switches the limit off"),
		number("hellosPerMinute", &p.HellosPerMinute, 12, 1, huge, "1/min", "completed handshakes of one Agent"),
		number("maxBodyBytes", &p.MaxBodyBytes, 1<<20, 1<<10, 64<<20, "bytes", "largest request body and WebSocket frame"),
		toggle("archiveTrim", &p.ArchiveTrim, false, "move the Events of archived Groups out of the online log into the archive"),
		number("maxGraceSeconds", &p.MaxGraceSeconds, 900, 1, 900, "s", "longest offline grace of a Worker"),
		choice("executionApprovalFrom", &p.ExecutionApprovalFrom, "never", []string{"never", "external", "reversible", "none"}, "least side-effect risk of work whose start needs an approval of a human or a policy service, whatever its contract says"),
	}
}

// Fields declares every setting, bound to s, with its default already set when
// s came from New.
func (s *Settings) Fields() []Field {
	return append(s.policyFields(),
		text("databaseUrl", &s.DatabaseURL, "", "PostgreSQL to use instead of a private one").hidden(),
		number("databaseMaxConns", &s.DatabaseMaxConns, 20, 2, 10_000, "", "database connections of one process"),
		text("natsUrl", &s.NATSURL, "", "NATS to use instead of an embedded one").hidden(),
		text("natsSystemUrl", &s.NATSSystemURL, "", "the same NATS as a user of its system account, for direct subscriptions of Workers").hidden(),
		text("natsIssuerSeed", &s.NATSIssuerSeed, "", "seed of the account key that NATS's auth callout believes (SA…), for direct subscriptions of Workers").hidden(),
		text("natsClientUrl", &s.NATSClientURL, "", "where Workers reach NATS, empty for natsUrl without its account"),
		text("dataDir", &s.DataDir, ".data", "folder for keys, blobs and private servers"),
		text("listenAddress", &s.ListenAddress, "", "host:port to serve on, empty for the service's usual loopback port"),
		text("managementAddress", &s.ManagementAddress, "", "host:port of readiness and metrics, empty for the usual loopback port"),
		text("tlsCertFile", &s.TLSCertFile, "", "PEM certificate chain, empty for a self-signed one"),
		text("tlsKeyFile", &s.TLSKeyFile, "", "PEM private key of the certificate"),
		text("authorityUrl", &s.AuthorityURL, "https://127.0.0.1:8420", "where the Registry reaches the Authority"),
		text("authorityCaFile", &s.AuthorityCAFile, "", "PEM certificate that the Registry trusts for it, empty for the system's"),
		number("softLimitPercent", &s.SoftLimitPercent, 0, 0, 100, "%", "part of a rate, or of an Agent's queued or active work, at which its Group is told; 0 tells nobody"),
		text("groupLimitsFile", &s.GroupLimitsFile, "", "JSON file with cooperation limits of single Groups, by Group id"),
		text("keysDir", &s.KeysDir, "", "folder with the seeds of the service's keys, empty for keys below the data folder"),
		number("requestsPerSecondPerPeer", &s.RequestsPerSecondPerPeer, 2000, 0, huge, "1/s", "HTTP requests of one peer address; 0 switches the limit off"),
		choice("logLevel", &s.LogLevel, "info", []string{"debug", "info", "warn", "error"}, "least level that is logged"),
		choice("logFormat", &s.LogFormat, "text", []string{"text", "json"}, "form of log lines"),
		number("shutdownSeconds", &s.ShutdownSeconds, 20, 1, 3600, "s", "patience with work in flight when stopping"),
	)
}

// New returns the defaults.
func New() *Settings {
	s := &Settings{}
	for _, f := range s.Fields() {
		f.reset()
	}
	return s
}

// DefaultPolicy is the policy of a server that was told nothing.
func DefaultPolicy() Policy { return New().Policy }
