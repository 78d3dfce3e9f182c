package dashboard

import (
	"bytes"
	"io"
	"net/http"
	"time"
)

// Limits for forms that are being sent. With all places taken they use 64 MiB.
const (
	maxForms        = 1024
	maxAddressForms = 32 // of one address, which many people may share
	formTimeout     = 5 * time.Second
)

// readForm reads the body of a request into memory. Until it is complete, the request does not use
// a place for creating pages, so that slow senders block nobody.
func (d *dashboard) readForm(w http.ResponseWriter, r *http.Request) error {
	leave, ok := d.forms.Take(addressOf(r.RemoteAddr))
	if !ok {
		return errBusy
	}
	defer leave()
	// If the connection does not support deadlines, the server's own applies.
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(formTimeout))
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxWriteForm))
	if err != nil {
		w.Header().Set("Connection", "close")
		return errForm
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}
