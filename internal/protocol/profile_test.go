package protocol_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/shape"
)

func verdict(s *shape.Shape, t *testing.T, text string) string {
	t.Helper()
	v, err := protocol.Raw(text).Value()
	if err != nil {
		t.Fatal(err)
	}
	f := s.Check(v)
	if f == nil {
		return ""
	}
	return strings.TrimSpace(f.Path + " " + f.Keyword + " " + f.Reason)
}

func TestPayloadShapes(t *testing.T) {
	tests := map[string]struct {
		shape *shape.Shape
		cases map[string]string
	}{
		"money has six decimals": {protocol.ShapeMoney, map[string]string{
			`0`: "", `0.000001`: "", `0.0000001`: "rule money", `-1`: "minimum", `1e400`: "rule money", `9007199255`: "rule money", `"1"`: "type",
		}},
		"a budget with money has a currency": {protocol.ShapeBudgetLimits, map[string]string{
			`{"financialLimit":1,"currency":"NOK"}`: "", `{"financialLimit":1}`: "/currency required currency",
			`{"financialLimit":1,"toolCallLimit":1}`: "/currency required currency", `{"financialLimit":0,"toolCallLimit":1}`: "",
			`{"financialLimit":0}`: "anyOf", `{}`: "anyOf", `{"currency":"NOK"}`: "anyOf",
			`{"financialLimit":1.0000001,"currency":"NOK"}`: "/financialLimit rule money", `{"tokens":1}`: "/tokens additionalProperties",
		}},
		"a delegated budget is complete": {protocol.ShapeFullBudgetLimits, map[string]string{
			`{"currency":"NOK","financialLimit":0,"modelTokenLimit":0,"toolCallLimit":0,"computeSecondsLimit":0,"wallClockSecondsLimit":0,"externalSideEffectLimit":0}`: "",
			`{"currency":"NOK","financialLimit":0}`: "/modelTokenLimit required",
		}},
		"usage is above zero somewhere": {protocol.ShapeUsage, map[string]string{
			`{"toolCalls":1}`: "", `{"financial":0.5,"currency":"NOK"}`: "", `{"financial":0,"toolCalls":2}`: "",
			`{}`: "rule usage", `{"toolCalls":0,"financial":0}`: "rule usage", `{"currency":"NOK"}`: "rule usage",
			`{"financial":0.5}`: "/currency required currency", `{"toolCalls":-1}`: "/toolCalls minimum", `{"toolCalls":null}`: "/toolCalls type",
		}},
		"message content is bounded together": {protocol.ShapeMessageContent, map[string]string{
			`[]`: "minItems", `[{"type":"text","text":"é"}]`: "",
			`[{"type":"text","text":"` + strings.Repeat("é", 100000) + `"}]`:                                      "",
			`[{"type":"text","text":"` + strings.Repeat("é", 100000) + `"},{"type":"text","text":"x"}]`:           "rule content_length",
			`[` + strings.Repeat(`{"type":"text","text":"x"},`, 50) + `{"type":"text","text":"x"}]`:               "maxItems",
			`[{"type":"data_ref","schema":"urn:x:y","data":{"text":"` + strings.Repeat("z", 100001) + `"}}]`:      "",
			`[{"type":"artifact_ref","artifactHash":"sha256:` + strings.Repeat("0", 64) + `","text":"smuggled"}]`: "/0/text additionalProperties",
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for text, want := range tt.cases {
				if got := verdict(tt.shape, t, text); got != want {
					t.Errorf("%.200s: got %q, want %q", text, got, want)
				}
			}
		})
	}
}

func contractVector(t *testing.T) *tree {
	t.Helper()
	for _, v := range ownVectors(t) {
		if v.kind == protocol.KindWorkContract && v.name == "document contract" {
			return v.doc.clone()
		}
	}
	t.Fatal("no contract")
	return nil
}

