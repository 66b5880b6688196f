package server

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/missionweave/server/internal/groups"
)

func TestLimitsOfSingleGroups(t *testing.T) {
	all := groups.DefaultLimits()
	narrow, off := all, all
	narrow.MessagesPerMinute, narrow.DelegationDepth = 5, 1
	off.ProposalsPerMinute, off.QueuedWorkItems, off.ActiveWorkItems = 0, 7, 8
	for _, tc := range []struct {
		name, file string
		want       map[string]groups.Limits
	}{
		{"no Group", `{}`, map[string]groups.Limits{}},
		{"what is not named stays", `{"urn:g:1":{"messageRatePerMinute":5,"delegationDepth":1}}`, map[string]groups.Limits{"urn:g:1": narrow}},
		{"zero switches a rate off", `{"urn:g:2":{"proposalRatePerMinute":0,"queuedWorkItems":7,"activeWorkItems":8}}`, map[string]groups.Limits{"urn:g:2": off}},
		{"depth below one", `{"urn:g:1":{"delegationDepth":0}}`, nil},
		{"queued below one", `{"urn:g:1":{"queuedWorkItems":0}}`, nil},
		{"an unknown limit", `{"urn:g:1":{"surprise":1}}`, nil},
		{"no id", `{"no id":{}}`, nil},
		{"a Group twice", `{"urn:g:1":{},"urn:g:1":{}}`, nil},
		{"no JSON", `messages: 5`, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "limits.json")
			if err := os.WriteFile(path, []byte(tc.file), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := groupLimits(path, all)
			if (err != nil) != (tc.want == nil) || len(got) != len(tc.want) {
				t.Fatalf("%v, %v", got, err)
			}
			for id, want := range tc.want {
				if got[id] != want {
					t.Errorf("%s: %+v, want %+v", id, got[id], want)
				}
			}
		})
	}
	if got, err := groupLimits("", all); err != nil || got != nil {
		t.Errorf("no file: %v, %v", got, err)
	}
	if _, err := groupLimits(filepath.Join(t.TempDir(), "absent"), all); err == nil {
		t.Error("an absent file is not said")
	}
}
