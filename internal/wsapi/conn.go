package wsapi

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/sessions"
)

// inboundFrames is how many frames may wait for the processor before the
// connection is not read any more (COMMANDS.md 8.10).
const inboundFrames = 64

// maxMalformed is how many frames without a readable structure a connection may
// send (COMMANDS.md 8.12).
const maxMalformed = 5

// conn is one connection.
type conn struct {
	server *Server
	wire   *wire
	ctx    context.Context //nolint:containedctx // the connection's life
	// cancel ends the connection at once.
	cancel context.CancelFunc
	peer   string
	out    *outbox
	frames chan []byte
	// closing is closed when the final frame is about to go out: what the client
	// still sends is read past. told is closed when it is out, or the connection is
	// gone; left when nothing is read any more.
	closing, told, left chan struct{}
	// lastFrame is when the client was last heard of, in Unix nanoseconds.
	lastFrame atomic.Int64
	loggedIn  atomic.Bool
	// beat is the wheel's.
	beat beat

	bearer    string
	hasBearer bool

	mu         sync.Mutex
	id         sessions.Identity
	presence   *protocol.PresenceRecord
	presenceTo time.Time
	own        *recentActions

	// What follows belongs to the processor.
	challenge *protocol.HelloServerChallenge
	malformed int
	commands  *rate.Limiter
	subs      map[string]*subscription
	filtered  bool
	feeds     sync.WaitGroup
}

func newConn(s *Server, w *wire, peer, base string) *conn {
	// The connection outlives the request that it began as.
	ctx, cancel := context.WithCancel(httpkit.WithBaseURL(context.Background(), base))
	c := &conn{
		server: s, wire: w, ctx: ctx, peer: peer, out: newOutbox(),
		frames: make(chan []byte, inboundFrames), closing: make(chan struct{}), told: make(chan struct{}),
		left: make(chan struct{}), own: newRecentActions(), subs: map[string]*subscription{},
	}
	w.ignore = c.ignore
	c.cancel = func() {
		cancel()
		_ = w.net.Close()
	}
	if n := s.Policy.CommandsPerSecondPerConnection; n > 0 {
		c.commands = rate.NewLimiter(rate.Limit(n), int(n))
	}
	c.lastFrame.Store(s.Now().UnixNano())
	return c
}

// serve runs the connection. When it returns, nothing of it runs any more.
func (c *conn) serve() {
	var goroutines sync.WaitGroup
	goroutines.Go(c.read)
	goroutines.Go(c.write)
	c.process()
	for _, sub := range c.subs {
		sub.cancel()
	}
	goroutines.Wait()
	c.cancel()
	c.feeds.Wait()
}

