package registry_test

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/registry/registrytest"
	"github.com/missionweave/server/internal/trust"
)

var registrar = registry.Author{Principal: registrytest.Service(registry.RoleRegistry).Principal}

func codeOf(err error) protocol.Code {
	var perr *protocol.Error
	if errors.As(err, &perr) {
		return perr.Code
	}
	return ""
}

func head(t *testing.T, org *registrytest.Org) (revision int64) {
	t.Helper()
	if err := org.Pool.QueryRow(t.Context(), `SELECT revision FROM registry_head`).Scan(&revision); err != nil {
		t.Fatal(err)
	}
	return revision
}

func count(t *testing.T, org *registrytest.Org, query string, args ...any) (n int) {
	t.Helper()
	if err := org.Pool.QueryRow(t.Context(), query, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestKeysThatBreakARuleOfTheOrganizationAreRefused(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	alice := registrytest.Human("alice")
	org.AddKey(t, alice)
	before := head(t, org)

	binding := func(change func(*trust.Binding)) trust.Binding {
		b := registrytest.Signer(protocol.ActorHuman, "bob", 1).Binding(registrytest.Now())
		change(&b)
		return b
	}
	for _, tc := range []struct {
		rule    string
		binding trust.Binding
		code    protocol.Code
	}{
		{"key id of another Principal", binding(func(b *trust.Binding) { b.KeyID = alice.KeyID }), protocol.CodeAuthInvalidSignature},
		{"public key of another Principal", binding(func(b *trust.Binding) { b.PublicKey = alice.PublicKey() }), protocol.CodeAuthInvalidSignature},
		{"second key id for the same tuple", binding(func(b *trust.Binding) {
			b.Principal, b.PublicKey = alice.Principal, alice.PublicKey()
		}), protocol.CodeAuthInvalidSignature},
		{"known key id, other validFrom", func() trust.Binding { return alice.Binding(registrytest.At(time.Minute)) }(), protocol.CodeAuthInvalidSignature},
		{"identity point", binding(func(b *trust.Binding) { b.PublicKey = "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA" }), protocol.CodeAuthInvalidSignature},
		{"small-order point", binding(func(b *trust.Binding) { b.PublicKey = "7P______________________________________38" }), protocol.CodeAuthInvalidSignature},
		{"not canonical", binding(func(b *trust.Binding) { b.PublicKey = "7v______________________________________38" }), protocol.CodeAuthInvalidSignature},
		{"wrong length", binding(func(b *trust.Binding) { b.PublicKey = "AQAA" }), protocol.CodeAuthInvalidSignature},
		{"pad bits", binding(func(b *trust.Binding) { b.PublicKey = b.PublicKey[:42] + "_" }), protocol.CodeAuthInvalidSignature},
		{"validFrom more than an hour ago", binding(func(b *trust.Binding) { b.ValidFrom = registrytest.At(-61 * time.Minute) }), protocol.CodeInvalidCommand},
	} {
		if _, _, err := org.Service.RegisterKey(t.Context(), registrar, tc.binding); codeOf(err) != tc.code {
			t.Errorf("%s: %v", tc.rule, err)
		}
	}
	if after := head(t, org); after != before {
		t.Errorf("refusals moved the revision from %d to %d", before, after)
	}

	record, created, err := org.Service.RegisterKey(t.Context(), registrar, func() trust.Binding {
		known, err := org.Service.Key(t.Context(), alice.KeyID)
		if err != nil {
			t.Fatal(err)
		}
		return alice.Binding(known.ValidFrom)
	}())
	if err != nil || created || record.KeyID != alice.KeyID {
		t.Errorf("identical binding again: %v created=%v %+v", err, created, record)
	}
	if _, created, err := org.Service.RegisterKey(t.Context(), registrar, binding(func(b *trust.Binding) {
		b.ValidFrom = registrytest.At(-59 * time.Minute)
	})); err != nil || !created {
		t.Errorf("validFrom within the hour: %v", err)
	}
}

func TestRacingRegistrationsOfOnePublicKeyHaveOneWinner(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	shared := registrytest.Signer(protocol.ActorHuman, "shared", 1)
	const racers = 16
	errs := make([]error, racers)
	var wg sync.WaitGroup
	for i := range racers {
		_, service := org.Service, org.Service
		if i%4 == 0 {
			_, service = org.Replica(t, nil)
		}
		b := shared.Binding(registrytest.Now())
		b.KeyID += ":" + string(rune('a'+i))
		b.Principal.ID += string(rune('a' + i))
		wg.Go(func() { _, _, errs[i] = service.RegisterKey(t.Context(), registrar, b) })
	}
	wg.Wait()
	won := 0
	for i, err := range errs {
		switch {
		case err == nil:
			won++
		case codeOf(err) != protocol.CodeAuthInvalidSignature:
			t.Errorf("racer %d: %v", i, err)
		}
	}
	if won != 1 {
		t.Errorf("%d registrations won", won)
	}
	public, _ := lexical.DecodeBase64URL(shared.PublicKey())
	if n := count(t, org, `SELECT count(*) FROM key_bindings WHERE public_key = $1`, public); n != 1 {
		t.Errorf("%d bindings of one public key", n)
	}
}

func TestBoundariesOnlyMoveEarlier(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	s := registrytest.Human("carol")
	org.AddKey(t, s)
	hour, day := registrytest.At(time.Hour), registrytest.At(24*time.Hour)

	step := func(validUntil, revokedAt string, wantCode protocol.Code, wantChanged bool, wantHistory int) {
		t.Helper()
		record, changed, err := org.Service.AppendValidity(t.Context(), registrar, s.KeyID, validUntil, revokedAt)
		if codeOf(err) != wantCode {
			t.Fatalf("validUntil %q revokedAt %q: %v", validUntil, revokedAt, err)
		}
		if wantCode == "" && (changed != wantChanged || len(record.History) != wantHistory) {
			t.Fatalf("validUntil %q revokedAt %q: changed %v, history %+v", validUntil, revokedAt, changed, record.History)
		}
	}
	step(day, "", "", true, 1)
	step(day, "", "", false, 1)
	step(registrytest.At(25*time.Hour), "", protocol.CodeInvalidCommand, false, 0)
	step(hour, "", "", true, 2)
	step(day, hour, protocol.CodeInvalidCommand, false, 0)
	step("", day, "", true, 3)
	step(hour, hour, "", true, 4)
	step("", registrytest.At(2*time.Hour), protocol.CodeInvalidCommand, false, 0)

	record, err := org.Service.Key(t.Context(), s.KeyID)
	if err != nil {
		t.Fatal(err)
	}
	if record.ValidUntil != hour || record.RevokedAt != hour {
		t.Errorf("effective boundaries: %+v", record)
	}
	if v := record.History[3]; v.ValidUntil != "" || v.RevokedAt != hour || v.ChangedBy != registrar.Principal {
		t.Errorf("a boundary that says nothing new was recorded: %+v", v)
	}
	if _, _, err := org.Service.AppendValidity(t.Context(), registrar, "urn:test:key:none", hour, ""); !errors.Is(err, registry.ErrUnknown) {
		t.Errorf("unknown key: %v", err)
	}
}

func TestTheDatabaseItselfRefusesToRewriteHistory(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	s := registrytest.Human("dave")
	org.AddKey(t, s)
	org.EndKey(t, s.KeyID, registrytest.At(time.Hour), "")
	other := registrytest.Signer(protocol.ActorHuman, "eve", 1)
	org.AddKey(t, other)
	for _, statement := range []string{
		`UPDATE key_bindings SET principal_id = 'urn:test:human:mallory'`,
		`UPDATE key_bindings SET public_key = decode(repeat('07', 32), 'hex') WHERE key_id = '` + s.KeyID + `'`,
		`DELETE FROM key_bindings WHERE key_id = '` + other.KeyID + `'`,
		`TRUNCATE key_bindings CASCADE`,
		`UPDATE key_validity SET valid_until = NULL, revoked_at = '2100-01-01T00:00:00Z'`,
		`DELETE FROM key_validity`,
		`TRUNCATE key_validity`,
		`INSERT INTO key_validity SELECT key_id, sequence + 5, valid_until, revoked_at, recorded_at, changed_by_type, changed_by_id, revision FROM key_validity`,
		`UPDATE agent_cards SET status = 'revoked'`,
		`DELETE FROM agent_cards`,
		`DELETE FROM extension_profiles`,
		`DELETE FROM org_services`,
		`UPDATE registry_head SET revision = revision + 2`,
		`UPDATE registry_head SET revision = revision - 1`,
		`DELETE FROM registry_head`,
		`INSERT INTO organizations VALUES ('urn:test:second', now())`,
	} {
		_, err := org.Pool.Exec(t.Context(), statement)
		var pg *pgconn.PgError
		if !errors.As(err, &pg) || !strings.HasPrefix(pg.Code, "23") {
			t.Errorf("%s: %v", statement, err)
		}
	}
}

func TestEvidenceOfEveryRevisionCanBeReadAgain(t *testing.T) {
	t.Parallel()
	org := registrytest.New(t)
	s := registrytest.Human("erin")
	before := head(t, org)
	org.AddKey(t, s)
	bound := head(t, org)
	org.EndKey(t, s.KeyID, registrytest.At(time.Hour), "")
	ended := head(t, org)

	read := func(revision int64) *registry.EvidenceDocument {
		t.Helper()
		doc, err := org.Service.Evidence(t.Context(), revision)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := trust.NewEvidence(doc.OrganizationID, doc.Revision, doc.TrustBindings()); err != nil {
			t.Errorf("revision %d: %v", revision, err)
		}
		return doc
	}
	find := func(doc *registry.EvidenceDocument) *registry.KeyRecord {
		i := slices.IndexFunc(doc.Bindings, func(k registry.KeyRecord) bool { return k.KeyID == s.KeyID })
		if i < 0 {
			return nil
		}
		return &doc.Bindings[i]
	}
	if find(read(before)) != nil {
		t.Error("the key is in evidence from before it was bound")
	}
	if k := find(read(bound)); k == nil || k.ValidUntil != "" || len(k.History) != 0 {
		t.Errorf("at the binding's revision: %+v", k)
	}
	if k := find(read(ended)); k == nil || k.ValidUntil == "" || len(k.History) != 1 {
		t.Errorf("at the last revision: %+v", k)
	}
	if now := read(0); now.Revision != ended {
		t.Errorf("present revision %d, want %d", now.Revision, ended)
	}
	if _, err := org.Service.Evidence(t.Context(), ended+1); !errors.Is(err, registry.ErrUnknown) {
		t.Errorf("revision to come: %v", err)
	}
}
