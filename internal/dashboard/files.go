package dashboard

import (
	"context"
	"errors"
	"net/http"
	"time"

	"weir/internal/tenants"
)

// deadlineOf returns a function that sets how long a browser has for the next piece of a file. If
// that cannot be set, there is no deadline.
func deadlineOf(w http.ResponseWriter) func(within time.Duration) {
	control := http.NewResponseController(w)
	return func(within time.Duration) { _ = control.SetWriteDeadline(time.Now().Add(within)) }
}

// unread marks an error of sending a part of a file: the browser has disconnected, or reads too
// slowly.
func unread(err error) error {
	if err == nil {
		return nil
	}
	return errors.Join(tenants.ErrExportUnread, err)
}

// endFile ends an answer with a file. If there is an error, the answer is incomplete, so that the
// browser does not treat a part as the complete file. The log says why, unless the browser has
// ended it.
func (d *dashboard) endFile(err error, failed string) error {
	if err == nil {
		return nil
	}
	switch {
	case errors.Is(err, tenants.ErrExportEnds):
		d.Logger.Info("a download was canceled because another tenant waits for its place")
	case !errors.Is(err, tenants.ErrExportUnread) && !errors.Is(err, context.Canceled):
		d.Logger.Error(failed, "error", err)
	}
	panic(http.ErrAbortHandler)
}
