package naive

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/missionweave/server/internal/groups"
	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// core is the real Group Authority core with the least possible around it.
type core struct {
	now      time.Time
	org      *groups.Organization
	agents   map[string]*groups.Agent
	humans   map[string]bool
	groups   map[string]*groups.State
	missions map[string]string
	accepted map[groups.ActionRef]bool
	logs     map[string][][]byte
	minted   int
	load     func(id string) (queued, active int)
	places   func(id string) []string
}

const signature = `{"algorithm":"Ed25519","keyId":"key:test","createdAt":"2026-07-15T08:00:00Z","value":"c2lnbmF0dXJl"}`

func (k *core) mint() string {
	k.minted++
	return fmt.Sprintf("urn:uuid:00000000-0000-7000-8000-%012x", k.minted)
}

func (k *core) world() *groups.World {
	for id, a := range k.agents {
		q, n := k.load(id)
		a.Load = groups.Load{Queued: q, Active: n}
		a.ActiveGroups = k.places(id)
	}
	return &groups.World{
		Now: k.now, Mint: k.mint, Org: k.org, Agents: map[string]*groups.Agent{}, Groups: map[string]*groups.State{},
		Missions: map[string]string{}, MessageDocs: map[string][]protocol.Message{}, Accepted: map[groups.ActionRef]bool{},
		KeyBound:  func(p protocol.Actor) bool { return k.humans[p.ID] },
		KeyLive:   func(string, protocol.Actor) bool { return true },
		CheckCard: func(*protocol.AgentCard) error { return nil },
	}
}

// written is one Event as the core would store it.
type written struct {
	kind, group string
	body        obj
	raw         []byte
}

// submit runs one Command from its bytes to its Events. step names where a
// refusal came from.
func (k *core) submit(raw []byte, internal bool) (events []written, no *protocol.Error) {
	doc, err := strictjson.Parse(raw)
	if err != nil {
		panic(err)
	}
	if f := protocol.Validate(protocol.KindCommand, doc.Root()); f != nil {
		return nil, protocol.NewError(protocol.CodeSchemaValidationFailed, f.Path+" "+f.Reason).WithStep("P2")
	}
	var env protocol.Command
	if err := strictjson.Decode(doc.Root(), &env); err != nil {
		panic(err)
	}
	if e := groups.CheckEnvelope(&env); e != nil {
		return nil, e
	}
	payload, _ := doc.Root().Get("payload")
	typed, embedded, refused := groups.DecodePayload(&env, payload)
	if refused != nil {
		return nil, refused
	}
	cmd := &groups.Command{Envelope: env, SigningHash: hashOf(raw), Payload: typed, Internal: internal}
	for _, d := range embedded {
		cmd.Docs = append(cmd.Docs, groups.Document{
			Kind: d.Kind, SigningHash: hashOf(d.Value.Raw()), Principal: protocol.SignedKinds[d.Kind].Signer(d.Value),
		})
	}
	d, err := k.decide(cmd)
	if err != nil {
		var refusal *protocol.Error
		if !errors.As(err, &refusal) || refusal.Code == protocol.CodeInternalError {
			panic(fmt.Sprintf("%s: %v (%v)", env.Kind, err, refusal.Cause))
		}
		return nil, refusal
	}
	k.accepted[groups.ActionRef{Actor: env.Actor, ActionID: env.ActionID}] = true
	return k.append(d), nil
}

func (k *core) decide(cmd *groups.Command) (groups.Decision, error) {
	w := k.world()
	for {
		d, err := groups.Decide(w, cmd)
		var need *groups.Need
		if !errors.As(err, &need) {
			return d, err
		}
		for _, id := range need.Agents {
			w.Agents[id] = k.agents[id]
		}
		for _, id := range need.Groups {
			w.Groups[id] = k.groups[id]
		}
		for _, a := range need.Actions {
			w.Accepted[a] = k.accepted[a]
		}
		for _, id := range need.Missions {
			w.Missions[id] = k.missions[id]
		}
		for _, id := range need.MessageDocs {
			w.MessageDocs[id] = nil
		}
	}
}

func (k *core) sweep(id string) []written { return k.append(groups.Sweep(k.world(), k.groups[id])) }

