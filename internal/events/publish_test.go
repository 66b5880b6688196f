package events

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/missionweave/server/internal/devstack"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// running is a Store with a Publisher and a Hub, as one process has them.
type running struct {
	*Store
	pub *Publisher
	hub *Hub
}

func startReplica(t *testing.T, databaseURL, natsURL string, po PublisherOptions, ho HubOptions) *running {
	t.Helper()
	s, err := Open(t.Context(), databaseURL, Options{OrganizationID: testOrg})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := Connect(natsURL)
	if err != nil {
		t.Fatal(err)
	}
	pub, err := NewPublisher(s, conn, po)
	if err != nil {
		t.Fatal(err)
	}
	hub := NewHub(s, ho)
	hub.UseNATS(conn)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = pub.Run(ctx) })
	wg.Go(func() { _ = hub.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		conn.Close()
		s.Close()
	})
	return &running{s, pub, hub}
}

// add commits n Events as a lane does: then publisher and hub are told.
func (r *running) add(t *testing.T, group string, expected int64, n int) []StoredEvent {
	t.Helper()
	b := appendTo(group, expected, n)
	mustCommit(t, r.Store, b)
	stored := make([]StoredEvent, len(b.Events))
	for i, ev := range b.Events {
		stored[i] = StoredEvent{GroupID: group, Sequence: ev.Sequence, EventID: ev.EventID, Kind: ev.Kind, OccurredAt: ev.OccurredAt, Document: ev.Document}
	}
	r.hub.Committed(group, stored)
	r.pub.Committed(TreeKey(group), group, stored)
	return stored
}

// published waits until published_sequence of a Group is n.
func (r *running) published(t *testing.T, group string, n int64) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		rows, err := r.GroupRows(t.Context(), group)
		if err == nil && rows[group].PublishedSequence == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("published %d of %d (%v), stats %+v", rows[group].PublishedSequence, n, err, r.pub.Stats())
		}
		select {
		case <-t.Context().Done():
			t.Fatal("test ended")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// streamed reads what the stream holds for a Group.
func streamed(t *testing.T, url, group string) []int64 {
	t.Helper()
	conn, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	c, err := js.OrderedConsumer(t.Context(), StreamName, jetstream.OrderedConsumerConfig{FilterSubjects: []string{Subject(group)}})
	if err != nil {
		t.Fatal(err)
	}
	batch, err := c.FetchNoWait(10_000)
	if err != nil {
		t.Fatal(err)
	}
	var out []int64
	for m := range batch.Messages() {
		var n int64
		if _, err := fmt.Sscan(m.Headers().Get(sequenceHeader), &n); err != nil {
			t.Fatal(err)
		}
		out = append(out, n)
	}
	return out
}

func wantSequences(t *testing.T, got []int64, n int64) {
	t.Helper()
	if int64(len(got)) != n {
		t.Fatalf("%d messages in the stream, want %d", len(got), n)
	}
	for i, seq := range got {
		if seq != int64(i)+1 {
			t.Fatalf("message %d has sequence %d", i, seq)
		}
	}
}

func TestPublishesEachGroupInOrder(t *testing.T) {
	stack := devstack.ForTest(t)
	r := startReplica(t, stack.NewDatabase(t), stack.NATSURL, PublisherOptions{Window: 16, AdvanceEvery: 20 * time.Millisecond}, HubOptions{})
	groups := []string{"urn:group:pub:" + mintID(), "urn:group:pub:" + mintID(), "urn:group:pub:" + mintID()}
	for i := range int64(20) {
		for _, g := range groups {
			r.add(t, g, 3*i, 3)
		}
	}
	for _, g := range groups {
		r.published(t, g, 60)
		wantSequences(t, streamed(t, stack.NATSURL, g), 60)
	}
}

// Two processes append to one Group in turns: nobody sends an Event before those
// of the other are in the stream.
func TestPublishesInOrderFromTwoReplicas(t *testing.T) {
	stack := devstack.ForTest(t)
	db := stack.NewDatabase(t)
	options := PublisherOptions{AdvanceEvery: 20 * time.Millisecond, SweepEvery: 100 * time.Millisecond}
	a, b := startReplica(t, db, stack.NATSURL, options, HubOptions{}), startReplica(t, db, stack.NATSURL, options, HubOptions{})
	group := "urn:group:two:" + mintID()
	for i := range int64(30) {
		r := a
		if i%2 == 1 {
			r = b
		}
		r.add(t, group, 2*i, 2)
	}
	a.published(t, group, 60)
	wantSequences(t, streamed(t, stack.NATSURL, group), 60)
}

func TestSweepPublishesWhatACrashLeft(t *testing.T) {
	stack := devstack.ForTest(t)
	db := stack.NewDatabase(t)
	crashed, err := Open(t.Context(), db, Options{OrganizationID: testOrg})
	if err != nil {
		t.Fatal(err)
	}
	group := "urn:group:crash:" + mintID()
	mustCommit(t, crashed, appendTo(group, 0, 700))
	crashed.Close()
	r := startReplica(t, db, stack.NATSURL, PublisherOptions{AdvanceEvery: 20 * time.Millisecond}, HubOptions{})
	r.published(t, group, 700)
	wantSequences(t, streamed(t, stack.NATSURL, group), 700)
}

func TestBacklogBeyondMemoryIsReadBack(t *testing.T) {
	stack := devstack.ForTest(t)
	r := startReplica(t, stack.NewDatabase(t), stack.NATSURL, PublisherOptions{Backlog: 1, AdvanceEvery: 20 * time.Millisecond}, HubOptions{})
	group := "urn:group:backlog:" + mintID()
	for i := range int64(10) {
		r.add(t, group, 5*i, 5)
	}
	r.published(t, group, 50)
	wantSequences(t, streamed(t, stack.NATSURL, group), 50)
}

func wakesWithin(t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(10 * time.Second):
		t.Fatal("no wake-up")
	}
}

