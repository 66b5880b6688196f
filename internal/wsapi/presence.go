package wsapi

import (
	"strconv"
	"sync"
	"time"

	"github.com/missionweave/server/internal/presence"
	"github.com/missionweave/server/internal/protocol"
)

// shared tells other replicas what the Agents of this process say of themselves.
// The zero value tells nobody.
type shared struct {
	mu    sync.Mutex
	store *presence.Store
	ids   map[*conn]string
	next  int
}

// SharePresence lets other replicas know what Agents say over connections of
// this process.
func (cs *Connections) SharePresence(store *presence.Store) {
	cs.shared.mu.Lock()
	defer cs.shared.mu.Unlock()
	cs.shared.store, cs.shared.ids = store, map[*conn]string{}
}

// said shares a record.
func (cs *Connections) said(c *conn, record *protocol.PresenceRecord, expires time.Time) {
	s := &cs.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.store == nil {
		return
	}
	id, ok := s.ids[c]
	if !ok {
		s.next++
		id = cs.instance + " " + strconv.Itoa(s.next)
		s.ids[c] = id
	}
	s.store.Note(id, *record, expires)
}

// left takes back what was said over a connection that has ended.
func (cs *Connections) left(c *conn) {
	agentID := c.identity().Principal.ID // outside the lock: said holds the connection's
	s := &cs.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	if id, ok := s.ids[c]; ok {
		delete(s.ids, c)
		s.store.Ended(id, agentID)
	}
}
