package devstack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// fakeInstallation is a folder with programs that only tell a version.
func fakeInstallation(t *testing.T, versionLine string, programs ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, p := range programs {
		script := fmt.Sprintf("#!/bin/sh\necho '%s'\n", versionLine)
		if err := os.WriteFile(filepath.Join(dir, p), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestBinaries(t *testing.T) {
	t.Parallel()
	both := []string{"initdb", "postgres"}
	v14 := fakeInstallation(t, "postgres (PostgreSQL) 14.9", both...)
	v15 := fakeInstallation(t, "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)", both...)
	v17 := fakeInstallation(t, "postgres (PostgreSQL) 17beta1", both...)
	half := fakeInstallation(t, "postgres (PostgreSQL) 17.2", "postgres")
	odd := fakeInstallation(t, "something else", both...)
	linked := t.TempDir()
	if err := os.Symlink(filepath.Join(v15, "postgres"), filepath.Join(linked, "postgres")); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct {
		dirs []string
		want []Binaries
		says string // part of the error
	}{
		"the newest comes first":                 {dirs: []string{v15, v17}, want: []Binaries{{v17, 17}, {v15, 15}}},
		"a link leads to its installation":       {dirs: []string{linked, v15}, want: []Binaries{{v15, 15}}},
		"too old, incomplete and odd are left":   {dirs: []string{v14, half, odd, v15}, want: []Binaries{{v15, 15}}},
		"nothing found says what to do":          {dirs: []string{t.TempDir()}, says: "scripts/setup"},
		"only an old one is said":                {dirs: []string{v14}, says: v14 + ": version 14"},
		"an installation without initdb is said": {dirs: []string{half}, says: "no initdb"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := findBinariesIn(t.Context(), c.dirs)
			if c.says != "" {
				if !errors.Is(err, ErrNoPostgres) || !strings.Contains(err.Error(), c.says) {
					t.Fatalf("error = %v, want ErrNoPostgres with %q", err, c.says)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestClusterIsOpenedByItsOwnMajorVersion(t *testing.T) {
	t.Parallel()
	all := []Binaries{{"/new", 17}, {"/old", 15}}
	cases := map[string]struct {
		version string // content of PG_VERSION, "" for no cluster
		want    string
		says    string
	}{
		"a new cluster takes the newest": {want: "/new"},
		"an old cluster keeps its own":   {version: "15\n", want: "/old"},
		"a missing version is said":      {version: "16\n", says: "was made by PostgreSQL 16"},
		"a damaged version file is said": {version: "x", says: "damaged"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if c.version != "" {
				if err := os.WriteFile(filepath.Join(dir, "PG_VERSION"), []byte(c.version), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			got, err := chooseBinaries(all, dir)
			if c.says != "" {
				if err == nil || !strings.Contains(err.Error(), c.says) {
					t.Fatalf("error = %v, want %q", err, c.says)
				}
				return
			}
			if err != nil || got.Dir != c.want {
				t.Errorf("got %v, %v; want %s", got, err, c.want)
			}
		})
	}
}

func TestAccountMayEnterOnlyWhatEveryFolderOnTheWayAllows(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, who alone hands a cluster to another account")
	}
	stranger := account{drop: true, uid: 65534, gid: 65534, name: "nobody"}
	top := filepath.Dir(openDir(t))
	inner := filepath.Join(top, "inner")
	if err := os.Mkdir(inner, 0o711); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		rule     string
		mode     os.FileMode
		uid, gid int
		want     bool
	}{
		{"search for others is enough", 0o711, 0, 0, true},
		{"closed for others", 0o710, 0, 0, false},
		{"reading without search is not enough", 0o744, 0, 0, false},
		{"its own folder by the owner's bit", 0o700, 65534, 0, true},
		{"the owner's bit alone counts for the owner", 0o077, 65534, 0, false},
		{"its group's folder by the group's bit", 0o710, 0, 65534, true},
	}
	for _, c := range cases {
		if err := os.Chown(inner, c.uid, c.gid); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(inner, c.mode); err != nil {
			t.Fatal(err)
		}
		at, ok := stranger.mayEnter(inner)
		if ok != c.want || (!ok && at != inner) {
			t.Errorf("%s: %v at %q, want %v", c.rule, ok, at, c.want)
		}
	}
	if _, ok := stranger.mayEnter(filepath.Join(inner, "missing")); ok {
		t.Error("a missing folder can be entered")
	}
	if _, ok := (account{}).mayEnter("/root/anything"); !ok {
		t.Error("without a change of account the path is always used")
	}
}
