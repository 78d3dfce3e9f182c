package dashboard

import (
	"bytes"
	"compress/gzip"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/a-h/templ"
	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"weir/internal/check"
	"weir/internal/tenants"
	"weir/web"
)

// render writes a complete page, or nothing. It creates the page when it is the tenant's turn, or
// that of the site without a tenant. The page about a change is never refused, and neither are
// pages without a tenant, such as that for signing in: nobody can keep people from it.
func (d *dashboard) render(w http.ResponseWriter, r *http.Request, status int, page templ.Component) error {
	return d.renderFor(requestOf(r.Context()).tenant, w, r, status, page)
}

// renderRows is render of a page with so many rows. If these are many, it is long work.
func (d *dashboard) renderRows(rows int, w http.ResponseWriter, r *http.Request, status int, page templ.Component) error {
	turns := &d.turns
	if rows > fewRows {
		turns = &d.longTurns
	}
	return d.renderIn(turns, requestOf(r.Context()).tenant, w, r, status, page)
}

// renderFor is render in a turn of another holder than the tenant.
func (d *dashboard) renderFor(holder uuid.UUID, w http.ResponseWriter, r *http.Request, status int, page templ.Component) error {
	return d.renderIn(&d.turns, holder, w, r, status, page)
}

func (d *dashboard) renderIn(turns *pageTurns, holder uuid.UUID, w http.ResponseWriter, r *http.Request, status int, page templ.Component) (err error) {
	var p *drawnPage
	draw := func() { p, err = drawPage(w.Header(), r, page) }
	switch {
	case holder == uuid.Nil:
		turns.always(siteHolder(r), draw)
	case r.Method == http.MethodPost:
		turns.always(holder, draw)
	default:
		if busy := turns.do(r.Context(), holder, draw); busy != nil {
			return busy
		}
	}
	if err != nil {
		return err
	}
	return d.send(w, r, status, p)
}

// siteHolder stands for the site of a client without a tenant in turns.
func siteHolder(r *http.Request) uuid.UUID { return uuid.NewSHA1(siteSpace, []byte(siteOf(r))) }

var siteSpace = uuid.UUID{15: 2}

// send writes a page that was created.
func (d *dashboard) send(w http.ResponseWriter, r *http.Request, status int, p *drawnPage) error {
	if p.size > longPage {
		leave, ok := d.keepUnread(r, p.size)
		if !ok {
			return errUnread
		}
		defer leave()
	}
	p.write(w, status)
	return nil
}

// keepUnread counts a page of so many bytes until it is sent. It returns false if the tenant has
// too many bytes of pages that are not sent yet. The page about a change is never refused.
func (d *dashboard) keepUnread(r *http.Request, size int) (leave func(), ok bool) {
	tenant := requestOf(r.Context()).tenant
	if r.Method == http.MethodPost {
		return d.unread.Hold(tenant, size), true
	}
	return d.unread.Take(tenant, size)
}

// minGzip is the minimum size of a compressed page: smaller ones fit into a packet or two.
const minGzip = 1 << 10

// gzipLevel takes less than half the time of the default, for pages a tenth longer.
const gzipLevel = 4

var gzipWriters = sync.Pool{New: func() any {
	z, _ := gzip.NewWriterLevel(nil, gzipLevel) // fails only for invalid levels
	return z
}}

// drawnPage is HTML in the form for its browser.
type drawnPage struct {
	body []byte
	gzip bool
	size int // before the compression
}

// drawPage creates a page. h are the headers of its answer.
func drawPage(h http.Header, r *http.Request, page templ.Component) (*drawnPage, error) {
	var b bytes.Buffer
	if err := page.Render(r.Context(), &b); err != nil {
		return nil, err
	}
	return packed(h, r, b.Bytes()), nil
}

// packed compresses HTML if the browser supports it and the page shows no secret.
func packed(h http.Header, r *http.Request, body []byte) *drawnPage {
	p := &drawnPage{body: body, size: len(body)}
	if len(body) >= minGzip && !strings.Contains(h.Get("Cache-Control"), noTransform) && web.AcceptsGzip(r) {
		p.body, p.gzip = compressed(body), true
	}
	return p
}

