package httpapi

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"strconv"

	"github.com/missionweave/server/internal/authority"
	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

const ndjson = "application/x-ndjson"

// postCommand runs one Command, whose signature is its only credential
// (COMMANDS.md 2.6).
func (a *API) postCommand(c *httpkit.Call) error {
	a.widenForArchival(c)
	body, err := c.Body()
	if err != nil {
		return err
	}
	result, refusal := a.Authority.Submit(c.R.Context(), authority.Submission{Body: body, Peer: c.Peer})
	if refusal != nil {
		return refusal
	}
	status := http.StatusCreated
	if result.Replayed {
		status = http.StatusOK
		c.W.Header().Set("Idempotency-Replayed", "true")
	}
	return c.Send(status, result.Receipt)
}

// maxArchivalBody is the bound of a body that may hold a snapshot, which lists
// every Event id of a Group (COMMANDS.md 8.12).
const maxArchivalBody = 64 << 20

// widenForArchival lets a service that may archive send more, when it shows its
// access token. The token is good for nothing else here: a bad one is ignored.
func (a *API) widenForArchival(c *httpkit.Call) {
	token, refusal := httpkit.BearerToken(c.R)
	if refusal != nil {
		return
	}
	caller, refusal := a.Sessions.Authenticate(c.R.Context(), token)
	if refusal == nil && caller.Principal.Type == protocol.ActorService && a.Views.MayReadGroups(caller.Principal) {
		c.LimitBody(maxArchivalBody)
	}
}

// maxBatchLines bounds a batch: a body of empty lines would otherwise be answered
// with some hundred times its size. A Command has more than 500 bytes, so a body
// of the usual limit never holds as many.
const maxBatchLines = 2048

// postBatch runs Commands one after another, each decided on its own. An answer
// line always stands for the Command line of the same number.
func (a *API) postBatch(c *httpkit.Call) error {
	body, err := c.Body()
	if err != nil {
		return err
	}
	body = bytes.TrimSuffix(body, []byte("\n"))
	if bytes.Count(body, []byte("\n")) >= maxBatchLines {
		return httpkit.Problem(http.StatusRequestEntityTooLarge, "too_many_lines")
	}
	lines := bytes.Split(body, []byte("\n"))
	answer := make([]byte, 0, 512*len(lines))
	for _, line := range lines {
		line = bytes.TrimSuffix(line, []byte("\r"))
		if answer, err = a.batchLine(c.R.Context(), answer, line, c.Peer); err != nil {
			return err
		}
	}
	return c.SendAs(http.StatusOK, ndjson, answer)
}

// batchLine appends {"status":…,"receipt":…} or {"error":…,"status":…}.
func (a *API) batchLine(ctx context.Context, answer, command []byte, peer string) ([]byte, error) {
	result, refusal := a.Authority.Submit(ctx, authority.Submission{Body: bytes.Clone(command), Peer: peer})
	if refusal != nil {
		object, err := strictjson.Marshal(refusal.At(a.Now()))
		if err != nil {
			return nil, err //nolint:wrapcheck // cannot happen for an error of ours
		}
		answer = append(append(answer, `{"error":`...), object...)
		answer = strconv.AppendInt(append(answer, `,"status":`...), int64(refusal.HTTPStatus()), 10)
		return append(answer, "}\n"...), nil
	}
	status := int64(http.StatusCreated)
	if result.Replayed {
		status = http.StatusOK
	}
	answer = append(append(answer, `{"receipt":`...), result.Receipt...)
	answer = strconv.AppendInt(append(answer, `,"status":`...), status, 10)
	return append(answer, "}\n"...), nil
}

// internal keeps a failure that is no refusal apart from one that is.
func internal(err error) error {
	var perr *protocol.Error
	if err == nil || errors.As(err, &perr) {
		return err
	}
	return protocol.Internal(err)
}
