package httpapi

import (
	"errors"
	"net/http"
	"time"

	"github.com/missionweave/server/internal/bundle"
	"github.com/missionweave/server/internal/httpkit"
	"github.com/missionweave/server/internal/protocol"
)

// exportWithin bounds one export, and exportWrite one write of it: a reader that
// takes longer comes back.
const (
	exportWithin = 30 * time.Minute
	exportWrite  = 30 * time.Second
)

// export streams the audit bundle of a Group. It holds the whole log, so it is
// for those who may read the whole log: the MissionOwner, the root MissionOwner
// and the services that archive Groups. Other members are refused with
// AUTH_FORBIDDEN, everybody else learns nothing.
func (a *API) export(c *httpkit.Call) error {
	access, err := a.enter(c)
	if err != nil {
		return err
	}
	if !access.ReadsAll() {
		return protocol.NewError(protocol.CodeAuthForbidden, "export").WithGroup(access.GroupID)
	}
	begun := false
	out := &deadlined{w: c.W, control: http.NewResponseController(c.W), until: time.Now().Add(exportWithin)}
	err = a.Bundles.Export(c.R.Context(), out, access.GroupID, true, func() {
		begun = true
		h := c.W.Header()
		h.Set("Content-Type", "application/x-ndjson")
		h.Set("Content-Disposition", `attachment; filename="group.mwbundle"`)
		h.Set("Cache-Control", "no-store")
		c.W.WriteHeader(http.StatusOK)
	})
	switch {
	case err == nil:
		return nil
	case begun:
		// The status is out: only a broken transfer says that the bundle is not whole.
		if c.R.Context().Err() == nil {
			a.Log.WarnContext(c.R.Context(), "export broken off", "group", access.GroupID, "err", err)
		}
		panic(http.ErrAbortHandler)
	case errors.Is(err, bundle.ErrGroupUnknown):
		return protocol.NewError(protocol.CodeGroupNotFound, "")
	case errors.Is(err, bundle.ErrLogNotKept):
		return protocol.NewError(protocol.CodeCursorTooOld, "").WithGroup(access.GroupID)
	}
	return err //nolint:wrapcheck // becomes INTERNAL_ERROR as it is
}

// deadlined bounds each write, and all of them together.
type deadlined struct {
	w       http.ResponseWriter
	control *http.ResponseController
	until   time.Time
}

func (d *deadlined) Write(b []byte) (int, error) {
	by := time.Now().Add(exportWrite)
	if by.After(d.until) {
		by = d.until
	}
	_ = d.control.SetWriteDeadline(by)
	return d.w.Write(b) //nolint:wrapcheck // an io.Writer
}
