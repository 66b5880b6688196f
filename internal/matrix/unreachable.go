package matrix

// unreachable are rows that no client can bring about on a server that keeps the
// profile, each with the reason. They are neither proven nor missing: they are
// counted apart and printed. What does prove them, if anything does, is named.
var unreachable = map[string]string{
	"case mission.submit_for_approval: IST no WorkItem":     "Section 5.1: artifactHashes has at least one hash, and P18 looks each up among the Artifacts of verified WorkItems. Without a verified WorkItem every hash is unknown, and IC:unknown_reference answers before the state.",
	"case work.accept_offer: IST Mission awaiting_approval": "Section 5.1: a Mission is submitted only when every WorkItem is verified, cancelled or failed, and each of these ends has closed its offers. P20 answers WAO or WOE before the Mission's state.",
	"case work.start: IST Mission awaiting_approval":        "Section 5.1: in a submitted Mission no WorkItem has an owner with a live Ownership Lease. P19 or P20 answers WSO or WLE before the Mission's state.",

	"case ext.missionweaveprotocol.identity.session_open: OK identical resend":              "Section 5.7: only the server's own identity service issues it, inside HELLO; from outside it is AF, so no client holds the bytes of an accepted one. Proven in internal/sessions.",
	"case ext.missionweaveprotocol.identity.session_open: AIC other content":                "As above: no accepted Action ID of this kind is known outside the server.",
	"case ext.missionweaveprotocol.identity.session_open: OK unknown noncritical extension": "As above: no client can have one accepted.",
	"case ext.missionweaveprotocol.identity.session_open: IC unknown Agent":                 "As above: from outside P17 answers AF before P18 looks the Agent up; over HELLO an unknown Agent is AIS (8.2). Proven in internal/groups.",
	"case ext.missionweaveprotocol.identity.session_open: IC revoked card":                  "As above; over HELLO a revoked card is AIS (8.2). Proven in internal/groups.",
}
