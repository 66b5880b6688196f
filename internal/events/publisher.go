package events

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// StreamName is the JetStream stream of all Group Events.
	StreamName = "MISSIONWEAVE_EVENTS"
	// subjectPrefix is followed by a token per Group.
	subjectPrefix  = "missionweave.events."
	sequenceHeader = "Mw-Sequence"
)

// Subject is where a Group's Events are published. The Group is named by a hash,
// because subjects show up in logs, metrics and permissions.
func Subject(groupID string) string {
	sum := sha256.Sum256([]byte("subject\x00" + groupID))
	return subjectPrefix + hex.EncodeToString(sum[:16])
}

func sequenceOf(m *nats.Msg) int64 {
	n, _ := strconv.ParseInt(m.Header.Get(sequenceHeader), 10, 64)
	return n
}

// PublisherOptions configure a Publisher; the zero value of each means its
// default.
type PublisherOptions struct {
	// MaxAge and MaxBytes bound the stream, default 1 h and 512 MiB: it wakes
	// and feeds followers that are nearly up to date, it is not the log.
	MaxAge   time.Duration
	MaxBytes int64
	// Duplicates is how long the stream knows message ids, default 30 s.
	Duplicates time.Duration
	// Window is how many Events are on their way at once, default 1024.
	Window int
	// Backlog bounds the Events kept in memory for publishing, default 16 MiB;
	// what is beyond it is read from the database again.
	Backlog int
	// AdvanceEvery is how often published_sequence is written, default 250 ms;
	// SweepEvery how often the database is searched for what a crash left,
	// default 10 s.
	AdvanceEvery, SweepEvery time.Duration
	Logger                   *slog.Logger
}

// Publisher brings committed Events to JetStream, each Group's in order, with
// the Event id as message id.
//
// An Event is only sent when every earlier one of its Group is known to be in
// the stream: known from this process's own acknowledgements or from
// published_sequence. What is not known is sent again and dropped by the stream
// or, past its duplicate window, by the readers, who go by sequence.
//
// Nothing waits for it. With NATS away Commands commit and readers poll; the
// sweep catches up afterwards.
type Publisher struct {
	store   *Store
	options PublisherOptions
	conn    *nats.Conn
	js      jetstream.JetStream
	log     *slog.Logger

	mu      sync.Mutex
	groups  map[string]*outgoing
	queue   []*outgoing // Groups with something to send, each once
	backlog int
	wake    chan struct{}

	streamReady bool // used by Run only
	published   atomic.Int64
	failures    atomic.Int64
	degraded    atomic.Bool
}

// outgoing is what is left to send of one Group.
type outgoing struct {
	groupID string
	treeID  int64
	subject string
	// sent is the last sequence known to be in the stream, -1 when unknown.
	sent int64
	// written is what published_sequence was last set to.
	written int64
	// pending are consecutive Events that follow sent, or nil with behind set:
	// then the database is read.
	pending []StoredEvent
	behind  bool
	// again says that Events were committed after the database was asked.
	again  bool
	queued bool
	idle   int
}

// NewPublisher makes a Publisher on a connection that reconnects by itself
// (see Connect). Run does the work. Without a connection (nil) it publishes
// nothing and counts as degraded; readers poll.
func NewPublisher(store *Store, conn *nats.Conn, options PublisherOptions) (*Publisher, error) {
	defaults := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	defaults(&options.MaxAge, time.Hour)
	defaults(&options.Duplicates, 30*time.Second)
	defaults(&options.AdvanceEvery, 250*time.Millisecond)
	defaults(&options.SweepEvery, 10*time.Second)
	if options.MaxBytes <= 0 {
		options.MaxBytes = 512 << 20
	}
	if options.Window <= 0 {
		options.Window = 1024
	}
	if options.Backlog <= 0 {
		options.Backlog = 16 << 20
	}
	p := &Publisher{
		store: store, options: options, conn: conn, log: options.Logger,
		groups: map[string]*outgoing{}, wake: make(chan struct{}, 1),
	}
	if p.log == nil {
		p.log = slog.New(slog.DiscardHandler)
	}
	if conn == nil {
		return p, nil
	}
	var err error
	p.js, err = jetstream.New(conn, jetstream.WithPublishAsyncTimeout(5*time.Second),
		jetstream.WithPublishAsyncMaxPending(2*options.Window))
	return p, err
}

