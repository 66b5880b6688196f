package manifest

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/missionweave/server/internal/protocol/strictjson"
)

// Entry is a decision as it is recorded: the whole input and what came of it. A
// trace is a sequence of them, one JSON object a line.
type Entry struct {
	ActionID     string         `json:"actionId,omitempty"`
	At           string         `json:"at,omitempty"` // RFC 3339
	Mode         Mode           `json:"mode"`
	ActionType   string         `json:"actionType"`
	Parameters   strictjson.Raw `json:"parameters,omitempty"` // absent when they were not kept
	Operation    string         `json:"operation,omitempty"`
	Resource     string         `json:"resource,omitempty"`
	Actor        string         `json:"actor,omitempty"`
	SessionID    string         `json:"sessionId,omitempty"`
	WorkItemID   string         `json:"workItemId,omitempty"`
	Capabilities []string       `json:"capabilities,omitempty"`
	LeaseID      string         `json:"executionLeaseId,omitempty"`
	TokenID      string         `json:"capabilityTokenId,omitempty"`

	// Provenance are the ids that the action named; Records their ancestry as far as
	// it was stored.
	Provenance []string      `json:"provenance"`
	Records    []EntryRecord `json:"records"`

	Decision        Verdict  `json:"decision"`
	Rule            string   `json:"rule"`
	RuleID          string   `json:"ruleId"`
	Laws            []string `json:"laws"`
	Reason          string   `json:"reason"`
	ManifestVersion string   `json:"manifestVersion"`
	ArgumentsDigest string   `json:"argumentsDigest,omitempty"`
	ArgsEquality    string   `json:"argsEqualityVersion,omitempty"`
	TrustLevel      string   `json:"trustLevel"`
	Tainted         bool     `json:"tainted"`
	Complete        bool     `json:"provenanceComplete"`
	Channels        []string `json:"channels"`
	Choices         []string `json:"choices,omitempty"`
	Review          bool     `json:"review,omitempty"`
	ApprovalID      string   `json:"approvalId,omitempty"`
}

// EntryRecord is a provenance record in a trace.
type EntryRecord struct {
	ID              string   `json:"id"`
	Source          string   `json:"source"`
	TrustLevel      string   `json:"trustLevel"`
	Tainted         bool     `json:"tainted"`
	Transformations []string `json:"transformations"`
	ParentIDs       []string `json:"parentIds"`
	Sessions        []string `json:"sessions"`
	CreatedAt       string   `json:"createdAt,omitempty"`
}

// Entry is the record of a decision about r.
func (d *Decision) Entry(r *Request) *Entry {
	e := &Entry{
		Mode: r.Mode, ActionType: r.Action, Operation: r.Operation, Resource: r.Resource, Actor: r.Actor,
		SessionID: r.Session, WorkItemID: r.WorkItem, Capabilities: r.Capabilities, Provenance: nonNil(r.Chain),
		Records: []EntryRecord{}, Decision: d.Verdict, Rule: d.Rule, RuleID: d.RuleID, Laws: nonNil(d.Laws), Reason: d.Reason,
		ManifestVersion: d.ManifestVersion, ArgumentsDigest: d.Digest, ArgsEquality: ArgsEquality,
		TrustLevel: d.Context.Trust.String(), Tainted: d.Context.Tainted, Complete: d.Context.Complete,
		Channels: nonNil(d.Context.Channels), Choices: d.Choices, Review: d.Review, ApprovalID: d.ApprovalID,
	}
	if !r.Now.IsZero() {
		e.At = r.Now.UTC().Format(time.RFC3339Nano)
	}
	if raw, err := r.Parameters.JCS(); err == nil && r.Parameters.Exists() {
		e.Parameters = raw
	}
	seen := map[string]bool{}
	queue := slices.Clone(r.Chain)
	for len(queue) > 0 && len(e.Records) < MaxRecords {
		id := queue[0]
		queue = queue[1:]
		if seen[id] || r.Records == nil {
			continue
		}
		seen[id] = true
		if x := r.Records.Record(id); x != nil {
			e.Records = append(e.Records, EntryRecord{
				x.ID, x.Source, x.Trust, x.Tainted, nonNil(x.Transformations), nonNil(x.Parents), nonNil(x.Sessions), x.CreatedAt,
			})
			queue = append(queue, x.Parents...)
		}
	}
	return e
}

func nonNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// AppendJSONLine appends the entry as one line of a trace.
func (e *Entry) AppendJSONLine(dst []byte) ([]byte, error) {
	out, err := strictjson.AppendMarshal(dst, e)
	if err != nil {
		return dst, fmt.Errorf("manifest: trace entry: %w", err)
	}
	return append(out, '\n'), nil
}

