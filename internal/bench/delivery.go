package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/missionweave/server/internal/authority"
	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/events"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/sessions"
	"github.com/missionweave/server/internal/views"
	"github.com/missionweave/server/internal/wsapi"
)

// DeliveryOptions say what to measure.
type DeliveryOptions struct {
	Options
	// Subscribers of one Group get Events under load; Idle ones just wait.
	Subscribers, Idle int
	// Events are posted to the subscribers; Probes measure the way from a Command
	// to a subscriber one after another.
	Events, Probes int
	// Rest is how long the idle subscribers are watched.
	Rest time.Duration
	// Profile, when set, begins the names of files with processor profiles.
	Profile string
	// Parts are what to measure; empty means all.
	Parts []string
	// Program runs this program's subscribers in a process of their own:
	// RunSubscribers on its standard input and output.
	Program []string
}

// Parts of the measurement, in their order.
var DeliveryParts = []string{"latency", "live", "drain", "broadcast", "idle"}

// Rate is one way to bring Events to subscribers.
type Rate struct {
	Frames float64 `json:"framesPerSecond"`
	// CPU is processor time per frame of the writing process, which at the live
	// part holds the Authority too; ReaderCPU that of the subscribers' process.
	CPU       float64 `json:"cpuMicrosPerFrame"`
	ReaderCPU float64 `json:"readerCpuMicrosPerFrame"`
}

// DeliveryReport is what came out.
type DeliveryReport struct {
	Subscribers int `json:"subscribers"`
	Events      int `json:"events"`
	FrameBytes  int `json:"frameBytes"`
	// Live is with the Commands that cause the Events, Drain with Events that are
	// ready-made; the others are bare broadcasts.
	Live     Rate    `json:"live"`
	Commands float64 `json:"commandsPerSecond"`
	Drain    Rate    `json:"drain"`
	PerFrame Rate    `json:"perFrameBroadcast"`
	Vectored Rate    `json:"vectoredBroadcast"`

	P50        float64 `json:"commandToSubscriberP50Ms"`
	P99        float64 `json:"commandToSubscriberP99Ms"`
	CommandP50 float64 `json:"commandToAnswerP50Ms"`
	Idle       int     `json:"idleSubscribers"`
	IdleMemory float64 `json:"bytesPerIdleSubscriber"`
	// IdleCPU and IdleDatabase are what this process and the database use more than
	// without them.
	IdleCPU      float64 `json:"idleCpuShareOfOneCore"`
	IdleDatabase float64 `json:"idleDatabaseShareOfOneCore"`
	RestCPU      float64 `json:"restCpuShareOfOneCore"`
	RestDatabase float64 `json:"restDatabaseShareOfOneCore"`
}

// WriteTo prints the report.
func (r *DeliveryReport) WriteTo(w io.Writer) (int64, error) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(what, format string, values ...any) {
		fmt.Fprintf(t, "%s\t"+format+"\n", append([]any{what}, values...)...)
	}
	rate := func(what string, rate Rate, more string) {
		if rate.Frames > 0 {
			row(what, "%.0f frames/s, %.2f µs CPU each and %.2f for its reader%s", rate.Frames, rate.CPU, rate.ReaderCPU, more)
		}
	}
	compared := func(rate Rate) string {
		if r.PerFrame.Frames == 0 {
			return ""
		}
		return fmt.Sprintf("; %.2f times a write per frame, %.2f by CPU", rate.Frames/r.PerFrame.Frames, r.PerFrame.CPU/rate.CPU)
	}
	if r.FrameBytes > 0 {
		row("Events", "%d of %d bytes to %d subscribers", r.Events, r.FrameBytes, r.Subscribers)
	}
	rate("under the Commands that cause them", r.Live, fmt.Sprintf("; %.0f Commands/s", r.Commands)+compared(r.Live))
	rate("ready-made Events", r.Drain, compared(r.Drain))
	rate("bare broadcast, a write per frame", r.PerFrame, "")
	rate("bare broadcast, vectored writes", r.Vectored, "")
	if r.P50 > 0 {
		row("Command to subscriber, idle server", "p50 %.1f ms, p99 %.1f ms; to its own answer p50 %.1f ms", r.P50, r.P99, r.CommandP50)
	}
	if r.IdleMemory > 0 {
		row(fmt.Sprintf("%d idle subscribers", r.Idle), "%.1f KiB each; together %.2f %% of a core, and %.2f %% in the database (without them %.2f and %.2f)",
			r.IdleMemory/1024, 100*r.IdleCPU, 100*r.IdleDatabase, 100*r.RestCPU, 100*r.RestDatabase)
	}
	return 0, t.Flush()
}

