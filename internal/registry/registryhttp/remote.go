package registryhttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/strictjson"
)

// maxAnswer bounds what is read of the Authority's answer.
const maxAnswer = 1 << 20

// RemoteAuthority is an Authority in another process, reached over its REST API.
type RemoteAuthority struct {
	// BaseURL is the Authority's address without path.
	BaseURL string
	Client  *http.Client
}

// Submit implements Authority. Not reaching the Authority is INTERNAL_ERROR:
// whether it accepted the Command is unknown, and the same bytes may be sent
// again.
func (r *RemoteAuthority) Submit(ctx context.Context, command []byte, _ string) ([]byte, bool, *protocol.Error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(r.BaseURL, "/")+"/v1/commands", bytes.NewReader(command))
	if err != nil {
		return nil, false, protocol.Internal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := r.Client.Do(req)
	if err != nil {
		return nil, false, protocol.Internal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		err = errors.New("answer too large")
	}
	if err != nil {
		return nil, false, protocol.Internal(fmt.Errorf("authority: %w", err))
	}
	switch resp.StatusCode {
	case http.StatusCreated:
		return body, false, nil
	case http.StatusOK:
		return body, true, nil
	}
	doc, err := protocol.ValidateBytes(protocol.KindError, body)
	if err != nil {
		return nil, false, protocol.Internal(fmt.Errorf("authority answered %d: %w", resp.StatusCode, err))
	}
	var refusal protocol.Error
	if err := strictjson.Decode(doc.Root(), &refusal); err != nil {
		return nil, false, protocol.Internal(err)
	}
	return nil, false, refusal.WithHTTPStatus(resp.StatusCode)
}
