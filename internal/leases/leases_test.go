package leases_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
)

var t0 = time.Date(2026, 7, 15, 8, 0, 0, 0, time.UTC)

func sec(n int) time.Time { return t0.Add(time.Duration(n) * time.Second) }

func at(n int) string { return leases.In(t0, time.Duration(n)*time.Second) }

func open(leaseType string, seconds int) protocol.Lease {
	return leases.Open(leaseType, leases.Terms{
		LeaseID: "urn:l", MissionID: "urn:m", GroupID: "urn:g", WorkItemID: "urn:w", HolderAgentID: "urn:a",
		SessionEpoch: 3, CoordinatorEpoch: 2, OwnershipEpoch: 5, Now: t0, ExpiresAt: at(seconds), StartBy: at(seconds),
	})
}

func TestOpenWritesTheMembersOfEachType(t *testing.T) {
	base := protocol.Lease{
		LeaseID: "urn:l", MissionID: "urn:m", GroupID: "urn:g", HolderAgentID: "urn:a", SessionEpoch: 3,
		IssuedAt: at(0), StartsAt: at(0), ExpiresAt: at(60), State: "active",
	}
	for _, c := range []struct {
		leaseType string
		with      func(*protocol.Lease)
	}{
		{protocol.LeaseCoordinator, func(l *protocol.Lease) { l.CoordinatorEpoch = 2 }},
		{protocol.LeaseOwnership, func(l *protocol.Lease) { l.WorkItemID, l.OwnershipEpoch, l.StartBy = "urn:w", 5, at(60) }},
		{protocol.LeaseExecution, func(l *protocol.Lease) { l.WorkItemID, l.OwnershipEpoch = "urn:w", 5 }},
		{protocol.LeaseBlocked, func(l *protocol.Lease) { l.WorkItemID, l.OwnershipEpoch = "urn:w", 5 }},
	} {
		t.Run(c.leaseType, func(t *testing.T) {
			want := base
			want.LeaseType = c.leaseType
			c.with(&want)
			if diff := cmp.Diff(want, open(c.leaseType, 60)); diff != "" {
				t.Fatal(diff)
			}
		})
	}
}

func TestGraceIsWrittenOnOwnershipAndBlockedOnly(t *testing.T) {
	for leaseType, want := range map[string]string{
		protocol.LeaseCoordinator: "", protocol.LeaseExecution: "",
		protocol.LeaseOwnership: at(90), protocol.LeaseBlocked: at(90),
	} {
		l := leases.Open(leaseType, leases.Terms{Now: t0, ExpiresAt: at(60), Grace: 30 * time.Second})
		if l.GraceExpiresAt != want {
			t.Errorf("%s: grace %q, want %q", leaseType, l.GraceExpiresAt, want)
		}
	}
}

func TestLeaseIsLiveInAHalfOpenInterval(t *testing.T) {
	l := open(protocol.LeaseExecution, 60)
	for _, c := range []struct {
		name         string
		now          time.Time
		live, lapsed bool
	}{
		{"before start", t0.Add(-time.Microsecond), false, false},
		{"at start", t0, true, false},
		{"last instant", sec(60).Add(-time.Microsecond), true, false},
		{"at expiry", sec(60), false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := leases.LiveAt(&l, c.now); got != c.live {
				t.Errorf("live = %v", got)
			}
			if got := leases.Lapsed(&l, c.now); got != c.lapsed {
				t.Errorf("lapsed = %v", got)
			}
		})
	}
	if leases.LiveAt(nil, t0) {
		t.Error("no lease is live")
	}
	closed := leases.Close(l, sec(1), leases.Revoked, leases.ReasonFailed)
	if leases.LiveAt(&closed, sec(2)) || leases.Lapsed(&closed, sec(99)) {
		t.Error("a closed lease is neither live nor lapsed")
	}
}

func TestEveryChangeOfALiveLeaseCountsAsRenewal(t *testing.T) {
	l := open(protocol.LeaseOwnership, 60)

	raised := leases.Raise(l, sec(10), at(100), 4)
	want := l
	want.ExpiresAt, want.RenewalCount, want.LastRenewedAt, want.SessionEpoch = at(100), 1, at(10), 4
	if diff := cmp.Diff(want, raised); diff != "" {
		t.Fatal(diff)
	}
	if diff := cmp.Diff(raised, leases.Raise(raised, sec(20), at(100), 9)); diff != "" {
		t.Fatalf("a raise that changes nothing leaves the document: %s", diff)
	}
	if diff := cmp.Diff(raised, leases.Raise(raised, sec(20), at(70), 9)); diff != "" {
		t.Fatalf("a raise never shortens: %s", diff)
	}
	short := leases.Set(raised, sec(30), at(50), "", 0)
	if short.ExpiresAt != at(50) || short.RenewalCount != 2 || short.LastRenewedAt != at(30) || short.SessionEpoch != 4 {
		t.Fatalf("set by another than the holder: %+v", short)
	}
	later := leases.Set(short, sec(31), at(50), at(55), 6)
	if later.StartBy != at(55) || later.RenewalCount != 3 || later.ExpiresAt != at(50) {
		t.Fatalf("a new start-by counts too: %+v", later)
	}
	if diff := cmp.Diff(later, leases.Set(later, sec(32), "2026-07-15T10:00:50+02:00", at(55), 7)); diff != "" {
		t.Fatalf("the same instants in another spelling change nothing: %s", diff)
	}
}

