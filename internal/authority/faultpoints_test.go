package authority_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/missionweave/server/internal/authority/authoritytest"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/registry/registrytest"
	"github.com/missionweave/server/internal/trust"
)

// faulty is an Organization whose Authority talks to PostgreSQL over a wire
// that tests can cut, and a second Authority beside it on a whole one.
type faulty struct {
	*authoritytest.Rig
	m     *authoritytest.Mission
	wire  *wire
	frail *authoritytest.Replica
	bulk  int
}

func startFaulty(t *testing.T) *faulty { return startFaultyWith(t, math.MaxInt) }

// startFaultyWith sends batches of so many rows with COPY.
func startFaultyWith(t *testing.T, bulk int) *faulty {
	t.Helper()
	r, m := mission(t, authoritytest.Options{Policy: unlimited()})
	f := &faulty{Rig: r, m: m, wire: newWire(t, r.Org.DatabaseURL)}
	whole := r.Org.DatabaseURL
	r.Org.DatabaseURL = f.wire.URL()
	f.frail = r.AddReplica(authoritytest.Options{Policy: unlimited(), Events: events.Options{BulkRows: bulk}})
	f.bulk = bulk
	r.Org.DatabaseURL = whole
	return f
}

func (f *faulty) post(text string) []byte {
	return f.Sign(f.m.Coordinator, f.m.By(f.m.Coordinator, f.m.Post(text)))
}

// settled submits until the Authority is sure, as an honest client does.
func settled(t *testing.T, n *authoritytest.Replica, body []byte) []byte {
	t.Helper()
	for range 200 {
		res, err := submitTo(n, body)
		if err == nil {
			return res.Receipt
		}
		if !err.Retryable {
			t.Fatalf("not to be repeated: %v", err)
		}
		<-time.After(10 * time.Millisecond)
	}
	t.Fatal("the Authority never got sure")
	return nil
}

// points are the places of a commit: before each message to the server and
// before each answer, the last of which tells that it is done.
func (f *faulty) points(t *testing.T) []point {
	t.Helper()
	for i := range 3 { // the statements are prepared on first use
		settled(t, f.frail, f.post(fmt.Sprint("warm ", i)))
	}
	var all []point
	for _, d := range []direction{toServer, toClient} {
		n := f.wire.length(d)
		if n < 10 {
			t.Fatalf("a commit has %d messages %s", n, d)
		}
		for i := range n {
			all = append(all, point{d, i + 1})
		}
	}
	return all
}

// The line to the database is cut at every place of a commit. Whatever the
// client was told is true, the Command counts once, and both processes give its
// one receipt.
func TestLineCutAtEveryPointOfACommit(t *testing.T) {
	t.Run("pipelined", func(t *testing.T) { lineCutAtEveryPoint(t, math.MaxInt) })
	t.Run("copied", func(t *testing.T) { lineCutAtEveryPoint(t, 1) })
}

func lineCutAtEveryPoint(t *testing.T, bulk int) {
	t.Helper()
	f := startFaultyWith(t, bulk)
	all := f.points(t)
	cuts := 0
	for _, p := range all {
		before := head(t, f.Rig, f.m.GroupID)
		body := f.post(fmt.Sprint(p))
		f.wire.arm(p, nil)
		first := settled(t, f.frail, body)
		if !f.wire.disarm() {
			cuts++
		}
		again := settled(t, f.Replica, body)
		if !bytes.Equal(first, again) {
			t.Errorf("%v: two receipts\n%s\n%s", p, first, again)
		}
		if got := head(t, f.Rig, f.m.GroupID); got != before+1 {
			t.Errorf("%v: %d Events of one Command", p, got-before)
		}
	}
	// A few messages fewer are needed when nothing of another Group is touched.
	if cuts < len(all)*9/10 {
		t.Errorf("only %d of %d points were reached", cuts, len(all))
	}
	t.Logf("%d points cut", cuts)
	verified(t, f.Rig)
}

