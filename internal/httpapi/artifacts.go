package httpapi

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/missionweave/server/internal/blobs"
	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
	"github.com/missionweave/server/internal/protocol/lexical"
	"github.com/missionweave/server/internal/views"
)

// transferWithin bounds one transfer of content in either direction.
const transferWithin = 15 * time.Minute

// content reads what both routes name: the hash, and the Group through which the
// caller comes.
func (a *API) content(c *httpkit.Call) (access *views.Access, contentHash string, err error) {
	if contentHash, err = c.Param("sha256"); err != nil {
		return nil, "", err //nolint:wrapcheck // a refusal
	}
	if !strings.Contains(contentHash, ":") {
		contentHash = "sha256:" + contentHash
	}
	if !lexical.ValidSHA256(contentHash) {
		return nil, "", httpkit.SchemaError("/sha256", "pattern")
	}
	groupID, err := idFilter(c, "groupId")
	if err != nil {
		return nil, "", err
	}
	if groupID == "" {
		return nil, "", httpkit.SchemaError("/groupId", "required")
	}
	access, err = a.enterGroup(c.R.Context(), c.Caller.Principal, groupID)
	return access, contentHash, err
}

type stored struct {
	ContentHash string `json:"contentHash"`
	GroupID     string `json:"groupId"`
}

// putArtifact takes content in as it arrives. 201 tells that the Group did not
// have it before.
func (a *API) putArtifact(c *httpkit.Call) error {
	access, contentHash, err := a.content(c)
	if err != nil {
		return err
	}
	if access.Provisional {
		return protocol.NewError(protocol.CodeAuthForbidden, "provisional")
	}
	if coding := c.R.Header.Get("Content-Encoding"); coding != "" && coding != "identity" {
		return httpkit.Problem(http.StatusUnsupportedMediaType, "content_encoding")
	}
	if c.R.ContentLength > a.Blobs.Limit() {
		return httpkit.Problem(http.StatusRequestEntityTooLarge, "body_too_large")
	}
	_ = http.NewResponseController(c.W).SetReadDeadline(time.Now().Add(transferWithin))
	body := &senderFault{r: c.R.Body}
	created, err := a.Blobs.Put(c.R.Context(), access.GroupID, contentHash, c.Caller.Principal, body)
	switch {
	case errors.Is(err, blobs.ErrTooLarge):
		return httpkit.Problem(http.StatusRequestEntityTooLarge, "body_too_large")
	case errors.Is(err, blobs.ErrMismatch):
		return protocol.NewError(protocol.CodeProtocolViolation, "content_hash")
	case err != nil && body.err != nil:
		return httpkit.Problem(http.StatusRequestTimeout, "body_incomplete").WithCause(err)
	case err != nil:
		return err //nolint:wrapcheck // becomes INTERNAL_ERROR as it is
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	return c.SendValue(status, stored{contentHash, access.GroupID})
}

// senderFault remembers that reading failed: the sender's fault, not the store's.
type senderFault struct {
	r   io.Reader
	err error
}

func (s *senderFault) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err //nolint:wrapcheck // io.EOF must stay io.EOF
}

// getArtifact sends content. The status is out before the last byte has been
// hashed, so content that turns out damaged breaks the connection instead of
// ending well.
func (a *API) getArtifact(c *httpkit.Call) error {
	access, contentHash, err := a.content(c)
	if err != nil {
		return err
	}
	shown, err := a.Views.ShowsContent(c.R.Context(), access, contentHash)
	if err != nil {
		return internal(err)
	}
	if !shown {
		return httpkit.NotFound()
	}
	blob, err := a.Blobs.Get(c.R.Context(), access.GroupID, contentHash, c.Caller.Principal)
	if errors.Is(err, blobs.ErrNotFound) {
		return httpkit.NotFound()
	}
	if err != nil {
		return err //nolint:wrapcheck // becomes INTERNAL_ERROR as it is
	}
	defer func() { _ = blob.Close() }()
	_ = http.NewResponseController(c.W).SetWriteDeadline(time.Now().Add(transferWithin))
	h := c.W.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", "attachment")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.FormatInt(blob.Size, 10))
	c.W.WriteHeader(http.StatusOK)
	if err := sendContent(c.W, blob); err != nil {
		if errors.Is(err, blobs.ErrMismatch) {
			a.Log.ErrorContext(c.R.Context(), "stored content differs from its hash", "contentHash", contentHash)
		}
		panic(http.ErrAbortHandler)
	}
	return nil
}

// sendContent keeps the last byte back until the whole content has proven its
// hash: with it the client would have all that Content-Length promised.
func sendContent(w io.Writer, blob *blobs.Blob) error {
	if _, err := io.CopyN(w, blob, max(blob.Size-1, 0)); err != nil {
		return err //nolint:wrapcheck // ends the connection
	}
	rest, err := io.ReadAll(io.LimitReader(blob, 2))
	if err == nil && int64(len(rest)) != min(blob.Size, 1) {
		err = blobs.ErrMismatch
	}
	if err != nil {
		return err //nolint:wrapcheck // ends the connection
	}
	_, err = w.Write(rest)
	return err //nolint:wrapcheck // ends the connection
}
