package policy

import (
	"errors"
	"testing"

	"github.com/missionweave/server/internal/manifest"
	"github.com/missionweave/server/internal/protocol"
)

// Only a refusal for good may end a human's answer.
func TestWhatMayStillHappenIsUnsettled(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want bool
	}{
		{errors.New("no line"), true},
		{protocol.Internal(errors.New("no database")), true},
		{protocol.NewError(protocol.CodeBackpressure, ""), true},
		{protocol.NewError(protocol.CodeRateLimited, ""), true},
		{protocol.NewError(protocol.CodeWorkLeaseExpired, ""), false},
		{protocol.NewError(protocol.CodeInvalidStateTransition, "consumed"), false},
	} {
		if got := unsettled(tc.err); got != tc.want {
			t.Errorf("%v: %v", tc.err, got)
		}
	}
}

func TestNothingIsAllowedBeforeTheApprovalIsUsed(t *testing.T) {
	x := &row{state: stateConsuming}
	x.entry.Decision = manifest.ALLOW
	if got := x.answer().Decision; got != manifest.ASK {
		t.Errorf("on its way: %s", got)
	}
	x.state = stateAllowed
	if got := x.answer().Decision; got != manifest.ALLOW {
		t.Errorf("used: %s", got)
	}
}
