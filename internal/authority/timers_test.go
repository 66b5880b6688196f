package authority_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/missionweave/server/internal/authority/authoritytest"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/registry/registrytest"
	"github.com/missionweave/server/internal/testwait"
	"github.com/missionweave/server/internal/trust"
)

// brief creates a Mission whose Coordinator lease lasts a second.
func brief(r *authoritytest.Rig, owner, coordinator trust.Signer) *authoritytest.Mission {
	r.T.Helper()
	m := &authoritytest.Mission{ID: registrytest.Mint(), GroupID: registrytest.Mint(), Owner: owner, Coordinator: coordinator}
	creation := m.Creation(r)
	var terms map[string]any
	doc, err := strictjson.Parse(creation.Payload)
	if err != nil {
		r.T.Fatal(err)
	}
	terms = map[string]any{"coordinatorLeaseSeconds": 1}
	for name, v := range doc.Root().Members() {
		terms[name] = protocol.Raw(v.Raw())
	}
	creation.Payload = authoritytest.Payload(r.T, terms)
	r.Must(owner, creation)
	return m
}

// More Groups are due than a page holds: one sweep gets to the end, several at
// once write each fact once, and another finds nothing to do.
func TestSweepPagesToTheEnd(t *testing.T) {
	r := authoritytest.Start(t, authoritytest.Options{Policy: unlimited()})
	other := r.AddReplica(authoritytest.Options{Policy: unlimited()})
	owner, coordinator := registrytest.Human("mission-owner"), r.AddAgent("coordinator")
	const missions = 430 // pages hold 200
	var wg sync.WaitGroup
	next := make(chan int, missions)
	for i := range missions {
		next <- i
	}
	close(next)
	for range 8 {
		wg.Go(func() {
			for range next {
				brief(r, owner, coordinator)
			}
		})
	}
	wg.Wait()
	due := func() int { return count(t, r, "SELECT count(*) FROM group_timers WHERE due_at <= clock_timestamp()") }
	testwait.Within(t, 30*time.Second, "every Group is due", func() bool { return due() >= missions })
	var looked atomic.Int64
	for _, n := range []*authoritytest.Replica{r.Replica, other, r.Replica} {
		wg.Go(func() {
			seen, err := n.Service.Sweep(t.Context())
			if err != nil {
				t.Error(err)
			}
			looked.Add(int64(seen))
		})
	}
	wg.Wait()
	if looked.Load() < missions {
		t.Errorf("%d Groups were looked at", looked.Load())
	}
	if got := count(t, r, "SELECT count(*) FROM events WHERE kind = 'ext.missionweave.authority.lease_expired'"); got != missions {
		t.Errorf("%d expiries of %d leases", got, missions)
	}
	if due() != 0 {
		t.Errorf("%d Groups are still due", due())
	}
	if again, err := r.Service.Sweep(t.Context()); err != nil || again != 0 {
		t.Errorf("another sweep looked at %d Groups: %v", again, err)
	}
	verified(t, r)
}

// Coordinators renew leases at the last moment while two processes sweep. In
// every log an expiry is written after it happened, once, and never of a lease
// that was renewed in time; a renewal never follows its expiry.
func TestSweepNeverUndoesANewerState(t *testing.T) {
	r := authoritytest.Start(t, authoritytest.Options{Policy: unlimited()})
	other := r.AddReplica(authoritytest.Options{Policy: unlimited()})
	owner, coordinator := registrytest.Human("mission-owner"), r.AddAgent("coordinator")
	const missions = 24
	var wg, sweeping sync.WaitGroup
	stop := make(chan struct{})
	for _, n := range []*authoritytest.Replica{r.Replica, other} {
		sweeping.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := n.Service.Sweep(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	groups := make([]string, missions)
	var renewed, late atomic.Int64
	for i := range missions {
		wg.Go(func() {
			m := brief(r, owner, coordinator)
			groups[i] = m.GroupID
			for round := range 4 {
				<-time.After(time.Duration(500+20*((i+7*round)%missions)) * time.Millisecond) // towards the end of the lease
				c := protocol.Command{
					Kind: "mission.renew_coordinator", GroupID: m.GroupID, MembershipEpoch: 1, CoordinatorEpoch: 1,
					Payload: authoritytest.Payload(t, map[string]any{"leaseSeconds": 1}),
				}
				_, err := submitTo([]*authoritytest.Replica{r.Replica, other}[i%2], r.Sign(coordinator, c))
				switch {
				case err == nil:
					renewed.Add(1)
				case err.Code == protocol.CodeAuthStaleCoordinator:
					late.Add(1)
				default:
					t.Errorf("renew: %v", err)
				}
			}
		})
	}
	wg.Wait()
	testwait.Within(t, 20*time.Second, "every lease is recorded as expired", func() bool {
		return count(t, r, "SELECT count(*) FROM events WHERE kind = 'ext.missionweave.authority.lease_expired'") >= missions
	})
	close(stop)
	sweeping.Wait()
	for _, id := range groups {
		if err := leaseHistory(t, r, id); err != nil {
			t.Errorf("%s: %v", id, err)
		}
	}
	t.Logf("%d renewals in time, %d too late", renewed.Load(), late.Load())
	if renewed.Load() == 0 {
		t.Error("nothing was renewed beside the sweeps")
	}
	verified(t, r)
}

// leaseHistory reads the Coordinator lease's life from a Group's log.
func leaseHistory(t *testing.T, r *authoritytest.Rig, group string) error {
	t.Helper()
	log, err := r.Store.ReadEvents(t.Context(), group, 0, 1000)
	if err != nil {
		return err
	}
	var expires lexical.Instant
	expired := false
	for _, stored := range log {
		doc, err := strictjson.Parse(stored.Document)
		if err != nil {
			return err
		}
		kind, _ := doc.Root().Get("kind")
		payload, _ := doc.Root().Get("payload")
		at, _ := doc.Root().Get("occurredAt")
		occurred, err := lexical.ParseTimestamp(at.Str())
		if err != nil {
			return err
		}
		name := "coordinatorLease"
		if kind.Str() == "ext.missionweave.authority.lease_expired" {
			name = "lease"
		}
		lease, ok := payload.Get(name)
		if !ok {
			continue
		}
		until, _ := lease.Get("expiresAt")
		end, err := lexical.ParseTimestamp(until.Str())
		if err != nil {
			return err
		}
		switch {
		case expired:
			return fmt.Errorf("%s after the expiry", kind.Str())
		case name == "lease":
			if expired = true; !end.Equal(expires) || occurred.Before(expires) {
				return fmt.Errorf("expired at %s with an expiry of %s", at.Str(), until.Str())
			}
		case kind.Str() == "mission.coordinator.renewed" && !occurred.Before(expires):
			return fmt.Errorf("renewed at %s, too late", at.Str())
		default:
			expires = end
		}
	}
	if !expired {
		return fmt.Errorf("no expiry in %d Events", len(log))
	}
	return nil
}
