package sessions

import (
	"context"
	"errors"
	"time"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/trust"
)

// kindSessionOpened is the Event that says which epoch was opened.
const kindSessionOpened = "ext.missionweaveprotocol.identity.session_opened"

// submitAttempts is how often the same signed Command is sent when its outcome
// is unknown: it is idempotent, and the first of them may have been accepted.
const submitAttempts = 3

// SubmitFunc hands a Command of the server's own identity service to the
// Authority's pipeline, inside the process, and returns the signed Events it
// caused, also when the Command was accepted before (replay).
type SubmitFunc func(ctx context.Context, command []byte) (events [][]byte, err *protocol.Error)

// CommandOpener opens sessions by the Command session_open (COMMANDS.md 5.7),
// signed by the identity service.
type CommandOpener struct {
	Signer trust.Signer
	// SignerNow, when set, says which key signs at the moment, in place of Signer's.
	SignerNow func(ctx context.Context) (trust.Signer, error)
	Submit    SubmitFunc
	Mint      func() string
	Now       func() time.Time
}

var errNoSessionEvent = errors.New("sessions: session_open was accepted without its Event")

// Open implements Opener.
func (o *CommandOpener) Open(ctx context.Context, agentID, keyID string, expiresAt time.Time) (int64, *protocol.Error) {
	signer := o.Signer
	if o.SignerNow != nil {
		var err error
		if signer, err = o.SignerNow(ctx); err != nil {
			return 0, protocol.Internal(err)
		}
	}
	command, err := o.command(signer, agentID, keyID, expiresAt)
	if err != nil {
		return 0, protocol.Internal(err)
	}
	var opened [][]byte
	var perr *protocol.Error
	for range submitAttempts {
		opened, perr = o.Submit(ctx, command)
		if perr == nil || perr.Code != protocol.CodeInternalError || ctx.Err() != nil {
			break
		}
	}
	if perr != nil {
		return 0, perr
	}
	epoch, err := openedEpoch(opened, agentID)
	if err != nil {
		return 0, protocol.Internal(err)
	}
	return epoch, nil
}

func (o *CommandOpener) command(signer trust.Signer, agentID, keyID string, expiresAt time.Time) ([]byte, error) {
	payload, err := strictjson.Marshal(struct {
		AgentID          string `json:"agentId"`
		KeyID            string `json:"keyId"`
		SessionExpiresAt string `json:"sessionExpiresAt"`
	}{agentID, keyID, formatInstant(expiresAt)})
	if err != nil {
		return nil, err
	}
	command, _, err := trust.SignDocument(protocol.KindCommand, &protocol.Command{
		ProtocolVersion: protocol.Version,
		ActionID:        o.Mint(),
		Actor:           signer.Principal,
		Kind:            protocol.CommandSessionOpen,
		CorrelationID:   o.Mint(),
		IssuedAt:        lexical.FormatMicros(o.Now()),
		Payload:         payload,
	}, signer)
	return command, err
}

// openedEpoch finds the epoch in the Event of the opening. It is read from there
// and not from the Agent's session, which the next opening may have moved.
func openedEpoch(events [][]byte, agentID string) (int64, error) {
	for _, event := range events {
		doc, err := strictjson.Parse(event)
		if err != nil {
			return 0, err
		}
		payload := doc.Root().Member("payload")
		if doc.Root().Member("kind").Str() != kindSessionOpened || payload.Member("agentId").Str() != agentID {
			continue
		}
		if epoch, ok := payload.Member("sessionEpoch").Int(); ok && epoch > 0 {
			return epoch, nil
		}
	}
	return 0, errNoSessionEvent
}
