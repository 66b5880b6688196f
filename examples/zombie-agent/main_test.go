package main

import (
	"os"
	"strings"
	"testing"

	"github.com/missionweave/server/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m, nil) }

func TestTheAttackIsStopped(t *testing.T) {
	var out strings.Builder
	if err := play(t.Context(), testkit.Start(t).DevFile(), &out); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	if os.Getenv("MW_SHOW") != "" {
		t.Log(out.String())
	}
}
