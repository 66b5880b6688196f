package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// accessToken is a cached bearer for reads.
type accessToken struct {
	token   string
	expires time.Time
}

// renewBefore is how long before its end a token is replaced, so that it does
// not end on the way.
const renewBefore = 20 * time.Second

// AccessToken returns a bearer for reads, asking the Authority for a new one
// when the present one is about to end. It opens no session and raises no
// Session Epoch.
func (c *Client) AccessToken(ctx context.Context) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.access.token != "" && c.opt.Now().Add(renewBefore).Before(c.access.expires) {
		return c.access.token, nil
	}
	for attempt := 0; ; attempt++ {
		fresh, err := c.requestAccess(ctx)
		if err == nil {
			c.access = fresh
			return fresh.token, nil
		}
		asked, ok := again(err)
		if !ok {
			return "", err
		}
		if slept := sleep(ctx, max(asked, c.opt.Retry.wait(attempt))); slept != nil {
			return "", errors.Join(slept, err)
		}
	}
}

// dropAccess forgets a token that a service refused.
func (c *Client) dropAccess(token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.access.token == token {
		c.access = accessToken{}
	}
}

// requestAccess tries once from the start. A challenge is taken by its first
// answer, so an answer that got lost is not sent again: the next try begins
// with a new challenge.
func (c *Client) requestAccess(ctx context.Context) (accessToken, error) {
	id := c.opt.Identity
	own := nonce()
	var challenge struct {
		Challenge string `json:"challenge"`
	}
	err := c.exchange(ctx, c.opt.AuthorityURL+"/v1/access/challenge", map[string]any{
		"principal": id.Principal, "keyId": id.KeyID, "clientNonce": own,
	}, &challenge)
	if err != nil {
		return accessToken{}, err
	}
	signature, err := signChallenge(challenge.Challenge, map[string]string{
		"principalId": id.Principal.ID, "principalType": id.Principal.Type,
		"keyId": id.KeyID, "clientNonce": own, "protocolVersion": "0.1",
	}, id.Key)
	if err != nil {
		return accessToken{}, err
	}
	var granted struct {
		AccessToken string `json:"accessToken"`
		ExpiresAt   string `json:"expiresAt"`
	}
	err = c.exchange(ctx, c.opt.AuthorityURL+"/v1/access/token", map[string]any{
		"challenge": challenge.Challenge, "challengeSignature": signature, "keyId": id.KeyID,
	}, &granted)
	if err != nil {
		return accessToken{}, err
	}
	ends, err := lexical.ParseTimestamp(granted.ExpiresAt)
	if err != nil {
		return accessToken{}, fmt.Errorf("client: the token's expiry: %w", err)
	}
	return accessToken{token: granted.AccessToken, expires: ends.Time()}, nil
}

// exchange posts a JSON body once, without a bearer, and decodes the answer.
func (c *Client) exchange(ctx context.Context, url string, body, dst any) error {
	b, err := strictjson.Marshal(body)
	if err != nil {
		return fmt.Errorf("client: encode the request: %w", err)
	}
	a, err := c.do(ctx, call{method: http.MethodPost, url: url, contentType: "application/json", body: b})
	if err != nil {
		return err
	}
	return decode(a.body, dst)
}

// authorized sends a request with a bearer; a token that the service no longer
// takes is replaced once.
func (c *Client) authorized(ctx context.Context, r call) (*answer, error) {
	replaced := false
	return c.repeat(ctx, func() (*answer, error) {
		for {
			token, err := c.AccessToken(ctx)
			if err != nil {
				return nil, err
			}
			r.bearer = token
			a, err := c.do(ctx, r)
			if CodeOf(err) == "AUTH_REQUIRED" && !replaced {
				replaced = true
				c.dropAccess(token)
				continue
			}
			return a, err
		}
	})
}
