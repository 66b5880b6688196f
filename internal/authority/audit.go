package authority

import (
	"context"
	"sync"
	"time"

	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/trust"
)

// audit is the protected record of a refusal (COMMANDS.md 2.2).
func (t *task) audit(err *protocol.Error, at time.Time) events.Audit {
	a := events.Audit{
		ID: mint(at), At: at, Step: err.Step, Stage: err.Stage, Code: string(err.Code), Reason: err.Reason,
		BodyHash: t.bodyHash[:], Peer: t.sub.Peer, Actor: t.env.Actor, ActionID: t.env.ActionID, Kind: t.env.Kind, GroupID: t.env.GroupID,
	}
	if f, ok := trust.FailureOf(err); ok {
		a.Reason = f.Reason
	}
	if err.Cause != nil {
		a.Cause = err.Cause.Error()
	}
	if t.verified != nil {
		a.SigningHash = t.verified.SigningHash
	}
	return a
}

// Bounds of the audit of refusals before a lane, which anybody can cause.
const (
	auditQueue   = 4096
	auditBatch   = 512
	auditPatient = 2 * time.Second
	// auditPerPeer is how many records a peer gets per second; further refusals
	// are counted in the last one of their kind.
	auditPerPeer = 50
	auditPeers   = 10_000
)

// auditor writes refusals that came before a lane, many in one transaction.
type auditor struct {
	s     *Service
	queue chan *pendingAudit

	mu     sync.Mutex
	second int64
	peers  map[string]int
	folded map[foldKey]*events.Audit
}

type pendingAudit struct {
	events.Audit
	done chan struct{}
}

// foldKey groups what is counted instead of recorded.
type foldKey struct{ peer, step, code, reason string }

func newAuditor(s *Service) *auditor {
	return &auditor{
		s: s, queue: make(chan *pendingAudit, auditQueue),
		peers: map[string]int{}, folded: map[foldKey]*events.Audit{},
	}
}

// record makes a refusal durable, or counts it when its peer sends too many. It
// waits for a moment; a database that is away costs the record, which then goes
// to the log, and not the answer.
func (a *auditor) record(audit events.Audit) {
	if p := a.post(audit); p != nil {
		select {
		case <-p.done:
		case <-time.After(auditPatient):
		}
	}
}

// post is record without waiting; nil when there is nothing to wait for.
func (a *auditor) post(audit events.Audit) *pendingAudit {
	if a.fold(&audit) {
		return nil
	}
	p := &pendingAudit{Audit: audit, done: make(chan struct{})}
	select {
	case a.queue <- p:
		return p
	default:
		a.lost(&audit)
		return nil
	}
}

// fold counts the refusal if its peer has had its records for this second.
func (a *auditor) fold(audit *events.Audit) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now := audit.At.Unix(); now != a.second {
		a.second = now
		clear(a.peers)
	}
	if len(a.peers) < auditPeers {
		a.peers[audit.Peer]++
	}
	if a.peers[audit.Peer] <= auditPerPeer && len(a.peers) < auditPeers {
		return false
	}
	k := foldKey{audit.Peer, audit.Step, audit.Code, audit.Reason}
	if len(a.folded) >= auditPeers {
		k.peer = "many"
	}
	if known, ok := a.folded[k]; ok {
		known.Repeats++
		return true
	}
	if len(a.folded) < 2*auditPeers {
		audit.Peer = k.peer
		a.folded[k] = audit
	}
	return true
}

// flush takes the counted refusals.
func (a *auditor) flush() []events.Audit {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := make([]events.Audit, 0, len(a.folded))
	for _, audit := range a.folded {
		out = append(out, *audit)
	}
	clear(a.folded)
	return out
}

func (a *auditor) lost(audit *events.Audit) {
	a.s.stats.auditsLost.Add(1)
	a.s.log.Warn("audit record not stored", "step", audit.Step, "code", audit.Code, "reason", audit.Reason,
		"cause", audit.Cause, "signingHash", audit.SigningHash, "peer", audit.Peer)
}

// run writes until the service stops, then what is left.
func (a *auditor) run() {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-a.s.stopping:
			for len(a.queue) > 0 {
				a.write(a.drain(<-a.queue), nil)
			}
			a.write(nil, a.flush())
			return
		case <-tick.C:
			a.write(nil, a.flush())
		case p := <-a.queue:
			a.write(a.drain(p), nil)
		}
	}
}

func (a *auditor) drain(first *pendingAudit) []*pendingAudit {
	batch := []*pendingAudit{first}
	for len(batch) < auditBatch {
		select {
		case p := <-a.queue:
			batch = append(batch, p)
		default:
			return batch
		}
	}
	return batch
}

func (a *auditor) write(batch []*pendingAudit, counted []events.Audit) {
	audits := counted
	for _, p := range batch {
		audits = append(audits, p.Audit)
	}
	if len(audits) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), auditPatient)
	defer cancel()
	if _, err := a.s.store.Commit(ctx, &events.Batch{Audits: audits}); err != nil {
		for i := range audits {
			a.lost(&audits[i])
		}
	}
	for _, p := range batch {
		close(p.done)
	}
}
