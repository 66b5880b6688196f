package mcpbridge

import (
	"context"
	"encoding/base64"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/missionweave/server/client"
	"github.com/missionweave/server/internal/protocol"
)

// Inputs and outputs of the tools.
type (
	none     struct{}
	workList struct {
		Note string `json:"note"`
		Work []Work `json:"work"`
	}
	leaseList struct {
		Leases []Lease `json:"leases"`
	}
	missionList struct {
		Note     string    `json:"note"`
		Missions []Mission `json:"missions"`
	}
	roomList struct {
		Conversations []Room `json:"conversations"`
	}
	artifactList struct {
		Artifacts []Stored `json:"artifacts"`
	}
	aboutWork struct {
		WorkItemID string `json:"workItemId" jsonschema:"id of the WorkItem"`
	}
	declineInput struct {
		WorkItemID string `json:"workItemId" jsonschema:"id of the WorkItem"`
		Reason     string `json:"reason" jsonschema:"capacity, deadline, capability, authorization, dependency, budget or other"`
		Comments   string `json:"comments,omitempty" jsonschema:"what the Coordinator should know"`
	}
	placeInput struct {
		WorkItemID string `json:"workItemId,omitempty" jsonschema:"the conversation of this WorkItem"`
		GroupID    string `json:"groupId,omitempty" jsonschema:"without workItemId: the main conversation of this Group"`
	}
	messageInput struct {
		placeInput
		Text string `json:"text" jsonschema:"the message"`
	}
	conversation struct {
		Note     string    `json:"note"`
		Messages []Message `json:"messages"`
	}
	progressInput struct {
		WorkItemID string   `json:"workItemId" jsonschema:"id of the WorkItem"`
		Done       []string `json:"done" jsonschema:"milestones reached so far"`
		Next       string   `json:"next" jsonschema:"what comes next"`
	}
	checkpointInput struct {
		progressInput
		State string `json:"state,omitempty" jsonschema:"text to go on from, stored as an Artifact"`
	}
	blockInput struct {
		WorkItemID string `json:"workItemId" jsonschema:"id of the WorkItem"`
		Reason     string `json:"reason" jsonschema:"why the work cannot go on"`
		Resolution string `json:"resolution" jsonschema:"what would resolve it"`
	}
	failInput struct {
		WorkItemID string `json:"workItemId" jsonschema:"id of the WorkItem"`
		Reason     string `json:"reason" jsonschema:"why the work has failed"`
	}
	publishInput struct {
		WorkItemID string   `json:"workItemId" jsonschema:"id of the WorkItem"`
		MediaType  string   `json:"mediaType" jsonschema:"for example text/markdown"`
		Text       string   `json:"text,omitempty" jsonschema:"the content, when it is text"`
		Base64     string   `json:"base64,omitempty" jsonschema:"the content, when it is not"`
		Sources    []string `json:"sources,omitempty" jsonschema:"hashes of Artifacts it was made from"`
	}
	published struct {
		Hash string `json:"hash"`
	}
	artifactInput struct {
		GroupID string `json:"groupId" jsonschema:"id of the Group"`
		Hash    string `json:"hash" jsonschema:"sha256:…"`
	}
	content struct {
		Note   string `json:"note"`
		Hash   string `json:"hash"`
		Text   string `json:"text,omitempty"`
		Base64 string `json:"base64,omitempty"`
	}
	inputs struct {
		Inputs []content `json:"inputs"`
	}
	submitInput struct {
		WorkItemID string   `json:"workItemId" jsonschema:"id of the WorkItem"`
		Artifacts  []string `json:"artifacts" jsonschema:"hashes that publish_artifact gave, at least one"`
		Method     string   `json:"method" jsonschema:"how you checked the result against every acceptance criterion: recorded as your own claim, which a reviewer judges"`
	}
	proposeInput struct {
		WorkItemID string `json:"workItemId" jsonschema:"the WorkItem that the new one belongs to; its contract is the pattern"`
		Goal       string `json:"goal" jsonschema:"what the new WorkItem is to reach"`
		Impact     string `json:"impact,omitempty" jsonschema:"why it matters"`
		Rationale  string `json:"rationale" jsonschema:"why it is needed"`
	}
	proposed struct {
		ProposalID string `json:"proposalId"`
	}
	waitInput struct {
		Seconds int `json:"seconds,omitempty" jsonschema:"how long at most, default 30, at most 300"`
	}
	waited struct {
		Changed bool `json:"changed"`
	}
)

