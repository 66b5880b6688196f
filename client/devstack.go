package client

import (
	"crypto/ed25519"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
)

// DevStack is what `mw dev` writes to dev.json: where the services are and
// which Principals exist.
type DevStack struct {
	OrganizationID string         `json:"organizationId"`
	AuthorityURL   string         `json:"authorityUrl"`
	RegistryURL    string         `json:"registryUrl"`
	AuthzURL       string         `json:"authzUrl"`
	WSURL          string         `json:"wsUrl"`
	NATSURL        string         `json:"natsUrl"`
	DatabaseURL    string         `json:"databaseUrl"`
	CAFile         string         `json:"caFile"`
	Principals     []DevPrincipal `json:"principals"`
	Policy         map[string]any `json:"policy"`

	// Log is used by the Clients that Connect makes.
	Log *slog.Logger `json:"-"`
}

// DevPrincipal is one Principal of a dev stack; SeedFile holds its key.
type DevPrincipal struct {
	Role      string `json:"role"`
	Principal Actor  `json:"principal"`
	KeyID     string `json:"keyId"`
	SeedFile  string `json:"seedFile"`
}

// ReadDevStack reads dev.json.
func ReadDevStack(path string) (*DevStack, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("client: read the dev stack: %w", err)
	}
	var d DevStack
	if err := json.Unmarshal(b, &d); err != nil {
		return nil, fmt.Errorf("client: %s: %w", path, err)
	}
	for i := range d.Principals {
		if f := d.Principals[i].SeedFile; !filepath.IsAbs(f) {
			d.Principals[i].SeedFile = filepath.Join(filepath.Dir(path), f)
		}
	}
	return &d, nil
}

// Endpoints are the URLs of the stack.
func (d *DevStack) Endpoints() Endpoints {
	return Endpoints{AuthorityURL: d.AuthorityURL, RegistryURL: d.RegistryURL, AuthzURL: d.AuthzURL, WebSocketURL: d.WSURL}
}

// RootCAs reads the stack's certificate; nil when it has none.
func (d *DevStack) RootCAs() (*x509.CertPool, error) {
	if d.CAFile == "" {
		return nil, nil //nolint:nilnil // no certificate is a stack without TLS, not a failure
	}
	pem, err := os.ReadFile(d.CAFile)
	if err != nil {
		return nil, fmt.Errorf("client: read the certificate: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, errors.New("client: the certificate file holds no certificate")
	}
	return pool, nil
}

// Identity loads the key of the Principal with a role.
func (d *DevStack) Identity(role string) (Identity, error) {
	for _, p := range d.Principals {
		if p.Role == role {
			key, err := ReadSeed(p.SeedFile)
			if err != nil {
				return Identity{}, err
			}
			return Identity{Principal: p.Principal, KeyID: p.KeyID, Key: key}, nil
		}
	}
	return Identity{}, fmt.Errorf("client: the dev stack has no Principal with role %q", role)
}

// Connect makes a Client of the stack for an Identity.
func (d *DevStack) Connect(identity Identity) (*Client, error) {
	roots, err := d.RootCAs()
	if err != nil {
		return nil, err
	}
	return New(Options{Endpoints: d.Endpoints(), Identity: identity, RootCAs: roots, Log: d.Log})
}

// ReadSeed reads a private key from a file that holds its 32-byte seed as
// base64url.
func ReadSeed(path string) (ed25519.PrivateKey, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("client: read the key: %w", err)
	}
	seed, err := base64.RawURLEncoding.Strict().DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(seed) != ed25519.SeedSize {
		return nil, fmt.Errorf("client: %s does not hold a 32-byte seed as base64url", path)
	}
	return ed25519.NewKeyFromSeed(seed), nil
}