func TestGraceMovesWithTheExpiry(t *testing.T) {
	l := leases.Open(protocol.LeaseOwnership, leases.Terms{Now: t0, ExpiresAt: at(60), StartBy: at(60), Grace: 30 * time.Second})
	if l = leases.Raise(l, sec(1), at(100), 1); l.GraceExpiresAt != at(130) {
		t.Fatalf("grace %s, want %s", l.GraceExpiresAt, at(130))
	}
}

func TestClosureOfALapsedLeaseIsExpiredAtItsExpiry(t *testing.T) {
	l := open(protocol.LeaseExecution, 60)
	closed := leases.Close(l, sec(59), leases.Released, leases.ReasonSubmitted)
	if closed.State != "released" || closed.ClosedAt != at(59) || closed.ClosureReason != "submitted" {
		t.Fatalf("in time: %+v", closed)
	}
	if diff := cmp.Diff(closed, leases.Close(closed, sec(70), leases.Revoked, leases.ReasonFailed)); diff != "" {
		t.Fatalf("closed twice: %s", diff)
	}
	for _, now := range []int{60, 3600} {
		late := leases.Close(l, sec(now), leases.Revoked, leases.ReasonFailed)
		if late.State != "expired" || late.ClosedAt != at(60) || late.ClosureReason != "expired" {
			t.Fatalf("at +%d s: %+v", now, late)
		}
	}
}

func TestBoundsRefuseWhatPolicyForbids(t *testing.T) {
	n := func(s int64) *int64 { return &s }
	b := leases.Bounds{Default: 300, Min: 10, Max: 100}
	for _, c := range []struct {
		name string
		in   *int64
		want time.Duration
		err  error
	}{
		{"default pressed into the bounds", nil, 100 * time.Second, nil},
		{"lowest", n(10), 10 * time.Second, nil},
		{"highest", n(100), 100 * time.Second, nil},
		{"below", n(9), 0, leases.ErrBounds},
		{"above", n(101), 0, leases.ErrBounds},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := b.Duration(c.in)
			if got != c.want || !errors.Is(err, c.err) {
				t.Fatalf("got %v, %v", got, err)
			}
		})
	}
	p := leases.DefaultPolicy()
	for leaseType, want := range map[string]int64{"coordinator": 300, "ownership": 900, "execution": 300, "blocked": 900} {
		if got := p.Of(leaseType).Default; got != want {
			t.Errorf("%s default %d, want %d", leaseType, got, want)
		}
	}
}

func TestOwnerIsLiveByTheRuleOfItsState(t *testing.T) {
	lease := func(leaseType string, s int) *protocol.Lease { l := open(leaseType, s); return &l }
	own := lease(protocol.LeaseOwnership, 60)
	own.StartBy = at(30)
	closed := leases.Close(*own, sec(1), leases.Revoked, leases.ReasonMembershipEnded)
	for _, c := range []struct {
		name string
		o    leases.Ownership
		now  int
		want bool
	}{
		{"queued before start-by", leases.Ownership{State: "queued", Ownership: own, PinsHeld: true}, 29, true},
		{"queued at start-by", leases.Ownership{State: "queued", Ownership: own, PinsHeld: true}, 30, false},
		{"queued after start-by but started once", leases.Ownership{State: "queued", Ownership: own, PinsHeld: true, Started: true}, 59, true},
		{"queued without the pinned capabilities", leases.Ownership{State: "queued", Ownership: own}, 5, false},
		{"queued at ownership expiry", leases.Ownership{State: "queued", Ownership: own, PinsHeld: true, Started: true}, 60, false},
		{"active with execution lease", leases.Ownership{State: "active", Ownership: own, Execution: lease(protocol.LeaseExecution, 20)}, 19, true},
		{"active at execution expiry", leases.Ownership{State: "active", Ownership: own, Execution: lease(protocol.LeaseExecution, 20)}, 20, false},
		{"active needs no pins", leases.Ownership{State: "active", Ownership: own, Execution: lease(protocol.LeaseExecution, 20)}, 5, true},
		{"blocked with blocked lease", leases.Ownership{State: "blocked", Ownership: own, Blocked: lease(protocol.LeaseBlocked, 40)}, 39, true},
		{"blocked at blocked expiry", leases.Ownership{State: "blocked", Ownership: own, Blocked: lease(protocol.LeaseBlocked, 40)}, 40, false},
		{"released ownership", leases.Ownership{State: "queued", Ownership: &closed, PinsHeld: true, Started: true}, 5, false},
		{"no owner", leases.Ownership{State: "open"}, 5, false},
		{"custody with live child", leases.Ownership{State: "blocked", Custody: true, ChildLive: true}, 5000, true},
		{"custody after its child", leases.Ownership{State: "blocked", Custody: true, Blocked: lease(protocol.LeaseBlocked, 60)}, 5, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := leases.OwnerLive(c.o, sec(c.now)); got != c.want {
				t.Fatalf("live = %v", got)
			}
		})
	}
}