// tool adds a tool whose calls count as signs of life.
func tool[In, Out any](b *Bridge, s *mcp.Server, name, description string, reads bool, f func(context.Context, In) (Out, error)) {
	mcp.AddTool(s, &mcp.Tool{
		Name: name, Description: description, Annotations: &mcp.ToolAnnotations{ReadOnlyHint: reads, OpenWorldHint: new(false)},
	}, func(ctx context.Context, _ *mcp.CallToolRequest, in In) (*mcp.CallToolResult, Out, error) {
		b.mu.Lock()
		b.used = time.Now()
		b.mu.Unlock()
		out, err := f(ctx, in)
		if err != nil {
			err = explain(err)
		}
		return nil, out, err
	})
}

func (b *Bridge) works(pick func(*group, *client.Work) bool) func(context.Context, none) (workList, error) {
	return func(context.Context, none) (workList, error) { return workList{dataNote, b.all(pick)}, nil }
}

func (b *Bridge) addTools(s *mcp.Server) {
	tool(b, s, "list_missions", "The Missions you are a member of, with the groupId that other tools ask for.", true, b.missions)
	tool(b, s, "list_offers", "WorkItems that are offered to you now, each with its whole Work Contract: goal, deliverables, acceptance criteria, deadline. "+
		"Answer each with accept_offer or decline_offer before offerExpiresAt; ask with post_message first if the contract is unclear.", true, b.works(offered))
	tool(b, s, "list_work", "WorkItems that you own. queued and ready: call start_work. active: it runs under your lease. "+
		"blocked: the Coordinator has to resolve something. submitted: in review. verified: accepted.", true, b.works(owned))
	tool(b, s, "list_submissions", "WorkItems of your Missions for which Artifacts were handed in, by you or by others, with the hashes in submitted.", true, b.works(submitted))
	tool(b, s, "list_leases", "Your leases and when they end. An ownership lease keeps a WorkItem yours, an execution lease lets you act on it. "+
		"While you keep calling tools, execution leases are renewed for you.", true, func(context.Context, none) (leaseList, error) {
		return leaseList{b.leases()}, nil
	})
	tool(b, s, "list_conversations", "The Conversations you can read and post in: one main one for each Group, one for each WorkItem.", true, func(context.Context, none) (roomList, error) {
		return roomList{b.rooms()}, nil
	})
	tool(b, s, "list_artifacts", "The Artifacts published on WorkItems you can see, with hash, media type and size. read_artifact gives the content.", true, func(context.Context, none) (artifactList, error) {
		return artifactList{b.artifacts()}, nil
	})
	tool(b, s, "get_work", "One WorkItem with its whole Work Contract, its state, what was published and what was saved at the last checkpoint.", true, b.get)
	tool(b, s, "accept_offer", "Accept an offer: you own the WorkItem, which is then queued, and commit to its contract. Next: start_work.", false, b.accept)
	tool(b, s, "decline_offer", "Decline an offer with one of the protocol's reasons.", false, b.decline)
	tool(b, s, "start_work", "Begin or resume a queued WorkItem that you own; its dependencies must be verified (ready). Needed before anything below that acts on running work. "+
		"After a pause, savedState names the Artifact with what you stored.", false, b.start)
	tool(b, s, "report_progress", "Tell the Coordinator which milestones of running work are done and what comes next.", false, b.report)
	tool(b, s, "checkpoint_work", "Pause running work at a safe point. It is queued again and the state you give is kept for the next start_work, which may be another session's.", false, b.checkpoint)
	tool(b, s, "block_work", "Give running work back until the Coordinator has resolved what you name. Use it instead of guessing.", false, b.block)
	tool(b, s, "fail_work", "End running work as failed for good, with the reason. Use block_work when somebody could help.", false, b.failWork)
	tool(b, s, "read_inputs", "The content of everything the WorkItem works on: its input Artifacts and what its dependencies handed in.", true, b.readInputs)
	tool(b, s, "read_artifact", "The content of an Artifact of a Group, checked against its hash.", true, b.readArtifact)
	tool(b, s, "publish_artifact", "Publish content as an Artifact of running work and get its hash. The media type should be that of a deliverable of the contract. "+
		"Nothing is handed in before submit_work.", false, b.publish)
	tool(b, s, "submit_work", "Hand published Artifacts in for review, which ends the run. The bridge reads each back and signs that it is intact; "+
		"your account of how you checked the result is signed as a claim, not as a test, and the review decides.", false, b.submit)
	tool(b, s, "read_conversation", "The Messages of a WorkItem's Conversation, or of a Group's main one, oldest first.", true, b.readConversation)
	tool(b, s, "post_message", "Post a Message in a WorkItem's Conversation, or in a Group's main one. It asks and tells; it authorizes nothing.", false, b.post)
	tool(b, s, "propose_work", "Propose sub-work that you found to be needed. It becomes work when the Coordinator authorizes it.", false, b.propose)
	tool(b, s, "wait_for_changes", "Wait until anything happens in your Missions: an offer, an answer, a verdict. changed is false when the time was over first.", true, b.wait)
}