// Connect opens a connection to NATS that may be away now and at any time later:
// it keeps trying, and publishing fails at once meanwhile instead of piling up.
func Connect(url string, options ...nats.Option) (*nats.Conn, error) {
	return nats.Connect(url, append([]nats.Option{
		nats.Name("missionweave"), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1),
		nats.ReconnectWait(200 * time.Millisecond), nats.ReconnectBufSize(-1), nats.Timeout(2 * time.Second),
	}, options...)...)
}

// Committed takes Events that this process has just committed to one Group, in
// order. It never blocks.
func (p *Publisher) Committed(treeID int64, groupID string, events []StoredEvent) {
	if len(events) == 0 || p.conn == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.group(treeID, groupID)
	if events[0].Sequence == 1 && g.sent < 0 {
		g.sent, g.behind = 0, false
	}
	next := g.sent + 1
	if n := len(g.pending); n > 0 {
		next = g.pending[n-1].Sequence + 1
	}
	size := 0
	for i := range events {
		size += len(events[i].Document)
	}
	if g.sent < 0 || g.behind || events[0].Sequence != next || p.backlog+size > p.options.Backlog {
		p.fallBehind(g)
	} else {
		g.pending = append(g.pending, events...)
		p.backlog += size
		if redacts(events) && len(g.pending) > len(events) {
			// What was redacted may be waiting here: the database knows.
			p.fallBehind(g)
		}
	}
	p.enqueue(g)
}

func (p *Publisher) group(treeID int64, groupID string) *outgoing {
	g, ok := p.groups[groupID]
	if !ok {
		g = &outgoing{groupID: groupID, treeID: treeID, subject: Subject(groupID), sent: -1, behind: true}
		p.groups[groupID] = g
	}
	return g
}

func (p *Publisher) fallBehind(g *outgoing) {
	for i := range g.pending {
		p.backlog -= len(g.pending[i].Document)
	}
	g.pending, g.behind, g.again = nil, true, true
}

func (p *Publisher) enqueue(g *outgoing) {
	g.idle = 0
	if !g.queued {
		g.queued = true
		p.queue = append(p.queue, g)
	}
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run publishes until the context ends.
func (p *Publisher) Run(ctx context.Context) error {
	if p.conn == nil {
		<-ctx.Done()
		return nil
	}
	advance := time.NewTicker(p.options.AdvanceEvery)
	defer advance.Stop()
	sweep := time.NewTimer(0)
	defer sweep.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-sweep.C:
			p.sweep(ctx)
			sweep.Reset(p.options.SweepEvery)
		case <-advance.C:
			p.advance(ctx)
		case <-p.wake:
			p.drain(ctx)
		}
	}
}

// drain sends until nothing is queued or NATS fails; then what is queued stays
// for the next wake-up or sweep.
func (p *Publisher) drain(ctx context.Context) {
	for ctx.Err() == nil {
		if err := p.ensureStream(ctx); err != nil {
			p.fail("stream", err)
			p.later(ctx)
			return
		}
		p.mu.Lock()
		queue := p.queue
		p.queue = nil
		p.mu.Unlock()
		if len(queue) == 0 {
			return
		}
		if err := p.send(ctx, queue); err != nil {
			p.fail("publish", err)
			p.later(ctx)
			return
		}
		p.degraded.Store(false)
	}
}

// later wakes the loop again after a pause.
func (p *Publisher) later(ctx context.Context) {
	time.AfterFunc(p.options.AdvanceEvery, func() {
		if ctx.Err() != nil {
			return
		}
		select {
		case p.wake <- struct{}{}:
		default:
		}
	})
}

func (p *Publisher) fail(what string, err error) {
	p.failures.Add(1)
	p.streamReady = false
	if !p.degraded.Swap(true) {
		p.log.Warn("NATS does not take Events; readers poll", "what", what, "err", err)
	}
}

