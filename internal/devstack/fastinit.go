package devstack

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Every test process makes a cluster, and initdb is most of its cost. The
// cluster of the first one is therefore kept in the user's cache folder and
// copied by the others. Whatever goes wrong with the copy, initdb runs instead.

const (
	cachedData     = "data"
	cachedPassword = "password"
)

// cacheDir is where the untouched cluster of these server programs is kept.
func (c *cluster) cacheDir() (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	info, err := os.Stat(c.bin.postgres())
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "2 %s %d %d", c.bin.postgres(), info.Size(), info.ModTime().UnixNano()))
	return filepath.Join(base, "missionweave", "initdb-"+hex.EncodeToString(sum[:8])), nil
}

// copyCached fills dir from the cache and takes over the password that belongs
// to the copied cluster. It reports whether that worked.
func (c *cluster) copyCached(dir string) bool {
	cache, err := c.cacheDir()
	if err != nil {
		return false
	}
	password, err := os.ReadFile(filepath.Join(cache, cachedPassword))
	if err != nil {
		return false
	}
	if err := copyTree(filepath.Join(cache, cachedData), dir, c.acct); err != nil {
		return false
	}
	c.password = strings.TrimSpace(string(password))
	return true
}

// keepCached copies a new cluster into the cache. It appears there in one step;
// of several processes at once the first wins.
func (c *cluster) keepCached(dir string) {
	cache, err := c.cacheDir()
	if err != nil {
		return
	}
	if err := os.MkdirAll(filepath.Dir(cache), 0o700); err != nil {
		return
	}
	tmp, err := os.MkdirTemp(filepath.Dir(cache), "new-")
	if err != nil {
		return
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	if err := os.Mkdir(filepath.Join(tmp, cachedData), 0o700); err != nil {
		return
	}
	if err := copyTree(dir, filepath.Join(tmp, cachedData), account{}); err != nil {
		return
	}
	if err := os.WriteFile(filepath.Join(tmp, cachedPassword), []byte(c.password), 0o600); err != nil {
		return
	}
	_ = os.Rename(tmp, cache)
}

// copyTree copies the folders and files below from into the existing folder to
// and gives them to the account.
func copyTree(from, to string, a account) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil || rel == "." {
			return err
		}
		target := filepath.Join(to, rel)
		switch {
		case entry.IsDir():
			err = os.Mkdir(target, 0o700)
		case entry.Type().IsRegular():
			err = copyFile(path, target)
		default:
			err = fmt.Errorf("%s is neither a folder nor a file", path)
		}
		if err != nil {
			return err
		}
		return a.own(target)
	})
}

func copyFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(dst, src); err != nil {
		_ = dst.Close()
		return err
	}
	return dst.Close()
}
