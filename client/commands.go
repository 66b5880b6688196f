package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// SignedCommand is a Command in its final bytes. Sent again it is the same
// Command: the server answers with the receipt of the first time.
type SignedCommand struct {
	Bytes       []byte
	ActionID    string
	SigningHash string
}

// Sign completes and signs a Command: protocol version, actor, Action ID,
// correlation id and issue time are filled where they are empty. payload is
// anything with JSON members; a struct, a map, or Raw.
func (c *Client) Sign(cmd Command, payload any) (*SignedCommand, error) {
	cmd.ProtocolVersion = "0.1"
	if cmd.Actor == (Actor{}) {
		cmd.Actor = c.Principal()
	}
	if cmd.ActionID == "" {
		cmd.ActionID = NewID()
	}
	if cmd.CorrelationID == "" {
		cmd.CorrelationID = cmd.ActionID
	}
	if cmd.IssuedAt == "" {
		cmd.IssuedAt = Timestamp(c.opt.Now())
	}
	body, err := strictjson.Marshal(payload)
	if err != nil {
		return nil, fmt.Errorf("client: encode the payload: %w", err)
	}
	cmd.Payload = body
	signed, hash, err := signCommand(&cmd, c.opt.Identity)
	if err != nil {
		return nil, err
	}
	return &SignedCommand{Bytes: signed, ActionID: cmd.ActionID, SigningHash: hash}, nil
}

// Post signs a Command and sends it until the server has answered: a lost
// answer or a retryable refusal leads to the identical bytes again. The error
// is an *Error when the server refused.
func (c *Client) Post(ctx context.Context, cmd Command, payload any) (*Receipt, error) {
	signed, err := c.Sign(cmd, payload)
	if err != nil {
		return nil, err
	}
	return c.PostSigned(ctx, signed)
}

// PostSigned sends a signed Command until the server has answered.
func (c *Client) PostSigned(ctx context.Context, signed *SignedCommand) (*Receipt, error) {
	a, err := c.repeat(ctx, func() (*answer, error) { return c.postOnce(ctx, signed) })
	if err != nil {
		return nil, err
	}
	return readReceipt(a, signed)
}

// PostOnce sends a signed Command a single time. An error that is no *Error
// leaves its fate open.
func (c *Client) PostOnce(ctx context.Context, signed *SignedCommand) (*Receipt, error) {
	a, err := c.postOnce(ctx, signed)
	if err != nil {
		return nil, err
	}
	return readReceipt(a, signed)
}

func (c *Client) postOnce(ctx context.Context, signed *SignedCommand) (*answer, error) {
	return c.do(ctx, call{
		method: http.MethodPost, url: c.opt.AuthorityURL + "/v1/commands",
		contentType: "application/json", body: signed.Bytes,
	})
}

func readReceipt(a *answer, signed *SignedCommand) (*Receipt, error) {
	var receipt Receipt
	if err := decode(a.body, &receipt); err != nil {
		return nil, err
	}
	if receipt.ActionID != signed.ActionID || receipt.SigningHash != signed.SigningHash {
		return nil, errors.New("client: the receipt belongs to another Command")
	}
	receipt.Replayed = a.header.Get("Idempotency-Replayed") == "true"
	return &receipt, nil
}

// decode reads a JSON answer strictly.
func decode(b []byte, dst any) error {
	doc, err := strictjson.Parse(b)
	if err != nil {
		return fmt.Errorf("client: the answer is not JSON: %w", err)
	}
	if err := strictjson.Decode(doc.Root(), dst); err != nil {
		return fmt.Errorf("client: the answer has another shape: %w", err)
	}
	return nil
}

// Decode reads a JSON value strictly into a struct, for example the payload of
// an Event.
func Decode(b []byte, dst any) error { return decode(b, dst) }

// CodeOf returns the protocol code of a refusal, or "".
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		return e.Code
	}
	return ""
}