// guard ends the connection, and not the process, when something in it panics.
func (c *conn) guard(where string) {
	if p := recover(); p != nil {
		c.server.Log.Error("connection panicked", "where", where, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		c.out.finish(&final{code: closeInternal, reason: "internal failure"}, false)
	}
}

func (c *conn) identity() sessions.Identity {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.id
}

func (c *conn) presenceNow() (protocol.PresenceRecord, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.presence == nil || !c.server.Now().Before(c.presenceTo) {
		return protocol.PresenceRecord{}, false
	}
	return *c.presence, true
}

// ignore tells whether a message asks for nothing, and notes that it came.
func (c *conn) ignore(message []byte) bool {
	if !c.loggedIn.Load() || !isReply(message) {
		return false
	}
	c.lastFrame.Store(c.server.Now().UnixNano())
	return true
}

// read hands frames to the processor until the connection breaks.
func (c *conn) read() {
	defer close(c.left)
	if fault, ok := errors.AsType[*broken](c.readAll()); ok {
		c.wire.skip(fault)
	}
}

func (c *conn) readAll() error {
	defer close(c.frames)
	for {
		b, err := c.wire.read(c.out.ponged)
		if err != nil {
			c.out.finish(endOf(err), false)
			return err
		}
		c.lastFrame.Store(c.server.Now().UnixNano())
		select {
		case c.frames <- b:
		case <-c.ctx.Done():
			return c.ctx.Err() //nolint:wrapcheck // only looked at for its kind
		case <-c.closing:
		}
	}
}

// endOf says how a connection ends that cannot be read any more.
func endOf(err error) *final {
	if fault, ok := errors.AsType[*broken](err); ok {
		return &final{code: fault.code, reason: fault.reason}
	}
	if bye, ok := errors.AsType[*goodbye](err); ok && bye.code != 0 {
		return &final{code: bye.code}
	}
	return &final{code: closeNormal, echo: true}
}

// process handles frames in order until the connection ends or the server
// drains.
//
// What it does for a frame runs on another goroutine that it waits for: handling
// frames needs a deep stack, and an idle connection must not keep one.
func (c *conn) process() {
	if !c.deep(c.handshake) {
		return
	}
	defer c.server.Connections.remove(c)
	c.loggedIn.Store(true)
	c.server.wheel.add(c)
	defer c.server.wheel.remove(c)
	for {
		select {
		case b, ok := <-c.frames:
			if !ok || !c.deep(func() bool { return c.handleAll(b) }) {
				return
			}
			continue
		default:
		}
		select {
		case b, ok := <-c.frames:
			if !ok || !c.deep(func() bool { return c.handleAll(b) }) {
				return
			}
		case <-c.told:
			return
		case <-c.server.draining:
			c.deep(func() bool { c.goAway(); return false })
			return
		}
	}
}

// deep runs f on a stack of its own and returns its answer, false when f panicked.
func (c *conn) deep(f func() bool) (ok bool) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer c.guard("processor")
		ok = f()
	}()
	<-done
	return ok
}

// handleAll handles a frame and those that wait behind it; false ends the
// connection.
func (c *conn) handleAll(b []byte) bool {
	for {
		if !c.handle(b) {
			return false
		}
		var ok bool
		select {
		case <-c.server.draining:
			return true // the processor sees to it, after this frame
		default:
		}
		select {
		case b, ok = <-c.frames:
			if !ok {
				return false
			}
		default:
			return true
		}
	}
}

// goAway ends a connection of a draining server, after what is owed to it.
func (c *conn) goAway() {
	ctx, cancel := context.WithTimeout(c.ctx, c.server.Timing.Flush)
	defer cancel()
	c.settle(ctx)
	// Clients that are sent away together must not come back together.
	c.out.finish(&final{
		code: closeGoingAway, reason: fmt.Sprintf("draining; retry-after-ms=%d", jittered(time.Second)),
	}, true)
	stop := context.AfterFunc(ctx, c.cancel)
	defer stop()
	<-c.told
}

// end ends the connection with a fatal error, or just a close code. No Event
// that is queued is sent any more; errors that were owed before it are.
func (c *conn) end(refusal *protocol.Error) {
	if refusal == nil || refusal.Close == 0 {
		return
	}
	c.out.finish(&final{
		frame: c.errorFrame(refusal), code: refusal.Close, reason: string(refusal.Code),
	}, false)
}

// fatal gives a refusal the close code of COMMANDS.md 8.2 and 8.12.
func fatal(refusal *protocol.Error) *protocol.Error {
	code := 4400
	switch refusal.Code {
	case protocol.CodeAuthRequired:
		code = 4401
	case protocol.CodeAuthInvalidSignature:
		code = 4403
	case protocol.CodeUnsupportedVersion:
		code = 4406
	case protocol.CodeAuthStaleSession:
		code = 4409
	case protocol.CodeRateLimited:
		code = 4429
	case protocol.CodeInternalError:
		code = closeInternal
	}
	return refusal.AsFatal(code)
}

// errorFrame is a ready-made ERROR frame.
func (c *conn) errorFrame(refusal *protocol.Error) []byte {
	b, err := protocol.AppendFrame(nil, &protocol.ErrorFrame{FrameID: mint(c.server.Now()), Error: refusal.At(c.server.Now())})
	if err != nil {
		c.server.Log.Error("ERROR frame not encodable", "code", string(refusal.Code), "err", err)
		return nil
	}
	return text(b)
}

