package migrate_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/devstack"
	"github.com/missionweave/server/internal/migrate"
)

// sqlFile is a migration as goose reads it.
func sqlFile(up string) *fstest.MapFile {
	return &fstest.MapFile{Data: []byte("-- +goose Up\n" + up + "\n-- +goose Down\nSELECT 1;\n")}
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func names(all []migrate.Migration, applied bool) []string {
	var out []string
	for _, m := range all {
		if (m.AppliedAt != nil) == applied {
			out = append(out, m.Name)
		}
	}
	return out
}

func execute(t *testing.T, url, sql string) error {
	t.Helper()
	conn, err := pgx.Connect(testContext(t), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	_, err = conn.Exec(testContext(t), sql)
	return err
}

func TestReplicasThatStartAtOnceApplyEachMigrationOnce(t *testing.T) {
	t.Parallel()
	const replicas = 8
	url := devstack.ForTest(t).NewEmptyDatabase(t)
	// A plain CREATE TABLE fails when it runs twice, and the pause keeps the
	// lock's holder busy while the others come.
	files := fstest.MapFS{
		"0001_one.sql": sqlFile("CREATE TABLE one (n int); SELECT pg_sleep(0.3);"),
		"0002_two.sql": sqlFile("CREATE TABLE two (n int); INSERT INTO two VALUES (1);"),
	}
	var wg sync.WaitGroup
	applied := make([][]migrate.Migration, replicas)
	errs := make([]error, replicas)
	for i := range replicas {
		wg.Go(func() { applied[i], errs[i] = migrate.UpFiles(testContext(t), url, files) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, a := range applied {
		all = append(all, names(a, true)...)
	}
	if diff := cmp.Diff([]string{"0001_one.sql", "0002_two.sql"}, all); diff != "" {
		t.Errorf("applied by all replicas together: -want +got\n%s", diff)
	}
}

func TestWaitingReplicaObeysItsContext(t *testing.T) {
	t.Parallel()
	url := devstack.ForTest(t).NewEmptyDatabase(t)
	conn, err := pgx.Connect(testContext(t), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if _, err := conn.Exec(testContext(t), "SELECT pg_advisory_lock($1)", migrate.LockKey); err != nil {
		t.Fatal(err)
	}
	files := fstest.MapFS{"0001_one.sql": sqlFile("CREATE TABLE one (n int);")}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := migrate.UpFiles(ctx, url, files); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error = %v, want the context's", err)
	}
	// The holder dies without a word; its lock goes with its session.
	if err := conn.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := migrate.UpFiles(testContext(t), url, files); err != nil {
		t.Fatal(err)
	}
}

func TestFailedMigrationLeavesNothingAndCanBeRepeated(t *testing.T) {
	t.Parallel()
	url := devstack.ForTest(t).NewEmptyDatabase(t)
	files := fstest.MapFS{
		"0001_one.sql": sqlFile("CREATE TABLE one (n int);"),
		"0002_bad.sql": sqlFile("CREATE TABLE two (n int); SELECT 1/0;"),
	}
	if _, err := migrate.UpFiles(testContext(t), url, files); err == nil || !strings.Contains(err.Error(), "0002_bad.sql") {
		t.Fatalf("error = %v, want one that names the file", err)
	}
	all, err := migrate.StatusFiles(testContext(t), url, files)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"0002_bad.sql"}, names(all, false)); diff != "" {
		t.Errorf("pending: -want +got\n%s", diff)
	}
	files["0002_bad.sql"] = sqlFile("CREATE TABLE two (n int);")
	applied, err := migrate.UpFiles(testContext(t), url, files)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"0002_bad.sql"}, names(applied, true)); diff != "" {
		t.Errorf("applied after the repair: -want +got\n%s", diff)
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	t.Parallel()
	url := devstack.ForTest(t).NewEmptyDatabase(t)
	older := fstest.MapFS{"0001_one.sql": sqlFile("CREATE TABLE one (n int);")}
	newer := fstest.MapFS{"0001_one.sql": older["0001_one.sql"], "0002_two.sql": sqlFile("CREATE TABLE two (n int);")}
	if _, err := migrate.UpFiles(testContext(t), url, newer); err != nil {
		t.Fatal(err)
	}
	if _, err := migrate.UpFiles(testContext(t), url, older); !errors.Is(err, migrate.ErrNewerSchema) {
		t.Errorf("up: error = %v, want ErrNewerSchema", err)
	}
	if _, err := migrate.StatusFiles(testContext(t), url, older); !errors.Is(err, migrate.ErrNewerSchema) {
		t.Errorf("status: error = %v, want ErrNewerSchema", err)
	}
}

func TestEmbeddedMigrationsMakeTheSchemaThatCheckWants(t *testing.T) {
	t.Parallel()
	stack := devstack.ForTest(t)
	empty := stack.NewEmptyDatabase(t)
	if err := migrate.Check(testContext(t), empty); !errors.Is(err, migrate.ErrPending) {
		t.Fatalf("empty database: %v, want ErrPending", err)
	}
	if _, err := migrate.Up(testContext(t), empty); err != nil {
		t.Fatal(err)
	}
	for name, url := range map[string]string{"after up": empty, "from the template": stack.NewDatabase(t)} {
		if err := migrate.Check(testContext(t), url); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if again, err := migrate.Up(testContext(t), empty); err != nil || len(again) != 0 {
		t.Errorf("second up applied %v, error %v; want nothing", again, err)
	}
}

func TestDatabasesOfATestAreItsOwn(t *testing.T) {
	t.Parallel()
	stack := devstack.ForTest(t)
	one, two := stack.NewDatabase(t), stack.NewDatabase(t)
	if err := execute(t, one, "CREATE TABLE mine (n int)"); err != nil {
		t.Fatal(err)
	}
	if err := execute(t, two, "SELECT * FROM mine"); err == nil {
		t.Error("a table of one database is in another")
	}
}

func TestErrorsHideThePassword(t *testing.T) {
	t.Parallel()
	for _, url := range []string{
		"postgres://user:geheim@127.0.0.1:1/x?connect_timeout=1",
		"postgres://user:geheim@127.0.0.1:port/x",
		"postgres://user:geheim@127.0.0.1/x?sslmode=nonsense",
		"host=127.0.0.1 port=x password=geheim",
	} {
		_, err := migrate.Up(testContext(t), url)
		if err == nil || strings.Contains(err.Error(), "geheim") {
			t.Errorf("error = %v, want one without the password", err)
		}
	}
}
