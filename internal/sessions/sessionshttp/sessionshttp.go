// Package sessionshttp serves challenges, access tokens and Agent sessions over
// REST (API.md, General). All three services mount the access routes; sessions
// are opened by the Authority.
//
// The routes take no credential, so what a stranger can do with them is bounded
// per peer, and nothing in an answer depends on whether a Principal exists.
package sessionshttp

import (
	"net/http"

	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
	"github.com/missionweave/server/internal/sessions"
)

// maxBody bounds the bodies of these routes: the largest frame of a handshake,
// with room for white space.
const maxBody = 32 << 10

// Defaults of the limit per peer.
const (
	DefaultPerMinute = 600
	DefaultBurst     = 120
)

// NewLimiter is the limit on challenges and proofs of one peer.
func NewLimiter() *httpkit.PeerLimiter {
	return httpkit.NewPeerLimiter("challenges_per_peer", DefaultPerMinute, DefaultBurst, nil)
}

// agentsPerPeer is how many Agents one peer address is expected to speak for.
const agentsPerPeer = 100

// NewHelloLimiter is NewLimiter for the service that opens sessions: it also
// counts HELLO over WebSocket. A peer has room for its share of Agents that all
// come back at once after a break; hellosPerMinute is the bound of one Agent
// (COMMANDS.md 8.12), 0 for none.
func NewHelloLimiter(hellosPerMinute int64) *httpkit.PeerLimiter {
	if hellosPerMinute <= 0 {
		return nil
	}
	perMinute := max(DefaultPerMinute, agentsPerPeer*min(hellosPerMinute, 1<<30))
	return httpkit.NewPeerLimiter("challenges_per_peer", float64(perMinute), int(perMinute), nil)
}

// AccessRoutes are POST /v1/access/challenge and /v1/access/token.
func AccessRoutes(s *sessions.Service, limiter *httpkit.PeerLimiter) []httpkit.Route {
	return []httpkit.Route{
		{
			Method: http.MethodPost, Pattern: "/v1/access/challenge", Auth: httpkit.Public,
			Limiter: limiter, MaxBodyBytes: maxBody,
			Handler: func(c *httpkit.Call) error {
				doc, err := c.JSON(sessions.ShapeAccessRequest)
				if err != nil {
					return err
				}
				var request sessions.AccessRequest
				if err := strictjson.Decode(doc.Root(), &request); err != nil {
					return err
				}
				challenge, perr := s.ChallengeAccess(c.R.Context(), request)
				if perr != nil {
					return perr
				}
				return c.SendValue(http.StatusOK, challenge)
			},
		},
		{
			Method: http.MethodPost, Pattern: "/v1/access/token", Auth: httpkit.Public,
			Limiter: limiter, MaxBodyBytes: maxBody,
			Handler: func(c *httpkit.Call) error {
				doc, err := c.JSON(sessions.ShapeAccessProof)
				if err != nil {
					return err
				}
				var proof sessions.AccessProof
				if err := strictjson.Decode(doc.Root(), &proof); err != nil {
					return err
				}
				grant, perr := s.GrantAccess(c.R.Context(), proof)
				if perr != nil {
					return perr
				}
				return c.SendValue(http.StatusOK, grant)
			},
		},
	}
}

// SessionRoutes are POST /v1/sessions and /v1/sessions/response: HELLO with one
// frame in each body. The response renews when it brings a session token.
func SessionRoutes(s *sessions.Service, limiter *httpkit.PeerLimiter) []httpkit.Route {
	return []httpkit.Route{
		{
			Method: http.MethodPost, Pattern: "/v1/sessions", Auth: httpkit.Public,
			Limiter: limiter, MaxBodyBytes: maxBody,
			Handler: func(c *httpkit.Call) error {
				frame, err := readFrame(c)
				if err != nil {
					return err
				}
				init, ok := frame.(*protocol.HelloClientInit)
				if !ok {
					return notThisFrame(frame)
				}
				challenge, perr := s.Challenge(c.R.Context(), init)
				if perr != nil {
					return perr.WithRelated(frame.ID(), "")
				}
				return sendFrame(c, challenge)
			},
		},
		{
			Method: http.MethodPost, Pattern: "/v1/sessions/response", Auth: httpkit.Public,
			Limiter: limiter, MaxBodyBytes: maxBody,
			Handler: func(c *httpkit.Call) error {
				frame, err := readFrame(c)
				if err != nil {
					return err
				}
				response, ok := frame.(*protocol.HelloClientResponse)
				if !ok {
					return notThisFrame(frame)
				}
				bearer, present := httpkit.OptionalBearer(c.R)
				accept, _, perr := s.Accept(c.R.Context(), sessions.Answer{Response: response, Bearer: bearer, HasBearer: present})
				if perr != nil {
					return perr.WithRelated(frame.ID(), "")
				}
				return sendFrame(c, accept)
			},
		},
	}
}

func readFrame(c *httpkit.Call) (protocol.Frame, error) {
	body, err := c.Body()
	if err != nil {
		return nil, err
	}
	frame, perr := protocol.ParseFrame(body)
	if perr != nil {
		return nil, perr
	}
	return frame, nil
}

// notThisFrame is what the handshake answers to any frame out of turn.
func notThisFrame(frame protocol.Frame) error {
	return protocol.NewError(protocol.CodeAuthRequired, "frame_out_of_turn").WithRelated(frame.ID(), "")
}

func sendFrame(c *httpkit.Call, frame protocol.Frame) error {
	b, err := protocol.AppendFrame(nil, frame)
	if err != nil {
		return err
	}
	return c.Send(http.StatusOK, b)
}