// send queues an answer; false ends the processor.
func (c *conn) send(frame protocol.Frame) bool {
	b, err := protocol.AppendFrame(nil, frame)
	if err != nil {
		c.server.Log.Error("frame not encodable", "type", string(frame.Type()), "err", err)
		c.end(fatal(protocol.Internal(err)))
		return false
	}
	return c.out.answer(c.ctx, reply{frame: text(b)}) == nil
}

func (c *conn) refuse(refusal *protocol.Error) bool {
	return c.out.answer(c.ctx, reply{frame: c.errorFrame(refusal)}) == nil
}

// write is the one goroutine that writes. What depends on time alone, it is woken
// for.
func (c *conn) write() {
	told := sync.OnceFunc(func() { close(c.told) })
	defer told()
	for {
		if refusal := c.overdue(); refusal != nil {
			c.end(refusal)
		}
		more, ended := c.flush(told)
		switch {
		case ended:
			return
		case more:
			continue
		}
		select {
		case <-c.out.wake:
		case <-c.ctx.Done():
			return
		}
	}
}

// batches are shared by the writers of all connections: an idle connection needs
// none.
var batches = sync.Pool{New: func() any { return &batch{} }}

// flush writes what waits, at most one batch. more tells that there was
// something, ended that nothing comes after it.
func (c *conn) flush(told func()) (more, ended bool) {
	b := batches.Get().(*batch) //nolint:forcetypeassert // the pool has nothing else
	defer func() {
		b.reset()
		batches.Put(b)
	}()
	if !c.out.take(b) {
		return false, false
	}
	if b.final != nil {
		close(c.closing)
		if b.final.frame != nil {
			b.add(b.final.frame)
		}
		b.add(closeFrame(b.final))
	}
	// The batch's slice is used up by the write and must stay the batch's.
	frames := b.frames
	if err := c.wire.write(frames, c.server.Timing.Write); err != nil {
		c.cancel()
		return false, true
	}
	c.server.metrics.delivered.Add(float64(b.events))
	c.out.written(b)
	if b.final == nil {
		return true, false
	}
	told()
	c.part()
	return false, true
}

// part waits until the client has agreed to the end, for a while: what was just
// written would be lost if the connection were cut with bytes of the client's
// unread.
func (c *conn) part() {
	defer c.cancel()
	limit := time.NewTimer(closeWait)
	defer limit.Stop()
	select {
	case <-c.left:
	case <-c.ctx.Done():
	case <-limit.C:
	}
}

// heard is when the client was last heard of.
func (c *conn) heard() time.Time { return time.Unix(0, c.lastFrame.Load()) }

func (c *conn) silent(now time.Time) bool { return now.Sub(c.heard()) > c.server.Timing.Idle }

func (c *conn) expired(now time.Time) bool { return !now.Before(c.identity().ExpiresAt) }

// overdue tells why the connection has to end now, nil as a rule.
func (c *conn) overdue() *protocol.Error {
	id := c.identity()
	if id.SessionEpoch == 0 {
		return nil
	}
	now := c.server.Now()
	if c.silent(now) {
		return protocol.NewError(protocol.CodeAuthRequired, "silent").AsFatal(4408)
	}
	if now.Before(id.ExpiresAt) {
		return nil
	}
	// Another token of the session may live longer (COMMANDS.md 8.3).
	ctx, cancel := context.WithTimeout(c.ctx, 5*time.Second)
	defer cancel()
	current, ok, err := c.server.Sessions.Current(ctx, id.Principal.ID)
	if err == nil && ok && current.Epoch == id.SessionEpoch && now.Before(current.ExpiresAt) {
		c.mu.Lock()
		c.id.ExpiresAt = current.ExpiresAt
		c.mu.Unlock()
		c.server.extended.Store(true)
		return nil
	}
	return fatal(protocol.NewError(protocol.CodeAuthRequired, "expired"))
}

// ping is a ready-made PING frame; replyTo is empty in one of the server's own.
func (s *Server) ping(replyTo string) []byte {
	now := s.Now()
	b, err := protocol.AppendFrame(nil, &protocol.Ping{
		FrameID: mint(now), Nonce: nonce(), ReplyToNonce: replyTo, SentAt: lexical.FormatMicros(now),
	})
	if err != nil {
		s.Log.Error("PING frame not encodable", "err", err)
	}
	return text(b)
}
