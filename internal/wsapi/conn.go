package wsapi

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"
	"golang.org/x/time/rate"

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
	ws     *websocket.Conn
	ctx    context.Context //nolint:containedctx // the connection's life
	cancel context.CancelFunc
	peer   string
	out    *outbox
	frames chan []byte
	// closing is closed when the final frame is about to go out: what the client
	// still sends is read past. told is closed when it is out, or the connection is
	// gone.
	closing, told chan struct{}
	// lastFrame is when the client was last heard of, in Unix nanoseconds.
	lastFrame atomic.Int64

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

func newConn(ctx context.Context, cancel context.CancelFunc, s *Server, ws *websocket.Conn, peer string) *conn {
	c := &conn{
		server: s, ws: ws, ctx: ctx, cancel: cancel, peer: peer, out: newOutbox(),
		frames: make(chan []byte, inboundFrames), closing: make(chan struct{}), told: make(chan struct{}),
		own: newRecentActions(), subs: map[string]*subscription{},
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
	_ = c.ws.CloseNow()
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

// read hands frames to the processor until the connection breaks.
func (c *conn) read() {
	defer close(c.frames)
	for {
		kind, b, err := c.ws.Read(c.ctx)
		if err != nil {
			// A frame past the limit was answered with 1009 by the library.
			c.out.finish(&final{code: websocket.StatusNormalClosure}, false)
			return
		}
		switch {
		case kind != websocket.MessageText:
			c.out.finish(&final{code: websocket.StatusUnsupportedData, reason: "frames are text"}, false)
			return
		case !utf8.Valid(b):
			c.out.finish(&final{code: websocket.StatusInvalidFramePayloadData, reason: "not UTF-8"}, false)
			return
		}
		c.lastFrame.Store(c.server.Now().UnixNano())
		select {
		case c.frames <- b:
		case <-c.ctx.Done():
			return
		case <-c.closing:
		}
	}
}

// process handles frames in order until the connection ends or the server
// drains.
func (c *conn) process() {
	if !c.handshake() {
		return
	}
	defer c.server.Connections.remove(c)
	for {
		select {
		case b, ok := <-c.frames:
			if !ok || !c.handle(b) {
				return
			}
			continue
		default:
		}
		select {
		case b, ok := <-c.frames:
			if !ok || !c.handle(b) {
				return
			}
		case <-c.told:
			return
		case <-c.server.draining:
			c.goAway()
			return
		}
	}
}

// goAway ends a connection of a draining server, after what is owed to it.
func (c *conn) goAway() {
	ctx, cancel := context.WithTimeout(c.ctx, c.server.Timing.Flush)
	defer cancel()
	c.settle(ctx)
	c.out.finish(&final{code: websocket.StatusGoingAway, reason: "the server is draining"}, true)
	stop := context.AfterFunc(ctx, c.cancel)
	defer stop()
	<-c.told
}

// end ends the connection with a fatal error, or just a close code. Nothing that
// is queued is sent any more.
func (c *conn) end(refusal *protocol.Error) {
	if refusal == nil || refusal.Close == 0 {
		return
	}
	c.out.finish(&final{
		frame: c.errorFrame(refusal), code: websocket.StatusCode(refusal.Close), reason: string(refusal.Code),
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
		code = int(websocket.StatusInternalError)
	}
	return refusal.AsFatal(code)
}

func (c *conn) errorFrame(refusal *protocol.Error) []byte {
	b, err := protocol.AppendFrame(nil, &protocol.ErrorFrame{FrameID: mint(c.server.Now()), Error: refusal.At(c.server.Now())})
	if err != nil {
		c.server.Log.Error("ERROR frame not encodable", "code", string(refusal.Code), "err", err)
		return nil
	}
	return b
}

// send queues an answer; false ends the processor.
func (c *conn) send(frame protocol.Frame) bool {
	b, err := protocol.AppendFrame(nil, frame)
	if err != nil {
		c.server.Log.Error("frame not encodable", "type", string(frame.Type()), "err", err)
		c.end(fatal(protocol.Internal(err)))
		return false
	}
	return c.out.answer(c.ctx, b) == nil
}

func (c *conn) refuse(refusal *protocol.Error) bool {
	return c.out.answer(c.ctx, c.errorFrame(refusal)) == nil
}

// write is the one goroutine that writes. It also looks after what depends on
// time: PINGs, silence, and the end of the session.
func (c *conn) write() {
	told := sync.OnceFunc(func() { close(c.told) })
	defer told()
	lastPing := c.server.Now()
	due := time.NewTimer(c.server.Timing.Ping)
	defer due.Stop()
	var buffer []byte
	for {
		if refusal := c.overdue(); refusal != nil {
			c.end(refusal)
		}
		if now := c.server.Now(); now.Sub(lastPing) >= c.server.Timing.Ping {
			lastPing = now
			if c.identity().SessionEpoch > 0 {
				c.out.notice(c.ping(""))
			}
		}
		frame, it, last, ok := c.out.take()
		switch {
		case !ok:
			due.Reset(c.nextDue(lastPing))
			select {
			case <-c.out.wake:
			case <-c.ctx.Done():
				return
			case <-due.C:
			}
			continue
		case last != nil:
			close(c.closing)
			c.close(last, told)
			return
		case it.event != nil:
			buffer = appendEvent(buffer[:0], it.event)
			frame = buffer
		case it.lane != nil:
			frame = it.frame
		}
		if frame != nil && c.put(frame) != nil {
			c.cancel()
			return
		}
		if it.event != nil {
			c.server.metrics.delivered.Inc()
		}
		if it.lane != nil {
			c.out.written(it)
		}
		if cap(buffer) > maxKeptBuffer {
			buffer = nil
		}
	}
}

// maxKeptBuffer is the largest frame buffer that a connection keeps.
const maxKeptBuffer = 16 << 10

// nextDue is when time alone makes something due.
func (c *conn) nextDue(lastPing time.Time) time.Duration {
	now := c.server.Now()
	next := lastPing.Add(c.server.Timing.Ping).Sub(now)
	if id := c.identity(); id.SessionEpoch > 0 {
		next = min(next, id.ExpiresAt.Sub(now), time.Unix(0, c.lastFrame.Load()).Add(c.server.Timing.Idle).Sub(now))
	}
	return max(next, time.Millisecond)
}

func (c *conn) put(frame []byte) error {
	ctx, cancel := context.WithTimeout(c.ctx, c.server.Timing.Write)
	defer cancel()
	return c.ws.Write(ctx, websocket.MessageText, frame) //nolint:wrapcheck // ends the connection
}

// close says the last thing. The client gets the library's 5 s to answer the
// close frame.
func (c *conn) close(last *final, told func()) {
	defer c.cancel()
	if last.frame != nil && c.put(last.frame) != nil {
		return
	}
	told()
	_ = c.ws.Close(last.code, last.reason)
}

// overdue tells why the connection has to end now, nil as a rule.
func (c *conn) overdue() *protocol.Error {
	id := c.identity()
	if id.SessionEpoch == 0 {
		return nil
	}
	now := c.server.Now()
	if silent := now.Sub(time.Unix(0, c.lastFrame.Load())); silent > c.server.Timing.Idle {
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
		return nil
	}
	return fatal(protocol.NewError(protocol.CodeAuthRequired, "expired"))
}

// ping is a PING frame; replyTo is empty in one of the server's own.
func (c *conn) ping(replyTo string) []byte {
	now := c.server.Now()
	b, err := protocol.AppendFrame(nil, &protocol.Ping{
		FrameID: mint(now), Nonce: nonce(), ReplyToNonce: replyTo, SentAt: lexical.FormatMicros(now),
	})
	if err != nil {
		c.server.Log.Error("PING frame not encodable", "err", err)
	}
	return b
}