func (p *Publisher) ensureStream(ctx context.Context) error {
	if p.streamReady {
		return nil
	}
	if !p.conn.IsConnected() {
		return nats.ErrDisconnected
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := p.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: StreamName, Subjects: []string{subjectPrefix + "*"}, Storage: jetstream.FileStorage,
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld,
		MaxAge: p.options.MaxAge, MaxBytes: p.options.MaxBytes, Duplicates: p.options.Duplicates,
	})
	p.streamReady = err == nil
	return err
}

// flight is one Event on its way.
type flight struct {
	group    *outgoing
	sequence int64
	ack      jetstream.PubAckFuture
}

// send publishes one window of the queued Groups and waits for it. Groups that
// have more, or were not reached, are queued again.
func (p *Publisher) send(ctx context.Context, queue []*outgoing) error {
	var flights []flight
	var failed error
	ended := map[*outgoing]bool{} // read from the database to the end
	room, tried := p.options.Window, 0
	for _, g := range queue {
		if room == 0 || failed != nil {
			break
		}
		tried++
		events, end, err := p.next(ctx, g, room)
		if err != nil {
			failed = err
			break
		}
		ended[g] = end
		room -= len(events)
		for j := range events {
			ack, err := p.js.PublishMsgAsync(message(g.subject, &events[j]), jetstream.WithRetryAttempts(0))
			if err != nil {
				failed = err
				break
			}
			flights = append(flights, flight{g, events[j].Sequence, ack})
		}
	}
	stopped := map[*outgoing]bool{}
	landed := map[*outgoing]int64{}
	for _, f := range flights {
		select {
		case <-f.ack.Ok():
			if !stopped[f.group] {
				landed[f.group] = f.sequence
			}
		case err := <-f.ack.Err():
			failed, stopped[f.group] = err, true
		case <-ctx.Done():
			failed = ctx.Err()
		}
		if ctx.Err() != nil {
			break
		}
	}
	p.settle(queue[:tried], landed, ended, failed)
	p.requeue(queue[tried:])
	return failed
}

// redacts tells whether a Message is redacted by one of the Events.
func redacts(events []StoredEvent) bool {
	for i := range events {
		if events[i].Kind == "message.redacted" {
			return true
		}
	}
	return false
}

// message is an Event on its way. One that was redacted before it could be sent
// has no body: NATS shows all subscribers of a subject the same, and most of them
// may not see it any more (COMMANDS.md 3.7). Who may reads it from the log.
func message(subject string, ev *StoredEvent) *nats.Msg {
	m := nats.NewMsg(subject)
	m.Data = ev.Document
	m.Header.Set(nats.MsgIdHdr, ev.EventID)
	m.Header.Set(sequenceHeader, strconv.FormatInt(ev.Sequence, 10))
	return m
}

// next returns the Events that follow what is in the stream, at most room; end
// says that the database had no more when it was asked.
func (p *Publisher) next(ctx context.Context, g *outgoing, room int) (events []StoredEvent, end bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	p.mu.Lock()
	if !g.behind {
		events = g.pending[:min(room, len(g.pending))]
		p.mu.Unlock()
		return events, false, nil
	}
	sent := g.sent
	g.again = false
	p.mu.Unlock()
	if sent < 0 {
		rows, err := p.store.GroupRows(ctx, g.groupID)
		if err != nil {
			return nil, false, err
		}
		row, ok := rows[g.groupID]
		if !ok {
			return nil, true, nil
		}
		sent = row.PublishedSequence
		p.mu.Lock()
		g.sent, g.written = sent, sent
		p.mu.Unlock()
	}
	limit := min(room, 256)
	events, err = readEvents(ctx, p.store.readers, g.treeID, g.groupID, sent, limit)
	if errors.Is(err, ErrTrimmed) {
		return nil, true, nil
	}
	if err == nil {
		err = p.store.withhold(ctx, g.treeID, g.groupID, events)
	}
	return events, len(events) < limit, err
}