// Environment of the process that is killed.
const (
	childDatabase = "MW_FAULT_DATABASE"
	childCommand  = "MW_FAULT_COMMAND"
	childKill     = "MW_FAULT_KILL"
	childBulk     = "MW_FAULT_BULK"
)

// TestFaultChild is the Authority process of TestProcessKilledAtEveryPoint; by
// itself it does nothing.
func TestFaultChild(t *testing.T) {
	databaseURL := os.Getenv(childDatabase)
	if databaseURL == "" {
		t.Skip("runs as a child of TestProcessKilledAtEveryPoint")
	}
	body, err := base64.StdEncoding.DecodeString(os.Getenv(childCommand))
	if err != nil {
		t.Fatal(err)
	}
	die := func(where string) func(*events.Batch) error {
		return func(b *events.Batch) error {
			if os.Getenv(childKill) == where && len(b.Receipts) > 0 {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				<-t.Context().Done()
			}
			return nil
		}
	}
	bulk, err := strconv.Atoi(os.Getenv(childBulk))
	if err != nil {
		t.Fatal(err)
	}
	r := &authoritytest.Rig{T: t, Org: &registrytest.Org{DatabaseURL: databaseURL, Pool: registrytest.NewPool(t, databaseURL)}}
	r.Replica = r.AddReplica(authoritytest.Options{
		Policy: unlimited(), Events: events.Options{
			BulkRows: bulk, Hooks: events.Hooks{BeforeCommit: die("before"), AfterCommit: die("after")},
		},
	})
	if _, refusal := r.Submit(body); refusal != nil {
		t.Error(refusal)
	}
}

// kill runs an Authority process with one Command and ends it at a point; it
// tells whether it got that far.
func (f *faulty) kill(t *testing.T, body []byte, where string, p *point) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestFaultChild$") //nolint:gosec // this very program
	cmd.Env = append(os.Environ(), childDatabase+"="+f.wire.URL(), childCommand+"="+base64.StdEncoding.EncodeToString(body), childKill+"="+where,
		childBulk+"="+strconv.Itoa(f.bulk))
	if p != nil {
		f.wire.arm(*p, func() { _ = cmd.Process.Kill() })
	}
	out, err := cmd.CombinedOutput()
	if p != nil {
		f.wire.disarm()
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		return false
	case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL:
		return true
	}
	t.Fatalf("child: %v\n%s", err, out)
	return false
}

// A process is killed with SIGKILL before, inside and after a commit. Another
// one finds a sound database and answers the repeated Command with one receipt.
func TestProcessKilledAtEveryPoint(t *testing.T) {
	if testing.Short() {
		t.Skip("starts many processes")
	}
	f := startFaulty(t)
	all := f.points(t)
	type place struct {
		hook string
		p    *point
	}
	places := []place{{hook: "before"}, {hook: "after"}}
	for i := range all {
		// The messages to the server that carry one statement are alike for a
		// dead process; every third of them and the ends are enough here, the
		// whole table is cut in TestLineCutAtEveryPointOfACommit.
		last := i+1 == len(all) || all[i].dir != all[i+1].dir
		if all[i].at == 1 || last || all[i].at%3 == 0 {
			places = append(places, place{p: &all[i]})
		}
	}
	killed, committed := 0, 0
	for _, pl := range places {
		name := pl.hook
		if pl.p != nil {
			name = string(pl.p.dir) + " " + strconv.Itoa(pl.p.at)
		}
		before := head(t, f.Rig, f.m.GroupID)
		body := f.post(name)
		if f.kill(t, body, pl.hook, pl.p) {
			killed++
		} else if pl.p == nil {
			t.Errorf("%s: the process was not killed", name)
		}
		verified(t, f.Rig)
		first := settled(t, f.Replica, body)
		if again := settled(t, f.frail, body); !bytes.Equal(first, again) {
			t.Errorf("%s: two receipts\n%s\n%s", name, first, again)
		}
		if got := head(t, f.Rig, f.m.GroupID); got != before+1 {
			t.Errorf("%s: %d Events of one Command", name, got-before)
		}
		if pl.hook == "after" {
			committed++
		}
	}
	if killed < len(places)*9/10 {
		t.Errorf("%d of %d processes were killed", killed, len(places))
	}
	t.Logf("%d processes killed", killed)
	verified(t, f.Rig)
}

