package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/gobwas/ws"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/transcript"
)

// The subscribers run in a process of their own, so that what the server's
// process uses is the server's. They are told what to do by lines of JSON.

// order is one line to them.
type order struct {
	Do     string `json:"do"` // subscribe, connect, await, close
	URL    string `json:"url,omitempty"`
	Group  string `json:"group,omitempty"`
	From   int    `json:"from,omitempty"`
	N      int    `json:"n,omitempty"`
	After  int64  `json:"after,omitempty"`
	Frames int64  `json:"frames,omitempty"`
}

// answer is the line that comes back.
type answer struct {
	Error      string `json:"error,omitempty"`
	FrameBytes int    `json:"frameBytes,omitempty"`
	// CPU is the processor time that the process has used so far, in microseconds.
	CPU int64 `json:"cpu"`
}

// subscribers is the process.
type subscribers struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func startSubscribers(program []string) (*subscribers, error) {
	cmd := exec.Command(program[0], program[1:]...) //nolint:gosec,noctx // our own program; ended by end
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return &subscribers{cmd, in, bufio.NewScanner(out)}, cmd.Start()
}

func (s *subscribers) ask(o order) (a answer, err error) {
	line, err := json.Marshal(o)
	if err != nil {
		return a, err
	}
	if _, err := s.in.Write(append(line, '\n')); err != nil {
		return a, err
	}
	if !s.out.Scan() {
		return a, fmt.Errorf("the subscribers' process has ended: %w", errors.Join(s.out.Err(), io.ErrUnexpectedEOF))
	}
	if err := json.Unmarshal(s.out.Bytes(), &a); err != nil {
		return a, err
	}
	if a.Error != "" {
		return a, errors.New(a.Error)
	}
	return a, nil
}

func (s *subscribers) end() error {
	_ = s.in.Close()
	return s.cmd.Wait()
}

// RunSubscribers does what the lines on in say until in ends.
func RunSubscribers(ctx context.Context, in io.Reader, out io.Writer) error {
	var all []*subscriber
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return err
		}
		var a answer
		var err error
		switch o.Do {
		case "subscribe", "connect":
			all, err = dialAll(ctx, o)
		case "await":
			a, err = awaitAll(all, o.Frames)
		case "close":
			for _, s := range all {
				s.close()
			}
			all = nil
		}
		if a.CPU = selfCPU().Microseconds(); err != nil {
			a.Error = err.Error()
		}
		line, err := json.Marshal(a)
		if err != nil {
			return err
		}
		if _, err := out.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	return lines.Err()
}

