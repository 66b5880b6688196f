package devorg

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/missionweave/server/internal/trust"
)

// Seeds of keys that followed the first one of a role stand beside it, under a
// name that the key id makes: whoever is told the id finds the file, and a file
// is written before its id is known to anybody.

// rotatedSeed is where the seed of a later key of a role stands.
func (o *Organization) rotatedSeed(role, keyID string) (string, error) {
	for _, p := range o.Principals {
		if p.Role == role && p.SeedFile != "" {
			sum := sha256.Sum256([]byte(keyID))
			return filepath.Join(filepath.Dir(p.SeedFile), role+"."+hex.EncodeToString(sum[:8])+".seed"), nil
		}
	}
	return "", fmt.Errorf("devorg: there is no role %q", role)
}

// NewKey makes and stores a further key for the Principal with a role. It signs
// nothing before the Registry knows it.
func (o *Organization) NewKey(role, keyID string) (trust.Signer, error) {
	path, err := o.rotatedSeed(role, keyID)
	if err != nil {
		return trust.Signer{}, err
	}
	seed := make([]byte, ed25519.SeedSize)
	_, _ = rand.Read(seed)
	if err := writeOnce(path, []byte(base64.RawURLEncoding.EncodeToString(seed)+"\n"), 0o600); err != nil {
		return trust.Signer{}, err
	}
	return o.rotated(role, keyID, seed)
}

// SignerOf is the key of a role under a key id, ok false where its seed is not
// here.
func (o *Organization) SignerOf(role, keyID string) (signer trust.Signer, ok bool, err error) {
	path, err := o.rotatedSeed(role, keyID)
	if err != nil {
		return trust.Signer{}, false, err
	}
	seed, err := readSeed(path)
	if errors.Is(err, fs.ErrNotExist) {
		return trust.Signer{}, false, nil
	}
	if err != nil {
		return trust.Signer{}, false, err
	}
	signer, err = o.rotated(role, keyID, seed)
	return signer, err == nil, err
}

func (o *Organization) rotated(role, keyID string, seed []byte) (trust.Signer, error) {
	for _, p := range o.Principals {
		if p.Role == role {
			return trust.NewSigner(keyID, p.Principal, seed)
		}
	}
	return trust.Signer{}, fmt.Errorf("devorg: there is no role %q", role)
}
