package conformance

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/missionweave/server/internal/protocol/shape"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// maxFile bounds one file of a bundle; the largest published one has 67 KB.
const maxFile = 16 << 20

// checkout reads the files of a protocol checkout, each once.
type checkout struct {
	dir   fs.FS
	files map[string]file
}

type file struct {
	bytes []byte
	err   error
}

func newCheckout(dir fs.FS) *checkout {
	return &checkout{dir: dir, files: map[string]file{}}
}

func (c *checkout) read(path string) ([]byte, error) {
	f, ok := c.files[path]
	if !ok {
		f.bytes, f.err = c.load(path)
		c.files[path] = f
	}
	return f.bytes, f.err
}

var errTooLarge = errors.New("file too large")

func (c *checkout) load(path string) ([]byte, error) {
	f, err := c.dir.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err == nil && len(b) > maxFile {
		err = errTooLarge
	}
	return b, err
}

// decode reads a file as strict JSON of a declared form.
func (c *checkout) decode(path string, form *shape.Shape, dst any) (strictjson.Value, error) {
	b, err := c.read(path)
	if err != nil {
		return strictjson.Value{}, err
	}
	doc, err := strictjson.Parse(b)
	if err != nil {
		return strictjson.Value{}, err
	}
	if fault := form.Check(doc.Root()); fault != nil {
		return strictjson.Value{}, fmt.Errorf("has not the form of its schema: %w", fault)
	}
	return doc.Root(), strictjson.Decode(doc.Root(), dst)
}

// artifact is a file pinned by a manifest.
type artifact struct {
	Path       string `json:"path"`
	ByteLength int64  `json:"byteLength"`
	SHA256     string `json:"sha256"`
}

// pinned tells which files may be used: those that a manifest declares and that
// have the declared bytes.
type pinned map[string]bool

// pin compares every declared artifact with its length and digest. A path
// declared twice must be declared alike.
func (c *checkout) pin(b *Bundle, artifacts []artifact, into pinned) {
	seen := map[string]bool{}
	for _, a := range artifacts {
		if seen[a.Path] {
			b.miss(a.Path, "declared twice")
			into[a.Path] = false
			continue
		}
		seen[a.Path] = true
		content, err := c.read(a.Path)
		var fault string
		switch {
		case err != nil:
			fault = err.Error()
		case int64(len(content)) != a.ByteLength:
			fault = fmt.Sprintf("has %d bytes, declared are %d", len(content), a.ByteLength)
		case digest(content) != a.SHA256:
			fault = fmt.Sprintf("is %s, declared is %s", digest(content), a.SHA256)
		}
		if fault != "" {
			b.miss(a.Path, "%s", fault)
		}
		before, known := into[a.Path]
		into[a.Path] = fault == "" && (!known || before)
	}
}

// usable says why a referenced file must not be used; empty if it may.
func (p pinned) usable(path string) []string {
	intact, declared := p[path]
	switch {
	case !declared:
		return []string{path + " is not declared by a manifest"}
	case !intact:
		return []string{path + " has not its declared bytes"}
	}
	return nil
}

// checkDigest compares a manifest's artifactDigest: SHA-256 of the JCS form of
// the manifest without that member.
func checkDigest(b *Bundle, path string, manifest strictjson.Value, declared string) string {
	signing, err := manifest.AppendJCSWithout(nil, "artifactDigest")
	if err != nil {
		b.miss(path, "%v", err)
		return ""
	}
	got := digest(signing)
	if got != declared {
		b.miss(path, "artifactDigest is %s, declared is %s", got, declared)
	}
	return got
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}
