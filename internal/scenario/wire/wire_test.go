package wire

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// patience is never waited for when a test passes.
const patience = 20 * time.Second

func event(sequence int, text string) string {
	return fmt.Sprintf(`{"frameType":"EVENT","event":{"groupId":"g","sequence":%d,"cause":{"id":"c%d"},"text":%q}}`, sequence, sequence, text)
}

// server sends what a test says when it has been told something, and remembers
// what it was told.
func server(t *testing.T, answer func(conn *websocket.Conn, told string)) *Wire {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		conn, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer func() { _ = conn.CloseNow() }()
		for {
			_, b, err := conn.Read(r.Context())
			if err != nil {
				return
			}
			answer(conn, string(b))
		}
	})
	mux.HandleFunc("/v1/commands", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
	mux.HandleFunc("/v1/groups/g/events/stream", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, "id: 1\ndata: {}\n\nid: 7\n\nid: 2\ndata: {}\n\nid: 2\ndata: {}\n\n")
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	w, err := Open(t.Context(), Options{AuthorityURL: s.URL, WebSocketURL: "ws" + strings.TrimPrefix(s.URL, "http") + "/ws"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

func dial(t *testing.T, w *Wire) (conn *websocket.Conn, read func() string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	conn, _, err := websocket.Dial(ctx, w.WebSocketURL(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	return conn, func() string {
		_, b, err := conn.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
}

func write(t *testing.T, conn *websocket.Conn, s string) {
	t.Helper()
	if err := conn.Write(t.Context(), websocket.MessageText, []byte(s)); err != nil {
		t.Fatal(err)
	}
}

func TestEventsAreHandedOnTwiceInTheSameBytesAndCounted(t *testing.T) {
	w := server(t, func(conn *websocket.Conn, _ string) {
		for _, e := range []string{event(1, "a"), event(2, "b"), event(2, "forged")} {
			_ = conn.Write(context.Background(), websocket.MessageText, []byte(e))
		}
	})
	w.Misbehave(Manners{Events: true})
	conn, read := dial(t, w)
	write(t, conn, `{"frameType":"PING"}`)
	for _, want := range []string{event(1, "a"), event(1, "a"), event(2, "b"), event(2, "b"), event(2, "forged")} {
		if got := read(); got != want {
			t.Fatalf("%s, want %s", got, want)
		}
	}
	read()
	c := w.Counts()
	if c.FromServer != 3 || c.Distinct != 2 || c.Altered != 1 || c.Resent != 0 || w.FromServer("g", 2) != 2 || w.FromServer("g", 3) != 0 {
		t.Errorf("%+v", c)
	}
}

func TestAResumeAsksForEventsAgainAndTheyAreCounted(t *testing.T) {
	w := server(t, func(conn *websocket.Conn, told string) {
		_ = conn.Write(context.Background(), websocket.MessageText, []byte(told))
		_ = conn.Write(context.Background(), websocket.MessageText, []byte(event(1, "a")))
	})
	w.Misbehave(Manners{Rewind: 3})
	subscribe := `{"frameType":"SUBSCRIBE","groups":[{"groupId":"g","afterSequence":5},{"groupId":"h","afterSequence":1}]}`
	conn, read := dial(t, w)
	write(t, conn, subscribe)
	if got := read(); got != subscribe {
		t.Errorf("the first connection was changed: %s", got)
	}
	read()
	w.Cut()
	if _, _, err := conn.Read(t.Context()); err == nil {
		t.Error("the connection was not cut")
	}
	conn, read = dial(t, w)
	write(t, conn, subscribe)
	if got := read(); !strings.Contains(got, `"afterSequence":2`) || !strings.Contains(got, `"afterSequence":0`) {
		t.Errorf("the resume asks %s", got)
	}
	read()
	if c := w.Counts(); c.Connections != 2 || c.Resent != 1 || c.Altered != 0 {
		t.Errorf("%+v", c)
	}
}

func TestCommandsAreSentTwiceUnchangedAndKnownAsAnswered(t *testing.T) {
	told := make(chan string, 4)
	w := server(t, func(conn *websocket.Conn, s string) {
		told <- s
		if len(told) == 2 {
			_ = conn.Write(context.Background(), websocket.MessageText, []byte(event(4, "x")))
		}
	})
	w.Misbehave(Manners{Commands: true})
	conn, read := dial(t, w)
	command := `{"command":{"actionId":"c4","z":1,"a":2},"frameType":"COMMAND"}`
	write(t, conn, command)
	read()
	if a, b := <-told, <-told; a != command || b != command {
		t.Errorf("%s and %s", a, b)
	}
	// The answer may be back before the wire knows that the second copy is out.
	for deadline := time.Now().Add(patience); w.Command("c4").Sent < 2 && time.Now().Before(deadline); {
		runtime.Gosched()
	}
	if p := w.Command("c4"); p.Sent != 2 || p.Forms != 1 || !p.Answered {
		t.Errorf("%+v", p)
	}
	if p := w.Command("other"); p != (Passage{}) {
		t.Errorf("%+v", p)
	}
}

func TestPostsAreKnownAsSentAndAnswered(t *testing.T) {
	w := server(t, nil)
	for _, body := range []string{`{"actionId":"p"}`, `{"actionId":"p","other":1}`} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.AuthorityURL()+"/v1/commands", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != http.StatusCreated {
			t.Errorf("status %d", res.StatusCode)
		}
	}
	if p := w.Command("p"); p.Sent != 2 || p.Forms != 2 || !p.Answered {
		t.Errorf("%+v", p)
	}
}

func TestAStreamIsCountedByEvent(t *testing.T) {
	w := server(t, nil)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.AuthorityURL()+"/v1/groups/g/events/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	_ = res.Body.Close()
	for sequence, want := range map[int64]int{1: 1, 2: 2, 7: 0} {
		if got := w.Streamed("g", sequence); got != want {
			t.Errorf("Event %d came %d times, want %d", sequence, got, want)
		}
	}
}