// A contract that only lacks something is incomplete; one that is wrong as
// well is wrong (COMMANDS.md 3.3).
func TestIncompleteContractsAreToldFromWrongOnes(t *testing.T) {
	tests := map[string]struct {
		set     map[string]string
		drop    []string
		code    protocol.Code
		reason  string
		path    string
		missing []string
	}{
		"complete":                      {},
		"member missing":                {drop: []string{"/goal"}, code: protocol.CodeWorkContractIncomplete, missing: []string{"/contract/goal"}},
		"several things missing":        {set: map[string]string{"/acceptanceCriteria": "[]", "/budget": "{}"}, drop: []string{"/retryPolicy/backoff", "/deadline"}, code: protocol.CodeWorkContractIncomplete, missing: []string{"/contract/acceptanceCriteria", "/contract/retryPolicy/backoff", "/contract/budget", "/contract/deadline"}},
		"array too short deep inside":   {set: map[string]string{"/acceptanceCriteria/0/evidenceRequired": "[]"}, code: protocol.CodeWorkContractIncomplete, missing: []string{"/contract/acceptanceCriteria/0/evidenceRequired"}},
		"missing and wrong":             {set: map[string]string{"/contractVersion": "0"}, drop: []string{"/goal"}, code: protocol.CodeSchemaValidationFailed, path: "/contract/contractVersion"},
		"missing and unknown":           {set: map[string]string{"/note": "1"}, drop: []string{"/goal"}, code: protocol.CodeSchemaValidationFailed, path: "/contract/note"},
		"empty text is not missing":     {set: map[string]string{"/goal": `""`}, code: protocol.CodeSchemaValidationFailed, path: "/contract/goal"},
		"null is not missing":           {set: map[string]string{"/goal": `null`}, code: protocol.CodeSchemaValidationFailed, path: "/contract/goal"},
		"money too fine":                {set: map[string]string{"/budget/financialLimit": `0.0000001`}, code: protocol.CodeSchemaValidationFailed, reason: "money", path: "/contract/budget/financialLimit"},
		"currency missing":              {set: map[string]string{"/budget": `{"financialLimit":5}`}, code: protocol.CodeSchemaValidationFailed, reason: "currency", path: "/contract/budget/currency"},
		"high risk without approval":    {set: map[string]string{"/sideEffectRisk": `"high_risk"`}, code: protocol.CodeWorkContractIncomplete, reason: "human_approval", missing: []string{"/contract/executionApproval"}},
		"destructive without approval":  {set: map[string]string{"/sideEffectRisk": `"destructive"`, "/executionApproval": `"not_required"`}, code: protocol.CodeWorkContractIncomplete, reason: "human_approval", missing: []string{"/contract/executionApproval"}},
		"destructive with approval":     {set: map[string]string{"/sideEffectRisk": `"destructive"`, "/executionApproval": `"human_required"`}},
		"retries of nothing":            {set: map[string]string{"/retryPolicy/retryableFailures": `[]`}, code: protocol.CodeWorkContractIncomplete, reason: "retryable_failures", missing: []string{"/contract/retryPolicy/retryableFailures"}},
		"one attempt needs no failures": {set: map[string]string{"/retryPolicy/retryableFailures": `[]`, "/retryPolicy/maxAttempts": "1.0"}},
		"criterion id repeated":         {set: map[string]string{"/acceptanceCriteria/1": `{"criterionId":"C-1.sound","description":"x","evidenceRequired":["policy_check"]}`}, code: protocol.CodeWorkContractIncomplete, reason: "repeated_id", missing: []string{"/contract/acceptanceCriteria/1/criterionId"}},
		"deliverable id repeated":       {set: map[string]string{"/requiredDeliverables/1": `{"deliverableId":"D1","description":"x","mediaType":"a/b","schema":"urn:x:y"}`}, code: protocol.CodeWorkContractIncomplete, reason: "repeated_id", missing: []string{"/contract/requiredDeliverables/1/deliverableId"}},
	}
	payload := shape.Object(shape.Req("proposalId", protocol.ShapeID), shape.Req("contract", protocol.ShapeContractTerms))
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			doc := contractVector(t)
			for pointer, text := range tt.set {
				if err := doc.edit(pointer, parseTree(t, []byte(text))); err != nil {
					t.Fatal(err)
				}
			}
			for _, pointer := range tt.drop {
				if err := doc.edit(pointer, nil); err != nil {
					t.Fatal(err)
				}
			}
			raw := func(s string) protocol.Raw { return protocol.Raw(strings.Replace(s, "%", doc.String(), 1)) }
			whole, err := raw(`{"proposalId":"urn:x:p","contract":%}`).Value()
			if err != nil {
				t.Fatal(err)
			}
			alone, err := raw(`%`).Value()
			if err != nil {
				t.Fatal(err)
			}
			for _, got := range []*protocol.Error{
				protocol.CheckPayload(payload, whole, "contract"),
				protocol.CheckContract(alone, "/contract"),
			} {
				if tt.code == "" {
					if got != nil {
						t.Error(got)
					}
					continue
				}
				if got == nil || got.Code != tt.code || got.Reason != tt.reason {
					t.Fatalf("got %v, want %s:%s", got, tt.code, tt.reason)
				}
				if path, _ := got.Details["path"].(string); path != tt.path {
					t.Errorf("path %q, want %q", path, tt.path)
				}
				missing, _ := got.Details["missing"].([]string)
				if diff := cmp.Diff(tt.missing, missing); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

func TestFaultsBesideTheContractAreTheirOwn(t *testing.T) {
	payload := shape.Object(shape.Req("proposalId", protocol.ShapeID), shape.Opt("contract", protocol.ShapeContractTerms))
	doc := contractVector(t)
	whole := doc.String()
	if err := doc.edit("/goal", nil); err != nil {
		t.Fatal(err)
	}
	part := doc.String()
	for text, want := range map[string]string{
		`{"proposalId":"urn:x:p","contract":` + whole + `}`:      "",
		`{"proposalId":"urn:x:p"}`:                               "",
		`{"contract":` + whole + `}`:                             "SCHEMA_VALIDATION_FAILED /proposalId",
		`{"contract":` + part + `}`:                              "SCHEMA_VALIDATION_FAILED /proposalId",
		`{"proposalId":1,"contract":` + part + `}`:               "SCHEMA_VALIDATION_FAILED /proposalId",
		`{"proposalId":"urn:x:p","contract":` + part + `,"x":1}`: "SCHEMA_VALIDATION_FAILED /x",
		`{"proposalId":"urn:x:p","contract":null}`:               "SCHEMA_VALIDATION_FAILED /contract",
		`{"proposalId":"urn:x:p","contract":` + part + `}`:       "WORK_CONTRACT_INCOMPLETE ",
		`{"proposalId":"urn:x:p","contract":{}}`:                 "WORK_CONTRACT_INCOMPLETE ",
	} {
		v, err := protocol.Raw(text).Value()
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if e := protocol.CheckPayload(payload, v, "contract"); e != nil {
			path, _ := e.Details["path"].(string)
			got = string(e.Code) + " " + path
		}
		if got != want {
			t.Errorf("%.80s: got %q, want %q", text, got, want)
		}
	}
}

func TestFaultErrorsDiscloseThePathOnly(t *testing.T) {
	v, err := protocol.Raw(`{"type":"agent","id":"secret value"}`).Value()
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(protocol.FaultError(protocol.ShapeActor.Check(v)).At(errorTime))
	if err != nil {
		t.Fatal(err)
	}
	want := `{"code":"SCHEMA_VALIDATION_FAILED","details":{"keyword":"format","path":"/id"},"fatal":false,"message":"The document does not have the required structure.","occurredAt":"2031-05-04T06:00:00.250000Z","retryable":false}`
	if diff := cmp.Diff(want, string(b)); diff != "" {
		t.Error(diff)
	}
}