// append signs, stores and folds.
func (k *core) append(d groups.Decision) []written {
	for _, r := range d.Sign {
		b, err := strictjson.Marshal(r.Doc)
		if err != nil {
			panic(err)
		}
		o := decode(b)
		o["signature"] = json.RawMessage(signature)
		if b, err = json.Marshal(o); err != nil {
			panic(err)
		}
		if err := r.Seal(b); err != nil {
			panic(err)
		}
	}
	var out []written
	for i := range d.Drafts {
		draft := &d.Drafts[i]
		if err := draft.Encode(); err != nil {
			panic(err)
		}
		stored := draft.Event
		stored.Signature = protocol.Signature{Algorithm: "Ed25519", KeyID: "key:a", CreatedAt: stored.OccurredAt, Value: "c2lnbmF0dXJl"}
		raw, err := strictjson.Marshal(&stored)
		if err != nil {
			panic(err)
		}
		out = append(out, written{kind: stored.Kind, group: draft.GroupID, body: decode(raw), raw: raw})
		if draft.GroupID == "" {
			if p, ok := draft.Payload.(*groups.SessionOpened); ok {
				k.agents[p.AgentID].CurrentSessionEpoch = p.SessionEpoch
			}
			continue
		}
		g := k.groups[draft.GroupID]
		if g == nil {
			g = groups.New()
			g.TreeID = draft.TreeID
			k.groups[draft.GroupID] = g
		}
		if err := g.Apply(draft.Folded()); err != nil {
			panic(err)
		}
		k.missions[g.Mission.MissionID] = draft.GroupID
		k.logs[draft.GroupID] = append(k.logs[draft.GroupID], raw)
	}
	return out
}

// refolds folds a Group's log from nothing and compares the dumps.
func (k *core) refolds(id string) error {
	again := groups.New()
	again.TreeID = k.groups[id].TreeID
	for _, raw := range k.logs[id] {
		doc, err := strictjson.Parse(raw)
		if err != nil {
			return err
		}
		ev, err := groups.DecodeEvent(doc.Root())
		if err != nil {
			return err
		}
		if err := again.Apply(ev); err != nil {
			return err
		}
	}
	want, err := k.groups[id].Canonical()
	if err != nil {
		return err
	}
	got, err := again.Canonical()
	if err != nil {
		return err
	}
	if string(want) != string(got) {
		return fmt.Errorf("fold of %s differs from the live state\nlive %s\nfold %s", id, want, got)
	}
	return nil
}

func hashOf(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

func newCore(now time.Time, l limits, services map[string]map[string]bool) *core {
	service := func(name string) protocol.Actor {
		return protocol.Actor{Type: protocol.ActorService, ID: "service:" + name}
	}
	k := &core{
		now: now, agents: map[string]*groups.Agent{}, humans: map[string]bool{}, groups: map[string]*groups.State{},
		missions: map[string]string{}, accepted: map[groups.ActionRef]bool{}, logs: map[string][][]byte{},
	}
	k.org = &groups.Organization{
		ID: "org:test", Authority: service("authority"), Identity: service("identity"), Registry: service("registry"),
		ContextGenerator: protocol.Actor{Type: protocol.ActorAgent, ID: "agent:context"},
		EvidenceServices: map[string]bool{"service:evidence": true}, Services: map[string]groups.ServiceGrants{},
		Limits: groups.Limits{
			MessagesPerMinute: l.messages, ProposalsPerMinute: l.proposals, DelegationDepth: int64(l.depth),
			QueuedWorkItems: l.queued, ActiveWorkItems: l.active,
		},
		Leases: leases.DefaultPolicy(), OfflineGrace: 15 * time.Minute, FreshnessFuture: 30 * time.Second,
		Profiles: map[string]map[int64]bool{groups.OwnProfileURI: {groups.OwnProfileMajor: true}},
	}
	for id, kinds := range services {
		k.org.Services[id] = groups.ServiceGrants{Kinds: kinds}
	}
	return k
}

func (k *core) addAgent(a *agent) {
	card := &protocol.AgentCard{
		AgentID: a.id, OrganizationID: "org:test", CardVersion: int64(a.card), Status: "active", MaxConcurrency: int64(a.most),
	}
	for _, id := range sortedKeys(a.can) {
		card.Capabilities = append(card.Capabilities, protocol.Capability{ID: id, Version: a.can[id]})
	}
	k.agents[a.id] = &groups.Agent{ID: a.id, CurrentSessionEpoch: int64(a.session), SessionExpiresAt: a.expires, Card: card}
}
