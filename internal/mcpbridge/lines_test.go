package mcpbridge_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/missionweave/server/internal/mcpbridge"
	"github.com/missionweave/server/internal/testwait"
)

// answer is a JSON-RPC answer as it stands on the wire.
type answer struct {
	ID     json.RawMessage `json:"id"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

func (a answer) String() string {
	id := "absent"
	if a.ID != nil {
		id = string(a.ID)
	}
	if a.Error != nil {
		return fmt.Sprintf("%d %s", a.Error.Code, id)
	}
	return "result " + id
}

// raw is the other side of the transport, which writes lines of its own making.
type raw struct {
	t     *testing.T
	in    io.WriteCloser
	lines chan string
	ended chan error
}

// serve runs an MCP server with one tool, echo, on a transport of lines.
func serve(t *testing.T, maxLine int) *raw {
	t.Helper()
	read, in := io.Pipe()
	out, write := io.Pipe()
	s := mcp.NewServer(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	type text struct {
		Text string `json:"text"`
	}
	mcp.AddTool(s, &mcp.Tool{Name: "echo"}, func(_ context.Context, _ *mcp.CallToolRequest, in text) (*mcp.CallToolResult, text, error) {
		return nil, in, nil
	})
	r := &raw{t: t, in: in, lines: make(chan string, 64), ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		err := s.Run(ctx, &mcpbridge.Lines{Reader: read, Writer: write, MaxLine: maxLine})
		_ = write.Close()
		r.ended <- err
	}()
	go func() {
		defer close(r.lines)
		scan := bufio.NewScanner(out)
		scan.Buffer(nil, 1<<20)
		for scan.Scan() {
			r.lines <- scan.Text()
		}
	}()
	t.Cleanup(func() {
		cancel()
		_ = in.Close()
		_ = out.Close()
		for range r.lines { // what is left is of no interest
		}
	})
	return r
}

func (r *raw) send(text string) {
	r.t.Helper()
	if _, err := io.WriteString(r.in, text); err != nil {
		r.t.Fatalf("the session is over: %v", err)
	}
}

func (r *raw) next() (a answer) {
	r.t.Helper()
	select {
	case line, ok := <-r.lines:
		if !ok {
			r.t.Fatal("the session is over")
		}
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			r.t.Fatalf("%v: %s", err, line)
		}
	case <-time.After(testwait.Patience):
		r.t.Fatal("no answer")
	}
	return a
}

const hello = `{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
`

func call(id any, text string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%v,"method":"tools/call","params":{"name":"echo","arguments":{"text":%q}}}`+"\n", id, text)
}

