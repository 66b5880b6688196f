package bench

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
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
	Buffer int    `json:"buffer,omitempty"`
}

// answer is the line that comes back.
type answer struct {
	Error      string `json:"error,omitempty"`
	FrameBytes int    `json:"frameBytes,omitempty"`
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
		if err != nil {
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
					conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", o.URL)
					all[i], errs[w] = newSubscriber(conn, nil, o.Buffer), err
					continue
				}
				if all[i], errs[w] = dialSubscriber(ctx, o.URL, o.From+i, o.Buffer); errs[w] == nil {
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
		for {
			s.mu.Lock()
			got, ended, size := s.events, s.err, s.size
			s.wanted = frames
			s.mu.Unlock()
			if got >= frames {
				a.FrameBytes = size
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
	in   *bufio.Reader
	from int64 // the sequence it subscribed after

	mu      sync.Mutex
	events  int64
	wanted  int64
	size    int
	err     error
	reached chan struct{}
}

func newSubscriber(conn net.Conn, in *bufio.Reader, buffer int) *subscriber {
	s := &subscriber{conn: conn, reached: make(chan struct{}, 1)}
	var from io.Reader = conn
	if in != nil && in.Buffered() > 0 {
		from = io.MultiReader(io.LimitReader(in, int64(in.Buffered())), conn)
	}
	s.in = bufio.NewReaderSize(from, buffer)
	return s
}

// dialSubscriber connects and logs in as the i-th Agent.
func dialSubscriber(ctx context.Context, url string, i, buffer int) (*subscriber, error) {
	conn, in, _, err := ws.Dialer{}.Dial(ctx, url)
	if err != nil {
		return nil, err
	}
	s := newSubscriber(conn, in, buffer)
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

func (s *subscriber) read() (protocol.Frame, error) {
	h, err := ws.ReadHeader(s.in)
	if err != nil {
		return nil, err
	}
	b := make([]byte, h.Length)
	if _, err := io.ReadFull(s.in, b); err != nil {
		return nil, err
	}
	if h.OpCode != ws.OpText {
		return nil, fmt.Errorf("the server closed: %s", bytes.TrimLeft(b, "\x00\x03\x0f\x10\x11"))
	}
	frame, refusal := protocol.ParseFrame(b)
	if refusal != nil {
		return nil, refusal
	}
	return frame, nil
}

func (s *subscriber) follow() {
	err := s.await(1<<62, nil)
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

// checkEvery is how often the sequence of an Event is compared with the number of
// Events: a loss or a repetition shows at the next of them.
const checkEvery = 16

// await reads until it has n Events.
func (s *subscriber) await(n int64, buffer []byte) error {
	header := make([]byte, ws.MaxHeaderSize)
	for s.events < n {
		h, err := ws.ReadHeaderBuffer(s.in, header)
		if err != nil {
			return err
		}
		var b []byte
		whole := int(h.Length) <= s.in.Size()
		if whole {
			b, err = s.in.Peek(int(h.Length))
		} else {
			if cap(buffer) < int(h.Length) {
				buffer = make([]byte, h.Length)
			}
			b = buffer[:h.Length]
			_, err = io.ReadFull(s.in, b)
		}
		if err != nil {
			return err
		}
		if h.OpCode == ws.OpClose {
			return errors.New("the server closed")
		}
		if err := s.got(b); err != nil {
			return err
		}
		if whole {
			if _, err := s.in.Discard(len(b)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *subscriber) got(b []byte) error {
	if !bytes.HasPrefix(b, eventStart) {
		if bytes.Contains(b, pingType) {
			return s.send(&protocol.Ping{FrameID: mint(), Nonce: nonce(), ReplyToNonce: nonce(), SentAt: now()})
		}
		return nil
	}
	s.mu.Lock()
	s.events++
	count, done := s.events, s.events == s.wanted
	s.size = len(b)
	s.mu.Unlock()
	if done {
		s.wake()
	}
	if s.from == 0 || count%checkEvery != 0 {
		return nil
	}
	at := bytes.LastIndex(b, sequenceOf)
	if at < 0 {
		return errors.New("an Event without sequence")
	}
	digits := b[at+len(sequenceOf):]
	end := bytes.IndexAny(digits, ",}")
	sequence, err := strconv.ParseInt(string(digits[:max(end, 0)]), 10, 64)
	if err != nil || sequence != s.from+count {
		return fmt.Errorf("got Event %d as number %d after %d", sequence, count, s.from)
	}
	return nil
}

func (s *subscriber) close() { _ = s.conn.Close() }

// bareFrame is a frame of the given payload size that counts as an Event.
func bareFrame(size int) []byte {
	payload := append([]byte(nil), eventStart...)
	payload = append(payload, bytes.Repeat([]byte{'x'}, max(0, size-len(payload)))...)
	return ws.MustCompileFrame(ws.NewTextFrame(payload))
}
