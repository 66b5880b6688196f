package conformance

import "strings"

// ownAdmissionFault is one evaluation that must fail at stage admission.
type ownAdmissionFault struct {
	id, reason string
	kind       string // command if empty
	mode       string // replay if empty
	lookup     object
	record     func(object) // the record that the lookup finds
	at         string       // trusted time of a first admission
	append     object
	appended   func(object) // the record that the append returns
	registry   func(object)
}

func outcome(status string) object { return object{"status": status} }

const ownTrustedTime = "2031-03-02T09:31:00.5+01:00"

var ownAdmissionFaults = []ownAdmissionFault{
	{id: "replay-without-record", reason: "record-missing", lookup: outcome("authoritative-absence")},
	{id: "another-organization", reason: "record-binding-mismatch", record: with("organizationId", "urn:test:organization:others")},
	{id: "another-kind", reason: "record-binding-mismatch", record: with("documentKind", "evidence")},
	{id: "another-hash", reason: "record-binding-mismatch", record: with("signingHash", "sha256:"+strings.Repeat("0", 64))},
	{id: "another-key", reason: "record-binding-mismatch", record: with("keyId", keyEve.id())},
	{id: "another-principal", reason: "record-binding-mismatch", record: with("principal", keyEve.signer)},
	{id: "another-service", reason: "log-authentication-failed", record: with("acceptedBy", keyGate.signer)},
	{id: "accepted-by-human", reason: "record-schema-invalid", record: with("acceptedBy", keyAnn.signer)},
	{id: "record-with-signature", reason: "record-schema-invalid", record: with("signature", object{})},
	{id: "record-of-unsigned-kind", reason: "record-schema-invalid", record: with("documentKind", "message")},
	{id: "record-without-time", reason: "record-schema-invalid", record: with("trustedAcceptedAt", "soon")},
	{id: "record-before-key", reason: "trusted-time-outside-key-interval", record: with("trustedAcceptedAt", "2031-02-28T23:59:59.999999999999Z")},
	{id: "retry-finds-foreign-record", reason: "record-binding-mismatch", mode: modeFirst, record: with("keyId", keyEve.id())},
	{id: "replay-revoked-before-acceptance", reason: "trusted-time-outside-key-interval", record: with("trustedAcceptedAt", ownTrustedTime), registry: benHas("validityHistory", []any{
		status(1, "2031-03-09T00:00:00Z", "revokedAt", "2031-03-02T08:31:00.5Z"),
	})},
	{id: "lookup-unauthenticated", reason: "log-authentication-failed", lookup: outcome("unauthenticated")},
	{id: "lookup-unavailable", reason: "log-unavailable", lookup: outcome("unavailable")},
	{id: "lookup-indeterminate", reason: "log-indeterminate", mode: modeFirst, lookup: outcome("indeterminate")},

	{id: "accepted-too-early", reason: "trusted-time-outside-key-interval", mode: modeFirst, at: "2031-02-28T23:59:59.9Z"},
	{id: "accepted-at-expiry", reason: "trusted-time-outside-key-interval", mode: modeFirst, at: "2031-03-02T09:00:00Z", registry: benHas("validityHistory", []any{
		status(1, ownTime, "validUntil", "2031-03-02T10:00:00+01:00"),
	})},
	{id: "accepted-at-revocation", reason: "trusted-time-outside-key-interval", mode: modeFirst, at: "2031-03-02T09:00:00.000Z", registry: benHas("validityHistory", []any{
		status(1, ownTime, "revokedAt", "2031-03-02T09:00:00Z"),
	})},
	{id: "accepted-at-no-time", reason: "malformed-trusted-time", mode: modeFirst, at: "2031-03-02T24:00:00Z"},
	{id: "accepted-at-unknown-offset", reason: "malformed-trusted-time", mode: modeFirst, at: "2031-03-02T09:00:00-00:00"},

	{id: "append-conflict", reason: "record-conflict", mode: modeFirst, at: ownTrustedTime, append: outcome("conflict")},
	{id: "append-unauthenticated", reason: "log-authentication-failed", mode: modeFirst, at: ownTrustedTime, append: outcome("unauthenticated")},
	{id: "append-integrity", reason: "append-integrity-not-established", mode: modeFirst, at: ownTrustedTime, append: outcome("integrity-failed")},
	{id: "append-unavailable", reason: "log-unavailable", mode: modeFirst, at: ownTrustedTime, append: outcome("unavailable")},
	{id: "append-indeterminate", reason: "log-indeterminate", mode: modeFirst, at: ownTrustedTime, append: outcome("indeterminate")},
	{id: "winner-with-another-key", reason: "record-binding-mismatch", mode: modeFirst, at: ownTrustedTime, append: outcome("existing"), appended: with("keyId", keyEve.id())},
	{id: "winner-outside-interval", reason: "trusted-time-outside-key-interval", mode: modeFirst, at: ownTrustedTime, append: outcome("existing"), appended: with("trustedAcceptedAt", "2031-02-01T00:00:00Z")},

	{id: "event-anchors-itself", reason: "event-self-anchoring", kind: "event"},
	{id: "event-anchors-itself-on-append", reason: "event-self-anchoring", kind: "event", mode: modeFirst, at: ownTrustedTime, append: outcome("existing")},
}

func with(member string, value any) func(object) {
	return func(record object) { record[member] = value }
}