// delivery is a stand that also serves WebSocket.
type delivery struct {
	*stand
	options DeliveryOptions
	target  *target
	// gateway hears of Events from the Authority in its process; replica only of
	// those that it is given.
	gateway, replica *gateway
	children         *subscribers
	part             string
	posted           int // Messages, for their ids
}

// RunDelivery measures. progress hears what is done and may be nil.
func RunDelivery(ctx context.Context, options DeliveryOptions, progress func(string)) (_ *DeliveryReport, err error) {
	if progress == nil {
		progress = func(string) {}
	}
	if options.DataDir == "" {
		dir, err := os.MkdirTemp("", "missionweave-bench-")
		if err != nil {
			return nil, err
		}
		defer func() { _ = os.RemoveAll(dir) }()
		if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // the database account passes through
			return nil, err
		}
		options.DataDir = dir
	}
	options.subscribers = max(options.Subscribers, options.Idle, 2)
	s, err := newStand(ctx, options.Options)
	if err != nil {
		return nil, err
	}
	defer s.close()
	d := &delivery{stand: s, options: options}
	if err := d.open(ctx); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.end()) }()
	r := &DeliveryReport{Subscribers: options.Subscribers, Events: options.Events, Idle: options.Idle}
	steps := map[string]func(context.Context, *DeliveryReport) error{
		"latency": d.probe, "live": d.live, "drain": d.drain, "broadcast": d.broadcast, "idle": d.idle,
	}
	progress("admitting the subscribers to the Group")
	if err := d.admit(ctx); err != nil {
		return nil, err
	}
	for _, part := range DeliveryParts {
		if len(options.Parts) > 0 && !slices.Contains(options.Parts, part) {
			continue
		}
		progress(part)
		d.part = part
		if err := steps[part](ctx, r); err != nil {
			return nil, fmt.Errorf("%s: %w", part, err)
		}
	}
	return r, nil
}

// profile begins a processor profile of a part when one is wanted; the function
// that it returns ends it.
func (d *delivery) profile() func() {
	if d.options.Profile == "" {
		return func() {}
	}
	f, err := os.Create(d.options.Profile + d.part + ".pprof")
	if err == nil {
		err = pprof.StartCPUProfile(f)
	}
	return func() {
		if err == nil {
			pprof.StopCPUProfile()
		}
		_ = f.Close()
	}
}

func (d *delivery) open(ctx context.Context) error {
	targets, err := d.missions(ctx, 1)
	if err != nil {
		return err
	}
	d.target = targets[0]
	if d.conn != nil {
		d.hub.UseNATS(d.conn)
	}
	d.wg.Go(func() { _ = d.hub.Run(d.run) })
	if d.gateway, err = d.serve(ctx, d.hub); err != nil {
		return err
	}
	if d.replica, err = d.serve(ctx, events.NewHub(d.store, events.HubOptions{})); err != nil {
		return err
	}
	d.children, err = startSubscribers(d.options.Program)
	return err
}

// gateway is a WebSocket server.
type gateway struct {
	ws   *wsapi.Server
	http *http.Server
	hub  *events.Hub
	url  string
	sent prometheus.Gatherer
}

