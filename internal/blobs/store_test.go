package blobs_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/missionweave/server/internal/blobs"
	"github.com/missionweave/server/internal/devstack"
	"github.com/missionweave/server/internal/protocol"
)

const limit = 1 << 16

var (
	alice = protocol.Actor{Type: "agent", ID: "urn:test:agent:alice"}
	bob   = protocol.Actor{Type: "agent", ID: "urn:test:agent:bob"}
)

type fixture struct {
	store *blobs.Store
	pool  *pgxpool.Pool
	dir   string
}

// setUp makes a tree of two Groups, "root" and "child", and a foreign Group.
func setUp(t *testing.T) fixture {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), devstack.ForTest(t).NewDatabase(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	for tree, groups := range map[int64][]string{1: {"root", "child"}, 2: {"foreign"}} {
		for _, g := range groups {
			exec(t, pool, `INSERT INTO groups (tree_id, group_id, mission_id, root_mission_id, head_sequence, created_at)
				VALUES ($1, $2, $3, $4, 1, now())`, tree, g, "mission-"+g, fmt.Sprint("root-", tree))
		}
	}
	dir := t.TempDir()
	store, err := blobs.Open(dir, pool, limit)
	if err != nil {
		t.Fatal(err)
	}
	return fixture{store, pool, dir}
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatal(err)
	}
}

func hashOf(content string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(content))) }

func (f fixture) put(t *testing.T, group, content string) {
	t.Helper()
	if _, err := f.store.Put(t.Context(), group, hashOf(content), alice, strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
}

func (f fixture) read(ctx context.Context, group, hash string, by protocol.Actor) (string, error) {
	b, err := f.store.Get(ctx, group, hash, by)
	if err != nil {
		return "", err
	}
	defer func() { _ = b.Close() }()
	content, err := io.ReadAll(b)
	return string(content), err
}

func TestContentIsReadableThroughTheGroupItWasStoredFor(t *testing.T) {
	f := setUp(t)
	f.put(t, "root", "content")
	if got, err := f.read(t.Context(), "root", hashOf("content"), alice); err != nil || got != "content" {
		t.Fatalf("got %q, %v", got, err)
	}
	created, err := f.store.Put(t.Context(), "root", hashOf("content"), bob, strings.NewReader("content"))
	if err != nil || created {
		t.Errorf("storing again: created %v, %v", created, err)
	}
}

func TestKnowingAHashOpensNothing(t *testing.T) {
	f := setUp(t)
	f.put(t, "foreign", "secret")
	for _, group := range []string{"root", "child", "nowhere"} {
		if _, err := f.read(t.Context(), group, hashOf("secret"), alice); !errors.Is(err, blobs.ErrNotFound) {
			t.Errorf("through %s: %v", group, err)
		}
	}
}

func TestContentOfTheSameTreeNeedsAPublishedArtifactAndAFullMembership(t *testing.T) {
	f := setUp(t)
	f.put(t, "child", "report")
	steps := []struct {
		name, sql string
		readable  bool
	}{
		{"stored only", `SELECT 1`, false},
		{"published", `INSERT INTO artifacts VALUES (1, 'child', 'a1', '` + hashOf("report") + `', 'w1', 1, '')`, false},
		{"partial view", `INSERT INTO memberships VALUES (1, 'child', 'agent', '` + bob.ID + `', 'm1', 'observer', 'active', 1, 7, NULL, '')`, false},
		{"full view", `UPDATE memberships SET visibility_start = 1`, true},
		{"ended", `UPDATE memberships SET state = 'ended'`, false},
	}
	for _, s := range steps {
		exec(t, f.pool, s.sql)
		_, err := f.read(t.Context(), "root", hashOf("report"), bob)
		if readable := err == nil; readable != s.readable || (err != nil && !errors.Is(err, blobs.ErrNotFound)) {
			t.Errorf("%s: %v, want readable %v", s.name, err, s.readable)
		}
	}
}

func TestContentThatDiffersFromItsHashIsNotKept(t *testing.T) {
	f := setUp(t)
	_, err := f.store.Put(t.Context(), "root", hashOf("one"), alice, strings.NewReader("two"))
	if !errors.Is(err, blobs.ErrMismatch) {
		t.Fatalf("got %v", err)
	}
	if _, err := f.read(t.Context(), "root", hashOf("one"), alice); !errors.Is(err, blobs.ErrNotFound) {
		t.Errorf("reading it: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(f.dir, "incoming", "*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestContentBeyondTheLimitIsRefused(t *testing.T) {
	f := setUp(t)
	for size, want := range map[int]error{limit: nil, limit + 1: blobs.ErrTooLarge} {
		content := string(bytes.Repeat([]byte("x"), size))
		if _, err := f.store.Put(t.Context(), "root", hashOf(content), alice, strings.NewReader(content)); !errors.Is(err, want) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

func TestAHashOfAnotherSpellingIsRefused(t *testing.T) {
	f := setUp(t)
	for _, hash := range []string{"", "sha256:", "sha256:../../etc/passwd", strings.ToUpper(hashOf("x")), hashOf("x") + "\n", "md5:" + hashOf("x")[7:]} {
		if _, err := f.store.Put(t.Context(), "root", hash, alice, strings.NewReader("x")); !errors.Is(err, blobs.ErrHash) {
			t.Errorf("put %q: %v", hash, err)
		}
		if _, err := f.store.Get(t.Context(), "root", hash, alice); !errors.Is(err, blobs.ErrNotFound) {
			t.Errorf("get %q: %v", hash, err)
		}
	}
}

func TestContentDamagedOnDiskIsNeverReadToItsEnd(t *testing.T) {
	f := setUp(t)
	f.put(t, "root", "intact")
	digits := hashOf("intact")[7:]
	if err := os.WriteFile(filepath.Join(f.dir, digits[:2], digits), []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := f.read(t.Context(), "root", hashOf("intact"), alice); !errors.Is(err, blobs.ErrMismatch) {
		t.Errorf("got %v", err)
	}
}

func TestContentAbandonedByACrashIsRemovedAtStartButNotWhatIsBeingWritten(t *testing.T) {
	f := setUp(t)
	old, young := filepath.Join(f.dir, "incoming", "put-old"), filepath.Join(f.dir, "incoming", "put-young")
	for _, path := range []string{old, young} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := time.Now().Add(-25 * time.Hour)
	if err := os.Chtimes(old, before, before); err != nil {
		t.Fatal(err)
	}
	if _, err := blobs.Open(f.dir, f.pool, limit); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); err == nil {
		t.Error("the abandoned file is still there")
	}
	if _, err := os.Stat(young); err != nil {
		t.Error("the young file is gone")
	}
}
