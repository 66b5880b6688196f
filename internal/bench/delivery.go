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
	"sort"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

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
	// Program runs this program's subscribers in a process of their own:
	// RunSubscribers on its standard input and output.
	Program []string
}

// DeliveryReport is what came out.
type DeliveryReport struct {
	Subscribers int     `json:"subscribers"`
	Events      int     `json:"events"`
	FrameBytes  int     `json:"frameBytes"`
	Delivered   float64 `json:"framesPerSecond"`
	PerFrame    float64 `json:"perFrameBroadcastPerSecond"`
	Vectored    float64 `json:"vectoredBroadcastPerSecond"`
	OfPerFrame  float64 `json:"ofPerFrameBroadcast"`
	OfVectored  float64 `json:"ofVectoredBroadcast"`
	// The same in processor time of the writing process per frame.
	DeliveredCPU float64 `json:"cpuMicrosPerFrame"`
	PerFrameCPU  float64 `json:"perFrameBroadcastCpuMicros"`
	VectoredCPU  float64 `json:"vectoredBroadcastCpuMicros"`
	P50          float64 `json:"commandToSubscriberP50Ms"`
	P99          float64 `json:"commandToSubscriberP99Ms"`
	Idle         int     `json:"idleSubscribers"`
	IdleMemory   float64 `json:"bytesPerIdleSubscriber"`
	IdleCPU      float64 `json:"idleCpuShareOfOneCore"`
}

// WriteTo prints the report.
func (r *DeliveryReport) WriteTo(w io.Writer) (int64, error) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(what, format string, values ...any) {
		fmt.Fprintf(t, "%s\t"+format+"\n", append([]any{what}, values...)...)
	}
	row(fmt.Sprintf("%d Events of %d bytes to %d subscribers", r.Events, r.FrameBytes, r.Subscribers), "%.0f frames/s, %.2f µs CPU each", r.Delivered, r.DeliveredCPU)
	row("bare broadcast, a write per frame", "%.0f frames/s, %.2f µs CPU each; delivery is %.2f times as fast", r.PerFrame, r.PerFrameCPU, r.OfPerFrame)
	row("bare broadcast, vectored writes", "%.0f frames/s, %.2f µs CPU each; delivery has %.0f %% of it", r.Vectored, r.VectoredCPU, 100*r.OfVectored)
	row("Command to subscriber, idle server", "p50 %.1f ms, p99 %.1f ms", r.P50, r.P99)
	row(fmt.Sprintf("%d idle subscribers", r.Idle), "%.1f KiB each, %.2f %% of a core together", r.IdleMemory/1024, 100*r.IdleCPU)
	return 0, t.Flush()
}

