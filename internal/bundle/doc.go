// Package bundle writes and checks audit bundles: one file with everything that
// proves what happened in a Group, for somebody who has nothing else.
//
// The layout is documented in docs/audit-bundle.md. A bundle is lines, each of
// which names its number, its kind and a hash over everything before it and
// itself; the last one is a seal that the Group Authority signed. The hazards it
// guards against:
//
//   - A byte that nobody looks at. A line has exactly one spelling around its
//     value, and the hash covers the value as it stands.
//   - A fault that hides the next one. Each line continues from the hash that the
//     line before it claims, so that a changed line is reported where it is, and
//     what follows is still checked.
//   - A bundle that proves itself. Hashes only find accidents; signatures of
//     Commands, Events, embedded documents, evidence records and the seal find
//     the rest, and the fold is made again from the first Event. The keys come
//     with the bundle: whether they are the Organization's is for the reader to
//     say, who can pin them.
//   - A file that is larger than memory. Nothing is kept per line but what the
//     folded state keeps.
package bundle

// Format is the layout that this program writes and reads.
const Format = "mw-audit-bundle/1"

// Kinds of lines, in the order in which they stand.
const (
	kindHeader    = "header"
	kindKey       = "key"
	kindService   = "service"
	kindCard      = "card"
	kindCommand   = "command"
	kindEvent     = "event"
	kindAdmission = "admission"
	kindPolicy    = "policy"
	kindState     = "state"
	kindDecision  = "decision"
	kindRun       = "run"
	kindEvidence  = "evidence"
	kindSeal      = "seal"
)

// places orders the kinds: a line of a lower place cannot follow one of a higher.
var places = map[string]int{
	kindHeader: 1, kindKey: 2, kindService: 3, kindCard: 4, kindCommand: 5, kindEvent: 5, kindAdmission: 5,
	kindPolicy: 6, kindState: 7, kindDecision: 8, kindRun: 9, kindEvidence: 9, kindSeal: 10,
}

// kinds gives the name of a kind without making a new string for every line.
var kinds = func() map[string]struct {
	name  string
	place int
} {
	m := map[string]struct {
		name  string
		place int
	}{}
	for name, place := range places {
		m[name] = struct {
			name  string
			place int
		}{name, place}
	}
	return m
}()

// header says what the bundle is about.
type header struct {
	Format           string `json:"format"`
	OrganizationID   string `json:"organizationId"`
	GroupID          string `json:"groupId"`
	MissionID        string `json:"missionId"`
	RootMissionID    string `json:"rootMissionId"`
	Head             int64  `json:"head"`
	RegistryRevision int64  `json:"registryRevision"`
	// Keys, Services and Runs count what the bundle has of each.
	Keys     int64 `json:"keys"`
	Services int64 `json:"services"`
	Runs     int64 `json:"runs"`
	// Commands tells that the Commands behind the Events are in the bundle.
	Commands bool   `json:"commands"`
	TakenAt  string `json:"takenAt"`
}

// keyLine is a key binding with its whole history.
type keyLine struct {
	KeyID         string       `json:"keyId"`
	PrincipalType string       `json:"principalType"`
	PrincipalID   string       `json:"principalId"`
	Algorithm     string       `json:"algorithm"`
	PublicKey     string       `json:"publicKey"`
	ValidFrom     string       `json:"validFrom"`
	History       []statusLine `json:"history"`
}

type statusLine struct {
	Sequence   int64  `json:"sequence"`
	RecordedAt string `json:"recordedAt"`
	ValidUntil string `json:"validUntil,omitempty"`
	RevokedAt  string `json:"revokedAt,omitempty"`
}

// serviceLine is a duty of a Principal.
type serviceLine struct {
	Role          string `json:"role"`
	PrincipalType string `json:"principalType"`
	PrincipalID   string `json:"principalId"`
}

// runLine announces the evidence records of one run.
type runLine struct {
	RunID  string `json:"runId"`
	Length int64  `json:"length"`
	Head   string `json:"head"`
}

// seal is the signed body of the last line.
type seal struct {
	Format  string `json:"format"`
	GroupID string `json:"groupId"`
	Head    int64  `json:"head"`
	Lines   int64  `json:"lines"`
	Hash    string `json:"hash"`
	By      string `json:"sealedBy"`
}
