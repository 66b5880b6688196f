package groups

import (
	"github.com/missionweave/server/internal/budget"
	"github.com/missionweave/server/internal/leases"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// OfflineExtension is the extension by which a Worker hands in what it did
// while it was cut off (COMMANDS.md 7.7).
const (
	OfflineExtension        = "urn:missionweaveprotocol:extension:bounded-offline-execution"
	offlineExtensionVersion = "0.1.0"
)

// coreKinds are the Command kinds of PROTOCOL.md 15.1.
var coreKinds = setOf(
	"mission.create", "mission.assign_coordinator", "mission.renew_coordinator",
	"mission.submit_for_approval", "mission.approve", "mission.request_changes", "mission.cancel",
	"mission.terminate", "mission.create_child", "mission.create_follow_up",
	"membership.change", "membership.end", "membership.grant_delegation",
	"message.post", "message.correct", "message.retract", "message.redact",
	"work.propose", "work.authorize", "work.offer", "work.accept_offer", "work.start",
	"work.checkpoint", "work.block", "work.unblock", "work.submit", "work.accept_result",
	"work.fail", "work.cancel", "artifact.publish", "approval.grant_execution",
	"policy.grant_cooperation_override",
)

func setOf(names ...string) map[string]bool {
	m := make(map[string]bool, len(names))
	for _, n := range names {
		m[n] = true
	}
	return m
}

// checkExtensions is P16 for the envelope; a kind adds the extensions inside
// the objects and documents of its payload with x.extensionsIn.
func checkExtensions(x *Ctx) error {
	env := &x.Command.Envelope
	if x.Kind == nil {
		if coreKinds[env.Kind] {
			return invalid("not_implemented")
		}
		return protocol.NewError(protocol.CodeUnknownCriticalExtension, "").WithDetail("kind", env.Kind)
	}
	return x.checkExtensions(env.Extensions, true)
}

// extensionsIn judges the extensions of an embedded object or document.
func (x *Ctx) extensionsIn(raw protocol.Raw) error { return x.checkExtensions(raw, false) }

func (x *Ctx) checkExtensions(raw protocol.Raw, envelope bool) error {
	if len(raw) == 0 {
		return nil
	}
	exts, err := raw.Value()
	if err != nil {
		return err
	}
	for uri, ext := range exts.Members() {
		if uri == OfflineExtension {
			if err := x.offlineExtension(ext, envelope); err != nil {
				return err
			}
			continue
		}
		critical, _ := ext.Get("critical")
		if critical.Bool() && !x.pins(uri) {
			return protocol.NewError(protocol.CodeUnknownCriticalExtension, "").WithDetail("profileUri", uri)
		}
	}
	return nil
}

// pins reports that a profile is registered and the Mission pins a registered
// major version of it.
func (x *Ctx) pins(uri string) bool {
	majors := x.World.Org.Profiles[uri]
	var pinned []protocol.PinnedProfile
	if p, ok := x.Command.Payload.(*missionCreate); ok {
		pinned = p.PinnedProfiles
	} else if x.Group != nil {
		pinned = x.Group.Mission.PinnedProfiles
	}
	for _, p := range pinned {
		if p.ProfileURI == uri && majors[p.MajorVersion] {
			return true
		}
	}
	return false
}

// OfflineBinding is the data of the offline extension.
type OfflineBinding struct {
	AgentID                 string       `json:"agentId"`
	GroupID                 string       `json:"groupId"`
	WorkItemID              string       `json:"workItemId"`
	SessionEpoch            int64        `json:"sessionEpoch"`
	OwnershipEpoch          int64        `json:"ownershipEpoch"`
	ExecutionLeaseID        string       `json:"executionLeaseId"`
	DisconnectedAt          string       `json:"disconnectedAt"`
	BufferedAt              string       `json:"bufferedAt"`
	GraceDeadline           string       `json:"graceDeadline"`
	ExecutionLeaseExpiresAt string       `json:"executionLeaseExpiresAt"`
	ResourceUsageDelta      budget.Usage `json:"resourceUsageDelta"`
}

func (x *Ctx) offlineExtension(ext strictjson.Value, envelope bool) error {
	if version, _ := ext.Get("version"); version.Str() != offlineExtensionVersion {
		return protocol.NewError(protocol.CodeUnknownCriticalExtension, "").WithDetail("profileUri", OfflineExtension)
	}
	malformed := func(path, keyword string) error {
		return protocol.NewError(protocol.CodeSchemaValidationFailed, "").
			WithDetail("path", "/extensions/"+OfflineExtension+path).WithDetail("keyword", keyword)
	}
	if critical, _ := ext.Get("critical"); !critical.Bool() {
		return malformed("/critical", "const")
	}
	data, _ := ext.Get("data")
	if f := shapeOfflineBinding.Check(data); f != nil {
		return malformed("/data"+f.Path, f.Keyword)
	}
	if !envelope || !offlineKinds[x.Command.Envelope.Kind] {
		return invalid("extension_kind")
	}
	x.Offline = new(OfflineBinding)
	return strictjson.Decode(data, x.Offline)
}

var offlineKinds = setOf("message.post", "work.checkpoint")

// checkDocumentTimes is the common part of P23: nothing embedded is from the
// future, as far as clocks can tell.
func checkDocumentTimes(x *Ctx) error {
	latest := x.World.Now.Add(x.World.Org.FreshnessFuture)
	for _, d := range x.docs {
		if leases.Before(latest, d.time) {
			return invalid("timestamp")
		}
	}
	return nil
}
