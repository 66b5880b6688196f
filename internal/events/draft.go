package events

import (
	"context"
	"crypto/rand"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
)

// DraftSnapshot makes the unsigned snapshot that would archive a Group as it
// stands (COMMANDS.md 5.7, group_archive), for the service that is to sign it.
// Its time is the database's. Error: ErrGroupUnknown.
func (s *Store) DraftSnapshot(ctx context.Context, groupID string, createdBy protocol.Actor) (protocol.GroupSnapshot, error) {
	g, err := s.LoadGroup(ctx, groupID)
	if err != nil {
		return protocol.GroupSnapshot{}, err
	}
	messages, err := s.MessageDocs(ctx, g.TreeID, groupID, g.State.Head)
	if err != nil {
		return protocol.GroupSnapshot{}, err
	}
	now, err := s.Now(ctx)
	if err != nil {
		return protocol.GroupSnapshot{}, err
	}
	var random [10]byte
	_, _ = rand.Read(random[:]) // never fails (crypto/rand)
	return g.State.DraftSnapshot(lexical.UUIDv7(now, random), createdBy, lexical.FormatMicros(now), messages)
}
