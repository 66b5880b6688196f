package wsapi

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/missionweave/server/internal/protocol"
)

// closeWithin bounds how long a takeover waits for an older connection to have
// been told.
const closeWithin = time.Second

// sessionsSubject carries takeovers between replicas. Agents are named by hash.
const sessionsSubject = "missionweave.sessions"

// Connections are the logged-in connections of a process by Agent. It exists
// apart from the Server because the session service, which the Server needs, has
// to tell it of takeovers.
type Connections struct {
	instance string
	conn     atomic.Pointer[nats.Conn]
	shared   shared

	mu      sync.Mutex
	byAgent map[string]map[*conn]struct{}
}

// NewConnections makes an empty set.
func NewConnections() *Connections {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return &Connections{instance: hex.EncodeToString(b[:]), byAgent: map[string]map[*conn]struct{}{}}
}

// takeover is what replicas tell each other.
type takeover struct {
	Instance string `json:"instance"`
	Agent    string `json:"agent"`
	// Below is the epoch whose connections and those of older ones stay; the
	// connections of smaller epochs end.
	Below int64 `json:"below"`
}

// UseNATS tells other replicas of takeovers, and hears of theirs. Without it Run
// of the Server finds them.
func (cs *Connections) UseNATS(conn *nats.Conn) error {
	_, err := conn.Subscribe(sessionsSubject, func(m *nats.Msg) {
		var t takeover
		if json.Unmarshal(m.Data, &t) != nil || t.Instance == cs.instance {
			return
		}
		cs.closeBelow(context.Background(), t.Agent, t.Below, nil)
	})
	if err != nil {
		return fmt.Errorf("wsapi: hear of takeovers: %w", err)
	}
	cs.conn.Store(conn)
	return nil
}

func (cs *Connections) connected() bool {
	conn := cs.conn.Load()
	return conn != nil && conn.IsConnected()
}

// Opened ends the connections of an Agent's older sessions; it returns when they
// have been told, or soon after.
func (cs *Connections) Opened(ctx context.Context, agentID string, epoch int64) {
	cs.tell(agentID, epoch)
	cs.closeBelow(ctx, agentToken(agentID), epoch, nil)
}

// resuming marks the context of a handshake over a new connection.
type resuming struct{}

// Resumed ends the older connections of a session that goes on over a new one. A
// renewal over REST brings no connection and ends none.
func (cs *Connections) Resumed(ctx context.Context, agentID string, epoch int64) {
	if ctx.Value(resuming{}) == nil {
		return
	}
	cs.tell(agentID, epoch+1)
	cs.closeBelow(ctx, agentToken(agentID), epoch+1, nil)
}

func (cs *Connections) tell(agentID string, below int64) {
	conn := cs.conn.Load()
	if conn == nil {
		return
	}
	b, err := json.Marshal(takeover{cs.instance, agentToken(agentID), below})
	if err == nil {
		_ = conn.Publish(sessionsSubject, b) // Run finds what does not arrive
		_ = conn.FlushTimeout(closeWithin)
	}
}

func agentToken(agentID string) string {
	sum := sha256.Sum256([]byte(agentID))
	return hex.EncodeToString(sum[:16])
}

// closeBelow ends an Agent's connections of epochs below one, except keep.
func (cs *Connections) closeBelow(ctx context.Context, agent string, below int64, keep *conn) {
	cs.mu.Lock()
	var old []*conn
	for c := range cs.byAgent[agent] {
		if c != keep && c.identity().SessionEpoch < below {
			old = append(old, c)
		}
	}
	cs.mu.Unlock()
	if len(old) == 0 {
		return
	}
	for _, c := range old {
		c.end(fatal(protocol.NewError(protocol.CodeAuthStaleSession, "").
			WithDetail("receivedSessionEpoch", c.identity().SessionEpoch)))
	}
	limit := time.NewTimer(closeWithin)
	defer limit.Stop()
	for _, c := range old {
		select {
		case <-c.told:
		case <-limit.C:
			c.cancel()
			return
		case <-ctx.Done():
			return
		}
	}
}

// register adds a connection that has logged in and ends what it replaces. It is
// false when a newer session has a connection here already.
func (cs *Connections) register(ctx context.Context, c *conn) bool {
	id := c.identity()
	agent := agentToken(id.Principal.ID)
	cs.mu.Lock()
	for other := range cs.byAgent[agent] {
		if other.identity().SessionEpoch > id.SessionEpoch {
			cs.mu.Unlock()
			return false
		}
	}
	if cs.byAgent[agent] == nil {
		cs.byAgent[agent] = map[*conn]struct{}{}
	}
	cs.byAgent[agent][c] = struct{}{}
	cs.mu.Unlock()
	cs.closeBelow(ctx, agent, id.SessionEpoch+1, c)
	return true
}

func (cs *Connections) remove(c *conn) {
	cs.left(c)
	agent := agentToken(c.identity().Principal.ID)
	cs.mu.Lock()
	defer cs.mu.Unlock()
	delete(cs.byAgent[agent], c)
	if len(cs.byAgent[agent]) == 0 {
		delete(cs.byAgent, agent)
	}
}

// of returns the connections of Agents.
func (cs *Connections) of(epochs map[string]int64) (out []*conn) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for agentID := range epochs {
		for c := range cs.byAgent[agentToken(agentID)] {
			out = append(out, c)
		}
	}
	return out
}

func (cs *Connections) all() []*conn {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	var out []*conn
	for _, set := range cs.byAgent {
		for c := range set {
			out = append(out, c)
		}
	}
	return out
}

// Presence is what an Agent last said of itself over a connection of this
// process, while it holds (COMMANDS.md 8.9). Whom it is shown to is the caller's
// to decide.
func (cs *Connections) Presence(agentID string) (protocol.PresenceRecord, bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	for c := range cs.byAgent[agentToken(agentID)] {
		if record, ok := c.presenceNow(); ok {
			return record, true
		}
	}
	return protocol.PresenceRecord{}, false
}