// settle notes what landed and queues Groups that have more.
func (p *Publisher) settle(tried []*outgoing, landed map[*outgoing]int64, ended map[*outgoing]bool, failed error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range tried {
		if last, ok := landed[g]; ok && last > g.sent {
			p.published.Add(last - max(g.sent, 0))
			g.sent = last
			for len(g.pending) > 0 && g.pending[0].Sequence <= last {
				p.backlog -= len(g.pending[0].Document)
				g.pending = g.pending[1:]
			}
			if len(g.pending) == 0 {
				g.pending = nil
			}
		}
		g.queued = false
		if g.behind && failed == nil && ended[g] && !g.again {
			// Everything there is has been sent: from here on memory leads.
			g.behind = false
		}
		if g.behind || len(g.pending) > 0 {
			p.enqueue(g)
		}
	}
}

// requeue puts Groups back that were not tried.
func (p *Publisher) requeue(groups []*outgoing) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range groups {
		g.queued = false
		p.enqueue(g)
	}
}

const sqlAdvance = `WITH c AS MATERIALIZED (
	SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[]) AS c(tree_id, group_id, sequence)
), l AS MATERIALIZED (
	SELECT g.tree_id, g.group_id, c.sequence FROM c JOIN groups g ON g.tree_id = c.tree_id AND g.group_id = c.group_id
	WHERE g.published_sequence < c.sequence AND g.head_sequence >= c.sequence
	ORDER BY g.group_id FOR NO KEY UPDATE OF g SKIP LOCKED
)
UPDATE groups g SET published_sequence = l.sequence FROM l
WHERE g.tree_id = l.tree_id AND g.group_id = l.group_id RETURNING g.group_id, g.published_sequence`

// advance writes how far Groups are published. It skips Groups that a commit
// holds right now and does not wait for the disk: a value that gets lost only
// means sending again.
func (p *Publisher) advance(ctx context.Context) {
	const most = 1000
	var trees, sequences []int64
	var ids []string
	p.mu.Lock()
	for id, g := range p.groups {
		if g.sent <= g.written {
			// Forgetting a Group costs one read when it comes back.
			if g.idle++; g.idle > 40 && !g.queued && len(g.pending) == 0 {
				delete(p.groups, id)
			}
			continue
		}
		if len(ids) < most {
			trees, ids, sequences = append(trees, g.treeID), append(ids, id), append(sequences, g.sent)
		}
	}
	p.mu.Unlock()
	if len(ids) == 0 {
		return
	}
	written := map[string]int64{}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if err := p.store.relaxed(ctx, sqlAdvance, written, trees, ids, sequences); err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, sequence := range written {
		if g, ok := p.groups[id]; ok {
			g.written = max(g.written, sequence)
		}
	}
}

// sweep queues every Group with Events that nobody published, to the last page.
func (p *Publisher) sweep(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*answerWithin)
	defer cancel()
	if !p.conn.IsConnected() {
		return
	}
	const page = 500
	tree, group := int64(-1<<63), ""
	for ctx.Err() == nil {
		rows, err := p.store.unpublished(ctx, tree, group, page)
		if err != nil {
			return
		}
		p.mu.Lock()
		for _, row := range rows {
			g := p.group(row.TreeID, row.GroupID)
			if g.sent >= row.HeadSequence || g.queued || len(g.pending) > 0 {
				continue
			}
			p.fallBehind(g)
			p.enqueue(g)
		}
		p.mu.Unlock()
		if len(rows) < page {
			return
		}
		tree, group = rows[len(rows)-1].TreeID, rows[len(rows)-1].GroupID
	}
}

// PublisherStats are counters since the start.
type PublisherStats struct {
	Published, Failures int64
	// Degraded says that NATS did not take the last try.
	Degraded bool
	// Waiting counts the Groups that have something to send.
	Waiting int
}

// Stats returns the counters.
func (p *Publisher) Stats() PublisherStats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return PublisherStats{
		Published: p.published.Load(), Failures: p.failures.Load(),
		Degraded: p.degraded.Load() || p.conn == nil || !p.conn.IsConnected(), Waiting: len(p.queue),
	}
}