func TestCommitOfAnotherProcessWakesReaders(t *testing.T) {
	stack := devstack.ForTest(t)
	db := stack.NewDatabase(t)
	// Polling is so slow that only NATS can have woken the reader.
	slow := HubOptions{PollEvery: time.Hour, PollAlone: time.Hour}
	a, b := startReplica(t, db, stack.NATSURL, PublisherOptions{}, slow), startReplica(t, db, stack.NATSURL, PublisherOptions{}, slow)
	group := "urn:group:wake:" + mintID()
	a.add(t, group, 0, 1)
	wake, cancel := b.hub.Watch(group)
	defer cancel()
	if err := b.hub.conn.Load().Flush(); err != nil { // the subscription has arrived
		t.Fatal(err)
	}
	if got, err := b.hub.Read(t.Context(), group, 0, 10); err != nil || len(got) != 1 {
		t.Fatalf("%d Events, %v", len(got), err)
	}
	select {
	case <-wake: // Event 1 may have been announced after Watch
	default:
	}
	a.add(t, group, 1, 2)
	for got := 0; got < 2; {
		wakesWithin(t, wake)
		events, err := b.hub.Read(t.Context(), group, int64(1+got), 10)
		if err != nil {
			t.Fatal(err)
		}
		got += len(events)
	}
}

func TestReadersPollWithoutNATS(t *testing.T) {
	s := openStore(t, Options{})
	hub := NewHub(s, HubOptions{PollAlone: 10 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = hub.Run(ctx) })
	defer wg.Wait()
	defer cancel()
	mustCommit(t, s, appendTo("urn:group:poll", 0, 1))
	wake, stop := hub.Watch("urn:group:poll")
	defer stop()
	wakesWithin(t, wake)
	mustCommit(t, s, appendTo("urn:group:poll", 1, 1)) // nobody tells the hub
	for n := int64(0); n < 2; {
		got, err := hub.Read(ctx, "urn:group:poll", n, 10)
		if err != nil {
			t.Fatal(err)
		}
		n += int64(len(got))
		if n < 2 {
			wakesWithin(t, wake)
		}
	}
}

