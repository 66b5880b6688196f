package devorg_test

import (
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/missionweave/server/internal/devorg"
)

func open(t *testing.T, dir string) *devorg.Organization {
	t.Helper()
	o, err := devorg.Open(dir, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestASecondStartFindsTheSameOrganizationAndKeys(t *testing.T) {
	dir := t.TempDir()
	first, second := open(t, dir), open(t, dir)
	if diff := cmp.Diff(first, second, cmpopts.IgnoreUnexported(devorg.Principal{})); diff != "" {
		t.Error(diff)
	}
	for i, p := range first.Principals {
		if p.PublicKey == "" || p.PublicKey != second.Principals[i].PublicKey {
			t.Errorf("%s has another key", p.Role)
		}
	}
}

func TestKeysAreReadableByTheirOwnerOnly(t *testing.T) {
	dir := t.TempDir()
	for _, p := range open(t, dir).Principals {
		info, err := os.Stat(p.SeedFile)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %o", p.Role, info.Mode().Perm())
		}
	}
}

func TestAStartAfterACrashInTheFirstOneMakesOnlyWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	before := open(t, dir)
	lost := before.Principals[3]
	if err := os.Remove(lost.SeedFile); err != nil {
		t.Fatal(err)
	}
	after := open(t, dir)
	for i, p := range after.Principals {
		if same := p.PublicKey == before.Principals[i].PublicKey; same == (i == 3) {
			t.Errorf("%s: key unchanged is %v", p.Role, same)
		}
	}
}

func TestADamagedKeyFileIsAFaultAndNotReplaced(t *testing.T) {
	dir := t.TempDir()
	seed := open(t, dir).Principals[0].SeedFile
	if err := os.WriteFile(seed, []byte("broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := devorg.Open(dir, time.Now()); err == nil {
		t.Fatal("opened")
	}
	if b, _ := os.ReadFile(seed); string(b) != "broken" {
		t.Error("the file was replaced")
	}
}

func TestTheCertificateIsKeptUntilItIsAboutToEndAndServesLoopback(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	certFile, keyFile := filepath.Join(dir, "tls", "cert.pem"), filepath.Join(dir, "tls", "key.pem")
	serial := func(at time.Time) string {
		cert, err := devorg.Certificate(certFile, keyFile, []string{"authority"}, at)
		if err != nil {
			t.Fatal(err)
		}
		pem, err := os.ReadFile(certFile)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		for _, name := range []string{"localhost", "127.0.0.1", "::1", "authority"} {
			if _, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: at}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		return cert.Leaf.SerialNumber.String()
	}
	first := serial(now)
	if serial(now.Add(24*time.Hour)) != first {
		t.Error("replaced after a day")
	}
	if serial(now.Add(340*24*time.Hour)) == first {
		t.Error("kept until its end")
	}
	if err := os.WriteFile(keyFile, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	serial(now) // a torn pair is made again
}

func TestLoadMakesNothingAndHasOnlyTheKeysThatAreThere(t *testing.T) {
	dir := t.TempDir()
	if _, err := devorg.Load(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("empty folder: %v", err)
	}
	open(t, dir)
	if err := os.Remove(filepath.Join(dir, "identity.seed")); err != nil {
		t.Fatal(err)
	}
	o, err := devorg.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Signer("registry"); err != nil {
		t.Error(err)
	}
	if _, err := o.Signer("identity"); err == nil {
		t.Error("a key appeared")
	}
	if _, err := os.Stat(filepath.Join(dir, "identity.seed")); err == nil {
		t.Error("a seed was made")
	}
}