// ErrNoParameters is an entry whose parameters were not kept: it cannot be decided
// again.
var ErrNoParameters = errors.New("manifest: the entry does not have its parameters")

// Request is what the entry was decided on. An approval is part of it only as the
// fact that it was used.
func (e *Entry) Request() (*Request, error) {
	if len(e.Parameters) == 0 {
		return nil, ErrNoParameters
	}
	doc, err := strictjson.Parse(e.Parameters)
	if err != nil {
		return nil, fmt.Errorf("manifest: parameters of the entry: %w", err)
	}
	records := make(RecordMap, len(e.Records))
	for i := range e.Records {
		x := &e.Records[i]
		records[x.ID] = &Record{
			ID: x.ID, Source: x.Source, Trust: x.TrustLevel, Tainted: x.Tainted, Transformations: x.Transformations,
			Parents: x.ParentIDs, Sessions: x.Sessions, CreatedAt: x.CreatedAt,
		}
	}
	return &Request{
		Mode: e.Mode, Action: e.ActionType, Parameters: doc.Root(), Chain: e.Provenance, Records: records,
		Actor: e.Actor, Session: e.SessionID, WorkItem: e.WorkItemID, Capabilities: e.Capabilities,
		Operation: e.Operation, Resource: e.Resource,
	}, nil
}

// ReadTrace reads a trace. An error names the line.
func ReadTrace(source []byte) ([]Entry, error) {
	var out []Entry
	for i, line := range bytes.Split(source, []byte("\n")) {
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		var e Entry
		if err := strictjson.Raw(line).Decode(&e); err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		out = append(out, e)
	}
	return out, nil
}

// Difference is a recorded decision that another version takes otherwise.
type Difference struct {
	Index    int     `json:"index"` // in the trace, from 0
	ActionID string  `json:"actionId,omitempty"`
	Mode     Mode    `json:"mode"`
	Action   string  `json:"actionType"`
	Was      Verdict `json:"was"`
	WasRule  string  `json:"wasRule"`
	Is       Verdict `json:"is"`
	IsRule   string  `json:"isRule"`
	Reason   string  `json:"reason"`
}

// Simulation is a trace decided again.
type Simulation struct {
	ManifestVersion string       `json:"manifestVersion"`
	Decided         int          `json:"decided"`
	Same            int          `json:"same"`
	Differences     []Difference `json:"differences"`
	// Skipped are the entries that could not be decided again.
	Skipped int `json:"skipped"`
}

// Simulate decides a trace again. An ALLOW by an approval counts as the ASK that
// it answered: a new version asks anew.
func (m *Manifest) Simulate(trace []Entry) Simulation {
	out := Simulation{ManifestVersion: m.version, Differences: []Difference{}}
	for i := range trace {
		e := &trace[i]
		r, err := e.Request()
		if err != nil {
			out.Skipped++
			continue
		}
		d := m.Decide(r)
		out.Decided++
		same := d.Verdict == e.Decision && d.Rule == e.Rule && d.RuleID == e.RuleID
		if e.Rule == OneShotApproval {
			same = d.Rule == Escalation || d.Rule == Uncovered
		}
		if same {
			out.Same++
			continue
		}
		out.Differences = append(out.Differences, Difference{
			i, e.ActionID, e.Mode, e.ActionType, e.Decision, e.RuleID, d.Verdict, d.RuleID, d.Reason,
		})
	}
	return out
}

// Coverage is what a trace used of a manifest.
type Coverage struct {
	ManifestVersion string         `json:"manifestVersion"`
	Decided         int            `json:"decided"`
	Skipped         int            `json:"skipped"`
	Hits            map[string]int `json:"hits"` // by rule id, law or rule name
	// NeverHit are the rules and escalations that decided nothing, NeverProposed the
	// actions that nobody proposed.
	NeverHit      []string `json:"neverHit"`
	NeverProposed []string `json:"neverProposed"`
}

// Cover decides a trace again and counts what decided.
func (m *Manifest) Cover(trace []Entry) Coverage {
	out := Coverage{ManifestVersion: m.version, Hits: map[string]int{}, NeverHit: []string{}, NeverProposed: []string{}}
	proposed := map[string]bool{}
	for i := range trace {
		proposed[trace[i].ActionType] = true
		r, err := trace[i].Request()
		if err != nil {
			out.Skipped++
			continue
		}
		d := m.Decide(r)
		out.Decided++
		out.Hits[d.RuleID]++
	}
	for _, list := range [][]Rule{m.doc.Rules, m.doc.Escalations} {
		for i := range list {
			if out.Hits[list[i].ID] == 0 {
				out.NeverHit = append(out.NeverHit, list[i].ID)
			}
		}
	}
	for _, name := range m.Actions() {
		if !proposed[name] {
			out.NeverProposed = append(out.NeverProposed, name)
		}
	}
	return out
}
