package wsapi

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"time"
	"unicode/utf8"

	"github.com/gobwas/ws"
)

// Close codes of the WebSocket layer and of COMMANDS.md 8.12.
const (
	closeNormal      = 1000
	closeGoingAway   = 1001
	closeProtocol    = 1002
	closeUnsupported = 1003
	closeInvalidUTF8 = 1007
	closeTooBig      = 1009
	closeInternal    = 1011
)

const (
	// readBuffer is small because an idle connection keeps it.
	readBuffer = 512
	// trusted is how much memory an announced length gets before its bytes come.
	trusted = 16 << 10
	// closeWait is how long a client may take to agree to the end.
	closeWait = 5 * time.Second
)

// wire is the WebSocket layer of one connection (RFC 6455), without extensions.
// One goroutine reads and one writes.
type wire struct {
	net   net.Conn
	in    *bufio.Reader
	limit int64
	// scratch is for headers.
	scratch [ws.MaxHeaderSize]byte
	// unread is what is left of the frame that broke the connection.
	unread int64
	// ignore tells, when set, which short messages are read past. It must not keep
	// or change them.
	ignore func(message []byte) bool
	// until is the deadline of writes.
	until time.Time
	// record gathers frames for connections that take one buffer at a time (TLS).
	record []byte
}

// broken is a message that ends the connection with a close code.
type broken struct {
	code   int
	reason string
}

func (b *broken) Error() string { return b.reason }

// goodbye is the client's close frame.
type goodbye struct{ code int }

func (*goodbye) Error() string { return "closed by the client" }

func newWire(conn net.Conn, early []byte, limit int64) *wire {
	var in io.Reader = conn
	if len(early) > 0 {
		in = io.MultiReader(bytes.NewReader(early), conn)
	}
	return &wire{net: conn, in: bufio.NewReaderSize(in, readBuffer), limit: limit}
}

// read returns the next text message. ponged is called with the answer to a
// ping. Errors: *broken, *goodbye, or the connection's.
func (w *wire) read(ponged func(frame []byte)) ([]byte, error) {
	var message []byte
	state := ws.StateServerSide
	for {
		h, err := ws.ReadHeaderBuffer(w.in, w.scratch[:])
		switch {
		case errors.Is(err, ws.ErrHeaderLengthMSB), errors.Is(err, ws.ErrHeaderLengthUnexpected):
			return nil, &broken{closeProtocol, "frame length"}
		case err != nil:
			return nil, err //nolint:wrapcheck // the connection is gone
		}
		if err := ws.CheckHeader(h, state); err != nil {
			return nil, &broken{closeProtocol, err.Error()}
		}
		switch {
		case h.OpCode == ws.OpBinary:
			w.unread = h.Length
			return nil, &broken{closeUnsupported, "frames are text"}
		case h.OpCode.IsData() || h.OpCode == ws.OpContinuation:
			if h.Length > w.limit-int64(len(message)) {
				w.unread = h.Length
				return nil, &broken{closeTooBig, "message too big"}
			}
			if h.Fin && h.OpCode == ws.OpText && w.pass(h) {
				continue
			}
			if message, err = w.payload(message, h); err != nil {
				return nil, err
			}
			if !h.Fin {
				state = state.Set(ws.StateFragmented)
				continue
			}
			if !utf8.Valid(message) {
				return nil, &broken{closeInvalidUTF8, "not UTF-8"}
			}
			return message, nil
		}
		payload, err := w.payload(nil, h)
		if err != nil {
			return nil, err
		}
		switch h.OpCode {
		case ws.OpPing:
			ponged(frame(ws.OpPong, payload))
		case ws.OpClose:
			return nil, closed(payload)
		}
	}
}

// pass reads past a message that is to be ignored, without a copy of it.
func (w *wire) pass(h ws.Header) bool {
	if w.ignore == nil || h.Length > readBuffer {
		return false
	}
	b, err := w.in.Peek(int(h.Length))
	if err != nil {
		return false // it shows again
	}
	ws.Cipher(b, h.Mask, 0)
	if !w.ignore(b) {
		ws.Cipher(b, h.Mask, 0)
		return false
	}
	_, _ = w.in.Discard(len(b))
	return true
}