// delivery is a stand that also serves WebSocket.
type delivery struct {
	*stand
	options  DeliveryOptions
	target   *target
	ws       *wsapi.Server
	http     *http.Server
	url      string
	children *subscribers
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
	for _, step := range []struct {
		name string
		run  func(context.Context, *DeliveryReport) error
	}{
		{"admitting the subscribers to the Group", d.admit},
		{"posting Commands one after another", d.probe},
		{"posting Events under load", d.load},
		{"broadcasting the same frames without a server", d.broadcast},
		{"watching idle subscribers", d.idle},
	} {
		progress(step.name)
		if err := step.run(ctx, r); err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return r, nil
}

func (d *delivery) open(ctx context.Context) error {
	targets, err := d.missions(ctx, 1)
	if err != nil {
		return err
	}
	d.target = targets[0]
	connections := wsapi.NewConnections()
	identities := sessions.New(sessions.Config{
		Pool: d.pool, Directory: d.directory, Signer: d.signers[registry.RoleIdentity], Mint: mint, Now: time.Now, Life: time.Hour,
		AgentLock: events.AgentLockKey, Opened: connections.Opened, Resumed: connections.Resumed,
		Opener: &sessions.CommandOpener{Signer: d.signers[registry.RoleIdentity], Mint: mint, Now: time.Now, Submit: d.service.OpenSession},
	})
	policy := config.DefaultPolicy()
	policy.CommandsPerSecondPerConnection = 0
	d.ws = wsapi.New(wsapi.Deps{
		Sessions: identities, Connections: connections, Authority: d.service, Views: views.New(d.pool, nobody{}), Store: d.store,
		Hub: d.hub, Policy: policy, Log: d.options.Logger, UnauthenticatedPerPeer: 1 << 20,
		// Without NATS the server would look at all sessions every second; replicas
		// that hear of each other do so every five.
		Timing: wsapi.Timing{Recheck: 5 * time.Second},
	})
	d.wg.Go(func() { _ = d.ws.Run(d.run) })
	d.wg.Go(func() { _ = d.hub.Run(d.run) })
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	d.url = "ws://" + listener.Addr().String() + "/ws"
	d.http = &http.Server{Handler: d.ws, ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
	d.wg.Go(func() { _ = d.http.Serve(listener) })
	d.children, err = startSubscribers(d.options.Program)
	return err
}

func (d *delivery) end() error {
	_ = d.http.Close()
	err := d.children.end()
	d.ws.Drain()
	return err
}

// nobody may read Groups without a Membership.
type nobody struct{}

func (nobody) MayReadGroups(protocol.Actor) bool { return false }

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
func (d *delivery) admit(ctx context.Context, _ *DeliveryReport) error {
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
func (d *delivery) subscribe(ctx context.Context, from, n, buffer int) error {
	head, err := d.head(ctx)
	if err != nil {
		return err
	}
	_, err = d.children.ask(order{Do: "subscribe", URL: d.url, Group: d.target.group, From: from, N: n, After: head, Buffer: buffer})
	return err
}

// probe measures from the moment a Command goes to the Authority until another
// connection has its Event.
func (d *delivery) probe(ctx context.Context, r *DeliveryReport) error {
	head, err := d.head(ctx)
	if err != nil {
		return err
	}
	reader, err := dialSubscriber(ctx, d.url, 0, 4<<10)
	if err != nil {
		return err
	}
	defer reader.close()
	if err := reader.subscribe(d.target.group, head); err != nil {
		return err
	}
	var took []time.Duration
	for i := range d.options.Probes {
		command, err := d.target.post(i)
		if err != nil {
			return err
		}
		began := time.Now()
		if err := d.submit(ctx, [][]byte{command}, 1); err != nil {
			return err
		}
		if err := reader.await(int64(i+1), nil); err != nil {
			return err
		}
		took = append(took, time.Since(began))
	}
	sort.Slice(took, func(i, j int) bool { return took[i] < took[j] })
	at := func(q float64) float64 { return float64(took[int(q*float64(len(took)-1))].Microseconds()) / 1000 }
	r.P50, r.P99 = at(0.5), at(0.99)
	return nil
}

// load posts Events as fast as clients can and waits until every subscriber has
// each of them, in order.
func (d *delivery) load(ctx context.Context, r *DeliveryReport) error {
	if err := d.subscribe(ctx, 0, d.options.Subscribers, 64<<10); err != nil {
		return err
	}
	commands := make([][]byte, d.options.Events)
	for i := range commands {
		var err error
		if commands[i], err = d.target.post(i); err != nil {
			return err
		}
	}
	runtime.GC()
	used, began := selfCPU(), time.Now()
	posted := make(chan error, 1)
	go func() { posted <- d.submit(ctx, commands, 64) }()
	a, err := d.children.ask(order{Do: "await", Frames: int64(len(commands))})
	if err = errors.Join(err, <-posted); err != nil {
		return err
	}
	took := time.Since(began)
	frames := float64(len(commands) * d.options.Subscribers)
	r.Delivered, r.DeliveredCPU = frames/took.Seconds(), float64((selfCPU()-used).Microseconds())/frames
	r.FrameBytes = a.FrameBytes
	_, err = d.children.ask(order{Do: "close"})
	return err
}

// broadcast writes as many frames of the same size to as many connections, with
// one goroutine for each, as a server does that has nothing else to do.
func (d *delivery) broadcast(ctx context.Context, r *DeliveryReport) error {
	for _, way := range []struct {
		vectored   bool
		rate, used *float64
	}{{false, &r.PerFrame, &r.PerFrameCPU}, {true, &r.Vectored, &r.VectoredCPU}} {
		rate, used, err := d.bareBroadcast(ctx, r.FrameBytes, way.vectored)
		if err != nil {
			return err
		}
		*way.rate, *way.used = rate, used
	}
	r.OfPerFrame, r.OfVectored = r.Delivered/r.PerFrame, r.Delivered/r.Vectored
	return nil
}

// bareBatch is how many frames a vectored write of the bare broadcast takes.
const bareBatch = 64

func (d *delivery) bareBroadcast(ctx context.Context, size int, vectored bool) (perSecond, cpu float64, err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = listener.Close() }()
	conns := make([]net.Conn, d.options.Subscribers)
	accepted := make(chan error, 1)
	go func() {
		for i := range conns {
			if conns[i], err = listener.Accept(); err != nil {
				accepted <- err
				return
			}
		}
		accepted <- nil
	}()
	if _, err := d.children.ask(order{Do: "connect", URL: listener.Addr().String(), N: len(conns), Buffer: 64 << 10}); err != nil {
		return 0, 0, err
	}
	if err := <-accepted; err != nil {
		return 0, 0, err
	}
	frame := bareFrame(size)
	used, began := selfCPU(), time.Now()
	var wg sync.WaitGroup
	for _, conn := range conns {
		wg.Go(func() {
			defer func() { _ = conn.SetDeadline(time.Time{}) }()
			batch := make(net.Buffers, 0, bareBatch)
			for left := d.options.Events; left > 0; {
				if !vectored {
					if _, err := conn.Write(frame); err != nil {
						return
					}
					left--
					continue
				}
				n := min(left, bareBatch)
				batch = batch[:0]
				for range n {
					batch = append(batch, frame)
				}
				out := batch
				if _, err := out.WriteTo(conn); err != nil {
					return
				}
				left -= n
			}
		})
	}
	_, err = d.children.ask(order{Do: "await", Frames: int64(d.options.Events)})
	took := time.Since(began)
	wg.Wait()
	spent := selfCPU() - used
	for _, conn := range conns {
		_ = conn.Close()
	}
	if err != nil {
		return 0, 0, err
	}
	_, err = d.children.ask(order{Do: "close"})
	frames := float64(len(conns) * d.options.Events)
	return frames / took.Seconds(), float64(spent.Microseconds()) / frames, err
}

// idle measures what subscribers cost to which nothing happens.
func (d *delivery) idle(ctx context.Context, r *DeliveryReport) error {
	quiet, err := d.watch(ctx, d.options.Rest/2)
	if err != nil {
		return err
	}
	before := memoryInUse()
	if err := d.subscribe(ctx, 0, d.options.Idle, 2<<10); err != nil {
		return err
	}
	r.IdleMemory = float64(memoryInUse()-before) / float64(d.options.Idle)
	used, err := d.watch(ctx, d.options.Rest)
	if err != nil {
		return err
	}
	r.IdleCPU = max(0, used-quiet)
	_, err = d.children.ask(order{Do: "close"})
	return err
}

// watch is the share of a core that server and database use in a while.
func (d *delivery) watch(ctx context.Context, rest time.Duration) (float64, error) {
	used, began := d.cpu(ctx), time.Now()
	select {
	case <-time.After(rest):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	return d.cpu(ctx).since(used).Seconds() / time.Since(began).Seconds(), nil
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
