package dashboard

import (
	"bytes"
	"io"
	"net/http"
	"time"
)

// Bounds on forms that are on their way. With all places taken they hold 64 MiB.
const (
	maxForms        = 1024
	maxAddressForms = 32 // of one address: many people may share it
	formTimeout     = 5 * time.Second
)

// readForm reads the body of a request into memory. Until it is there, the request takes none of
// the places in which pages are made, so that slow senders hold up nobody.
func (d *dashboard) readForm(w http.ResponseWriter, r *http.Request) error {
	leave, ok := d.forms.Take(addressOf(r.RemoteAddr))
	if !ok {
		return errBusy
	}
	defer leave()
	// Where a connection has no deadline of its own, the server's remains.
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
