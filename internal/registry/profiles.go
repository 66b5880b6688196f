package registry

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/trust"
)

// The server's own Extension Profile (COMMANDS.md E11). Its schema file is the
// one list of the ext.missionweave kinds.
const (
	OwnProfileURI     = "urn:missionweave:profile:authority"
	OwnProfileVersion = "1.0.0"
	ownProfileSchema  = "urn:missionweave:schema:authority:1.0.0"
)

//go:embed authority-1.0.0.schema.json
var ownSchema []byte

// OwnProfile is the unsigned profile, as approved by a service at an instant.
func OwnProfile(approvedBy protocol.Actor, at time.Time) (*protocol.ExtensionProfile, error) {
	doc, err := strictjson.Parse(ownSchema)
	if err != nil {
		return nil, fmt.Errorf("own profile schema: %w", err)
	}
	hash := sha256.Sum256(ownSchema)
	p := &protocol.ExtensionProfile{
		ProfileURI:           OwnProfileURI,
		Name:                 "MissionWeave Group Authority",
		Version:              OwnProfileVersion,
		SchemaURI:            ownProfileSchema,
		SchemaHash:           "sha256:" + hex.EncodeToString(hash[:]),
		RequiredCapabilities: []protocol.CapabilityRef{},
		ApprovedBy:           approvedBy,
		ApprovedAt:           lexical.FormatMicros(at),
	}
	defs := doc.Root().Member("$defs")
	for _, list := range []struct {
		name string
		to   *[]string
	}{{"commandKind", &p.CommandKinds}, {"eventKind", &p.EventKinds}} {
		for _, kind := range defs.Member(list.name).Member("enum").Items() {
			*list.to = append(*list.to, kind.Str())
		}
	}
	return p, nil
}

// RegisterProfile registers a signed Extension Profile. An identical one that is
// there already is no fault (created false). Refusals: those of the six stages;
// AUTH_FORBIDDEN for an approver without duty; INVALID_COMMAND for a version that
// is taken, or a kind that belongs to another profile.
func (s *Service) RegisterProfile(ctx context.Context, author Author, document []byte) (created bool, err error) {
	err = s.mutate(ctx, author, func(m *mutation) error {
		created, err = s.registerProfile(ctx, m, document)
		return err
	})
	return created, err
}

func (s *Service) registerProfile(ctx context.Context, m *mutation, document []byte) (created bool, err error) {
	verified, failure := trust.VerifyBytes(protocol.KindExtensionProfile, document, m.base.Evidence)
	if failure != nil {
		return false, failure.Error()
	}
	if !m.base.HasRole(verified.Principal, RolePolicy) && !m.base.HasRole(verified.Principal, RoleRegistry) {
		return false, protocol.NewError(protocol.CodeAuthForbidden, "profile_approver").WithStep("P17")
	}
	profile, err := decodeProfile(document)
	if err != nil {
		return false, err
	}
	p := &profile.Profile
	for _, known := range m.base.Profiles() {
		k := &known.Profile
		if k.ProfileURI == p.ProfileURI && k.Version == p.Version {
			hash, err := signingHash(known.Document)
			if err != nil {
				return false, err
			}
			if hash == verified.SigningHash {
				return false, nil
			}
			return false, invalid("identifier_in_use")
		}
		if k.ProfileURI != p.ProfileURI && (overlap(k.CommandKinds, p.CommandKinds) || overlap(k.EventKinds, p.EventKinds)) {
			return false, invalid("kind_in_use")
		}
	}
	if instant(p.ApprovedAt).After(m.now.Add(s.cfg.Future)) {
		return false, invalid("timestamp")
	}
	if err := s.admit(ctx, m, verified); err != nil {
		return false, err
	}
	_, err = m.tx.Exec(ctx, `
		INSERT INTO extension_profiles (profile_uri, version, critical, document, signing_hash, revision, registered_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		p.ProfileURI, p.Version, p.Critical, document, verified.SigningHash, m.revision, m.now)
	return true, err
}

func overlap(a, b []string) bool {
	return slices.ContainsFunc(a, func(kind string) bool { return slices.Contains(b, kind) })
}

func signingHash(document []byte) (string, error) {
	doc, err := strictjson.Parse(document)
	if err != nil {
		return "", err
	}
	return trust.SigningHash(doc.Root())
}

// Profiles lists Extension Profiles in the order of URI and version, after the
// given pair, with the pair to continue after.
func (s *Service) Profiles(ctx context.Context, afterURI, afterVersion string, limit int) (documents [][]byte, nextURI, nextVersion string, err error) {
	rows, err := s.cfg.Pool.Query(ctx, `
		SELECT profile_uri, version, document FROM extension_profiles
		WHERE (profile_uri, version) > ($1, $2) ORDER BY profile_uri, version LIMIT $3`, afterURI, afterVersion, limit+1)
	if err != nil {
		return nil, "", "", err
	}
	var uri, version, lastURI, lastVersion string
	var document []byte
	_, err = pgx.ForEachRow(rows, []any{&uri, &version, &document}, func() error {
		if len(documents) == limit {
			nextURI, nextVersion = lastURI, lastVersion
			return nil
		}
		documents = append(documents, slices.Clone(document))
		lastURI, lastVersion = uri, version
		return nil
	})
	return documents, nextURI, nextVersion, err
}
