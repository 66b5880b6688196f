package matrix

import "github.com/missionweave/server/internal/config"

// Tune sets the policy of a server that is made for the matrix: sessions that a run
// can outlive, and limits that it can reach.
func Tune(s *config.Settings) {
	s.SoftLimitPercent = 90
	p := &s.Policy
	p.SessionLifeSeconds = 20
	p.SweepIntervalMs = 200
	p.HellosPerMinute = 1000
	p.CommandsPerSecondPerConnection = 0
	p.MessageRatePerMinute, p.ProposalRatePerMinute = 40, 40
	p.DelegationDepth = 2
	p.ActiveWorkItems, p.QueuedWorkItems = 12, 20
}