func TestTailServesReadersWithoutQueries(t *testing.T) {
	s := openStore(t, Options{})
	hub := NewHub(s, HubOptions{TailEvents: 8})
	group := "urn:group:tail"
	_, cancel := hub.Watch(group)
	defer cancel()
	mustCommit(t, s, appendTo(group, 0, 3))
	if got, err := hub.Read(t.Context(), group, 0, 10); err != nil || len(got) != 3 {
		t.Fatalf("%d, %v", len(got), err)
	}
	misses := hub.misses.Load()
	b := appendTo(group, 3, 10)
	mustCommit(t, s, b)
	var stored []StoredEvent
	for _, ev := range b.Events {
		stored = append(stored, StoredEvent{GroupID: group, Sequence: ev.Sequence, EventID: ev.EventID, Kind: ev.Kind, Document: ev.Document})
	}
	hub.Committed(group, stored)
	for _, tc := range []struct {
		after int64
		limit int
		first int64
		n     int
		query bool
	}{{13, 5, 0, 0, false}, {12, 5, 13, 1, false}, {5, 100, 6, 8, false}, {5, 2, 6, 2, false}, {4, 100, 5, 9, true}, {0, 100, 1, 13, true}} {
		before := hub.misses.Load()
		got, err := hub.Read(t.Context(), group, tc.after, tc.limit)
		if err != nil || len(got) != tc.n || tc.n > 0 && got[0].Sequence != tc.first {
			t.Errorf("after %d: %d Events, %v", tc.after, len(got), err)
		}
		if queried := hub.misses.Load() > before; queried != tc.query {
			t.Errorf("after %d: query %v", tc.after, queried)
		}
	}
	if hub.misses.Load() == misses {
		t.Error("reads below the tail did not go to the database")
	}
	cancel()
	if g, r := hub.Watched(); g != 0 || r != 0 {
		t.Errorf("%d Groups, %d readers left", g, r)
	}
}

func TestPublisherWithoutNATSIsDegradedAndIdle(t *testing.T) {
	p, err := NewPublisher(openStore(t, Options{}), nil, PublisherOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.Committed(1, "urn:group:x", []StoredEvent{{GroupID: "urn:group:x", Sequence: 1}})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Run(ctx); err != nil || !p.Stats().Degraded || p.Stats().Waiting != 0 {
		t.Errorf("%v %+v", err, p.Stats())
	}
}

func TestSubjectsCarryNoIDs(t *testing.T) {
	if got := Subject("urn:group:secret"); len(got) != len(subjectPrefix)+32 || got == Subject("urn:group:other") {
		t.Error(got)
	}
}

// With NATS away Commands commit; when it is back, everything is published.
func TestNATSOutage(t *testing.T) {
	stack, err := devstack.Start(t.Context(), devstack.Options{DataDir: t.TempDir(), DatabaseURL: devstack.ForTest(t).DatabaseURL})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stack.Stop(context.Background()) })
	db := devstack.ForTest(t).NewDatabase(t)
	r := startReplica(t, db, stack.NATSURL, PublisherOptions{AdvanceEvery: 20 * time.Millisecond, SweepEvery: 200 * time.Millisecond},
		HubOptions{PollAlone: 20 * time.Millisecond})
	group := "urn:group:outage:" + mintID()
	r.add(t, group, 0, 5)
	r.published(t, group, 5)
	if err := stack.StopNATS(); err != nil {
		t.Fatal(err)
	}
	wake, cancel := r.hub.Watch(group)
	defer cancel()
	for i := range int64(10) {
		r.add(t, group, 5+i, 1)
	}
	wakesWithin(t, wake)
	if !r.pub.Stats().Degraded {
		t.Error("not degraded without NATS")
	}
	if err := stack.StartNATS(); err != nil {
		t.Fatal(err)
	}
	r.published(t, group, 15)
	wantSequences(t, streamed(t, stack.NATSURL, group), 15)
	if r.pub.Stats().Degraded {
		t.Error("still degraded")
	}
}