// write answers with the page.
func (p *drawnPage) write(w http.ResponseWriter, status int) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Add("Vary", "Accept-Encoding")
	if p.gzip {
		h.Set("Content-Encoding", "gzip")
	}
	h.Set("Content-Length", strconv.Itoa(len(p.body)))
	w.WriteHeader(status)
	_, _ = w.Write(p.body) // if this fails, the browser has disconnected
}

func compressed(body []byte) []byte {
	var b bytes.Buffer
	z := gzipWriters.Get().(*gzip.Writer)
	defer gzipWriters.Put(z)
	z.Reset(&b)
	_, _ = z.Write(body) // a buffer accepts all writes
	_ = z.Close()
	return b.Bytes()
}

const noTransform = "no-transform"

// showsSecret marks a page with a secret before it is rendered. Neither we nor a proxy may compress
// it: the compressed length of a page that also contains values of others would reveal the secret.
func showsSecret(w http.ResponseWriter) { w.Header().Set("Cache-Control", "no-store, "+noTransform) }

// answer converts an error to a page. Internal errors are logged, not shown.
func (d *dashboard) answer(w http.ResponseWriter, r *http.Request, err error) {
	var invalid *tenants.InvalidError
	var often *tenants.TooOftenError
	var fast *tooFastError
	switch {
	case errors.Is(err, tenants.ErrNotFound):
		d.fail(w, r, http.StatusNotFound, "Not found", "This page does not exist or was deleted. Check the address, or search for it.")
	case errors.As(err, &invalid):
		d.fail(w, r, http.StatusBadRequest, "Invalid address", "The address has an invalid parameter: "+invalid.Error()+". Go back, and choose another value.")
	case errors.Is(err, tenants.ErrNoText):
		d.fail(w, r, http.StatusBadRequest, "Invalid address", "The address has characters that are no text. Go back, and choose another value.")
	case errors.Is(err, tenants.ErrForbidden), errors.Is(err, tenants.ErrNotOperator):
		d.fail(w, r, http.StatusForbidden, "Your role does not allow this", "Nothing was changed. Ask an owner or an admin to do it or to change your role.")
	case errors.Is(err, tenants.ErrWrongPassword):
		d.fail(w, r, http.StatusUnauthorized, "Your password was changed", "Nothing was done. Sign in with the new password.")
	case errors.Is(err, errOtherTenant):
		d.fail(w, r, http.StatusConflict, "You switched to another tenant", "The form belongs to a different tenant. Nothing was changed. Switch back and submit it again.")
	case errors.Is(err, errForm):
		d.fail(w, r, http.StatusBadRequest, "Invalid form", "Go back and submit it again.")
	case errors.Is(err, errManyFields):
		d.fail(w, r, http.StatusBadRequest, "Invalid form", "The form has more than "+itoa(maxFields)+" fields. Nothing was changed. Go back, and send fewer.")
	case errors.Is(err, errManyParameters):
		d.fail(w, r, http.StatusBadRequest, "Invalid address", "The address has more than "+itoa(maxFields)+" parameters. Nothing was changed. Go back, and choose fewer.")
	case errors.Is(err, errMethod):
		d.fail(w, r, http.StatusMethodNotAllowed, "Method not allowed", "This page does not support this kind of request.")
	case errors.Is(err, errStreams):
		w.Header().Set("Retry-After", "10")
		d.fail(w, r, http.StatusServiceUnavailable, "Too many live pages", "This page cannot update itself. Close another live page, or reload this one.")
	case errors.As(err, &often):
		w.Header().Set("Retry-After", itoa(int64(math.Ceil(often.RetryAfter.Seconds()))))
		text := "This tenant exceeds the number of changes per second. Nothing was changed. Try again in a moment."
		if often.Why != "" {
			text = "The changes of this tenant have added as much to its audit trail as they may in a day. Nothing was changed. Try again after the end of the day, in UTC. Until then, you can revoke and delete."
		}
		d.fail(w, r, http.StatusTooManyRequests, "Too many changes", text)
	case errors.As(err, &fast):
		w.Header().Set("Retry-After", itoa(int64(math.Ceil(fast.wait.Seconds()))))
		d.fail(w, r, http.StatusTooManyRequests, "Too many requests", fast.text+" Try again in "+inWords(fast.wait)+".")
	case errors.Is(err, errVerifying):
		w.Header().Set("Retry-After", "5")
		d.fail(w, r, http.StatusServiceUnavailable, "Too many verifications", "Too many audit trails are being verified. Try again in a few seconds.")
	case errors.Is(err, tenants.ErrTooManyExports):
		w.Header().Set("Retry-After", "10")
		d.fail(w, r, http.StatusServiceUnavailable, "Too many downloads", "Only a few files can be downloaded at once, two of them by one tenant. Wait until a download ends, and try again.")
	case errors.Is(err, tenants.ErrTooManyLogos):
		w.Header().Set("Retry-After", "5")
		d.fail(w, r, http.StatusServiceUnavailable, "Too many logos", "Only a few logos can be processed at once, one of them of one tenant. Nothing was changed. Try again in a few seconds.")
	case errors.Is(err, check.ErrTooManyPreviews):
		w.Header().Set("Retry-After", "1")
		d.fail(w, r, http.StatusServiceUnavailable, "Too many previews", "Only a few previews of plans can run at once, one of them of one tenant. Nothing was changed. Try again in a few seconds.")
	case errors.Is(err, errBusy), errors.Is(err, errUnread), errors.Is(err, tenants.ErrTooManyReports):
		d.paused.rest(r)
		w.Header().Set("Retry-After", "1")
		d.fail(w, r, http.StatusServiceUnavailable, "Too busy", "Too many pages are being requested. Try again in a second.")
	case errors.Is(err, check.ErrPolicyUnavailable):
		w.Header().Set("Retry-After", "1")
		d.fail(w, r, http.StatusServiceUnavailable, "Rules not loaded", "This tenant's rules are still loading. Try again in a second.")
	case errors.Is(err, tenants.ErrUnavailable):
		d.Logger.Log(r.Context(), errorLevel(r), "a page cannot reach the database", "request_id", requestOf(r.Context()).id, "path", patternOf(r), "error", err)
		w.Header().Set("Retry-After", "5")
		d.fail(w, r, http.StatusServiceUnavailable, "Configuration unavailable",
			"The database does not answer. Checks continue with the last limits that were read. Try again soon.")
	default:
		d.Logger.Log(r.Context(), errorLevel(r), "a page failed", "request_id", requestOf(r.Context()).id, "path", patternOf(r), "error", err)
		d.fail(w, r, http.StatusInternalServerError, "Something went wrong", "The error is on our side and was logged. Try again, or tell the operator of the service when it happened.")
	}
}

// fail writes a page about a failed request. It takes no turn if a person is signed in, with whose
// frame it is, or after a pause, because it also says that there was no turn.
func (d *dashboard) fail(w http.ResponseWriter, r *http.Request, status int, title, text string) {
	var p *drawnPage
	var err error
	if v, ok := r.Context().Value(visitKey{}).(*visit); ok {
		v.frame.Title = title
		p, err = drawPage(w.Header(), r, framedFailure(v.frame, text))
	} else if requestOf(r.Context()).rested > 0 {
		p, err = drawPage(w.Header(), r, plainFailure(title, text))
	} else {
		d.turns.always(siteHolder(r), func() { p, err = drawPage(w.Header(), r, plainFailure(title, text)) })
	}
	if err == nil {
		err = d.send(w, r, status, p)
	}
	if err != nil {
		if r.Context().Err() == nil { // else the client has gone
			d.Logger.Error("cannot render an error page", "error", err)
		}
		http.Error(w, title, status)
	}
}

// patternOf returns the matched pattern of a request, which contains no subject, unlike its path.
func patternOf(r *http.Request) string {
	if c := chi.RouteContext(r.Context()); c != nil {
		return c.RoutePattern()
	}
	return ""
}
