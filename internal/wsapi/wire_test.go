package wsapi

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gobwas/ws"
)

// script is a connection that gives what it was made with and then ends.
type script struct{ *bytes.Reader }

func (script) Write(b []byte) (int, error)        { return len(b), nil }
func (script) Close() error                       { return nil }
func (script) LocalAddr() net.Addr                { return nil }
func (script) RemoteAddr() net.Addr               { return nil }
func (script) SetDeadline(time.Time) error        { return nil }
func (script) SetReadDeadline(time.Time) error    { return nil }
func (script) SetWriteDeadline(t time.Time) error { return nil }

func masked(fin bool, op ws.OpCode, payload string) []byte {
	f := ws.NewFrame(op, fin, []byte(payload))
	return ws.MustCompileFrame(ws.MaskFrameWith(f, [4]byte{1, 2, 3, 4}))
}

func TestMessagesComeWholeWhateverTheirFragments(t *testing.T) {
	in := bytes.Join([][]byte{
		masked(false, ws.OpText, "ab"), masked(true, ws.OpPing, "p"), masked(false, ws.OpContinuation, ""),
		masked(true, ws.OpContinuation, "cd"), masked(true, ws.OpText, ""), masked(true, ws.OpPong, "x"), masked(true, ws.OpText, "e"),
	}, nil)
	w := newWire(script{bytes.NewReader(in[3:])}, in[:3], 4)
	pongs := 0
	for _, want := range []string{"abcd", "", "e"} {
		if got, err := w.read(func([]byte) { pongs++ }); err != nil || string(got) != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
	}
	if _, err := w.read(nil); !errors.Is(err, io.EOF) || pongs != 1 {
		t.Errorf("at the end: %v, %d pongs", err, pongs)
	}
}

func TestMessageLimitCountsAllFragments(t *testing.T) {
	in := append(masked(false, ws.OpText, "abc"), masked(true, ws.OpContinuation, "de")...)
	_, err := newWire(script{bytes.NewReader(in)}, nil, 4).read(nil)
	if fault, ok := errors.AsType[*broken](err); !ok || fault.code != closeTooBig {
		t.Errorf("got %v", err)
	}
}

// Whatever bytes come, a message is text within the limit or the connection ends.
func FuzzWire(f *testing.F) {
	f.Add(masked(true, ws.OpText, `{"a":1}`))
	f.Add(append(masked(false, ws.OpText, "x"), masked(true, ws.OpContinuation, "y")...))
	f.Add(masked(true, ws.OpClose, "\x03\xe8bye"))
	f.Add([]byte{0x81, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4})
	f.Fuzz(func(t *testing.T, in []byte) {
		const limit = 1 << 10
		w := newWire(script{bytes.NewReader(in)}, nil, limit)
		for range len(in) + 1 {
			got, err := w.read(func(pong []byte) {
				if len(pong) > 2+ws.MaxControlFramePayloadSize {
					t.Errorf("a pong of %d bytes", len(pong))
				}
			})
			if err != nil {
				if last := closeFrame(endOf(err)); len(last) > 2+ws.MaxControlFramePayloadSize {
					t.Errorf("a close frame of %d bytes", len(last))
				}
				return
			}
			if len(got) > limit || !utf8.Valid(got) {
				t.Errorf("message %q", got)
			}
		}
		t.Error("more messages than bytes")
	})
}