func dialAll(ctx context.Context, o order) ([]*subscriber, error) {
	all := make([]*subscriber, o.N)
	errs := make([]error, 16)
	var wg sync.WaitGroup
	for w := range errs {
		wg.Go(func() {
			for i := w; i < len(all) && errs[w] == nil; i += len(errs) {
				if o.Do == "connect" {
					var conn net.Conn
					if conn, errs[w] = (&net.Dialer{}).DialContext(ctx, "tcp", o.URL); errs[w] == nil {
						all[i], errs[w] = newSubscriber(conn, nil)
					}
					continue
				}
				if all[i], errs[w] = dialSubscriber(ctx, o.URL, o.From+i); errs[w] == nil {
					errs[w] = all[i].subscribe(o.Group, o.After)
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	for _, s := range all {
		go s.follow()
	}
	return all, nil
}

func awaitAll(all []*subscriber, frames int64) (a answer, err error) {
	for _, s := range all {
		s.wanted.Store(frames)
	}
	for _, s := range all {
		for {
			s.mu.Lock()
			ended := s.err
			s.mu.Unlock()
			got := s.events.Load()
			if got >= frames {
				a.FrameBytes = s.size
				break
			}
			if ended != nil {
				return a, fmt.Errorf("a subscriber got %d of %d Events: %w", got, frames, ended)
			}
			select {
			case <-s.reached:
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return a, nil
}

// subscriber is one connection that counts what it gets.
type subscriber struct {
	conn net.Conn
	raw  syscall.RawConn
	// kept is what was read of a frame that is not whole yet.
	kept []byte
	from int64 // the sequence it subscribed after
	at   int   // where the sequence was in the last Event's frame

	events  atomic.Int64
	wanted  atomic.Int64
	size    int
	mu      sync.Mutex
	err     error
	reached chan struct{}
}

func newSubscriber(conn net.Conn, in *bufio.Reader) (*subscriber, error) {
	s := &subscriber{conn: conn, reached: make(chan struct{}, 1)}
	if in != nil && in.Buffered() > 0 {
		b, err := in.Peek(in.Buffered())
		if err != nil {
			return nil, err
		}
		s.kept = append(s.kept, b...)
	}
	plain, ok := conn.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("a %T cannot be read directly", conn)
	}
	var err error
	s.raw, err = plain.SyscallConn()
	return s, err
}

// dialSubscriber connects and logs in as the i-th Agent.
func dialSubscriber(ctx context.Context, url string, i int) (*subscriber, error) {
	conn, in, _, err := ws.Dialer{}.Dial(ctx, url)
	if err != nil {
		return nil, err
	}
	s, err := newSubscriber(conn, in)
	if err != nil {
		return nil, err
	}
	k, err := signer(protocol.ActorAgent, subscriberName(i))
	if err != nil {
		return nil, err
	}
	own := nonce()
	if err := s.send(&protocol.HelloClientInit{
		FrameID: mint(), AgentID: k.Principal.ID, KeyID: k.KeyID, ClientNonce: own, SupportedVersions: []string{protocol.Version},
	}); err != nil {
		return nil, err
	}
	frame, err := s.read()
	if err != nil {
		return nil, err
	}
	challenge, ok := frame.(*protocol.HelloServerChallenge)
	if !ok {
		return nil, fmt.Errorf("step 2 of HELLO is %s", frame.Type())
	}
	signing, err := transcript.Check(transcript.Session, challenge.Challenge, k.Principal, k.KeyID, own)
	if err != nil {
		return nil, err
	}
	if err := s.send(&protocol.HelloClientResponse{
		FrameID: mint(), AgentID: k.Principal.ID, KeyID: k.KeyID, ClientNonce: own, ServerNonce: challenge.ServerNonce,
		ChallengeSignature: lexical.EncodeBase64URL(ed25519.Sign(k.Private, signing)),
	}); err != nil {
		return nil, err
	}
	if frame, err = s.read(); err != nil {
		return nil, err
	}
	if _, ok := frame.(*protocol.HelloServerAccept); !ok {
		return nil, fmt.Errorf("step 4 of HELLO is %s", frame.Type())
	}
	return s, nil
}

// subscribe follows a Group and returns when the server has taken it.
func (s *subscriber) subscribe(group string, after int64) error {
	s.from = after
	if err := s.send(&protocol.Subscribe{
		FrameID: mint(), SubscriptionID: mint(), Groups: []protocol.Subscription{{GroupID: group, AfterSequence: after}},
	}); err != nil {
		return err
	}
	if err := s.send(&protocol.Ping{FrameID: mint(), Nonce: nonce(), SentAt: now()}); err != nil {
		return err
	}
	for {
		frame, err := s.read()
		if err != nil {
			return err
		}
		switch f := frame.(type) {
		case *protocol.ErrorFrame:
			return f.Error
		case *protocol.Ping:
			if f.ReplyToNonce != "" {
				return nil
			}
		}
	}
}

func (s *subscriber) send(frame protocol.Frame) error {
	b, err := protocol.AppendFrame(nil, frame)
	if err != nil {
		return err
	}
	return ws.WriteFrame(s.conn, ws.MaskFrameInPlace(ws.NewTextFrame(b)))
}

// read takes one frame, for the handshake.
func (s *subscriber) read() (frame protocol.Frame, err error) {
	err = s.each(func(op ws.OpCode, b []byte) (bool, error) {
		if op != ws.OpText {
			return true, fmt.Errorf("the server closed: %s", bytes.TrimLeft(b, "\x00\x03\x0f\x10\x11"))
		}
		var refusal *protocol.Error
		if frame, refusal = protocol.ParseFrame(b); refusal != nil {
			return true, refusal
		}
		return true, nil
	})
	return frame, err
}

// buffers are shared: one that many connections take in turn stays in the
// processor's cache, and a connection that waits holds none.
var buffers = sync.Pool{New: func() any { return new([256 << 10]byte) }}

// each calls f with every frame, in the buffer it was read into, until f has had
// enough. What follows stays for the next call.
func (s *subscriber) each(f func(op ws.OpCode, payload []byte) (enough bool, err error)) error {
	if enough, err := s.frames(s.kept, f); err != nil || enough {
		return err
	}
	for {
		enough := false
		var failed error
		err := s.raw.Read(func(fd uintptr) bool {
			buffer := buffers.Get().(*[256 << 10]byte) //nolint:forcetypeassert // the pool has nothing else
			defer buffers.Put(buffer)
			kept := copy(buffer[:], s.kept)
			n, err := syscall.Read(int(fd), buffer[kept:]) //nolint:gosec // a descriptor
			switch {
			case errors.Is(err, syscall.EAGAIN):
				return false
			case errors.Is(err, syscall.EINTR):
			case err != nil:
				failed = err
			case n == 0:
				failed = io.EOF
			default:
				enough, failed = s.frames(buffer[:kept+n], f)
			}
			return true
		})
		if err := errors.Join(err, failed); err != nil || enough {
			return err
		}
	}
}

// frames takes the whole frames out of b and keeps the rest. Frames of a server
// are not masked, and this one's are whole.
func (s *subscriber) frames(b []byte, f func(ws.OpCode, []byte) (bool, error)) (enough bool, err error) {
	for err == nil && !enough && len(b) >= 2 {
		head, length := 2, int(b[1])
		switch {
		case length == 126 && len(b) >= 4:
			head, length = 4, int(binary.BigEndian.Uint16(b[2:]))
		case length == 127 && len(b) >= 10:
			head, length = 10, int(binary.BigEndian.Uint64(b[2:])) //nolint:gosec // checked below
		case length >= 126:
			head = len(b) + 1 // the length is not there yet
		}
		if length < 0 || length > 128<<10 {
			return false, fmt.Errorf("a frame of %d bytes", length)
		}
		if len(b) < head+length {
			break
		}
		enough, err = f(ws.OpCode(b[0]&0x0f), b[head:head+length])
		b = b[head+length:]
	}
	s.kept = append(s.kept[:0], b...)
	return enough, err
}

func (s *subscriber) follow() {
	err := s.await(1 << 62)
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
	s.wake()
}

func (s *subscriber) wake() {
	select {
	case s.reached <- struct{}{}:
	default:
	}
}

var (
	eventStart = []byte(`{"event":`)
	sequenceOf = []byte(`"sequence":`)
	pingType   = []byte(`"frameType":"PING"`)
)

// await reads until it has n Events.
func (s *subscriber) await(n int64) error {
	return s.each(func(op ws.OpCode, b []byte) (bool, error) {
		if op == ws.OpClose {
			return true, errors.New("the server closed")
		}
		err := s.got(b)
		return s.events.Load() >= n, err
	})
}

func (s *subscriber) got(b []byte) error {
	if !bytes.HasPrefix(b, eventStart) {
		if bytes.Contains(b, pingType) {
			return s.send(&protocol.Ping{FrameID: mint(), Nonce: nonce(), ReplyToNonce: nonce(), SentAt: now()})
		}
		return nil
	}
	s.size = len(b)
	count := s.events.Load() + 1
	if err := s.inOrder(b, count); err != nil {
		return err
	}
	s.events.Store(count)
	if count == s.wanted.Load() {
		s.wake()
	}
	return nil
}

// inOrder compares the sequence of an Event with the number of Events.
func (s *subscriber) inOrder(b []byte, count int64) error {
	if s.at+len(sequenceOf) > len(b) || !bytes.Equal(b[s.at:s.at+len(sequenceOf)], sequenceOf) {
		if s.at = bytes.LastIndex(b, sequenceOf); s.at < 0 {
			return errors.New("an Event without sequence")
		}
	}
	var sequence int64
	for _, digit := range b[s.at+len(sequenceOf):] {
		if digit < '0' || digit > '9' {
			break
		}
		sequence = sequence*10 + int64(digit-'0')
	}
	if sequence != s.from+count {
		return fmt.Errorf("got Event %d as number %d after %d", sequence, count, s.from)
	}
	return nil
}

func (s *subscriber) close() { _ = s.conn.Close() }

// bareFrames are n consecutive frames of the given payload size that count as
// Events.
func bareFrames(n, size int) [][]byte {
	out := make([][]byte, n)
	for i := range out {
		tail := fmt.Sprintf(`%s%d}`, sequenceOf, i+1)
		payload := append([]byte(nil), eventStart...)
		payload = append(payload, bytes.Repeat([]byte{'x'}, max(0, size-len(payload)-len(tail)))...)
		out[i] = ws.MustCompileFrame(ws.NewTextFrame(append(payload, tail...)))
	}
	return out
}
