package devstack

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// ErrInUse says that another live program holds the stack's directory.
var ErrInUse = errors.New("the directory is in use by another running stack")

// layout names the files of one stack. All paths are absolute and free of
// symbolic links, so that they can be compared with those of running processes.
type layout struct{ root string }

func (l layout) lockFile() string     { return filepath.Join(l.root, "devstack.lock") }
func (l layout) stateFile() string    { return filepath.Join(l.root, "devstack.json") }
func (l layout) postgresLog() string  { return filepath.Join(l.root, "postgres.log") }
func (l layout) postgresDir() string  { return filepath.Join(l.root, "postgres") }
func (l layout) dataDir() string      { return filepath.Join(l.root, "postgres", "data") }
func (l layout) freshDataDir() string { return filepath.Join(l.root, "postgres", "data.new") }
func (l layout) runDir() string       { return filepath.Join(l.root, "postgres", "run") }
func (l layout) natsDir() string      { return filepath.Join(l.root, "nats") }

// newLayout makes the folder. It may be searched by others but not listed: the
// unprivileged database account has to pass through it, and every file in it
// has a mode of its own.
func newLayout(dir string) (layout, error) {
	if dir == "" {
		return layout{}, errors.New("devstack: no data directory given")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return layout{}, err
	}
	if err := os.MkdirAll(abs, 0o711); err != nil {
		return layout{}, err
	}
	real, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return layout{}, err
	}
	l := layout{root: real}
	return l, nil
}

// lock takes the stack's lock without waiting. The file names the holder for
// the reader of the error; the lock itself is the kernel's.
func (l layout) lock() (release func(), err error) {
	f, err := os.OpenFile(l.lockFile(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		holder, _ := os.ReadFile(l.lockFile())
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: %s (process %s)", ErrInUse, l.root, strings.TrimSpace(string(holder)))
		}
		return nil, fmt.Errorf("lock %s: %w", l.lockFile(), err)
	}
	_ = f.Truncate(0)
	_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return func() { _ = f.Close() }, nil
}

// state is what a stack has to remember from one start to the next.
type state struct {
	PostgresPassword string `json:"postgresPassword"`
	NATSPassword     string `json:"natsPassword"`
	// NATSSystemPassword and NATSIssuerSeed are empty in a stack of an earlier
	// version; it gets them at its next start.
	NATSSystemPassword string `json:"natsSystemPassword,omitempty"`
	NATSIssuerSeed     string `json:"natsIssuerSeed,omitempty"`
	PostgresPort       int    `json:"postgresPort,omitempty"`
	NATSPort           int    `json:"natsPort,omitempty"`
}

// loadState reads the state or makes a new one. A cluster without its state is
// an error and not a reason for a new password: nobody could log in with it.
func (l layout) loadState() (state, error) {
	raw, err := os.ReadFile(l.stateFile())
	switch {
	case err == nil:
		var s state
		if err := json.Unmarshal(raw, &s); err != nil || s.PostgresPassword == "" || s.NATSPassword == "" {
			return state{}, fmt.Errorf("%s is damaged; restore it, or remove %s to begin anew", l.stateFile(), l.root)
		}
		return s, nil
	case !errors.Is(err, fs.ErrNotExist):
		return state{}, err
	}
	if _, err := os.Stat(l.dataDir()); err == nil {
		return state{}, fmt.Errorf("%s is missing, and with it the password of the cluster in %s; restore it, or remove the cluster to begin anew", l.stateFile(), l.dataDir())
	}
	s := state{PostgresPassword: newSecret(), NATSPassword: newSecret()}
	return s, l.saveState(s)
}

func (l layout) saveState(s state) error {
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return writeFileDurably(l.stateFile(), append(raw, '\n'))
}

// writeFileDurably replaces path in one step; after a crash it holds either the
// old or the new content.
func writeFileDurably(path string, content []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// newSecret is 192 random bits in characters that need no escaping in a URL.
func newSecret() string {
	var b [24]byte
	_, _ = rand.Read(b[:]) // never fails, see crypto/rand
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// maxSocketDir keeps the socket's whole path below the 104 bytes that the
// smallest sockaddr_un offers.
const maxSocketDir = 104 - len("/.s.PGSQL.65535.lock") - 1

// socketDir finds and prepares a folder for the unix socket that is short
// enough and that the account can enter. Below a shared temporary folder the
// name is predictable, so a folder that somebody else made there is refused.
func (l layout) socketDir(a account) (string, error) {
	sum := sha256.Sum256([]byte(l.root))
	name := "missionweave-" + hex.EncodeToString(sum[:6])
	var why []string
	for _, dir := range []string{l.runDir(), filepath.Join(os.TempDir(), name), filepath.Join("/tmp", name)} {
		if len(dir) > maxSocketDir {
			why = append(why, dir+": too long for a socket")
			continue
		}
		if at, ok := a.mayEnter(filepath.Dir(dir)); !ok {
			why = append(why, fmt.Sprintf("%s: %s may not enter %s", dir, a.name, at))
			continue
		}
		if err := preparePrivateDir(dir, a); err != nil {
			why = append(why, err.Error())
			continue
		}
		return dir, nil
	}
	return "", fmt.Errorf("no folder for PostgreSQL's socket: %s", strings.Join(why, "; "))
}

// preparePrivateDir makes dir with mode 0700 for the account, or checks that an
// existing one is exactly that.
func preparePrivateDir(dir string, a account) error {
	err := os.Mkdir(dir, 0o700)
	switch {
	case err == nil:
		return a.own(dir)
	case !errors.Is(err, fs.ErrExist):
		return err
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	want := uint32(os.Geteuid())
	if a.drop {
		want = a.uid
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || st.Uid != want || info.Mode().Perm() != 0o700 {
		return fmt.Errorf("%s exists and is not a private folder of the database account", dir)
	}
	return nil
}
