package dashboard

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"weir/internal/origin"
	"weir/internal/tenants"
)

// sessionCookie has the session's token. Because of its prefix, browsers accept it only over HTTPS
// (or from localhost), for this host and all of its paths.
const sessionCookie = "__Host-weir"

// contentPolicy allows a page only our own styles, scripts and pictures, and connections to us.
// Pages contain no inline styles and scripts, so nothing that is injected is run.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

var (
	errMethod = errors.New("method not allowed")
	errForm   = errors.New("the form cannot be read")
	// errManyFields and errManyParameters: more than maxFields.
	errManyFields     = errors.New("the form has too many fields")
	errManyParameters = errors.New("the address has too many parameters")
	errBusy           = errors.New("too many concurrent requests")
	errUnread         = errors.New("too many bytes of long pages are not read")
	// errOtherTenant: the form was created while another tenant was the current one.
	errOtherTenant = errors.New("the form belongs to another tenant")
)

// crossOrigin refuses requests that another site's page makes a browser send. GET changes nothing.
var crossOrigin = http.NewCrossOriginProtection()

// guard comes after track: headers of all answers, cross-origin protection, a limit for concurrent
// requests, and an answer if a handler panics.
func (d *dashboard) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", contentPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		if r.TLS != nil && !origin.IsLocal(r.Host) { // it would also affect http://localhost on other ports
			h.Set("Strict-Transport-Security", "max-age=31536000")
		}
		h.Set("Cache-Control", "no-store")
		defer d.recovered(w, r)
		if err := crossOrigin.Check(r); err != nil {
			d.fail(w, r, http.StatusForbidden, "Request from another site",
				"Another website sent this request. Nothing was changed.")
			return
		}
		if hasManyParameters(r.URL.RawQuery) {
			d.answer(w, r, errManyParameters)
			return
		}
		if r.Method == http.MethodPost { // a slow sender must not use a place for pages
			if err := d.readForm(w, r); err != nil {
				d.answer(w, r, err)
				return
			}
		}
		t := requestOf(r.Context())
		var ok bool
		if t.place, ok = d.working.Take(networksOf(r), maxWorking, maxNetworkWorking); !ok {
			d.answer(w, r, errBusy)
			return
		}
		defer t.leave()
		next.ServeHTTP(w, withOpen(withTheme(r)))
	})
}

func (d *dashboard) recovered(w http.ResponseWriter, r *http.Request) {
	fault := recover()
	if fault == nil {
		return
	}
	if fault == http.ErrAbortHandler { // net/http compares it in the same way
		panic(fault)
	}
	d.Logger.Error("a page panicked", "request_id", requestOf(r.Context()).id, "path", patternOf(r), "panic", fault, "stack", string(debug.Stack()))
	d.fail(w, r, http.StatusInternalServerError, "Something went wrong", "The error is on our side and was logged. Try again.")
}

// open makes a handler of a function that needs no session.
func (d *dashboard) open(handle func(http.ResponseWriter, *http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := handle(w, r); err != nil {
			d.answer(w, r, err)
		}
	}
}

// visit is one request of a signed-in person.
type visit struct {
	session tenants.Session
	frame   frame
	now     time.Time
}

// actor returns the person as a member of the current tenant.
func (v *visit) actor() tenants.Actor { return v.session.Actor() }

type visitKey struct{}

// person makes a handler of a function that needs a signed-in person but no tenant.
func (d *dashboard) person(handle func(http.ResponseWriter, *http.Request, *visit) error) http.HandlerFunc {
	return d.personBy(d.session, handle)
}

// personBy is person with the function that finds the session of a request.
func (d *dashboard) personBy(
	find func(*http.Request) (tenants.Session, error), handle func(http.ResponseWriter, *http.Request, *visit) error,
) http.HandlerFunc {
	return d.open(func(w http.ResponseWriter, r *http.Request) error {
		session, err := find(r)
		if errors.Is(err, tenants.ErrNoSession) {
			http.Redirect(w, r, loginURL(r), http.StatusSeeOther)
			return nil
		}
		if err != nil {
			return err
		}
		if session.Current != nil {
			t := requestOf(r.Context())
			t.tenant = session.Current.TenantID
			if !d.visits(t) {
				return errBusy
			}
		}
		now := d.Now()
		v := &visit{session: session, now: now, frame: newFrame(&session, r.URL.Path, now, d.DegradedSince())}
		r = r.WithContext(context.WithValue(r.Context(), visitKey{}, v))
		if err := handle(w, r, v); err != nil {
			d.answer(w, r, err)
		}
		return nil
	})
}