func TestCapabilityMatch(t *testing.T) {
	for _, c := range []struct {
		held, required string
		want           bool
	}{
		{"1.2.0", "1.2.0", true},
		{"1.3.0", "1.2.9", true},
		{"1.2.0", "1.2.1", false},
		{"2.0.0", "1.9.9", false},
		{"0.3.1", "0.3.0", true},
		{"0.4.0", "0.3.0", false},
		{"1.2.0-rc.1", "1.2.0", false},
		{"1.2.0+build7", "1.2.0", true},
		{"10.0.0", "1.0.0", false},
	} {
		held := protocol.CapabilityRef{ID: "code.go", Version: c.held}
		if got := leases.Satisfies(held, protocol.CapabilityRef{ID: "code.go", Version: c.required}); got != c.want {
			t.Errorf("held %s for required %s: %v", c.held, c.required, got)
		}
	}
	if leases.Satisfies(protocol.CapabilityRef{ID: "a.b", Version: "1.0.0"}, protocol.CapabilityRef{ID: "a.c", Version: "1.0.0"}) {
		t.Error("ids must be equal")
	}
}

func TestPinsTakeTheHighestSatisfyingVersion(t *testing.T) {
	card := []protocol.Capability{
		{ID: "code.go", Version: "1.2.0"},
		{ID: "code.go", Version: "1.10.0"},
		{ID: "code.go", Version: "2.0.0"},
		{ID: "review.text", Version: "0.1.0"},
	}
	pins, missing := leases.Pins(card, []protocol.CapabilityRef{
		{ID: "code.go", Version: "1.1.0"}, {ID: "review.text", Version: "0.2.0"},
	})
	if diff := cmp.Diff([]protocol.CapabilityRef{{ID: "code.go", Version: "1.10.0"}}, pins); diff != "" {
		t.Fatal(diff)
	}
	if diff := cmp.Diff([]protocol.CapabilityRef{{ID: "review.text", Version: "0.2.0"}}, missing); diff != "" {
		t.Fatal(diff)
	}
}

// TestDocumentsStayConsistentOverRandomHistories drives one lease against the
// three facts that define it: when it expires, how often it changed, and
// whether somebody closed it.
func TestDocumentsStayConsistentOverRandomHistories(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := open(protocol.LeaseOwnership, 50)
		now, expiry, changes := 0, 50, int64(0)
		closedAt := ""
		for range rapid.IntRange(1, 20).Draw(rt, "steps") {
			now += rapid.IntRange(0, 20).Draw(rt, "wait")
			to := now + rapid.IntRange(-10, 60).Draw(rt, "to")
			live := closedAt == "" && now < expiry
			switch op := rapid.SampledFrom([]string{"raise", "set", "close", "look"}).Draw(rt, "op"); {
			case op == "raise" && live:
				l = leases.Raise(l, sec(now), at(to), 1)
				if to > expiry {
					expiry, changes = to, changes+1
				}
			case op == "set" && live:
				l = leases.Set(l, sec(now), at(to), "", 0)
				if to != expiry {
					expiry, changes = to, changes+1
				}
			case op == "close":
				l = leases.Close(l, sec(now), leases.Released, leases.ReasonVerified)
				if closedAt == "" {
					closedAt = at(min(now, expiry))
				}
			}
			live = closedAt == "" && now < expiry
			if leases.LiveAt(&l, sec(now)) != live {
				rt.Fatalf("live = %v, want %v: %+v", !live, live, l)
			}
			if l.ExpiresAt != at(expiry) || l.RenewalCount != changes || (l.LastRenewedAt != "") != (changes > 0) {
				rt.Fatalf("want expiry %s after %d changes: %+v", at(expiry), changes, l)
			}
			if l.ClosedAt != closedAt || (l.ClosureReason != "") != (closedAt != "") || (l.State == "active") != (closedAt == "") {
				rt.Fatalf("want closed at %q: %+v", closedAt, l)
			}
		}
	})
}