func (d *delivery) serve(ctx context.Context, hub *events.Hub) (*gateway, error) {
	connections := wsapi.NewConnections()
	if d.conn != nil {
		if err := connections.UseNATS(d.conn); err != nil {
			return nil, err
		}
	}
	identities := sessions.New(sessions.Config{
		Pool: d.pool, Directory: d.directory, Signer: d.signers[registry.RoleIdentity], Mint: mint, Now: time.Now, Life: time.Hour,
		AgentLock: events.AgentLockKey, Opened: connections.Opened, Resumed: connections.Resumed,
		Opener: &sessions.CommandOpener{Signer: d.signers[registry.RoleIdentity], Mint: mint, Now: time.Now, Submit: d.service.OpenSession},
	})
	policy := config.DefaultPolicy()
	policy.CommandsPerSecondPerConnection = 0
	metrics := prometheus.NewRegistry()
	g := &gateway{hub: hub, sent: metrics}
	g.ws = wsapi.New(wsapi.Deps{
		Sessions: identities, Connections: connections, Authority: d.service, Views: views.New(d.pool, nobody{}), Store: d.store,
		Hub: hub, Policy: policy, Log: d.options.Logger, UnauthenticatedPerPeer: 1 << 20, Metrics: metrics,
	})
	d.wg.Go(func() { _ = g.ws.Run(d.run) })
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	g.url = "ws://" + listener.Addr().String() + "/ws"
	g.http = &http.Server{Handler: g.ws, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	d.wg.Go(func() { _ = g.http.Serve(listener) })
	return g, nil
}

func (g *gateway) close() {
	_ = g.http.Close()
	g.ws.Drain()
}

func (d *delivery) end() error {
	err := d.children.end()
	d.gateway.close()
	d.replica.close()
	return err
}

// nobody may read Groups without a Membership.
type nobody struct{}

func (nobody) MayReadGroups(protocol.Actor) bool           { return false }
func (nobody) MayOpenGates(protocol.Actor) bool            { return false }
func (nobody) ExecutionRule(*protocol.WorkContract) string { return "" }
func (nobody) GatedRisks() []string                        { return nil }

// submit runs Commands from several clients and returns when all are accepted.
func (d *delivery) submit(ctx context.Context, commands [][]byte, clients int) error {
	var next atomic.Int64
	errs := make([]error, clients)
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= int64(len(commands)) || errs[c] != nil {
					return
				}
				if _, refused := d.service.Submit(ctx, authority.Submission{Body: commands[i], Peer: "bench"}); refused != nil {
					errs[c] = refusal(refused)
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// admit makes every Agent an observer of the Group: its reader may not see
// redacted Messages, so the general case is measured and not the Coordinator's.
func (d *delivery) admit(ctx context.Context) error {
	commands := make([][]byte, d.agents)
	for i := range commands {
		k, err := signer(protocol.ActorAgent, subscriberName(i))
		if err != nil {
			return err
		}
		payload, err := strictjson.Marshal(map[string]any{"member": k.Principal, "role": "observer", "visibilityStartSequence": 1})
		if err != nil {
			return err
		}
		commands[i], err = d.sign(d.coordinator, protocol.Command{
			Kind: "membership.change", GroupID: d.target.group, SessionEpoch: d.epoch, MembershipEpoch: 1, CoordinatorEpoch: 1, Payload: payload,
		})
		if err != nil {
			return err
		}
	}
	return d.submit(ctx, commands, 32)
}

func (d *delivery) head(ctx context.Context) (int64, error) { return d.store.Head(ctx, d.target.group) }

// subscribe connects Agents that follow the Group from its head.
func (d *delivery) subscribe(ctx context.Context, g *gateway, n int) error {
	head, err := d.head(ctx)
	if err != nil {
		return err
	}
	_, err = d.children.ask(order{Do: "subscribe", URL: g.url, Group: d.target.group, N: n, After: head})
	return err
}

// probe measures from the moment a Command goes to the Authority until another
// connection has its Event.
func (d *delivery) probe(ctx context.Context, r *DeliveryReport) error {
	head, err := d.head(ctx)
	if err != nil {
		return err
	}
	reader, err := dialSubscriber(ctx, d.gateway.url, 0)
	if err != nil {
		return err
	}
	defer reader.close()
	if err := reader.subscribe(d.target.group, head); err != nil {
		return err
	}
	var answered, arrived []time.Duration
	for i := range d.options.Probes {
		command, err := d.post()
		if err != nil {
			return err
		}
		began := time.Now()
		if err := d.submit(ctx, [][]byte{command}, 1); err != nil {
			return err
		}
		answered = append(answered, time.Since(began))
		if err := reader.await(int64(i + 1)); err != nil {
			return err
		}
		arrived = append(arrived, time.Since(began))
	}
	r.P50, r.P99, r.CommandP50 = quantile(arrived, 0.5), quantile(arrived, 0.99), quantile(answered, 0.5)
	return nil
}

// quantile sorts and answers in milliseconds.
func quantile(of []time.Duration, q float64) float64 {
	slices.Sort(of)
	return float64(of[int(q*float64(len(of)-1))].Microseconds()) / 1000
}

// post signs a short Message: its Event is the smallest that Messages have.
func (d *delivery) post() ([]byte, error) {
	d.posted++
	payload, err := strictjson.Marshal(map[string]any{
		"messageId": fmt.Sprintf("urn:bench:m%d", d.posted), "content": []any{map[string]any{"type": "text", "text": "Done."}},
	})
	if err != nil {
		return nil, err
	}
	return d.sign(d.coordinator, protocol.Command{
		Kind: "message.post", GroupID: d.target.group, ConversationID: d.target.conversationID, SessionEpoch: d.epoch,
		MembershipEpoch: 1, CoordinatorEpoch: 1, Payload: payload,
	})
}

// posts signs Commands ahead of a measurement.
func (d *delivery) posts(n int) ([][]byte, error) {
	commands := make([][]byte, n)
	for i := range commands {
		var err error
		if commands[i], err = d.post(); err != nil {
			return nil, err
		}
	}
	return commands, nil
}

// liveClients post at the same time.
const liveClients = 64

// live posts Events as fast as clients can and waits until every subscriber has
// each of them, in order.
func (d *delivery) live(ctx context.Context, r *DeliveryReport) error {
	if err := d.subscribe(ctx, d.gateway, d.options.Subscribers); err != nil {
		return err
	}
	commands, err := d.posts(d.options.Events)
	if err != nil {
		return err
	}
	r.Live, r.FrameBytes, err = d.rated(func() error {
		began := time.Now()
		defer func() { r.Commands = float64(len(commands)) / time.Since(began).Seconds() }()
		return d.submit(ctx, commands, liveClients)
	})
	return err
}

// drain gives ready-made Events to the subscribers of a replica, as NATS would,
// no faster than they go out.
func (d *delivery) drain(ctx context.Context, r *DeliveryReport) error {
	if err := d.subscribe(ctx, d.replica, d.options.Subscribers); err != nil {
		return err
	}
	head, err := d.head(ctx)
	if err != nil {
		return err
	}
	commands, err := d.posts(d.options.Events)
	if err != nil {
		return err
	}
	if err := d.submit(ctx, commands, liveClients); err != nil {
		return err
	}
	var ready []events.StoredEvent
	for len(ready) < len(commands) {
		page, err := d.store.ReadEvents(ctx, d.target.group, head+int64(len(ready)), drainStep)
		if err != nil {
			return err
		}
		ready = append(ready, page...)
	}
	before := d.replica.delivered()
	r.Drain, r.FrameBytes, err = d.rated(func() error {
		for fed := 0; fed < len(ready); {
			done := d.replica.delivered() - before
			if int64(fed)*int64(d.options.Subscribers)-done > drainAhead*int64(d.options.Subscribers) {
				time.Sleep(100 * time.Microsecond)
				continue
			}
			next := min(fed+drainStep, len(ready))
			d.replica.hub.Committed(d.target.group, ready[fed:next])
			fed = next
		}
		return nil
	})
	return err
}

// drainStep Events are given at once while less than drainAhead are on their way.
const (
	drainStep  = 32
	drainAhead = 64
)

// delivered counts the EVENT frames that went out.
func (g *gateway) delivered() int64 {
	families, err := g.sent.Gather()
	if err != nil {
		return 0
	}
	for _, family := range families {
		if family.GetName() == "mw_ws_events_sent_total" {
			return int64(family.GetMetric()[0].GetCounter().GetValue())
		}
	}
	return 0
}

// rated measures from the start of write until every subscriber has all Events,
// and lets the subscribers go.
func (d *delivery) rated(write func() error) (rate Rate, frameBytes int, err error) {
	start, err := d.children.ask(order{Do: "await"})
	if err != nil {
		return rate, 0, err
	}
	runtime.GC()
	defer d.profile()()
	used, began := selfCPU(), time.Now()
	written := make(chan error, 1)
	go func() { written <- write() }()
	a, err := d.children.ask(order{Do: "await", Frames: int64(d.options.Events)})
	took, spent := time.Since(began), selfCPU()-used
	if err = errors.Join(err, <-written); err != nil {
		return rate, 0, err
	}
	frames := float64(d.options.Events * d.options.Subscribers)
	_, err = d.children.ask(order{Do: "close"})
	return Rate{frames / took.Seconds(), float64(spent.Microseconds()) / frames, float64(a.CPU-start.CPU) / frames}, a.FrameBytes, err
}

// broadcast writes as many frames of the same size to as many connections, with
// one goroutine for each, as a server does that has nothing else to do.
func (d *delivery) broadcast(ctx context.Context, r *DeliveryReport) (err error) {
	if r.FrameBytes == 0 {
		r.FrameBytes = 1200
	}
	if r.PerFrame, err = d.bareBroadcast(ctx, r.FrameBytes, 1); err != nil {
		return err
	}
	r.Vectored, err = d.bareBroadcast(ctx, r.FrameBytes, bareBatch)
	return err
}

// bareBatch is how many frames a vectored write of the bare broadcast takes.
const bareBatch = 64

func (d *delivery) bareBroadcast(ctx context.Context, size, batch int) (Rate, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return Rate{}, err
	}
	defer func() { _ = listener.Close() }()
	conns := make([]net.Conn, d.options.Subscribers)
	accepted := make(chan error, 1)
	go func() {
		var err error
		for i := range conns {
			if conns[i], err = listener.Accept(); err != nil {
				break
			}
		}
		accepted <- err
	}()
	if _, err := d.children.ask(order{Do: "connect", URL: listener.Addr().String(), N: len(conns)}); err != nil {
		return Rate{}, err
	}
	if err := <-accepted; err != nil {
		return Rate{}, err
	}
	defer func() {
		for _, conn := range conns {
			_ = conn.Close()
		}
	}()
	frames := bareFrames(d.options.Events, size)
	rate, _, err := d.rated(func() error {
		var wg sync.WaitGroup
		for _, conn := range conns {
			wg.Go(func() { bareWrite(conn, frames, batch) })
		}
		wg.Wait()
		return nil
	})
	return rate, err
}

// bareWrite sends frames one by one, or batch of them at once. A connection that
// breaks shows at its reader.
func bareWrite(conn net.Conn, frames [][]byte, batch int) {
	run := make(net.Buffers, 0, batch)
	for len(frames) > 0 {
		n := min(batch, len(frames))
		var err error
		if n == 1 {
			_, err = conn.Write(frames[0])
		} else {
			out := append(run[:0], frames[:n]...)
			_, err = out.WriteTo(conn)
		}
		if err != nil {
			return
		}
		frames = frames[n:]
	}
}

// idle measures what subscribers cost to which nothing happens.
func (d *delivery) idle(ctx context.Context, r *DeliveryReport) error {
	// What is still done about the admissions, and later about the logins, is not
	// what idling costs.
	if _, _, err := d.watch(ctx, d.options.Rest/2); err != nil {
		return err
	}
	server, database, err := d.watch(ctx, d.options.Rest/2)
	if err != nil {
		return err
	}
	before := memoryInUse()
	if err := d.subscribe(ctx, d.gateway, d.options.Idle); err != nil {
		return err
	}
	r.IdleMemory = float64(memoryInUse()-before) / float64(d.options.Idle)
	if _, _, err := d.watch(ctx, d.options.Rest/2); err != nil {
		return err
	}
	stop := d.profile()
	withThem, database2, err := d.watch(ctx, d.options.Rest)
	if stop(); err != nil {
		return err
	}
	r.RestCPU, r.RestDatabase = server, database
	r.IdleCPU, r.IdleDatabase = max(0, withThem-server), max(0, database2-database)
	_, err = d.children.ask(order{Do: "close"})
	return err
}

// watch is the share of a core that the server and the database use in a while.
func (d *delivery) watch(ctx context.Context, rest time.Duration) (server, database float64, err error) {
	used, self, began := d.cpu(ctx), selfCPU(), time.Now()
	select {
	case <-time.After(rest):
	case <-ctx.Done():
		return 0, 0, ctx.Err()
	}
	server = (selfCPU() - self).Seconds() / time.Since(began).Seconds()
	both := d.cpu(ctx).since(used).Seconds() / time.Since(began).Seconds()
	return server, max(0, both-server), nil
}

// memoryInUse is what the process holds in heap and stacks, in bytes.
func memoryInUse() int64 {
	for range 2 { // stacks shrink at a collection
		debug.FreeOSMemory()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse) //nolint:gosec // far below the limit
}

func nonce() string { return lexical.EncodeBase64URL([]byte(mint()[9:])) }
