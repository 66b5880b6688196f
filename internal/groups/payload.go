package groups

import (
	"strconv"
	"strings"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// EmbeddedDoc is a Signed Document inside a payload, to be verified and
// admitted (P11, P12) before Decide.
type EmbeddedDoc struct {
	Kind  protocol.DocumentKind
	Value strictjson.Value
	// Path is its JSON Pointer within the payload.
	Path string
}

// maxEmbedded bounds the embedded documents of one Command (COMMANDS.md 8.12).
const maxEmbedded = 256

// CheckEnvelope is the part of P2 that command.schema does not say: the rows
// of COMMANDS.md 2.1 marked SVF. The envelope must have passed the schema.
func CheckEnvelope(env *protocol.Command) *protocol.Error {
	k, known := kinds[env.Kind]
	organization := known && k.Organization
	missing := func(member string) *protocol.Error {
		return protocol.NewError(protocol.CodeSchemaValidationFailed, "").
			WithDetail("path", "/"+member).WithDetail("keyword", shape.KeywordRequired).WithStep("P2")
	}
	switch {
	case !organization && !organizationKind(env.Kind) && env.GroupID == "":
		return missing("groupId")
	case needsWorkItem(env.Kind) && env.WorkItemID == "":
		return missing("workItemId")
	case env.Kind == "message.post" && env.ConversationID == "":
		return missing("conversationId")
	}
	return nil
}

func organizationKind(kind string) bool {
	switch kind {
	case "ext.missionweaveprotocol.registry.agent_card_register",
		"ext.missionweaveprotocol.identity.session_open":
		return true
	}
	return false
}

// needsWorkItem is the first row of COMMANDS.md 2.1; it holds for kinds that
// this server does not implement as well.
func needsWorkItem(kind string) bool {
	switch kind {
	case "work.propose":
		return false
	case "artifact.publish", "approval.grant_execution", "mission.create_child",
		"ext.missionweaveprotocol.core.work_dependency_add",
		"ext.missionweaveprotocol.core.work_execution_lease_renew",
		"ext.missionweaveprotocol.core.resource_usage_record":
		return true
	}
	return strings.HasPrefix(kind, "work.") || strings.HasPrefix(kind, "ext.missionweave.work.") ||
		strings.HasPrefix(kind, "ext.missionweave.approval.")
}

// DecodePayload is P10: it holds the payload against the kind's profile and
// returns its typed form and the Signed Documents in it. A kind that is not
// implemented passes with a nil payload and fails at P16.
func DecodePayload(env *protocol.Command, payload strictjson.Value) (any, []EmbeddedDoc, *protocol.Error) {
	k, ok := kinds[env.Kind]
	if !ok {
		return nil, nil, nil
	}
	refusal := func(code protocol.Code, reason string) *protocol.Error {
		return protocol.NewError(code, reason).WithStep("P10")
	}
	if f := k.Shape.Check(payload); f != nil {
		return nil, nil, payloadFault(k, payload, f)
	}
	p := k.handler.new()
	if err := strictjson.Decode(payload, p); err != nil {
		return nil, nil, refusal(protocol.CodeSchemaValidationFailed, "").WithDetail("path", "/payload").WithCause(err)
	}
	if v, ok := payload.Get("workItemId"); ok && v.Str() != env.WorkItemID {
		return nil, nil, refusal(protocol.CodeInvalidCommand, "envelope_mismatch")
	}
	if v, ok := payload.Get("conversationId"); ok && v.Str() != env.ConversationID {
		return nil, nil, refusal(protocol.CodeInvalidCommand, "envelope_mismatch")
	}
	if c, ok := p.(envelopeChecker); ok {
		if reason := c.checkEnvelope(env); reason != "" {
			return nil, nil, refusal(protocol.CodeInvalidCommand, reason)
		}
	}
	if c, ok := p.(incomplete); ok {
		if missing := c.missing(); len(missing) > 0 {
			return nil, nil, refusal(protocol.CodeWorkContractIncomplete, "").WithDetail("missing", missing)
		}
	}
	if env.CooperationOverrideGrantID != "" && len(k.Limits) == 0 {
		return nil, nil, refusal(protocol.CodeInvalidCommand, "override_not_applicable")
	}
	docs := embedded(k, payload)
	if len(docs) > maxEmbedded {
		return nil, nil, refusal(protocol.CodeSchemaValidationFailed, "").
			WithDetail("path", "/payload").WithDetail("keyword", shape.KeywordMaxItems)
	}
	return p, docs, nil
}

// envelopeChecker is a payload that must agree with its envelope; the answer
// is a reason token, "" when it does.
type envelopeChecker interface {
	checkEnvelope(env *protocol.Command) string
}

// incomplete is a payload with a Work Contract: missing names what the
// contract lacks beyond its schema (COMMANDS.md 3.3).
type incomplete interface {
	missing() []string
}

// documented is a payload with embedded Signed Documents; they come in the
// order of the kind's DocumentRows.
type documented interface {
	documents() []documentRef
}

// documentRef is what the core needs of an embedded document.
type documentRef struct {
	kind protocol.DocumentKind
	// time is its protected time.
	time string
}

// payloadFault turns a fault of the profile into SVF or, when nothing but the
// contract's required content is missing, into WCI. The faults of a document
// name it by its position.
func payloadFault(k *Kind, payload strictjson.Value, first *shape.Fault) *protocol.Error {
	const contract = "/contract/"
	if strings.HasPrefix(first.Path, contract) {
		paths, only := shape.Missing(k.Shape.CheckAll(payload, 1000))
		for _, p := range paths {
			only = only && strings.HasPrefix(p, contract)
		}
		if only {
			for i := range paths {
				paths[i] = "/payload" + paths[i]
			}
			return protocol.NewError(protocol.CodeWorkContractIncomplete, first.Reason).
				WithDetail("missing", paths).WithStep("P10")
		}
	}
	e := protocol.NewError(protocol.CodeSchemaValidationFailed, first.Reason).
		WithDetail("path", "/payload"+first.Path).WithDetail("keyword", first.Keyword).WithStep("P10")
	n := 0
	for _, d := range embedded(k, payload) {
		if first.Path == d.Path || strings.HasPrefix(first.Path, d.Path+"/") {
			e = e.WithDetail("document", int64(n))
		}
		n++
	}
	return e
}

// embedded finds the documents of a payload by the kind's rows.
func embedded(k *Kind, payload strictjson.Value) []EmbeddedDoc {
	var docs []EmbeddedDoc
	for _, row := range k.Documents {
		v, ok := payload.Get(row.Member)
		switch {
		case !ok:
		case !row.Many:
			docs = append(docs, EmbeddedDoc{Kind: row.Kind, Value: v, Path: "/" + row.Member})
		case v.Kind() == strictjson.Array:
			for i, item := range v.Items() {
				docs = append(docs, EmbeddedDoc{
					Kind: row.Kind, Value: item, Path: "/" + row.Member + "/" + strconv.Itoa(i),
				})
			}
		}
	}
	return docs
}

// verified fails closed when the caller did not verify every document.
func (x *Ctx) verified() error {
	if x.Kind == nil {
		return nil
	}
	if x.Command.Payload == nil {
		return errUnverified
	}
	var docs []documentRef
	if d, ok := x.Command.Payload.(documented); ok {
		docs = d.documents()
	}
	if len(docs) != len(x.Command.Docs) {
		return errUnverified
	}
	for i, d := range docs {
		if given := x.Command.Docs[i]; given.Kind != d.kind || given.SigningHash == "" {
			return errUnverified
		}
	}
	x.docs, x.scratch = docs, x.Kind.handler.scratch()
	return nil
}
