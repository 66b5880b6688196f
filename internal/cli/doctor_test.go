package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/missionweave/server/internal/devstack"
)

func TestDoctorExaminesWhatIsConfigured(t *testing.T) {
	t.Parallel()
	stack := devstack.ForTest(t)
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	data := "MW_DATA_DIR=" + t.TempDir()
	cases := map[string]struct {
		env  []string
		want map[string]bool // check -> well
		says string
	}{
		"private servers need their programs": {
			env:  []string{data},
			want: map[string]bool{"PostgreSQL programs": true, "NATS": true, "data folder": true},
		},
		// The servers of tests run without fsync, which must be said.
		"configured servers with a schema": {
			env:  []string{data, "MW_DATABASE_URL=" + stack.NewDatabase(t), "MW_NATS_URL=" + stack.NATSURL},
			want: map[string]bool{"PostgreSQL server": true, "durability": false, "schema": true, "NATS": true, "data folder": true},
			says: "fsync",
		},
		"a database without the schema": {
			env:  []string{data, "MW_DATABASE_URL=" + stack.NewEmptyDatabase(t)},
			want: map[string]bool{"PostgreSQL server": true, "durability": false, "schema": false, "NATS": true, "data folder": true},
			says: "mw migrate up",
		},
		"servers that do not answer": {
			env:  []string{data, "MW_DATABASE_URL=postgres://u:geheim@127.0.0.1:1/x", "MW_NATS_URL=nats://u:geheim@127.0.0.1:1"},
			want: map[string]bool{"PostgreSQL server": false, "NATS": false, "data folder": true},
		},
		"a data folder that can be made": {
			env:  []string{"MW_DATA_DIR=" + filepath.Join(t.TempDir(), "a", "b")},
			want: map[string]bool{"PostgreSQL programs": true, "NATS": true, "data folder": true},
		},
		"a data folder below a file": {
			env:  []string{"MW_DATA_DIR=" + filepath.Join(file, "a")},
			want: map[string]bool{"PostgreSQL programs": true, "NATS": true, "data folder": false},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := run(t, c.env, "doctor", "--json")
			var all []finding
			if err := json.Unmarshal([]byte(got.out), &all); err != nil {
				t.Fatalf("%+v: %v", got, err)
			}
			wantCode := ExitOK
			for _, f := range all {
				well, expected := c.want[f.Check]
				if !expected || well != f.OK {
					t.Errorf("unexpected %+v", f)
				}
				if !f.OK {
					wantCode = ExitFailure
				}
			}
			if len(all) != len(c.want) || got.code != wantCode {
				t.Errorf("%d findings and exit code %d, want %d and %d", len(all), got.code, len(c.want), wantCode)
			}
			text := run(t, c.env, "doctor")
			if !strings.Contains(text.out, c.says) || strings.Contains(text.out+got.out+got.err, "geheim") {
				t.Errorf("said %q", text.out)
			}
		})
	}
}
