package verify

import (
	"bytes"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/registry"
	"github.com/missionweave/server/internal/trust"
)

// The Registry's documents. What an Agent may do hangs on its card (the session
// gate, capability match), so a card that nobody signed, or that is not the one
// its Event announced, must not pass as evidence for anything.

// kindCardRegistered is the fact that registers a card.
const kindCardRegistered = "ext.missionweaveprotocol.registry.agent_card_registered"

type cardKey struct {
	agent   string
	version int64
}

// announced is what the Organization's Events say about cards: the canonical
// card by Agent and version. A version that two Events announce is a difference.
func (v *verifier) announced(ctx context.Context) (map[cardKey][]byte, error) {
	rows, err := v.tx.Query(ctx, `SELECT document FROM org_events WHERE kind = $1 ORDER BY ordinal`, kindCardRegistered)
	if err != nil {
		return nil, err
	}
	out := map[cardKey][]byte{}
	var document []byte
	_, err = pgx.ForEachRow(rows, []any{&document}, func() error {
		doc, err := strictjson.Parse(document)
		if err != nil {
			return nil //nolint:nilerr // orgEvents says that the Event does not verify
		}
		card := doc.Root().Member("payload").Member("agentCard")
		version, _ := card.Member("cardVersion").Int()
		key := cardKey{card.Member("agentId").Str(), version}
		if _, twice := out[key]; twice {
			v.differ("", 0, "org_events", "card %d of %s is registered twice", version, key.agent)
		}
		out[key], err = card.AppendJCS(nil)
		return err
	})
	return out, err
}

// cards verifies every Agent Card, compares it with the Event that registered
// it, and the Agents' present row with their latest card.
func (v *verifier) cards(ctx context.Context) error {
	events, err := v.announced(ctx)
	if err != nil {
		return err
	}
	rows, err := v.tx.Query(ctx, `SELECT agent_id, card_version, status, document, signing_hash, revision, registered_at
		FROM agent_cards ORDER BY agent_id, card_version`)
	if err != nil {
		return err
	}
	type present struct {
		card     protocol.AgentCard
		revision int64
	}
	latest := map[string]present{}
	var key cardKey
	var status, hash string
	var document []byte
	var revision int64
	var registered time.Time
	_, err = pgx.ForEachRow(rows, []any{&key.agent, &key.version, &status, &document, &hash, &revision, &registered}, func() error {
		name := "agent_cards " + key.agent
		event, known := events[key]
		delete(events, key)
		card, ok := v.card(name, document, hash)
		if !ok {
			return nil
		}
		if card.AgentID != key.agent || card.CardVersion != key.version || card.Status != status {
			v.differ("", 0, name, "version %d: the columns are not those of the card", key.version)
		}
		if before, ok := latest[key.agent]; ok && before.card.CardVersion+1 != key.version {
			v.differ("", 0, name, "version %d follows %d", key.version, before.card.CardVersion)
		}
		switch {
		case !known:
			v.differ("", 0, name, "version %d has no Event", key.version)
		case !sameDocument(event, document):
			v.differ("", 0, name, "version %d is another card than its Event registered", key.version)
		}
		latest[key.agent] = present{*card, revision}
		return nil
	})
	if err != nil {
		return err
	}
	for key := range events {
		v.differ("", 0, "agent_cards "+key.agent, "version %d was registered and is missing", key.version)
	}
	return v.agents(ctx, func(agent string) (*protocol.AgentCard, int64, bool) {
		p, ok := latest[agent]
		delete(latest, agent)
		return &p.card, p.revision, ok
	}, func() (missing []string) {
		for agent := range latest {
			missing = append(missing, agent)
		}
		return missing
	})
}

// card verifies one card's bytes: six stages, and that a Principal with the duty
// to issue cards signed it.
func (v *verifier) card(name string, document []byte, hash string) (*protocol.AgentCard, bool) {
	verified, failure := trust.VerifyBytes(protocol.KindAgentCard, document, v.view.Evidence)
	if failure != nil {
		v.differ("", 0, name, "%s", failure)
		return nil, false
	}
	v.report.Documents++
	if verified.SigningHash != hash {
		v.differ("", 0, name, "signing hash is %q in the row, not %q", hash, verified.SigningHash)
	}
	if !v.view.HasRole(verified.Principal, registry.RoleRegistry) {
		v.differ("", 0, name, "signed by %s, which may not issue cards", verified.Principal.ID)
	}
	var card protocol.AgentCard
	if err := strictjson.Decode(verified.Value, &card); err != nil {
		v.differ("", 0, name, "does not read: %v", err)
		return nil, false
	}
	return &card, true
}

// agents compares each Agent's present row with its latest card.
func (v *verifier) agents(ctx context.Context, latest func(agent string) (*protocol.AgentCard, int64, bool), rest func() []string) error {
	rows, err := v.tx.Query(ctx, `SELECT agent_id, card_version, status, capabilities, revision FROM agents`)
	if err != nil {
		return err
	}
	var agent, status string
	var version, revision int64
	var capabilities []string
	_, err = pgx.ForEachRow(rows, []any{&agent, &version, &status, &capabilities, &revision}, func() error {
		card, since, ok := latest(agent)
		if !ok {
			v.differ("", 0, "agents "+agent, "has no card")
			return nil
		}
		want := make([]string, 0, len(card.Capabilities))
		for _, c := range card.Capabilities {
			want = append(want, c.ID)
		}
		if version != card.CardVersion || status != card.Status || revision != since || !slices.Equal(capabilities, want) {
			v.differ("", 0, "agents "+agent, "differs from the latest card, version %d", card.CardVersion)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, agent := range rest() {
		v.differ("", 0, "agents "+agent, "the row is missing")
	}
	return nil
}

// profiles verifies every Extension Profile and its columns.
func (v *verifier) profiles(ctx context.Context) error {
	rows, err := v.tx.Query(ctx, `SELECT profile_uri, version, critical, document, signing_hash FROM extension_profiles ORDER BY 1, 2`)
	if err != nil {
		return err
	}
	var uri, version, hash string
	var critical bool
	var document []byte
	_, err = pgx.ForEachRow(rows, []any{&uri, &version, &critical, &document, &hash}, func() error {
		name := "extension_profiles " + uri
		verified, failure := trust.VerifyBytes(protocol.KindExtensionProfile, document, v.view.Evidence)
		if failure != nil {
			v.differ("", 0, name, "%s", failure)
			return nil
		}
		v.report.Documents++
		d := verified.Value
		if d.Member("profileUri").Str() != uri || d.Member("version").Str() != version ||
			d.Member("critical").Bool() != critical || verified.SigningHash != hash {
			v.differ("", 0, name, "version %s: the columns are not those of the profile", version)
		}
		if !v.view.IsService(verified.Principal) {
			v.differ("", 0, name, "approved by %s, which is no service of the Organization", verified.Principal.ID)
		}
		return nil
	})
	return err
}

// sameDocument compares a document with a canonical one.
func sameDocument(canonical, document []byte) bool {
	other, err := strictjson.Canonicalize(document)
	return err == nil && bytes.Equal(canonical, other)
}
