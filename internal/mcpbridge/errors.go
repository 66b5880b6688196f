package mcpbridge

import (
	"context"
	"encoding/json"
	"errors"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol"
)

// refusal is an error of a tool as the other side reads it: the protocol's code
// first, then what happened, then what to do about it.
type refusal struct {
	code protocol.Code
	text string
	hint string
}

func (r *refusal) Error() string {
	out := string(r.code)
	if r.text != "" {
		out += ": " + r.text
	}
	if r.hint != "" {
		out += "\nHint: " + r.hint
	}
	return out
}

// What the bridge knows to be wrong before it asks the server has the code that
// the server would give.
var (
	errNoGroup = &refusal{protocol.CodeGroupNotFound, "there is no such Group for this Agent", "list_missions shows your Groups."}
	errNoWork  = &refusal{protocol.CodeInvalidCommand, "there is no such WorkItem for this Agent", "list_offers and list_work show the WorkItems you may act on."}
	errNotMine = &refusal{protocol.CodeAuthForbidden, "you do not own the WorkItem", "When it is offered to you, call accept_offer first; list_offers shows your offers."}
	errNoLease = &refusal{protocol.CodeWorkLeaseExpired, "the WorkItem does not run under a lease of yours", "Look at its state with get_work; when it is yours and queued, call start_work, then try again."}
	errNoOffer = &refusal{protocol.CodeWorkOfferExpired, "the WorkItem is not offered to you now", "list_offers shows what is; wait_for_changes waits for the next offer."}
	errNoRoom  = &refusal{protocol.CodeInvalidCommand, "the main Conversation began before you joined", "Use a WorkItem's Conversation: give workItemId."}
	errContent = &refusal{protocol.CodeSchemaValidationFailed, "give text or base64, not both and not neither", "text is for text, base64 for everything else."}
)

// hints say what to do about a refusal of the server.
var hints = map[protocol.Code]string{
	protocol.CodeAuthForbidden:          "Your role does not allow this. Ask the Coordinator with post_message if you need it.",
	protocol.CodeMembershipRequired:     "You are not (or no longer) a member of this Group. list_missions shows your Missions.",
	protocol.CodeGroupNotFound:          "There is no such Group for you. list_missions shows your Groups.",
	protocol.CodeSchemaValidationFailed: "An argument has the wrong form: compare it with the tool's input schema.",
	protocol.CodeInvalidCommand:         "An argument contradicts the state of the Mission, or names something that does not exist: look with get_work and try again.",
	protocol.CodeInvalidStateTransition: "The WorkItem or Mission is in another state than this needs: look with get_work.",
	protocol.CodeRevisionConflict:       "Somebody else was faster: look with get_work and try again.",
	protocol.CodeWorkContractIncomplete: "The Work Contract lacks something: ask the Coordinator with post_message.",
	protocol.CodeWorkOfferExpired:       "The offer is over. list_offers shows what is offered now.",
	protocol.CodeWorkAlreadyOwned:       "Another Agent took it. list_offers shows what else there is.",
	protocol.CodeWorkLeaseExpired:       "The lease is over. Look with get_work; when the WorkItem is yours and queued, call start_work, then try again.",
	protocol.CodeWorkStaleOwnership:     "You do not own the WorkItem any more: stop working on it.",
	protocol.CodeApprovalRequired:       "A human has to approve first. Tell the Coordinator with post_message, then wait_for_changes.",
	protocol.CodeBudgetExceeded:         "The budget is used up. Call checkpoint_work with your state and tell the Coordinator.",
	protocol.CodeRateLimited:            "Too much at once: wait, then try again.",
	protocol.CodeBackpressure:           "The server is busy: wait, then try again.",
	protocol.CodeProtocolViolation:      "There is nothing with this id for you, or an argument cannot be read.",
	protocol.CodeInternalError:          "The server could not answer: try again later.",
}

// explain makes a refusal of every error.
func explain(err error) error {
	if r, ok := errors.AsType[*refusal](err); ok {
		return r
	}
	if e, ok := errors.AsType[*client.Error](err); ok {
		return &refusal{code: e.Code, text: told(e), hint: hints[e.Code]}
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return &refusal{code: protocol.CodeInternalError, text: "the call was given up before the server answered", hint: "It may have happened: look with get_work before you repeat it."}
	}
	return &refusal{code: protocol.CodeInternalError, text: err.Error(), hint: hints[protocol.CodeInternalError]}
}

// told is what the server disclosed of a refusal.
func told(e *client.Error) string {
	parts := []string{}
	if e.Reason != "" {
		parts = append(parts, strings.ReplaceAll(e.Reason, "_", " "))
	}
	for _, name := range []string{"path", "keyword", "state", "ruleIds"} {
		if v, ok := e.Details[name]; ok {
			text, err := json.Marshal(v)
			if err != nil {
				continue
			}
			parts = append(parts, name+" "+strings.Trim(string(text), `"`))
		}
	}
	return strings.Join(parts, ", ")
}

// arguments gives the code and a hint to what the library says about arguments
// that do not fit a tool's schema.
func arguments(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		out, err := next(ctx, method, req)
		res, ok := out.(*mcp.CallToolResult)
		if err != nil || !ok || !res.IsError || len(res.Content) != 1 {
			return out, err
		}
		if _, ours := errors.AsType[*refusal](res.GetError()); ours {
			return out, nil
		}
		if text, ok := res.Content[0].(*mcp.TextContent); ok {
			res.Content = nil
			res.SetError(&refusal{protocol.CodeSchemaValidationFailed, text.Text, hints[protocol.CodeSchemaValidationFailed]})
		}
		return res, nil
	}
}