func (b *Bridge) get(_ context.Context, in aboutWork) (Work, error) {
	w, g, err := b.find(in.WorkItemID)
	if err != nil {
		return Work{}, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.show(g, &w), nil
}

// offer finds the Agent's pending offer on a WorkItem.
func (b *Bridge) offer(workItemID string) (client.Offer, *group, error) {
	w, g, err := b.find(workItemID)
	if err != nil {
		return client.Offer{}, nil, err
	}
	if o, ok := g.board.PendingOffer(&w, time.Now()); ok {
		return o, g, nil
	}
	return client.Offer{}, nil, errNoOffer
}

func (b *Bridge) accept(ctx context.Context, in aboutWork) (Work, error) {
	o, g, err := b.offer(in.WorkItemID)
	if err != nil {
		return Work{}, err
	}
	return b.do(ctx, g, in.WorkItemID, "work.accept_offer", map[string]any{"offerId": o.OfferID})
}

func (b *Bridge) decline(ctx context.Context, in declineInput) (Work, error) {
	o, g, err := b.offer(in.WorkItemID)
	if err != nil {
		return Work{}, err
	}
	payload := map[string]any{"offerId": o.OfferID, "declineReason": in.Reason}
	if in.Comments != "" {
		payload["comments"] = in.Comments
	}
	return b.do(ctx, g, in.WorkItemID, "ext.missionweave.work.offer_decline", payload)
}

func (b *Bridge) start(ctx context.Context, in aboutWork) (Work, error) {
	w, g, err := b.find(in.WorkItemID)
	if err != nil {
		return Work{}, err
	}
	if w.Owner == nil || w.Owner.AgentID != b.c.Principal().ID {
		return Work{}, errNotMine
	}
	return b.do(ctx, g, w.ID, "work.start", map[string]any{
		"ownershipEpoch": w.OwnershipEpoch, "executionLeaseSeconds": b.opt.LeaseSeconds,
	})
}

func progress(done []string, next string) client.Progress {
	if next == "" {
		next = "the end"
	}
	return client.Progress{
		CurrentPhase: next, CompletedMilestones: append([]string{}, done...), NextCheckpoint: next, Blockers: []string{},
		UpdatedCompletionEstimate: client.Timestamp(time.Now().Add(10 * time.Minute)), EvidenceIDs: []string{},
	}
}

func (b *Bridge) report(ctx context.Context, in progressInput) (Work, error) {
	w, g, payload, err := b.leased(in.WorkItemID)
	if err != nil {
		return Work{}, err
	}
	// A second longer, so that a report right after the start extends the lease.
	payload["progress"], payload["leaseSeconds"] = progress(in.Done, in.Next), b.opt.LeaseSeconds+1
	return b.do(ctx, g, w.ID, "ext.missionweaveprotocol.core.work_execution_lease_renew", payload)
}

func (b *Bridge) checkpoint(ctx context.Context, in checkpointInput) (Work, error) {
	w, g, payload, err := b.leased(in.WorkItemID)
	if err != nil {
		return Work{}, err
	}
	if in.State != "" {
		stored, err := b.publish(ctx, publishInput{WorkItemID: w.ID, MediaType: "text/plain", Text: in.State})
		if err != nil {
			return Work{}, err
		}
		payload["stateArtifactHash"] = stored.Hash
	}
	payload["progress"] = progress(in.Done, in.Next)
	return b.do(ctx, g, w.ID, "work.checkpoint", payload)
}

func (b *Bridge) block(ctx context.Context, in blockInput) (Work, error) {
	w, g, payload, err := b.leased(in.WorkItemID)
	if err != nil {
		return Work{}, err
	}
	payload["progress"], payload["reason"], payload["requiredResolution"] = progress(nil, ""), in.Reason, in.Resolution
	return b.do(ctx, g, w.ID, "work.block", payload)
}

func (b *Bridge) failWork(ctx context.Context, in failInput) (Work, error) {
	w, g, payload, err := b.leased(in.WorkItemID)
	if err != nil {
		return Work{}, err
	}
	report, err := b.c.SignFinding(b.ref(g, &w), client.Finding{
		Type: "failure_report", Criteria: client.CriteriaOf(&w.Contract), Result: "failed", Method: in.Reason,
	})
	if err != nil {
		return Work{}, err //nolint:wrapcheck // says what it is about
	}
	payload["reason"], payload["evidence"] = in.Reason, []client.Raw{report}
	return b.do(ctx, g, w.ID, "work.fail", payload)
}

// evidence is what is true of a submission when a model hands it in. That it meets
// the criteria is the model's word: a judgement of its own work, which proves
// nothing and is recorded as such. That the Artifacts are intact the bridge has
// seen itself.
func (b *Bridge) evidence(ctx context.Context, g *group, w *client.Work, in *submitInput) ([]client.Raw, error) {
	for _, hash := range in.Artifacts {
		if _, err := b.c.GetArtifact(ctx, g.board.GroupID, hash); err != nil {
			return nil, err //nolint:wrapcheck // the server's words
		}
	}
	b.mu.Lock()
	peer := b.peer
	b.mu.Unlock()
	var out []client.Raw
	for _, f := range []client.Finding{
		{
			Type: "reviewer_assessment", Result: "inconclusive", Method: "The Agent that did the work says: " + in.Method,
			Details: map[string]any{"origin": "self-report", "mcpClient": peer},
		},
		{Type: "artifact_integrity", Result: "passed", Method: "Read every Artifact back and compared it with its hash.", ToolVersion: "mw mcp " + b.opt.Version},
	} {
		f.Criteria, f.Artifacts = client.CriteriaOf(&w.Contract), in.Artifacts
		signed, err := b.c.SignFinding(b.ref(g, w), f)
		if err != nil {
			return nil, err //nolint:wrapcheck // says what it is about
		}
		out = append(out, signed)
	}
	return out, nil
}

// ref reads what the Group's follower writes.
func (b *Bridge) ref(g *group, w *client.Work) client.WorkRef {
	b.mu.Lock()
	defer b.mu.Unlock()
	return client.WorkRef{MissionID: g.board.MissionID, GroupID: g.board.GroupID, WorkItemID: w.ID}
}

func (b *Bridge) readInputs(ctx context.Context, in aboutWork) (inputs, error) {
	w, g, err := b.find(in.WorkItemID)
	if err != nil {
		return inputs{}, err
	}
	hashes := slices.Clone(w.Contract.InputArtifacts)
	b.mu.Lock()
	for _, id := range w.Contract.DependencyWorkItemIDs {
		if d := g.board.Items[id]; d != nil {
			hashes = append(hashes, d.Submission...)
		}
	}
	b.mu.Unlock()
	out := inputs{Inputs: []content{}}
	for _, hash := range hashes {
		c, err := b.readArtifact(ctx, artifactInput{GroupID: g.board.GroupID, Hash: hash})
		if err != nil {
			return inputs{}, err
		}
		out.Inputs = append(out.Inputs, c)
	}
	return out, nil
}

func (b *Bridge) readArtifact(ctx context.Context, in artifactInput) (content, error) {
	data, err := b.c.GetArtifact(ctx, in.GroupID, in.Hash)
	if err != nil {
		return content{}, err //nolint:wrapcheck // the server's words
	}
	out := content{Note: dataNote, Hash: in.Hash}
	if utf8.Valid(data) {
		out.Text = string(data)
	} else {
		out.Base64 = base64.StdEncoding.EncodeToString(data)
	}
	return out, nil
}

func (in publishInput) bytes() ([]byte, error) {
	if (in.Base64 == "") == (in.Text == "") {
		return nil, errContent
	}
	if in.Base64 == "" {
		return []byte(in.Text), nil
	}
	data, err := base64.StdEncoding.DecodeString(in.Base64)
	if err != nil {
		return nil, &refusal{protocol.CodeSchemaValidationFailed, "base64: " + err.Error(), errContent.hint}
	}
	return data, nil
}

func (b *Bridge) publish(ctx context.Context, in publishInput) (published, error) {
	w, g, payload, err := b.leased(in.WorkItemID)
	if err != nil {
		return published{}, err
	}
	data, err := in.bytes()
	if err != nil {
		return published{}, err
	}
	hash := client.Hash(data)
	if slices.ContainsFunc(w.Artifacts, func(a client.Artifact) bool { return a.ContentHash == hash }) {
		return published{hash}, nil
	}
	payload["artifact"], _, err = b.c.StoreProduct(ctx, b.ref(g, &w), w.Owner, &w.Contract, client.Product{
		MediaType: in.MediaType, Content: data, Sources: in.Sources,
	})
	if err != nil {
		return published{}, err //nolint:wrapcheck // the server's words
	}
	_, err = b.do(ctx, g, w.ID, "artifact.publish", payload)
	return published{hash}, err
}

func (b *Bridge) submit(ctx context.Context, in submitInput) (Work, error) {
	w, g, payload, err := b.leased(in.WorkItemID)
	if err != nil {
		return Work{}, err
	}
	signed, err := b.evidence(ctx, g, &w, &in)
	if err != nil {
		return Work{}, err
	}
	payload["artifactHashes"], payload["evidence"] = in.Artifacts, signed
	return b.do(ctx, g, w.ID, "work.submit", payload)
}

// place finds a Conversation by WorkItem or Group.
func (b *Bridge) place(in placeInput) (g *group, conversationID string, err error) {
	if in.WorkItemID != "" {
		w, g, err := b.find(in.WorkItemID)
		return g, w.ConversationID, err
	}
	if g, err = b.inGroup(in.GroupID); err != nil {
		return nil, "", err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if g.board.MainConversation == "" {
		return nil, "", errNoRoom
	}
	return g, g.board.MainConversation, nil
}

func (b *Bridge) readConversation(ctx context.Context, in placeInput) (conversation, error) {
	g, conversationID, err := b.place(in)
	if err != nil {
		return conversation{}, err
	}
	return b.conversation(ctx, g.board.GroupID, conversationID)
}

func (b *Bridge) conversation(ctx context.Context, groupID, conversationID string) (conversation, error) {
	messages, err := b.c.Messages(ctx, groupID, conversationID)
	if err != nil {
		return conversation{}, err //nolint:wrapcheck // the server's words
	}
	out := conversation{Note: dataNote, Messages: []Message{}}
	for _, m := range messages {
		text := ""
		for _, part := range m.Content {
			switch part.Type {
			case "text":
				text += part.Text
			case "artifact_ref":
				text += "[Artifact " + part.ArtifactHash + "]"
			}
		}
		out.Messages = append(out.Messages, Message{Author: m.Author.Type + " " + m.Author.ID, Text: text, At: m.CommittedAt})
	}
	return out, nil
}

func (b *Bridge) post(ctx context.Context, in messageInput) (none, error) {
	g, conversationID, err := b.place(in.placeInput)
	if err != nil {
		return none{}, err
	}
	return none{}, b.command(ctx, g, client.Command{Kind: "message.post", ConversationID: conversationID}, map[string]any{
		"messageId": client.NewID(), "content": []client.ContentPart{{Type: "text", Text: in.Text}},
	})
}

func (b *Bridge) propose(ctx context.Context, in proposeInput) (proposed, error) {
	w, g, err := b.find(in.WorkItemID)
	if err != nil {
		return proposed{}, err
	}
	contract := w.Contract
	contract.ContractVersion, contract.Goal, contract.DependencyWorkItemIDs = 1, in.Goal, []string{}
	if in.Impact != "" {
		contract.BusinessImpact = in.Impact
	}
	id := client.NewID()
	return proposed{id}, b.command(ctx, g, client.Command{Kind: "work.propose"}, map[string]any{
		"proposalId": id, "contract": contract, "rationale": in.Rationale, "parentWorkItemId": w.ID,
	})
}

func (b *Bridge) wait(ctx context.Context, in waitInput) (waited, error) {
	seconds := 30
	if in.Seconds > 0 {
		seconds = min(in.Seconds, 300)
	}
	b.mu.Lock()
	changed := b.changed
	b.mu.Unlock()
	limit := time.NewTimer(time.Duration(seconds) * time.Second)
	defer limit.Stop()
	select {
	case <-ctx.Done():
		return waited{}, ctx.Err() //nolint:wrapcheck // the context's
	case <-limit.C:
		return waited{false}, nil
	case <-changed:
		return waited{true}, nil
	}
}
