package devstack

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// account is the operating system account the cluster runs under. The zero
// value means: the account of this process.
type account struct {
	drop     bool // switch away from root
	uid, gid uint32
	name     string
}

// chooseAccount decides who runs PostgreSQL. An existing data directory keeps
// its owner, since PostgreSQL refuses one that another account owns and the
// preferred account may have been installed after the directory was made.
func chooseAccount(dataDir string) (account, error) {
	if os.Geteuid() != 0 {
		return account{}, nil
	}
	if info, err := os.Stat(dataDir); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 {
			return account{drop: true, uid: st.Uid, gid: st.Gid, name: "uid " + strconv.Itoa(int(st.Uid))}, nil
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return account{}, err
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return account{}, fmt.Errorf("account %s: %w", name, err)
		}
		if uid == 0 {
			continue
		}
		return account{drop: true, uid: uint32(uid), gid: uint32(gid), name: name}, nil
	}
	return account{}, errors.New("PostgreSQL refuses to run as root and there is no account postgres or nobody; start as an ordinary user or add one")
}

// own gives path to the account.
func (a account) own(path string) error {
	if !a.drop {
		return nil
	}
	return os.Chown(path, int(a.uid), int(a.gid))
}

// mayEnter reports whether the account can reach dir by its path, and else the
// folder on the way that it may not enter. Only mode bits are looked at: an
// access list can make the answer a wrong "no", which costs nothing.
func (a account) mayEnter(dir string) (blockedAt string, ok bool) {
	if !a.drop {
		return "", true
	}
	for p := dir; ; p = filepath.Dir(p) {
		info, err := os.Stat(p)
		if err != nil {
			return p, false
		}
		st, isStat := info.Sys().(*syscall.Stat_t)
		if !isStat {
			return p, false
		}
		var need fs.FileMode = 0o001
		switch {
		case st.Uid == a.uid:
			need = 0o100
		case st.Gid == a.gid:
			need = 0o010
		}
		if info.Mode().Perm()&need == 0 {
			return p, false
		}
		if p == filepath.Dir(p) {
			return "", true
		}
	}
}
