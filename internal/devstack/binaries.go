package devstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// MinPostgresMajor is the oldest PostgreSQL major version the server runs on.
const MinPostgresMajor = 15

// ErrNoPostgres says that no usable PostgreSQL server binaries were found.
var ErrNoPostgres = errors.New("no PostgreSQL server binaries found")

// Binaries is one installation of the PostgreSQL server programs.
type Binaries struct {
	Dir   string // absolute folder with initdb and postgres
	Major int    // major version, at least MinPostgresMajor
}

func (b Binaries) initdb() string   { return filepath.Join(b.Dir, "initdb") }
func (b Binaries) postgres() string { return filepath.Join(b.Dir, "postgres") }

// searchGlobs are the folders where distributions put the server programs,
// most of them outside PATH.
var searchGlobs = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/usr/local/pgsql/bin",
	"/usr/local/opt/postgresql@*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
}

// FindBinaries lists the installations of PostgreSQL MinPostgresMajor or newer,
// newest first. MW_POSTGRES_BIN names one folder and ends the search. The error
// is ErrNoPostgres with the folders that were looked at.
func FindBinaries(ctx context.Context) ([]Binaries, error) {
	var dirs []string
	if d := os.Getenv("MW_POSTGRES_BIN"); d != "" {
		dirs = []string{d}
	} else {
		for _, d := range filepath.SplitList(os.Getenv("PATH")) {
			// A relative PATH entry would depend on the working folder.
			if filepath.IsAbs(d) {
				dirs = append(dirs, d)
			}
		}
		for _, g := range searchGlobs {
			found, _ := filepath.Glob(g)
			dirs = append(dirs, found...)
		}
	}
	return findBinariesIn(ctx, dirs)
}

func findBinariesIn(ctx context.Context, dirs []string) ([]Binaries, error) {
	var all []Binaries
	var refused []string
	seen := map[string]bool{}
	for _, d := range dirs {
		// Links such as /usr/local/bin/postgres lead to the real folder, where
		// the programs that belong together lie side by side.
		exe, err := filepath.EvalSymlinks(filepath.Join(d, "postgres"))
		if err != nil {
			continue
		}
		dir := filepath.Dir(exe)
		if seen[dir] {
			continue
		}
		seen[dir] = true
		if _, err := os.Stat(filepath.Join(dir, "initdb")); err != nil {
			refused = append(refused, dir+": no initdb beside postgres")
			continue
		}
		major, err := majorVersion(ctx, filepath.Join(dir, "postgres"))
		if err != nil {
			refused = append(refused, dir+": "+err.Error())
			continue
		}
		if major < MinPostgresMajor {
			refused = append(refused, fmt.Sprintf("%s: version %d", dir, major))
			continue
		}
		all = append(all, Binaries{Dir: dir, Major: major})
	}
	if len(all) == 0 {
		msg := fmt.Sprintf("need initdb and postgres %d or newer in PATH, below /usr/lib/postgresql, or in MW_POSTGRES_BIN; run scripts/setup", MinPostgresMajor)
		if len(refused) > 0 {
			msg += " (" + strings.Join(refused, "; ") + ")"
		}
		return nil, fmt.Errorf("%w: %s", ErrNoPostgres, msg)
	}
	slices.SortStableFunc(all, func(a, b Binaries) int { return b.Major - a.Major })
	return all, nil
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

func majorVersion(ctx context.Context, postgres string) (int, error) {
	out, err := exec.CommandContext(ctx, postgres, "--version").Output()
	if err != nil {
		return 0, fmt.Errorf("ask for the version: %w", err)
	}
	m := versionPattern.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("unknown version text %q", bytes.TrimSpace(out))
	}
	return strconv.Atoi(string(m[1]))
}

// chooseBinaries takes the newest installation, or for an existing cluster the
// one of its own major version: PostgreSQL does not open another's files.
func chooseBinaries(all []Binaries, dataDir string) (Binaries, error) {
	raw, err := os.ReadFile(filepath.Join(dataDir, "PG_VERSION"))
	if errors.Is(err, os.ErrNotExist) {
		return all[0], nil
	}
	if err != nil {
		return Binaries{}, err
	}
	want, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return Binaries{}, fmt.Errorf("%s/PG_VERSION is damaged: %w", dataDir, err)
	}
	for _, b := range all {
		if b.Major == want {
			return b, nil
		}
	}
	return Binaries{}, fmt.Errorf("%w: %s was made by PostgreSQL %d, found %d; install PostgreSQL %d or move the folder away",
		ErrNoPostgres, dataDir, want, all[0].Major, want)
}
