package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// connectMCP runs mw mcp as an MCP client does: as a child on pipes.
func connectMCP(t *testing.T, stack string) *mcp.ClientSession {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self) //nolint:noctx // the session ends it
	cmd.Env = append(os.Environ(), childVariable+"="+strings.Join([]string{"mcp", "--stack", stack, "--agent", "bridge"}, "\n"))
	cmd.Stderr = os.Stderr
	s, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), &mcp.CommandTransport{Command: cmd}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestTheBridgeAnswersBadLinesOnItsPipeAndEndsWithItsInput(t *testing.T) {
	o := startOutage(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), childVariable+"="+strings.Join([]string{"mcp", "--stack", o.Path, "--agent", "raw"}, "\n"))
	cmd.Stdin = strings.NewReader(`{"jsonrpc":"2.0","id":1,
[]
` + strings.Repeat("x", 17<<20) + `
{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"raw","version":"1"}}}
{"jsonrpc":"2.0","method":"notifications/initialized"}
{"id":7}
{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"list_offers"}}`)
	var errors bytes.Buffer
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, &errors)
	}
	for _, want := range []string{
		`"id":null,"error":{"code":-32700,`, `"id":null,"error":{"code":-32600,"message":"Invalid Request: batches`,
		`"id":null,"error":{"code":-32600,"message":"Invalid Request: the line is longer`, `"id":"hello","result":{`,
		`"id":7,"error":{"code":-32600,`, `"id":8,"result":{`,
	} {
		if strings.Count(string(out), want) != 1 {
			t.Errorf("no answer %s in\n%s", want, out)
		}
	}
	if n := strings.Count(string(out), "\n"); n != 6 {
		t.Errorf("%d answers, want 6:\n%s", n, out)
	}
}

func TestTheBridgeSpeaksMCPOnStandardStreamsAndStaysTheSameAgent(t *testing.T) {
	o := startOutage(t)
	for round := range 2 {
		s := connectMCP(t, o.Path)
		tools, err := s.ListTools(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(tools.Tools) < 15 {
			t.Errorf("round %d: %d tools", round, len(tools.Tools))
		}
		res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "list_offers"})
		if err != nil || res.IsError {
			t.Errorf("round %d: list_offers: %v %v", round, res, err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("round %d: the end of the bridge: %v", round, err)
		}
	}
	agents, err := filepath.Glob(filepath.Join(filepath.Dir(o.Path), "agents", "*.json"))
	if err != nil || len(agents) != 1 {
		t.Errorf("kept Agents: %v, %v", agents, err)
	}
	info, err := os.Stat(filepath.Join(filepath.Dir(o.Path), "agents", "bridge.seed"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key: %v, %v", info, err)
	}
}
