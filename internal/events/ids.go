package events

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/missionweave/server/internal/protocol/lexical"
)

// TreeKey is the placement key of a Mission tree: every Group of the tree has
// it, and it leads every Group-scoped primary key.
func TreeKey(rootMissionID string) int64 { return hash64("tree\x00" + rootMissionID) }

// AgentLockKey is the advisory lock of an Agent's sessions: shared by every
// commit the Agent acts in, exclusive to what opens or ends a session, or counts
// the Agent's WorkItems over all Groups.
func AgentLockKey(agentID string) int64 { return hash64("agent-session\x00" + agentID) }

func hash64(s string) int64 {
	sum := sha256.Sum256([]byte(s))
	return int64(binary.BigEndian.Uint64(sum[:8])) //nolint:gosec // any 64 bits will do
}

const (
	uuidPrefix = "urn:uuid:"
	hashPrefix = "sha256:"
)

var errNotUUID = errors.New("events: not a lower-case urn:uuid: id")

// uuidBytes reads the spelling that the Authority mints (COMMANDS.md D6).
func uuidBytes(urn string) (out [16]byte, err error) {
	s, ok := strings.CutPrefix(urn, uuidPrefix)
	if !ok || len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return out, fmt.Errorf("%w: %q", errNotUUID, urn)
	}
	j := 0
	for i := 0; i < len(s); i += 2 {
		if s[i] == '-' {
			i++
		}
		hi, lo := nibble(s[i]), nibble(s[i+1])
		if hi > 15 || lo > 15 {
			return out, fmt.Errorf("%w: %q", errNotUUID, urn)
		}
		out[j] = hi<<4 | lo
		j++
	}
	return out, nil
}

func nibble(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	}
	return 0xff
}

func uuidURN(b [16]byte) string {
	var s [36]byte
	hex.Encode(s[0:8], b[0:4])
	s[8] = '-'
	hex.Encode(s[9:13], b[4:6])
	s[13] = '-'
	hex.Encode(s[14:18], b[6:8])
	s[18] = '-'
	hex.Encode(s[19:23], b[8:10])
	s[23] = '-'
	hex.Encode(s[24:], b[10:])
	return uuidPrefix + string(s[:])
}

// hashBytes reads "sha256:" and 64 hexadecimal digits.
func hashBytes(s string) ([]byte, error) {
	digits, ok := strings.CutPrefix(s, hashPrefix)
	if !ok || len(digits) != 64 {
		return nil, fmt.Errorf("events: not a sha256 hash: %q", s)
	}
	return hex.DecodeString(digits)
}

func hashText(b []byte) string { return hashPrefix + hex.EncodeToString(b) }

// RecordID is the id of a document's First-Admission Record: a UUIDv7 of the
// acceptance time whose random part comes from the logical key. One id therefore
// never stands under two keys, in whatever place the record is kept.
func RecordID(organizationID, signingHash string, at time.Time) string {
	sum := sha256.Sum256([]byte("admission\x00" + organizationID + "\x00" + signingHash))
	return lexical.UUIDv7(at, [10]byte(sum[:10]))
}

// timestamp reads a protocol timestamp for a column; the document keeps the
// spelling and the digits beyond microseconds.
func timestamp(s string) (time.Time, error) {
	at, err := lexical.ParseTimestamp(s)
	if err != nil {
		return time.Time{}, err
	}
	return at.Time().UTC().Truncate(time.Microsecond), nil
}
