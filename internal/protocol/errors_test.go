package protocol_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

var errorTime = time.Date(2031, 5, 4, 7, 0, 0, 250_000_000, time.FixedZone("", 3600))

func encode(t *testing.T, e *protocol.Error) string {
	t.Helper()
	b, err := strictjson.Marshal(e.At(errorTime))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := protocol.ValidateBytes(protocol.KindError, b); err != nil {
		t.Errorf("%s: %v", b, err)
	}
	return string(b)
}

func TestEveryCodeHasOneRegistryRow(t *testing.T) {
	codes := protocol.Codes()
	if len(codes) != 27 {
		t.Errorf("%d codes, want 27", len(codes))
	}
	for _, code := range codes {
		info, ok := protocol.InfoOf(code)
		if !ok || info.HTTP < 400 || info.HTTP > 599 || info.Message == "" {
			t.Errorf("%s: %+v", code, info)
		}
		encode(t, protocol.NewError(code, "a_reason"))
	}
	if _, ok := protocol.InfoOf("NOPE"); ok {
		t.Error("a code that does not exist has a row")
	}
}

func TestErrorCodesAreThoseOfTheSchema(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(sharedRoot(t), "schemas", "error.schema.json"))
	if err != nil {
		t.Fatal(err)
	}
	var schema struct {
		Properties struct {
			Code struct{ Enum []protocol.Code }
		}
	}
	if err := json.Unmarshal(b, &schema); err != nil {
		t.Fatal(err)
	}
	want, got := schema.Properties.Code.Enum, protocol.Codes()
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// The wire shows what the registry allows for the code and nothing else,
// whatever the handler knew.
func TestErrorDisclosure(t *testing.T) {
	cause := errors.New("secret")
	tests := map[string]struct {
		err      *protocol.Error
		want     string
		withheld string
	}{
		"a verification failure is neutral": {
			protocol.NewError(protocol.CodeAuthInvalidSignature, "freshness").
				WithDetail("keyId", "urn:x:k").WithStage("admission").WithStep("P9").WithCause(cause),
			`{"code":"AUTH_INVALID_SIGNATURE","fatal":false,"message":"The signature was not accepted.","occurredAt":"2031-05-04T06:00:00.250000Z","retryable":false}`,
			"freshness",
		},
		"a reason travels where the code allows it": {
			protocol.NewError(protocol.CodeInvalidCommand, "envelope_mismatch").WithRelated("urn:x:f", "urn:x:a").WithGroup("urn:x:g"),
			`{"code":"INVALID_COMMAND","details":{"reason":"envelope_mismatch"},"fatal":false,"groupId":"urn:x:g","message":"The Command is well formed and cannot mean this. [envelope_mismatch]","occurredAt":"2031-05-04T06:00:00.250000Z","relatedActionId":"urn:x:a","relatedFrameId":"urn:x:f","retryable":false}`,
			"secret",
		},
		"a reason that is no token stays": {
			protocol.NewError(protocol.CodeInvalidCommand, "urn:x:input"),
			`{"code":"INVALID_COMMAND","fatal":false,"message":"The Command is well formed and cannot mean this.","occurredAt":"2031-05-04T06:00:00.250000Z","retryable":false}`,
			"urn:x:input",
		},
		"unlisted details stay": {
			protocol.NewError(protocol.CodeInvalidStateTransition, "child_live").WithDetail("state", "active").WithDetail("owner", "secret"),
			`{"code":"INVALID_STATE_TRANSITION","details":{"reason":"child_live","state":"active"},"fatal":false,"message":"The present state does not allow this. [child_live]","occurredAt":"2031-05-04T06:00:00.250000Z","retryable":false}`,
			"secret",
		},
		"revisions": {
			protocol.NewError(protocol.CodeRevisionConflict, "").WithRevision(0, 3),
			`{"code":"REVISION_CONFLICT","currentRevision":3,"expectedRevision":0,"fatal":false,"message":"The expected revision is not the current one.","occurredAt":"2031-05-04T06:00:00.250000Z","retryable":false}`,
			"",
		},
		"an internal failure says nothing": {
			protocol.Internal(cause),
			`{"code":"INTERNAL_ERROR","fatal":false,"message":"The authority failed; nothing was accepted.","occurredAt":"2031-05-04T06:00:00.250000Z","retryable":true}`,
			"secret",
		},
		"a code that does not exist is an internal failure": {
			protocol.NewError("NOPE", "x"),
			`{"code":"INTERNAL_ERROR","fatal":false,"message":"The authority failed; nothing was accepted.","occurredAt":"2031-05-04T06:00:00.250000Z","retryable":true}`,
			"NOPE",
		},
		"fatal": {
			protocol.NewError(protocol.CodeUnsupportedVersion, "").WithDetail("supportedVersions", []string{"0.1"}).AsFatal(4406),
			`{"code":"UNSUPPORTED_VERSION","details":{"supportedVersions":["0.1"]},"fatal":true,"message":"No protocol version in common.","occurredAt":"2031-05-04T06:00:00.250000Z","retryable":false}`,
			"4406",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := encode(t, tt.err)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if tt.withheld != "" && strings.Contains(got, tt.withheld) {
				t.Errorf("%q is on the wire", tt.withheld)
			}
		})
	}
}

func TestRateLimitIsRetryableOnlyWithADelay(t *testing.T) {
	depth := protocol.NewError(protocol.CodeRateLimited, "").WithDetail("policyName", "delegation_depth")
	if depth.Retryable {
		t.Error("a depth limit cannot be waited out")
	}
	rate := protocol.NewError(protocol.CodeRateLimited, "").WithRetryAfter(1500)
	if !rate.Retryable || *rate.RetryAfterMs != 1500 {
		t.Errorf("%+v", rate)
	}
	if protocol.NewError(protocol.CodeAuthForbidden, "").WithRetryAfter(1).Retryable {
		t.Error("a delay does not make a refusal retryable")
	}
}

func TestErrorMatching(t *testing.T) {
	cause := errors.New("cause")
	err := fmt.Errorf("submit: %w", protocol.NewError(protocol.CodeInvalidCommand, "deadline").WithCause(cause))
	for target, want := range map[error]bool{
		protocol.CodeInvalidCommand:                                true,
		protocol.CodeInternalError:                                 false,
		protocol.NewError(protocol.CodeInvalidCommand, ""):         true,
		protocol.NewError(protocol.CodeInvalidCommand, "deadline"): true,
		protocol.NewError(protocol.CodeInvalidCommand, "cycle"):    false,
		cause: true,
	} {
		if errors.Is(err, target) != want {
			t.Errorf("errors.Is(%v) = %v", target, !want)
		}
	}
	var e *protocol.Error
	if !errors.As(err, &e) || e.HTTPStatus() != 422 || e.WithHTTPStatus(415).HTTPStatus() != 415 {
		t.Errorf("%v", e)
	}
}

func TestErrorReadsBackWhatWasDisclosed(t *testing.T) {
	sent := protocol.NewError(protocol.CodeCursorTooOld, "").WithGroup("urn:x:g").
		WithSnapshot("sha256:"+strings.Repeat("a", 64)).WithDetail("throughSequence", 9).At(errorTime)
	b, err := strictjson.Marshal(sent)
	if err != nil {
		t.Fatal(err)
	}
	var got protocol.Error
	if err := protocol.Raw(b).Decode(&got); err != nil {
		t.Fatal(err)
	}
	again, err := strictjson.Marshal(&got)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(b), string(again)); diff != "" {
		t.Error(diff)
	}
}