// What a cascade over several Groups commits is one transaction too: cut
// anywhere, all Groups moved or none.
func TestCascadeOverGroupsIsCutWhole(t *testing.T) {
	f := startFaulty(t)
	worker := f.AddAgent("worker")
	for _, p := range f.points(t) {
		if p.at%4 != 0 {
			continue
		}
		m := f.NewMission(registrytest.Human("mission-owner"), f.m.Coordinator)
		item := m.Authorize()
		child := registrytest.Mint()
		m.Must(m.Coordinator, protocol.Command{Kind: "mission.create_child", WorkItemID: item, Payload: authoritytest.Payload(t, map[string]any{
			"missionId": registrytest.Mint(), "groupId": child, "coordinatorAgentId": worker.Principal.ID, "objective": "A part",
			"definitionOfDone": []any{map[string]any{"criterionId": "c", "description": "d", "evidenceRequired": []any{"human_review"}}},
			"budget":           authoritytest.Budget(100), "deadline": registrytest.At(time.Hour),
		})})
		body := f.Sign(m.Owner, m.By(m.Owner, protocol.Command{Kind: "mission.cancel", Payload: authoritytest.Payload(t, map[string]any{"reason": "cut"})}))
		f.wire.arm(p, nil)
		first := settled(t, f.frail, body)
		f.wire.disarm()
		if again := settled(t, f.Replica, body); !bytes.Equal(first, again) {
			t.Errorf("%v: two receipts", p)
		}
		for _, group := range []string{m.GroupID, child} {
			g, err := f.Store.LoadGroup(t.Context(), group)
			if err != nil || g.State.Mission.State != protocol.MissionCancelled {
				t.Errorf("%v: Group %s: %v", p, group, err)
			}
		}
	}
	verified(t, f.Rig)
}

// A session opening is a commit of its own shape: cut anywhere, the epoch rises
// once for each answer.
func TestSessionOpeningIsCutWhole(t *testing.T) {
	f := startFaulty(t)
	identity := registrytest.Service(registry.RoleIdentity)
	epoch := int64(1)
	for _, p := range f.points(t) {
		if p.at%5 != 1 {
			continue
		}
		command := f.Sign(identity, sessionOf(t, f.m.Coordinator))
		f.wire.arm(p, nil)
		all, err := f.frail.Service.OpenSession(t.Context(), command)
		for tries := 0; err != nil && err.Retryable && tries < 200; tries++ {
			<-time.After(10 * time.Millisecond)
			all, err = f.frail.Service.OpenSession(t.Context(), command)
		}
		f.wire.disarm()
		if err != nil {
			t.Fatalf("%v: %v", p, err)
		}
		epoch++
		if len(all) > 0 { // a replay does not repeat the Events
			if got := opened(t, all); got != epoch {
				t.Errorf("%v: epoch %d, want %d", p, got, epoch)
			}
		}
	}
	if got := count(t, f.Rig, "SELECT session_epoch FROM agent_sessions WHERE agent_id = $1", f.m.Coordinator.Principal.ID); int64(got) != epoch {
		t.Errorf("epoch %d after %d openings", got, epoch)
	}
	verified(t, f.Rig)
}

func sessionOf(t *testing.T, s trust.Signer) protocol.Command {
	t.Helper()
	return protocol.Command{Kind: protocol.CommandSessionOpen, Payload: authoritytest.Payload(t, map[string]any{
		"agentId": s.Principal.ID, "keyId": s.KeyID, "sessionExpiresAt": registrytest.At(time.Hour),
	})}
}