// skip reads past what a client still sends after its connection was broken,
// until it agrees to the end or closeWait is over. Closing a connection with
// bytes unread would take back the close frame.
func (w *wire) skip(fault *broken) {
	_ = w.net.SetReadDeadline(time.Now().Add(closeWait))
	if fault.code == closeProtocol { // what follows is not made of frames
		_, _ = io.Copy(io.Discard, w.in)
		return
	}
	for {
		if _, err := io.CopyN(io.Discard, w.in, w.unread); err != nil {
			return
		}
		h, err := ws.ReadHeaderBuffer(w.in, w.scratch[:])
		if err != nil || h.OpCode == ws.OpClose {
			return
		}
		w.unread = h.Length
	}
}

// payload appends a frame's payload. Memory grows with the bytes that come, not
// with the length that is announced.
func (w *wire) payload(to []byte, h ws.Header) ([]byte, error) {
	offset := 0
	for left := int(h.Length); left > 0; {
		n := min(left, max(trusted, len(to)))
		start := len(to)
		if free := cap(to) - start; free < n {
			grown := make([]byte, start, start+n)
			copy(grown, to)
			to = grown
		}
		to = to[:start+n]
		if _, err := io.ReadFull(w.in, to[start:]); err != nil {
			return nil, err //nolint:wrapcheck // the connection is gone
		}
		if h.Masked {
			ws.Cipher(to[start:], h.Mask, offset)
		}
		offset += n
		left -= n
	}
	return to, nil
}

func closed(payload []byte) error {
	if len(payload) == 0 {
		return &goodbye{}
	}
	code, reason := ws.ParseCloseFrameData(payload)
	if len(payload) == 1 || ws.CheckCloseFrameData(code, reason) != nil {
		return &broken{closeProtocol, "close frame"}
	}
	return &goodbye{int(code)}
}

// frame makes a frame of the server's: unmasked, whole.
func frame(op ws.OpCode, payload []byte) []byte {
	h := ws.Header{Fin: true, OpCode: op, Length: int64(len(payload))}
	out := bytes.NewBuffer(make([]byte, 0, ws.HeaderSize(h)+len(payload)))
	_ = ws.WriteHeader(out, h)
	out.Write(payload)
	return out.Bytes()
}

func text(payload []byte) []byte { return frame(ws.OpText, payload) }

// closeFrame is the close frame of a final.
func closeFrame(f *final) []byte {
	if f.echo {
		return frame(ws.OpClose, nil)
	}
	reason := f.reason
	if len(reason) > ws.MaxControlFramePayloadSize-2 {
		reason = reason[:ws.MaxControlFramePayloadSize-2]
	}
	return frame(ws.OpClose, ws.NewCloseFrameBody(ws.StatusCode(f.code), reason)) //nolint:gosec // close codes are small
}

// write sends ready-made frames, all of them with one system call where the
// connection can. It takes as long as within at most, and half of it at least: to
// move the deadline costs as much as a small write. It overwrites frames.
func (w *wire) write(frames [][]byte, within time.Duration) error {
	if len(frames) == 0 {
		return nil
	}
	if now := time.Now(); w.until.Sub(now) < within/2 {
		w.until = now.Add(within)
		if err := w.net.SetWriteDeadline(w.until); err != nil {
			return err //nolint:wrapcheck // the connection is gone
		}
	}
	if len(frames) == 1 {
		_, err := w.net.Write(frames[0])
		return err //nolint:wrapcheck // the connection is gone
	}
	if tcp, ok := w.net.(*net.TCPConn); ok {
		buffers := net.Buffers(frames)
		_, err := buffers.WriteTo(tcp)
		return err //nolint:wrapcheck // the connection is gone
	}
	for len(frames) > 0 {
		w.record = w.record[:0]
		for len(frames) > 0 && (len(w.record) == 0 || len(w.record)+len(frames[0]) <= trusted) {
			w.record = append(w.record, frames[0]...)
			frames = frames[1:]
		}
		if _, err := w.net.Write(w.record); err != nil {
			return err //nolint:wrapcheck // the connection is gone
		}
	}
	if cap(w.record) > trusted {
		w.record = nil
	}
	return nil
}
