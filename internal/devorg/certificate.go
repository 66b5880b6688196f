package devorg

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

const (
	certificateLife = 365 * 24 * time.Hour
	renewBefore     = 30 * 24 * time.Hour
)

// Certificate loads or makes a self-signed certificate for loopback and for the
// given host names. certFile is also what clients must trust. A certificate
// that is about to end is replaced, and clients have to read the file again.
func Certificate(certFile, keyFile string, hosts []string, now time.Time) (tls.Certificate, error) {
	for _, path := range []string{certFile, keyFile} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return tls.Certificate{}, fmt.Errorf("devorg: prepare the certificate folder: %w", err)
		}
	}
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err == nil && now.Add(renewBefore).Before(cert.Leaf.NotAfter) {
		return cert, nil
	}
	// A pair that does not fit is what a crash between the two files leaves; it is
	// made again like a missing one. Files that cannot be read are a fault.
	if errors.Is(err, fs.ErrPermission) {
		return tls.Certificate{}, fmt.Errorf("devorg: read the certificate: %w", err)
	}
	if err := makeCertificate(certFile, keyFile, hosts, now); err != nil {
		return tls.Certificate{}, err
	}
	cert, err = tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("devorg: read the certificate: %w", err)
	}
	return cert, nil
}

func makeCertificate(certFile, keyFile string, hosts []string, now time.Time) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("devorg: make the certificate's key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return fmt.Errorf("devorg: make the certificate: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "MissionWeave"},
		NotBefore:    now.Add(-time.Hour), NotAfter: now.Add(certificateLife),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true,
		DNSNames:    append([]string{"localhost"}, hosts...),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return fmt.Errorf("devorg: make the certificate: %w", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fmt.Errorf("devorg: make the certificate's key: %w", err)
	}
	return errors.Join(
		writeOnce(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600),
		writeOnce(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644),
	)
}
