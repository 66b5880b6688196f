package groups

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/missionweave/server/internal/protocol"
)

// messageForms numbers the kinds of Messages in a dump.
var messageForms = map[string]uint64{
	messageOriginal: 0, messageCorrection: 1, messageRetraction: 2, messageRedaction: 3,
}

var messageFormNames = []string{messageOriginal, messageCorrection, messageRetraction, messageRedaction}

// messageDump is all Messages of a Group by column, in order of sequence.
// What amendments made of their targets is worked out again.
type messageDump struct {
	IDs           []string         `json:"ids"`
	Authors       []protocol.Actor `json:"authors"`
	Conversations []string         `json:"conversations"`
	// Rows are, per Message, uvarints in base64url: sequence since the last
	// one, author, Conversation, kind and, but for originals, the target's
	// place.
	Rows string `json:"rows"`
}

func (s *State) dumpMessages() messageDump {
	order := make([]*Message, 0, len(s.Messages))
	for _, m := range s.Messages {
		order = append(order, m)
	}
	slices.SortFunc(order, func(a, b *Message) int { return cmp.Compare(a.Sequence, b.Sequence) })
	d := messageDump{IDs: make([]string, 0, len(order))}
	authors, conversations, place := map[protocol.Actor]uint64{}, map[string]uint64{}, map[string]uint64{}
	var rows []byte
	var last int64
	for i, m := range order {
		place[m.MessageID] = uint64(i)
		author, ok := authors[m.Author]
		if !ok {
			author = uint64(len(d.Authors))
			authors[m.Author] = author
			d.Authors = append(d.Authors, m.Author)
		}
		conversation, ok := conversations[m.ConversationID]
		if !ok {
			conversation = uint64(len(d.Conversations))
			conversations[m.ConversationID] = conversation
			d.Conversations = append(d.Conversations, m.ConversationID)
		}
		d.IDs = append(d.IDs, m.MessageID)
		rows = binary.AppendUvarint(rows, uint64(m.Sequence-last))
		rows = binary.AppendUvarint(rows, author)
		rows = binary.AppendUvarint(rows, conversation)
		rows = binary.AppendUvarint(rows, messageForms[m.Kind])
		if m.Kind != messageOriginal {
			rows = binary.AppendUvarint(rows, place[m.TargetMessageID])
		}
		last = m.Sequence
	}
	d.Rows = base64.RawURLEncoding.EncodeToString(rows)
	return d
}

var errMessageDump = errors.New("groups: messages in state dump")

func (s *State) loadMessages(d messageDump) error {
	rows, err := base64.RawURLEncoding.DecodeString(d.Rows)
	if err != nil {
		return err
	}
	all := make([]Message, len(d.IDs))
	s.Messages = make(map[string]*Message, len(all))
	var last int64
	for i, id := range d.IDs {
		var row [5]uint64
		columns := 4
		for c := 0; c < columns; c++ {
			n, size := binary.Uvarint(rows)
			if size <= 0 {
				return errMessageDump
			}
			row[c], rows = n, rows[size:]
			if c == 3 && n > 0 {
				columns = 5
			}
		}
		if row[1] >= uint64(len(d.Authors)) || row[2] >= uint64(len(d.Conversations)) ||
			row[3] >= uint64(len(messageFormNames)) || row[3] > 0 && row[4] >= uint64(i) {
			return errMessageDump
		}
		last += int64(row[0])
		m := &all[i]
		*m = Message{
			MessageID: id, ConversationID: d.Conversations[row[2]], Author: d.Authors[row[1]],
			Kind: messageFormNames[row[3]], Sequence: last,
		}
		s.Messages[id] = m
		if row[3] > 0 {
			target := &all[row[4]]
			m.TargetMessageID = target.MessageID
			s.amend(target, m)
		}
	}
	return nil
}
