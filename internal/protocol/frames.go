package protocol

import "github.com/missionweave/server/internal/protocol/strictjson"

// FrameType is the frameType of a WebSocket frame.
type FrameType string

// The frame types of PROTOCOL.md 17.1.
const (
	FrameHello     FrameType = "HELLO"
	FrameSubscribe FrameType = "SUBSCRIBE"
	FrameCommand   FrameType = "COMMAND"
	FrameEvent     FrameType = "EVENT"
	FrameAck       FrameType = "ACK"
	FramePing      FrameType = "PING"
	FrameError     FrameType = "ERROR"
)

// Phases of HELLO.
const (
	PhaseClientInit      = "client_init"
	PhaseServerChallenge = "server_challenge"
	PhaseClientResponse  = "client_response"
	PhaseServerAccept    = "server_accept"
)

// Frame is one WebSocket message of the protocol: a pointer to one of the ten
// frame types of this file.
type Frame interface {
	// ID is the frameId.
	ID() string
	// Type is the frameType.
	Type() FrameType
}

// HelloClientInit opens a handshake.
type HelloClientInit struct {
	FrameID           string   `json:"frameId"`
	AgentID           string   `json:"agentId"`
	KeyID             string   `json:"keyId"`
	ClientNonce       string   `json:"clientNonce"`
	SupportedVersions []string `json:"supportedVersions"`
}

// HelloServerChallenge answers it; Challenge holds the bytes to be signed.
type HelloServerChallenge struct {
	FrameID         string `json:"frameId"`
	SelectedVersion string `json:"selectedVersion"`
	ClientNonce     string `json:"clientNonce"`
	ServerNonce     string `json:"serverNonce"`
	Challenge       string `json:"challenge"`
}

// HelloClientResponse proves possession of the key.
type HelloClientResponse struct {
	FrameID            string `json:"frameId"`
	AgentID            string `json:"agentId"`
	KeyID              string `json:"keyId"`
	ClientNonce        string `json:"clientNonce"`
	ServerNonce        string `json:"serverNonce"`
	ChallengeSignature string `json:"challengeSignature"`
}

// HelloServerAccept opens or renews a session.
type HelloServerAccept struct {
	FrameID         string `json:"frameId"`
	SelectedVersion string `json:"selectedVersion"`
	SessionToken    string `json:"sessionToken"`
	SessionEpoch    int64  `json:"sessionEpoch"`
	ExpiresAt       string `json:"expiresAt"`
}

// Subscribe asks for Events of Groups after given sequences.
type Subscribe struct {
	FrameID        string         `json:"frameId"`
	SubscriptionID string         `json:"subscriptionId"`
	Groups         []Subscription `json:"groups"`
}

// Subscription is one Group of a Subscribe.
type Subscription struct {
	GroupID       string     `json:"groupId"`
	AfterSequence int64      `json:"afterSequence"`
	Attention     *Attention `json:"attention,omitempty"`
}

// Attention filters live delivery. A nil slice is an absent filter; an empty
// one matches nothing (COMMANDS.md 8.6).
type Attention struct {
	EventKinds      []string
	ConversationIDs []string
	WorkItemIDs     []string
	MentionsOnly    bool
	Announcements   bool
}

// CommandFrame carries a signed Command. Command holds the exact bytes of the
// nested value as the peer sent them; they have not been looked into.
type CommandFrame struct {
	FrameID string
	Command []byte
}

// EventFrame carries a signed Event as exact bytes.
type EventFrame struct {
	FrameID string
	Event   []byte
}

// Ack reports Cursors (client) or delivery watermarks (server).
type Ack struct {
	FrameID          string   `json:"frameId"`
	Acknowledgements []Cursor `json:"acknowledgements"`
	SentAt           string   `json:"sentAt"`
}

// Cursor is a position in a Group's log.
type Cursor struct {
	GroupID  string `json:"groupId"`
	Sequence int64  `json:"sequence"`
}

// Ping is liveness in both directions; ReplyToNonce marks an answer.
type Ping struct {
	FrameID      string          `json:"frameId"`
	Nonce        string          `json:"nonce"`
	ReplyToNonce string          `json:"replyToNonce,omitempty"`
	SentAt       string          `json:"sentAt"`
	Presence     *PresenceRecord `json:"presence,omitempty"`
}

// ErrorFrame carries a refusal.
type ErrorFrame struct {
	FrameID string `json:"frameId"`
	Error   *Error `json:"error"`
}

// ID and Type make the frame types a Frame.
func (f *HelloClientInit) ID() string      { return f.FrameID }
func (f *HelloServerChallenge) ID() string { return f.FrameID }
func (f *HelloClientResponse) ID() string  { return f.FrameID }
func (f *HelloServerAccept) ID() string    { return f.FrameID }
func (f *Subscribe) ID() string            { return f.FrameID }
func (f *CommandFrame) ID() string         { return f.FrameID }
func (f *EventFrame) ID() string           { return f.FrameID }
func (f *Ack) ID() string                  { return f.FrameID }
func (f *Ping) ID() string                 { return f.FrameID }
func (f *ErrorFrame) ID() string           { return f.FrameID }

func (*HelloClientInit) Type() FrameType      { return FrameHello }
func (*HelloServerChallenge) Type() FrameType { return FrameHello }
func (*HelloClientResponse) Type() FrameType  { return FrameHello }
func (*HelloServerAccept) Type() FrameType    { return FrameHello }
func (*Subscribe) Type() FrameType            { return FrameSubscribe }
func (*CommandFrame) Type() FrameType         { return FrameCommand }
func (*EventFrame) Type() FrameType           { return FrameEvent }
func (*Ack) Type() FrameType                  { return FrameAck }
func (*Ping) Type() FrameType                 { return FramePing }
func (*ErrorFrame) Type() FrameType           { return FrameError }

// DecodeJSON keeps the difference between an absent and an empty list.
func (a *Attention) DecodeJSON(v strictjson.Value) error {
	list := func(name string) []string {
		member, ok := v.Get(name)
		if !ok {
			return nil
		}
		out := make([]string, 0, member.Len())
		for _, item := range member.Items() {
			out = append(out, item.Str())
		}
		return out
	}
	*a = Attention{
		EventKinds:      list("eventKinds"),
		ConversationIDs: list("conversationIds"),
		WorkItemIDs:     list("workItemIds"),
		MentionsOnly:    v.Member("mentionsOnly").Bool(),
		Announcements:   v.Member("announcements").Bool(),
	}
	return nil
}

// AppendJSON keeps the difference between an absent and an empty list.
func (a Attention) AppendJSON(dst []byte) ([]byte, error) {
	m := map[string]any{}
	for name, list := range map[string][]string{
		"eventKinds": a.EventKinds, "conversationIds": a.ConversationIDs, "workItemIds": a.WorkItemIDs,
	} {
		if list != nil {
			m[name] = list
		}
	}
	if a.MentionsOnly {
		m["mentionsOnly"] = true
	}
	if a.Announcements {
		m["announcements"] = true
	}
	return strictjson.AppendMarshal(dst, m)
}