func TestALineThatIsNoMessageIsAnsweredByAnErrorAndTheSessionGoesOn(t *testing.T) {
	r := serve(t, 4096)
	r.send(hello)
	if got := r.next().String(); got != `result "hello"` {
		t.Fatal(got)
	}
	for i, c := range []struct{ rule, line, want string }{
		{"not JSON", `{"jsonrpc":"2.0","id":1,`, "-32700 null"},
		{"a text beside JSON", `{"jsonrpc":"2.0","id":1,"method":"ping"} x`, "-32700 null"},
		{"two messages in a line", `{"jsonrpc":"2.0","id":1,"method":"ping"}{"jsonrpc":"2.0","id":2,"method":"ping"}`, "-32700 null"},
		{"not UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"p\xff\"}", "-32700 null"},
		{"a NUL", "\x00", "-32700 null"},
		{"too deep", strings.Repeat("[", 4000), "-32700 null"},
		{"a number", `1`, "-32600 null"},
		{"a text", `"ping"`, "-32600 null"},
		{"null", `null`, "-32600 null"},
		{"a batch", `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, "-32600 null"},
		{"an empty batch", `[]`, "-32600 null"},
		{"nothing in it", `{}`, "-32600 null"},
		{"no version", `{"id":7,"method":"ping"}`, "-32600 7"},
		{"another version", `{"jsonrpc":"1.0","id":"v","method":"ping"}`, `-32600 "v"`},
		{"neither request nor answer", `{"jsonrpc":"2.0","id":8}`, "-32600 8"},
		{"an answer that is both", `{"jsonrpc":"2.0","id":8,"result":{},"error":{"code":1,"message":"m"}}`, "-32600 8"},
		{"an answer without id", `{"jsonrpc":"2.0","result":{}}`, "-32600 null"},
		{"a method that is no text", `{"jsonrpc":"2.0","id":9,"method":1}`, "-32600 9"},
		{"params that are a list", `{"jsonrpc":"2.0","id":10,"method":"ping","params":[1]}`, "-32600 10"},
		{"id null", `{"jsonrpc":"2.0","id":null,"method":"ping"}`, "-32600 null"},
		{"id an object", `{"jsonrpc":"2.0","id":{},"method":"ping"}`, "-32600 null"},
		{"id with a fraction", `{"jsonrpc":"2.0","id":1.5,"method":"ping"}`, "-32600 null"},
		{"id that no number keeps", `{"jsonrpc":"2.0","id":1e300,"method":"ping"}`, "-32600 null"},
		{"too long", call(11, strings.Repeat("x", 5000)), "-32600 null"},
		{"too long without end", strings.Repeat("x", 100_000), "-32600 null"},
		{"unknown method", `{"jsonrpc":"2.0","id":12,"method":"nonsense"}`, "-32601 12"},
	} {
		r.send(strings.TrimRight(c.line, "\n") + "\n")
		if got := r.next().String(); got != c.want {
			t.Errorf("%s: %s, want %s", c.rule, got, c.want)
		}
		r.send(call(i+1000, "still here"))
		if got := r.next(); got.String() != fmt.Sprintf("result %d", i+1000) || !bytes.Contains(got.Result, []byte("still here")) {
			t.Fatalf("after %s: %s", c.rule, got)
		}
	}
}

func TestWhatIsNotAnErrorIsNotAnswered(t *testing.T) {
	r := serve(t, 4096)
	r.send(hello)
	r.next()
	// Blank lines, Windows line ends, answers nobody waits for, and notifications.
	r.send("\n  \r\n" + `{"jsonrpc":"2.0","id":77,"result":{}}` + "\r\n" +
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":[]}}` + "\n" + strings.TrimRight(call(`"x"`, "a"), "\n") + "\r\n")
	if got := r.next().String(); got != `result "x"` {
		t.Errorf("%s, want the answer of the call", got)
	}
	// A line may be exactly as long as is allowed.
	exact := call(1, "")
	exact = call(1, strings.Repeat("x", 4096-len(exact)+1))
	r.send(exact)
	if got := r.next().String(); len(exact) != 4097 || got != "result 1" {
		t.Errorf("a line of %d bytes and a newline: %s", len(exact)-1, got)
	}
}

func TestEveryRequestBeforeTheEndOfTheInputIsAnswered(t *testing.T) {
	r := serve(t, 0)
	const n = 50
	go func() {
		_, _ = io.WriteString(r.in, hello)
		for i := range n - 1 {
			_, _ = io.WriteString(r.in, call(i, "x"))
		}
		_, _ = io.WriteString(r.in, strings.TrimRight(call(n-1, "x"), "\n")) // the last line has no end
		_ = r.in.Close()
	}()
	seen := map[string]bool{}
	for range n + 1 {
		seen[r.next().String()] = true
	}
	if len(seen) != n+1 {
		t.Errorf("%d different answers, want %d", len(seen), n+1)
	}
	if err := <-r.ended; err != nil {
		t.Errorf("the end of the input: %v", err)
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("{"))
	f.Add([]byte(call(1, "x")))
	f.Add([]byte(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}`))
	f.Add([]byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}`))
	f.Add([]byte("[]\n\n\x00\xff"))
	f.Fuzz(func(t *testing.T, noise []byte) {
		r := serve(t, 1<<16)
		go func() {
			_, _ = io.WriteString(r.in, hello)
			_, _ = r.in.Write(append(noise, '\n'))
			_, _ = io.WriteString(r.in, call(`"after the noise"`, "x"))
		}()
		for {
			if a := r.next(); string(a.ID) == `"after the noise"` {
				return
			}
		}
	})
}
