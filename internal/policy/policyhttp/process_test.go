package policyhttp_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/missionweave/server/internal/config"
	"github.com/missionweave/server/internal/devorg"
	"github.com/missionweave/server/internal/server"
	"github.com/missionweave/server/internal/testkit"
)

// The Authorization Service as a process of its own that can be killed, and the way
// to the Authority with a valve in it.

// childVariable makes this test program the Authorization Service.
const childVariable = "MW_POLICYHTTP_CHILD"

// childSettings is what the process is told.
type childSettings struct{ DatabaseURL, NATSURL, DataDir, KeysDir, AuthorityURL, Address string }

func TestMain(m *testing.M) {
	if text := os.Getenv(childVariable); text != "" {
		if err := serveChild(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testkit.Main(m, nil)
}

func serveChild(text string) error {
	var c childSettings
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	settings := config.New()
	settings.DatabaseURL, settings.NATSURL, settings.DataDir, settings.KeysDir = c.DatabaseURL, c.NATSURL, c.DataDir, c.KeysDir
	settings.AuthorityURL, settings.DatabaseMaxConns = c.AuthorityURL, 6
	keys, err := devorg.Load(c.KeysDir)
	if err != nil {
		return err
	}
	o := server.Options{Settings: settings, Keys: keys}
	for l, address := range map[*net.Listener]string{&o.Listener: c.Address, &o.Management: "127.0.0.1:0"} {
		if *l, err = net.Listen("tcp", address); err != nil { //nolint:noctx // returns at once
			return err
		}
	}
	service, err := server.OpenAuthz(context.Background(), o)
	if err != nil {
		return err
	}
	fmt.Println("ready", o.Listener.Addr())
	return service.Run(context.Background())
}

// valve is a way to the Authority.
type valve struct {
	t       *testing.T
	address string
	proxy   *httputil.ReverseProxy
	server  *http.Server

	mu   sync.Mutex
	hold bool // Commands do not arrive
	lose bool // Commands arrive, and their answers get lost
	// stuck hears of every Command that gets no answer.
	stuck chan struct{}
}

func newValve(t *testing.T, authority string) *valve {
	t.Helper()
	target, err := url.Parse(authority)
	if err != nil {
		t.Fatal(err)
	}
	v := &valve{t: t, address: "127.0.0.1:0", proxy: httputil.NewSingleHostReverseProxy(target), stuck: make(chan struct{}, 100)}
	v.open()
	t.Cleanup(v.close)
	return v
}

func (v *valve) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	v.mu.Lock()
	hold, lose := v.hold, v.lose
	v.mu.Unlock()
	switch {
	case hold:
	case lose:
		v.proxy.ServeHTTP(&nowhere{header: http.Header{}}, r)
	default:
		v.proxy.ServeHTTP(w, r)
		return
	}
	v.stuck <- struct{}{}
	_, _ = io.Copy(io.Discard, r.Body)
	<-r.Context().Done()
}

// nowhere is where lost answers go.
type nowhere struct{ header http.Header }

func (n *nowhere) Header() http.Header         { return n.header }
func (n *nowhere) Write(b []byte) (int, error) { return len(b), nil }
func (n *nowhere) WriteHeader(int)             {}

func (v *valve) set(hold, lose bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.hold, v.lose = hold, lose
}

// close makes the Authority unreachable; open undoes it.
func (v *valve) close() {
	if v.server != nil {
		_ = v.server.Close()
		v.server = nil
	}
}

func (v *valve) open() {
	v.t.Helper()
	l, err := net.Listen("tcp", v.address) //nolint:noctx // returns at once
	if err != nil {
		v.t.Fatal(err)
	}
	v.address = l.Addr().String()
	v.server = &http.Server{Handler: v, ReadHeaderTimeout: time.Minute}
	go func(s *http.Server) { _ = s.Serve(l) }(v.server)
}

// wait returns when a Command is stuck.
func (v *valve) wait() {
	v.t.Helper()
	select {
	case <-v.stuck:
	case <-time.After(testkit.Patience):
		v.t.Fatal("no Command came")
	}
}

// apart is a stand whose Authorization Service is another process.
type apart struct {
	*stand
	valve *valve
	child *exec.Cmd
	dir   string
}

func newApart(t *testing.T) *apart {
	t.Helper()
	s := newStand(t)
	s.Stop("authz")
	a := &apart{stand: s, valve: newValve(t, s.AuthorityURL), dir: t.TempDir()}
	a.run()
	t.Cleanup(a.kill)
	return a
}

func (a *apart) run() {
	a.t.Helper()
	self, err := os.Executable()
	if err != nil {
		a.t.Fatal(err)
	}
	told, err := json.Marshal(childSettings{
		DatabaseURL: a.Settings.DatabaseURL, NATSURL: a.Settings.NATSURL, DataDir: a.dir, KeysDir: a.KeysDir,
		AuthorityURL: "http://" + a.valve.address, Address: "127.0.0.1:0",
	})
	if err != nil {
		a.t.Fatal(err)
	}
	a.child = exec.Command(self) //nolint:noctx // it is killed by the test
	a.child.Env = append(os.Environ(), childVariable+"="+string(told))
	a.child.Stderr = os.Stderr
	out, err := a.child.StdoutPipe()
	if err != nil {
		a.t.Fatal(err)
	}
	if err := a.child.Start(); err != nil {
		a.t.Fatal(err)
	}
	var address string
	if _, err := fmt.Fscanln(bufio.NewReader(out), new(string), &address); err != nil {
		_ = a.child.Wait()
		a.t.Fatalf("the Authorization Service ended before it was ready: %v", err)
	}
	a.AuthzURL = "http://" + address
}

// kill ends the process as kill -9 does.
func (a *apart) kill() {
	if a.child == nil {
		return
	}
	_ = a.child.Process.Kill()
	_ = a.child.Wait()
	a.child = nil
}

// try proposes and does not mind whether an answer comes.
func (a *apart) try(body map[string]any) <-chan int {
	b, err := json.Marshal(body)
	if err != nil {
		a.t.Fatal(err)
	}
	status := make(chan int, 1)
	req, err := http.NewRequestWithContext(a.t.Context(), http.MethodPost, a.AuthzURL+"/v1/actions", bytes.NewReader(b))
	if err != nil {
		a.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+a.k.Token)
	go func() {
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			status <- 0
			return
		}
		_ = res.Body.Close()
		status <- res.StatusCode
	}()
	return status
}