// visits gives a request a place among those of its tenant, for as long as it has its place among
// the pages that are created. It returns false if the tenant has its share.
func (d *dashboard) visits(t *tracked) bool {
	leave, ok := d.visiting.TakeShare(t.tenant, maxWorking, leastVisiting)
	if !ok {
		return false
	}
	t.add(leave)
	return true
}

// page makes a handler of a function that shows a tenant to a member. Every role may read
// everything.
func (d *dashboard) page(handle func(http.ResponseWriter, *http.Request, *visit) error) http.HandlerFunc {
	return d.person(func(w http.ResponseWriter, r *http.Request, v *visit) error {
		if v.session.Current == nil {
			v.frame.Title = "No tenant"
			return d.render(w, r, http.StatusForbidden, noTenantPage(v.frame))
		}
		if clean := cleanAddress(r); clean != "" {
			http.Redirect(w, r, clean, http.StatusSeeOther)
			return nil
		}
		v.frame.Said, v.frame.Undo = said(w, r)
		v.frame.Requests = d.opened.of(r.Context(), d.Store, v.actor())
		return handle(w, r, v)
	})
}

// filtered are the pages with a form of filters.
var filtered = []string{"/decisions", "/usage", "/subjects", "/audit", "/metered", "/rules", "/tenants", billingEventsPath, securityURL, testerURL}

// isFiltered reports whether a page has a form of filters.
func isFiltered(path string) bool {
	return slices.Contains(filtered, path) || strings.HasPrefix(path, notificationsURL+"/")
}

// cleanAddress returns the address of a page without the empty fields of a form of filters, which a
// browser without scripts sends. It returns "" if there are none, and for parts of pages.
func cleanAddress(r *http.Request) string {
	if r.Method != http.MethodGet || !isFiltered(r.URL.Path) || r.URL.Query().Has("fragment") {
		return ""
	}
	var kept []string
	parts := strings.Split(r.URL.RawQuery, "&")
	for _, part := range parts {
		asked := r.URL.Path == testerURL && part == "subject=" // its form is answered, without a subject too
		if asked || !strings.HasSuffix(part, "=") || strings.HasPrefix(part, "=") {
			kept = append(kept, part)
		}
	}
	switch {
	case len(kept) == len(parts):
		return ""
	case len(kept) == 0:
		return r.URL.EscapedPath()
	}
	return r.URL.EscapedPath() + "?" + strings.Join(kept, "&")
}

// repeatedHeader is in requests that a page sends by itself every few seconds: see app.js.
const repeatedHeader = "Weir-Repeated"

// session returns the session of a request, which counts as use unless the page repeats it by
// itself.
func (d *dashboard) session(r *http.Request) (tenants.Session, error) {
	if r.Header.Get(repeatedHeader) != "" {
		return d.unusedSession(r)
	}
	return sessionBy(r, d.Store.Session)
}

func (d *dashboard) unusedSession(r *http.Request) (tenants.Session, error) {
	return sessionBy(r, d.Store.UnusedSession)
}

func sessionBy(r *http.Request, find func(ctx context.Context, token string) (tenants.Session, error)) (tenants.Session, error) {
	cookie, err := r.Cookie(sessionCookie)
	if err != nil {
		return tenants.Session{}, tenants.ErrNoSession
	}
	return find(r.Context(), cookie.Value)
}

// loginURL returns the sign-in page, with the requested page as its destination.
func loginURL(r *http.Request) string {
	if r.Method != http.MethodGet || r.URL.Path == "/" && r.URL.RawQuery == "" || len(r.RequestURI) > maxNext {
		return "/login"
	}
	return "/login?next=" + url.QueryEscape(r.URL.RequestURI())
}

func setSessionCookie(w http.ResponseWriter, token string) {
	cookie := &http.Cookie{
		Name: sessionCookie, Value: token, Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode,
		MaxAge: int(tenants.SessionLife / time.Second),
	}
	if token == "" {
		cookie.MaxAge = -1
	}
	http.SetCookie(w, cookie)
}
