package dashboard

import (
	"bytes"
	"io"
	"mime"
	"net/http"
	"strings"
	"time"

	"weir/internal/tenants"
)

// Limits for forms that are being sent. With all places taken they use 72 MiB.
const (
	maxForms        = 1024
	maxAddressForms = 32 // of one address, which many people may share
	// maxUploads are the places for forms with a picture, which are larger. Whether a person is
	// signed in is only known afterwards.
	maxUploads        = 24
	maxAddressUploads = 4
	formTimeout       = 5 * time.Second
)

// readForm reads the body of a request into memory. Until it is complete, the request does not use
// a place for creating pages, so that slow senders block nobody.
func (d *dashboard) readForm(w http.ResponseWriter, r *http.Request) error {
	leave, ok := d.forms.Take(networksOf(r), maxForms, maxAddressForms)
	if !ok {
		return errBusy
	}
	defer leave()
	if maxFormOf(r) > maxWriteForm {
		leave, ok := d.uploads.Take(networksOf(r), maxUploads, maxAddressUploads)
		if !ok {
			return errBusy
		}
		defer leave()
	}
	// Without a body, net/http waits for the browser to disconnect, and a deadline would end that
	// wait, and with it the context of the connection. If the connection does not support
	// deadlines, the server's own applies.
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(formTimeout))
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxFormOf(r)))
	if err != nil {
		w.Header().Set("Connection", "close")
		return errForm
	}
	if hasManyFields(r.Header.Get("Content-Type"), body) {
		return errManyFields
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

// maxFields is the maximum number of fields of a form, and of parameters of an address. The largest
// form, of the customer page, has MaxOfferedPlans and ten more.
const maxFields = 200

// hasManyParameters reports whether a query has more than maxFields parameters, before it is
// parsed. Most handlers parse it again, and pages repeat it in their addresses.
func hasManyParameters(query string) bool { return strings.Count(query, "&") >= maxFields }

// hasManyFields reports whether a form has more than maxFields fields, before it is parsed.
func hasManyFields(contentType string, body []byte) bool {
	if media, params, _ := mime.ParseMediaType(contentType); media == "multipart/form-data" {
		return bytes.Count(body, []byte("--"+params["boundary"])) > maxFields+1 // one ends the form
	}
	return bytes.Count(body, []byte("&")) >= maxFields
}

// maxUploadForm is the maximum number of bytes of a form with a picture.
const maxUploadForm = tenants.MaxLogoBytes + maxWriteForm

// maxFormOf returns the maximum number of bytes of the form of a request.
func maxFormOf(r *http.Request) int64 {
	if r.URL.Path == customerPageURL {
		return maxUploadForm
	}
	return maxWriteForm
}

// parseForm parses the body of a request, which may have files.
func parseForm(w http.ResponseWriter, r *http.Request) (*form, error) {
	r.Body = http.MaxBytesReader(w, r.Body, maxFormOf(r))
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media != "multipart/form-data" {
		if err := r.ParseForm(); err != nil {
			return nil, errForm
		}
		return &form{values: r.PostForm}, nil
	}
	// All of it fits into memory, so nothing is written to a disk.
	if err := r.ParseMultipartForm(maxUploadForm); err != nil {
		return nil, errForm
	}
	f := &form{values: r.MultipartForm.Value, files: map[string][]byte{}}
	for name, parts := range r.MultipartForm.File {
		file, err := parts[0].Open()
		if err != nil {
			return nil, errForm
		}
		content, err := io.ReadAll(file)
		if closed := file.Close(); err != nil || closed != nil {
			return nil, errForm
		}
		f.files[name] = content
	}
	return f, nil
}
