// Package blobs keeps Artifact content by its SHA-256 on disk, and remembers
// in Postgres for which Groups it was stored.
//
// Two hazards. A content hash is no secret: whoever knows one must not be able
// to read the content, or learn that it exists, through a Group for which it
// was never stored. And a file is not a transaction: content is written aside,
// hashed, synced and renamed before its row exists, so that a crash leaves at
// most a file that nobody can read.
package blobs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/missionweave/server/internal/protocol"
)

// Errors of the store. ErrNotFound stands for absent and for undisclosed.
var (
	ErrNotFound = errors.New("blobs: no such content")
	ErrMismatch = errors.New("blobs: content differs from its hash")
	ErrTooLarge = errors.New("blobs: content is larger than the limit")
	ErrHash     = errors.New("blobs: not a content hash")
)

var hashPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// Store keeps content under one directory. Several replicas may share it.
type Store struct {
	dir   string
	pool  *pgxpool.Pool
	limit int64
}

// Open prepares dir. limit is the largest content in bytes.
func Open(dir string, pool *pgxpool.Pool, limit int64) (*Store, error) {
	for _, d := range []string{dir, filepath.Join(dir, "incoming")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, fmt.Errorf("blobs: prepare the directory: %w", err)
		}
	}
	s := &Store{dir: dir, pool: pool, limit: limit}
	return s, s.sweep(time.Now().Add(-abandonedAfter))
}

// abandonedAfter is how old unfinished content must be before it is removed;
// another replica may still be writing younger ones.
const abandonedAfter = 24 * time.Hour

// sweep removes what a crash left half written.
func (s *Store) sweep(before time.Time) error {
	entries, err := os.ReadDir(filepath.Join(s.dir, "incoming"))
	if err != nil {
		return fmt.Errorf("blobs: look for abandoned content: %w", err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err == nil && info.ModTime().Before(before) {
			_ = os.Remove(filepath.Join(s.dir, "incoming", e.Name()))
		}
	}
	return nil
}

// Put stores content for a Group in which the caller already proved to be a
// member. It is ErrMismatch when the content has another hash; nothing is kept
// then. Storing the same content again succeeds and changes nothing. created
// tells whether the Group did not have it before.
func (s *Store) Put(ctx context.Context, groupID, contentHash string, by protocol.Actor, content io.Reader) (created bool, err error) {
	path, err := s.path(contentHash)
	if err != nil {
		return false, err
	}
	size, err := s.write(path, contentHash, content)
	if err != nil {
		return false, err
	}
	tag, err := s.pool.Exec(ctx, `
		INSERT INTO blobs (tree_id, group_id, content_hash, size_bytes, stored_by_type, stored_by_id)
		SELECT tree_id, group_id, $2, $3, $4, $5 FROM groups WHERE group_id = $1
		ON CONFLICT DO NOTHING`, groupID, contentHash, size, by.Type, by.ID)
	if err != nil {
		return false, fmt.Errorf("blobs: record the content: %w", err)
	}
	return tag.RowsAffected() == 1, nil
}

// write takes the content in, also when the file exists: only who can send the
// content may store it under its hash for another Group.
func (s *Store) write(path, contentHash string, content io.Reader) (size int64, err error) {
	incoming, err := os.CreateTemp(filepath.Join(s.dir, "incoming"), "put-*")
	if err != nil {
		return 0, fmt.Errorf("blobs: take content in: %w", err)
	}
	defer func() {
		_ = incoming.Close()
		_ = os.Remove(incoming.Name())
	}()
	sum := sha256.New()
	size, err = io.Copy(io.MultiWriter(incoming, sum), io.LimitReader(content, s.limit+1))
	switch {
	case err != nil:
		return 0, fmt.Errorf("blobs: take content in: %w", err)
	case size > s.limit:
		return 0, ErrTooLarge
	case spell(sum) != contentHash:
		return 0, ErrMismatch
	}
	if err := incoming.Sync(); err != nil {
		return 0, fmt.Errorf("blobs: sync the content: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return 0, fmt.Errorf("blobs: make the folder: %w", err)
	}
	if err := os.Rename(incoming.Name(), path); err != nil {
		return 0, fmt.Errorf("blobs: keep the content: %w", err)
	}
	return size, syncDir(filepath.Dir(path))
}

// Blob is content being read. Reading ends with ErrMismatch instead of io.EOF
// when the file no longer has its hash.
type Blob struct {
	file *os.File
	sum  hash.Hash
	want string
	// Size is in bytes.
	Size int64
}

// Get opens content through a Group. reader is the caller, already proven to
// be allowed to read that Group. Content is readable where it was stored for
// the Group itself, or for another Group of the same Mission tree in which it
// was published as an Artifact that the caller may see.
func (s *Store) Get(ctx context.Context, groupID, contentHash string, reader protocol.Actor) (*Blob, error) {
	path, err := s.path(contentHash)
	if err != nil {
		return nil, ErrNotFound
	}
	var readable bool
	err = s.pool.QueryRow(ctx, `
		SELECT EXISTS (SELECT FROM blobs b JOIN groups g USING (tree_id, group_id)
		               WHERE g.group_id = $1 AND b.content_hash = $2)
		    OR EXISTS (SELECT FROM groups g
		               JOIN groups o ON o.root_mission_id = g.root_mission_id AND o.tree_id = g.tree_id
		               JOIN blobs b ON b.tree_id = o.tree_id AND b.group_id = o.group_id
		               JOIN artifacts a ON a.tree_id = o.tree_id AND a.group_id = o.group_id AND a.content_hash = b.content_hash
		               JOIN memberships m ON m.tree_id = o.tree_id AND m.group_id = o.group_id
		               WHERE g.group_id = $1 AND b.content_hash = $2
		                 AND m.member_type = $3 AND m.member_id = $4 AND m.state = 'active' AND m.visibility_start <= 1)`,
		groupID, contentHash, reader.Type, reader.ID).Scan(&readable)
	if err != nil {
		return nil, fmt.Errorf("blobs: look the content up: %w", err)
	}
	if !readable {
		return nil, ErrNotFound
	}
	file, err := os.Open(path)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("blobs: recorded content is gone from the disk: %w", err)
		}
		return nil, fmt.Errorf("blobs: open the content: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("blobs: open the content: %w", err)
	}
	return &Blob{file: file, sum: sha256.New(), want: contentHash, Size: info.Size()}, nil
}

func (b *Blob) Read(p []byte) (int, error) {
	n, err := b.file.Read(p)
	b.sum.Write(p[:n])
	if errors.Is(err, io.EOF) && spell(b.sum) != b.want {
		return n, ErrMismatch
	}
	return n, err //nolint:wrapcheck // io.EOF must stay io.EOF
}

// Close ends the reading.
func (b *Blob) Close() error { return b.file.Close() }

func (s *Store) path(contentHash string) (string, error) {
	if !hashPattern.MatchString(contentHash) {
		return "", ErrHash
	}
	digits := strings.TrimPrefix(contentHash, "sha256:")
	return filepath.Join(s.dir, digits[:2], digits), nil
}

func spell(sum hash.Hash) string { return "sha256:" + hex.EncodeToString(sum.Sum(nil)) }

// syncDir makes a rename durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("blobs: sync the folder: %w", err)
	}
	err = errors.Join(d.Sync(), d.Close())
	if err != nil {
		return fmt.Errorf("blobs: sync the folder: %w", err)
	}
	return nil
}

// Limit is the largest content in bytes.
func (s *Store) Limit() int64 { return s.limit }
