// Package devorg makes an Organization on its first start: its id, its first
// Principals with their keys, and a certificate for the listeners.
//
// Private keys are files of mode 0600 and are written once: a second start, or
// a start after a crash in the middle of the first, uses what is there. Nothing
// here prints a key.
package devorg

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/trust"
)

// Organization is who runs the stack.
type Organization struct {
	ID         string      `json:"organizationId"`
	CreatedAt  string      `json:"createdAt"`
	Principals []Principal `json:"principals"`
}

// Principal is one of the Organization's first Principals.
type Principal struct {
	Role      string         `json:"role"`
	Principal protocol.Actor `json:"principal"`
	KeyID     string         `json:"keyId"`
	SeedFile  string         `json:"seedFile"`
	// PublicKey is base64url; empty when the key is not here.
	PublicKey string `json:"-"`

	signer trust.Signer
}

// roles of the dev stack contract with the type of their Principal.
var roles = []struct{ role, actor string }{
	{"registry", protocol.ActorService},
	{"identity", protocol.ActorService},
	{"group-authority", protocol.ActorService},
	{"authorization", protocol.ActorService},
	{"archival", protocol.ActorService},
	{"policy", protocol.ActorService},
	{"metering", protocol.ActorService},
	{"evidence", protocol.ActorService},
	{"context-generator", protocol.ActorAgent},
	{"mission-owner", protocol.ActorHuman},
}

// organizationFile stands beside the seeds and holds no secret.
const organizationFile = "organization.json"

// Open loads the Organization from its key folder, or makes it.
func Open(keysDir string, now time.Time) (*Organization, error) {
	if err := os.MkdirAll(keysDir, 0o700); err != nil {
		return nil, fmt.Errorf("devorg: prepare the key folder: %w", err)
	}
	o, err := read(filepath.Join(keysDir, organizationFile))
	if errors.Is(err, fs.ErrNotExist) {
		o, err = found(keysDir, now)
	}
	if err != nil {
		return nil, err
	}
	return o, o.loadKeys(keysDir, openSeed)
}

// Load reads the Organization from a key folder and makes nothing. A key that
// is not there is not at this process's disposal: Signer then has none.
func Load(keysDir string) (*Organization, error) {
	o, err := read(filepath.Join(keysDir, organizationFile))
	if err != nil {
		return nil, err
	}
	return o, o.loadKeys(keysDir, readSeed)
}

func (o *Organization) loadKeys(keysDir string, seedOf func(path string) ([]byte, error)) error {
	for i := range o.Principals {
		p := &o.Principals[i]
		p.SeedFile = filepath.Join(keysDir, p.Role+".seed")
		seed, err := seedOf(p.SeedFile)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if p.signer, err = trust.NewSigner(p.KeyID, p.Principal, seed); err != nil {
			return fmt.Errorf("devorg: key of %s: %w", p.Role, err)
		}
		p.PublicKey = p.signer.PublicKey()
	}
	return nil
}

// Signer is the key of the Principal with a role.
func (o *Organization) Signer(role string) (trust.Signer, error) {
	for _, p := range o.Principals {
		if p.Role == role && p.signer.KeyID != "" {
			return p.signer, nil
		}
	}
	return trust.Signer{}, fmt.Errorf("devorg: there is no key for the role %q", role)
}

// found chooses the ids. They are written before any key exists, so that a
// crash in between leaves ids whose keys the next start makes.
func found(dir string, now time.Time) (*Organization, error) {
	mark := strings.TrimPrefix(newID(now), "urn:uuid:")
	o := &Organization{ID: "urn:missionweave:organization:" + mark, CreatedAt: lexical.FormatMicros(now)}
	for _, r := range roles {
		o.Principals = append(o.Principals, Principal{
			Role:      r.role,
			Principal: protocol.Actor{Type: r.actor, ID: "urn:missionweave:" + r.actor + ":" + r.role + ":" + mark},
			KeyID:     "urn:missionweave:key:" + r.role + ":" + mark,
		})
	}
	b, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("devorg: %w", err)
	}
	return o, writeOnce(filepath.Join(dir, organizationFile), append(b, '\n'), 0o644)
}

func read(path string) (*Organization, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("devorg: %w", err)
	}
	var o Organization
	if err := json.Unmarshal(b, &o); err != nil {
		return nil, fmt.Errorf("devorg: %s: %w", path, err)
	}
	return &o, nil
}

func newID(now time.Time) string {
	var random [10]byte
	_, _ = rand.Read(random[:])
	return lexical.UUIDv7(now, random)
}

// openSeed reads a seed, making it when there is none.
func openSeed(path string) ([]byte, error) {
	seed, err := readSeed(path)
	if errors.Is(err, fs.ErrNotExist) {
		seed = make([]byte, ed25519.SeedSize)
		_, _ = rand.Read(seed)
		err = writeOnce(path, []byte(base64.RawURLEncoding.EncodeToString(seed)+"\n"), 0o600)
	}
	return seed, err
}

func readSeed(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("devorg: key file: %w", err)
	}
	seed, err := base64.RawURLEncoding.Strict().DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("devorg: %s does not hold a 32-byte seed as base64url", path)
	}
	return seed, nil
}

// writeOnce writes a file whole or not at all, and durably: a key that signed
// something must not be gone after a power cut.
func writeOnce(path string, content []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("devorg: %w", err)
	}
	defer func() { _ = os.Remove(f.Name()) }()
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err == nil {
		var d *os.File
		if d, err = os.Open(filepath.Dir(path)); err == nil {
			err = errors.Join(d.Sync(), d.Close())
		}
	}
	if err != nil {
		return fmt.Errorf("devorg: write %s: %w", filepath.Base(path), err)
	}
	return nil
}
