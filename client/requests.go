package client

import (
	"context"

	"github.com/coder/websocket"
)

func (s *Session) sendPing(ctx context.Context, conn *websocket.Conn, own, replyTo string) error {
	frame := map[string]any{
		"protocolVersion": "0.1", "frameId": NewID(), "frameType": "PING", "nonce": own,
		"sentAt": Timestamp(s.c.opt.Now()),
	}
	if replyTo != "" {
		frame["replyToNonce"] = replyTo
	}
	return send(ctx, conn, frame)
}

// Acknowledge stores the Agent's Cursor in a Group: every Event up to sequence
// has been dealt with.
func (s *Session) Acknowledge(ctx context.Context, groupID string, sequence int64) error {
	conn, err := s.connection(ctx)
	if err != nil {
		return err
	}
	return send(ctx, conn, map[string]any{
		"protocolVersion": "0.1", "frameId": NewID(), "frameType": "ACK",
		"acknowledgements": []map[string]any{{"groupId": groupID, "sequence": sequence}},
		"sentAt":           Timestamp(s.c.opt.Now()),
	})
}

// Command signs a Command under the present Session Epoch, sends it over the
// connection and returns the first Event it caused. After a broken connection
// the identical bytes are sent again. The error is an *Error on refusal.
func (s *Session) Command(ctx context.Context, cmd Command, payload any) (*Event, error) {
	cmd.SessionEpoch = s.Epoch()
	signed, err := s.c.Sign(cmd, payload)
	if err != nil {
		return nil, err
	}
	w := &waiter{signed: signed, answer: make(chan commandAnswer, 1)}
	s.mu.Lock()
	if s.ended() {
		s.mu.Unlock()
		return nil, s.closedError()
	}
	s.waiting[signed.SigningHash] = w
	conn := s.conn
	s.mu.Unlock()
	if conn != nil {
		// A failure here breaks the connection; the next one sends it again.
		_ = s.sendCommand(ctx, conn, signed)
	}
	select {
	case <-ctx.Done():
		s.mu.Lock()
		delete(s.waiting, signed.SigningHash)
		s.mu.Unlock()
		return nil, ctx.Err()
	case answer := <-w.answer:
		if answer.err != nil {
			return nil, answer.err
		}
		return &answer.event, nil
	}
}

// Positions are the last sequences handed over or passed, per Group that is
// subscribed.
func (s *Session) Positions() map[string]int64 {
	positions := map[string]int64{}
	for _, sub := range s.subscriptions() {
		positions[sub.groupID] = sub.Position()
	}
	return positions
}

// connection waits until the session is connected.
func (s *Session) connection(ctx context.Context) (*websocket.Conn, error) {
	for {
		s.mu.Lock()
		conn, connected := s.conn, s.connected
		s.mu.Unlock()
		if conn != nil {
			return conn, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.done:
			return nil, s.closedError()
		case <-connected:
		}
	}
}

func (s *Session) ended() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

func (s *Session) closedError() error {
	if err := s.Err(); err != nil {
		return err
	}
	return context.Canceled
}

// sendCommand puts the signed bytes into a COMMAND frame unchanged.
func (s *Session) sendCommand(ctx context.Context, conn *websocket.Conn, signed *SignedCommand) error {
	s.sending.Lock()
	defer s.sending.Unlock()
	frame := make([]byte, 0, len(signed.Bytes)+160)
	frame = append(frame, `{"command":`...)
	frame = append(frame, signed.Bytes...)
	frame = append(frame, `,"frameId":"`+NewID()+`","frameType":"COMMAND","protocolVersion":"0.1"}`...)
	if err := conn.Write(ctx, websocket.MessageText, frame); err != nil {
		return &unreachable{err}
	}
	return nil
}
