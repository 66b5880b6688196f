package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/coder/websocket"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// helloFrame holds the members of both server phases of HELLO.
type helloFrame struct {
	Phase        string `json:"phase"`
	ClientNonce  string `json:"clientNonce"`
	ServerNonce  string `json:"serverNonce"`
	Challenge    string `json:"challenge"`
	SessionToken string `json:"sessionToken"`
	SessionEpoch int64  `json:"sessionEpoch"`
	ExpiresAt    string `json:"expiresAt"`
}

func send(ctx context.Context, conn *websocket.Conn, frame any) error {
	b, err := strictjson.Marshal(frame)
	if err != nil {
		return fmt.Errorf("client: encode a frame: %w", err)
	}
	if err := conn.Write(ctx, websocket.MessageText, b); err != nil {
		return &unreachable{err}
	}
	return nil
}

// receive reads one frame.
func receive(ctx context.Context, conn *websocket.Conn) (strictjson.Value, error) {
	_, b, err := conn.Read(ctx)
	if err != nil {
		return strictjson.Value{}, closed(err)
	}
	doc, err := strictjson.Parse(b)
	if err != nil {
		return strictjson.Value{}, fmt.Errorf("client: a frame is not JSON: %w", err)
	}
	return doc.Root(), nil
}

// closed tells a lost connection from one that must not be opened again.
func closed(err error) error {
	switch websocket.CloseStatus(err) {
	case closeReplaced:
		return ErrReplaced
	case closeRefused, closeVersion:
		return errors.Join(errors.New("client: the server refused this Agent"), err)
	default:
		return &unreachable{err}
	}
}

func readHello(ctx context.Context, conn *websocket.Conn) (helloFrame, error) {
	v, err := receive(ctx, conn)
	if err != nil {
		return helloFrame{}, err
	}
	switch v.Member("frameType").Str() {
	case "HELLO":
		var h helloFrame
		err := strictjson.Decode(v, &h)
		return h, err
	case "ERROR":
		return helloFrame{}, frameError(v)
	default:
		return helloFrame{}, errors.New("client: another frame came during the handshake")
	}
}

// frameError reads the error object of an ERROR frame.
func frameError(v strictjson.Value) error {
	e, err := readError(v.Member("error").Raw())
	if err != nil {
		return fmt.Errorf("client: an ERROR frame without its object: %w", err)
	}
	return e
}