var keeper = principal("service", "keeper")

func (o *ownBundle) record(kind string, change func(object), name string) string {
	key := keyFor(kind)
	rec := object{
		"protocolVersion": "0.1", "admissionRecordId": "urn:test:admission:" + kind,
		"organizationId": "urn:test:organization:weavers", "documentKind": kind,
		"signingHash": digest(signingBytes(o.t, ownDocument(o.t, kind))),
		"keyId":       key.id(), "principal": key.signer,
		"trustedAcceptedAt": ownTrustedTime, "acceptedBy": keeper,
	}
	if change != nil {
		change(rec)
	}
	return o.add("admission/records/"+name+".json", pretty(o.t, rec))
}

func carrying(status, record string) object {
	return object{"status": status, "record": record, "authenticatedService": keeper}
}

func issued(kind, at string) object {
	return object{"admissionRecordId": "urn:test:admission:" + kind, "trustedAcceptedAt": at, "acceptedBy": keeper}
}

func evaluation(id, kind, mode, registry string, context any, lookup object, appended any, expect object) object {
	return object{
		"id": id, "profileId": kind, "mode": mode, "document": documentPath(kind), "registry": registry,
		"trustedContext": context, "lookup": lookup, "append": appended, "expect": expect,
	}
}

func admittedAs(record string) object {
	return object{"stage": stageComplete, "wireCode": nil, "record": record}
}

func (o *ownBundle) admission(cryptographyDigest string) {
	var first, later []any
	for _, p := range ownProfiles {
		record := o.record(p.kind, nil, p.kind)
		first = append(first, evaluation("first."+p.kind, p.kind, modeFirst, soundRegistryPath, issued(p.kind, ownTrustedTime),
			outcome("authoritative-absence"), carrying("committed", record), admittedAs(record)))
		later = append(later, evaluation("replay."+p.kind, p.kind, modeReplay, soundRegistryPath, nil,
			carrying("found", record), nil, admittedAs(record)))
	}
	command := o.record("command", nil, "command")
	winner := o.record("command", func(r object) {
		r["admissionRecordId"], r["trustedAcceptedAt"] = "urn:test:admission:winner", "2031-03-02T08:30:59Z"
	}, "winner")
	narrowed := soundRegistry()
	benHas("validityHistory", []any{
		status(1, "2031-03-02T10:00:00Z", "validUntil", "2031-03-02T08:31:00.500000000001Z"),
		status(2, "2031-03-02T11:00:00Z", "revokedAt", "2031-03-02T10:00:00Z"),
	})(narrowed)
	later = append(later,
		evaluation("retry.command", "command", modeFirst, soundRegistryPath, nil, carrying("found", command), nil, admittedAs(command)),
		evaluation("race.command", "command", modeFirst, soundRegistryPath, issued("command", ownTrustedTime),
			outcome("authoritative-absence"), carrying("existing", winner), admittedAs(winner)),
		evaluation("replay.later-boundaries", "command", modeReplay,
			o.add("admission/registries/registry-later-boundaries.json", pretty(o.t, narrowed)), nil,
			carrying("found", command), nil, admittedAs(command)))
	var rejected []any
	for _, f := range ownAdmissionFaults {
		rejected = append(rejected, o.admissionFault(f))
	}
	artifacts := o.artifacts("admission/", schemaOf("first-admission-record"))
	o.seal(admissionManifest, object{
		"$schema":         "https://missionweaveprotocol.dev/admission/0.1/manifest.schema.json",
		"manifestVersion": 1, "protocolVersion": "0.1",
		"profileId":     "missionweaveprotocol.first-admission-historical-trust.v0.1",
		"semanticStage": "admission", "wireCode": "AUTH_INVALID_SIGNATURE",
		"cryptography": object{"manifest": cryptographyManifest, "artifactDigest": cryptographyDigest},
		"fixtureSchemas": object{
			"record":   "schemas/first-admission-record.schema.json",
			"registry": "cryptography/registry-fixture.schema.json",
		},
		"artifacts": artifacts,
		"cases": []any{
			object{"id": "accept.first", "evaluations": first},
			object{"id": "accept.later", "evaluations": later},
			object{"id": "reject.admission", "evaluations": rejected},
		},
	})
}

func (o *ownBundle) admissionFault(f ownAdmissionFault) object {
	kind, mode, registry := f.kind, f.mode, soundRegistryPath
	if kind == "" {
		kind = "command"
	}
	if mode == "" {
		mode = modeReplay
	}
	if f.registry != nil {
		r := soundRegistry()
		f.registry(r)
		registry = o.add("admission/registries/registry-"+f.id+".json", pretty(o.t, r))
	}
	record := func(change func(object)) string {
		if kind == "event" {
			return documentPath(kind)
		}
		return o.record(kind, change, f.id)
	}
	lookup := f.lookup
	var context, appended any
	switch {
	case f.at != "":
		lookup, context = outcome("authoritative-absence"), issued(kind, f.at)
		if f.append != nil {
			appended = f.append
			if f.append["status"] == "existing" {
				appended = carrying("existing", record(f.appended))
			}
		}
	case lookup == nil:
		lookup = carrying("found", record(f.record))
	}
	return evaluation(f.id, kind, mode, registry, context, lookup, appended,
		object{"stage": "admission", "wireCode": "AUTH_INVALID_SIGNATURE", "reason": f.reason})
}
