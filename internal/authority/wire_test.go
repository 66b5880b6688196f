package authority_test

import (
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// wire stands between an Authority process and PostgreSQL, understands where
// one message of the protocol ends, and can cut the line before any message of
// a commit, in either direction: every place in which a commit can be
// interrupted is reached, also those inside it.
type wire struct {
	t        *testing.T
	listener net.Listener
	target   *pgconn.Config

	mu sync.Mutex
	// cut is called instead of passing message number at of the next commit on,
	// counted from its "begin" on in one direction. It is disarmed by then.
	armed bool
	point point
	cut   func()
	// counts are the messages that the last whole commit had in each direction.
	counts map[direction]int
	conns  map[net.Conn]bool
}

// direction is whose messages are meant.
type direction string

const (
	toServer direction = "to the server"
	toClient direction = "to the client"
)

// point is a place in the conversation of a commit.
type point struct {
	dir direction
	at  int
}

func newWire(t *testing.T, databaseURL string) *wire {
	t.Helper()
	target, err := pgconn.ParseConfig(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{t: t, listener: listener, target: target, counts: map[direction]int{}, conns: map[net.Conn]bool{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { w.serve(client) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		w.hangUp()
		wg.Wait()
	})
	return w
}

// URL reaches the database over the wire.
func (w *wire) URL() string {
	u := url.URL{
		Scheme: "postgres", Host: w.listener.Addr().String(), Path: "/" + w.target.Database,
		User: url.UserPassword(w.target.User, w.target.Password), RawQuery: "sslmode=disable",
	}
	return u.String()
}

// arm sets the next cut.
func (w *wire) arm(p point, cut func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armed, w.point, w.cut = true, p, cut
}

// disarm takes the cut back and tells whether it was still to come.
func (w *wire) disarm() (unused bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	unused, w.armed = w.armed, false
	return unused
}

// length is the number of messages a whole commit had in a direction.
func (w *wire) length(d direction) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counts[d]
}

func (w *wire) hangUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.conns {
		_ = c.Close()
	}
}

func (w *wire) hold(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[c] = true
}

func (w *wire) dial() (net.Conn, error) {
	port := strconv.Itoa(int(w.target.Port))
	if strings.HasPrefix(w.target.Host, "/") {
		return net.Dial("unix", filepath.Join(w.target.Host, ".s.PGSQL."+port))
	}
	return net.Dial("tcp", net.JoinHostPort(w.target.Host, port))
}

// line is one connection through the wire.
type line struct {
	w              *wire
	client, server net.Conn
	writer         bool
	begin          map[string]bool // names of prepared "begin" statements

	mu     sync.Mutex
	inside bool
	passed map[direction]int
}

func (w *wire) serve(client net.Conn) {
	w.hold(client)
	server, err := w.dial()
	if err != nil {
		_ = client.Close()
		return
	}
	w.hold(server)
	l := &line{w: w, client: client, server: server, begin: map[string]bool{}, passed: map[direction]int{}}
	defer l.close()
	if !l.startup() {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { l.pump(server, client, toClient) })
	l.pump(client, server, toServer)
	l.close()
	wg.Wait()
}

func (l *line) close() {
	_ = l.client.Close()
	_ = l.server.Close()
}

// startup passes the first message on, which has no type byte and says whose
// connection this is.
func (l *line) startup() bool {
	var head [4]byte
	if _, err := io.ReadFull(l.client, head[:]); err != nil {
		return false
	}
	body := make([]byte, binary.BigEndian.Uint32(head[:])-4)
	if _, err := io.ReadFull(l.client, body); err != nil {
		return false
	}
	l.writer = strings.Contains(string(body), "mw-writer")
	_, err := l.server.Write(append(head[:], body...))
	return err == nil
}

func (l *line) pump(from, to net.Conn, d direction) {
	for {
		var head [5]byte
		if _, err := io.ReadFull(from, head[:]); err != nil {
			l.close()
			return
		}
		message := make([]byte, 5+binary.BigEndian.Uint32(head[1:])-4)
		copy(message, head[:])
		if _, err := io.ReadFull(from, message[5:]); err != nil {
			l.close()
			return
		}
		if l.writer && l.stops(message, d) {
			l.close()
			return
		}
		if _, err := to.Write(message); err != nil {
			l.close()
			return
		}
	}
}

// stops counts the messages of a commit and says where the line is cut.
func (l *line) stops(message []byte, d direction) bool {
	kind, body := message[0], message[5:]
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case d == toServer && kind == 'P':
		name, rest, _ := strings.Cut(string(body), "\x00")
		query, _, _ := strings.Cut(rest, "\x00")
		l.begin[name] = strings.EqualFold(query, "begin")
	case d == toServer && kind == 'B':
		_, rest, _ := strings.Cut(string(body), "\x00")
		name, _, _ := strings.Cut(rest, "\x00")
		if l.begin[name] {
			l.inside, l.passed = true, map[direction]int{}
		}
	}
	if !l.inside {
		return false
	}
	l.passed[d]++
	w := l.w
	w.mu.Lock()
	fire := w.armed && w.point == point{d, l.passed[d]}
	if fire {
		w.armed = false
	}
	cut := w.cut
	if d == toClient && kind == 'Z' && !fire {
		l.inside = false
		w.counts = l.passed
	}
	w.mu.Unlock()
	if fire && cut != nil {
		cut()
	}
	return fire
}
