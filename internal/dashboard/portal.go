package dashboard

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/mail"
	"weir/internal/tenants"
	"weir/internal/throttle"
)

// The customer page, on which a tenant's own customer sees their limits. Decision 15 explains its
// links and cookies. It knows nothing of the session of a member, and a visit gives access to one
// subject only.

const (
	// portalCookie has the token of a visit. Its path is that of the visit's page, so two pages in
	// one browser do not share it.
	portalCookie = "__Secure-weir-portal"
	// probeCookie shows that the browser accepts cookies, before a link for one use is used.
	probeCookie = "__Secure-weir-portal-probe"
	portalPath  = "/portal/"
	openPath    = "/portal/open"
	// maxPortal is how many customer pages are created concurrently. A tenant has at most a quarter
	// of the places that are left, and at least leastPortal. Customers may be hostile to their own
	// tenant, too: with so few of its places, their pages leave some to those of its members.
	maxPortal   = 24
	leastPortal = 1
	// The maximum number of bytes of logos that are sent at the same time, of all tenants and of
	// one. A browser that does not read keeps its logo in memory until the timeout. Members' pages
	// have other bounds (maxUnread), which customers must not use up.
	maxLogosUnread       = 32 << 20
	maxTenantLogosUnread = 8 << 20
	// accentLife is how long a browser keeps a style sheet, whose name says what is in it.
	accentLife = 365 * 24 * time.Hour
)

// The limits for loads of the customer page, in requests per minute: of one link from one address,
// of one address, and of one link. A page that updates itself loads 6 times a minute.
var portalRules = throttle.ByNetwork(
	limit.Rule{Slug: "link-address", Algorithm: limit.TokenBucket, Limit: 120, Window: throttle.Every(time.Minute)},
	limit.Rule{Slug: "address", Algorithm: limit.TokenBucket, Limit: 1200, Window: throttle.Every(time.Minute)},
	limit.Rule{Slug: "link", Algorithm: limit.TokenBucket, Limit: 240, Window: throttle.Every(time.Minute)},
)

// The limits for mails about requests of customers, per subject, per address and per tenant.
var requestMailRules = []limit.Rule{
	{Slug: "subject-address", Algorithm: limit.SlidingWindowLog, Limit: 5, Window: limit.Window{Duration: limit.Duration{MS: 24 * 3_600_000}}},
	{Slug: "address", Algorithm: limit.SlidingWindowLog, Limit: 100, Window: limit.Window{Duration: limit.Duration{MS: 3_600_000}}},
	{Slug: "tenant", Algorithm: limit.TokenBucket, Limit: 50, Window: limit.Window{Duration: limit.Duration{MS: 24 * 3_600_000}}},
}

var (
	errPortalEnded = errors.New("the link or the page has ended")
	errPortalBusy  = errors.New("the page is loaded too often")
)

type portalHandler func(w http.ResponseWriter, r *http.Request, visit *tenants.PortalVisit) error

// portalOpen makes a handler of a function for browsers that follow a link.
func (d *dashboard) portalOpen(handle func(w http.ResponseWriter, r *http.Request, token string, link *tenants.FollowedLink) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var link *tenants.FollowedLink
		token := chi.URLParam(r, "token")
		err := d.boundPortal(r, token, func() error {
			found, err := d.Store.PortalLinkByToken(r.Context(), token, d.portalPlaces(r))
			if errors.Is(err, tenants.ErrNotFound) {
				return errPortalEnded
			}
			if err != nil {
				return err
			}
			found.Portal.Logo = nil // these pages have none: a browser that does not read keeps nothing of it
			link = &found
			portalHeaders(w, link)
			return handle(w, r, token, link)
		})
		if err != nil {
			d.portalFailure(w, r, link, err)
		}
	}
}

// portalPage makes a handler of a function for browsers with a visit.
func (d *dashboard) portalPage(handle portalHandler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var link *tenants.FollowedLink
		err := d.boundPortal(r, chi.URLParam(r, "visit"), func() error {
			visit, err := d.portalVisit(r)
			if err != nil {
				return err
			}
			link = &visit.FollowedLink
			portalHeaders(w, link)
			return handle(w, r, &visit)
		})
		if err != nil {
			d.portalFailure(w, r, link, err)
		}
	}
}

// portalPlaces returns a function that gives a request its places as soon as its tenant is known:
// among the pages of the tenant, and among the customer pages. The request has both before it waits
// for the tenant's turn in Postgres, and until its answer begins: a browser that does not read uses
// none.
func (d *dashboard) portalPlaces(r *http.Request) func(tenant uuid.UUID) error {
	return func(tenant uuid.UUID) error {
		t := requestOf(r.Context())
		t.tenant = tenant
		if !d.visits(t) {
			return errBusy
		}
		leave, ok := d.portals.TakeShare(tenant, maxPortal, leastPortal)
		if !ok {
			return errBusy
		}
		t.add(leave)
		return nil
	}
}

// boundPortal limits how often a page is loaded.
func (d *dashboard) boundPortal(r *http.Request, page string, handle func() error) error {
	if d.portalLoads.Take(r.Context(), page, networksOf(r).Names()) > 0 {
		return errPortalBusy
	}
	return handle()
}

func (d *dashboard) portalVisit(r *http.Request) (tenants.PortalVisit, error) {
	id, err := uuid.Parse(chi.URLParam(r, "visit"))
	cookie, missing := r.Cookie(portalCookie)
	if err != nil || missing != nil {
		return tenants.PortalVisit{}, errPortalEnded
	}
	visit, err := d.Store.PortalVisit(r.Context(), id, cookie.Value, d.portalPlaces(r))
	if errors.Is(err, tenants.ErrNotFound) {
		return tenants.PortalVisit{}, errPortalEnded
	}
	return visit, err
}

// portalHeaders lets the origins that the tenant allows show the page in a frame, and nobody else.
func portalHeaders(w http.ResponseWriter, link *tenants.FollowedLink) {
	h := w.Header()
	if origins := link.Portal.FrameOrigins; len(origins) > 0 {
		h.Set("Content-Security-Policy", strings.Replace(contentPolicy, "frame-ancestors 'none'", "frame-ancestors "+strings.Join(origins, " "), 1))
	}
	// The path has a secret until the link was used. Browsers send at most the origin to anybody,
	// even to this server, whose proxy may log it.
	h.Set("Referrer-Policy", "strict-origin")
	h.Set("X-Robots-Tag", "noindex, nofollow")
}

// portalCookieOf returns a cookie of the customer page. In a frame of another site, browsers send
// only cookies that are partitioned: one jar for each site that shows the frame.
func portalCookieOf(name, value, path string, framed bool, life time.Duration) *http.Cookie {
	c := &http.Cookie{
		Name: name, Value: value, Path: path, Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode, MaxAge: int(life / time.Second),
	}
	if framed {
		c.SameSite, c.Partitioned = http.SameSiteNoneMode, true
	}
	return c
}

// brandOf returns the name under which a tenant shows the page.
func brandOf(link *tenants.FollowedLink) string { return nameOr(link.Portal.Brand, link.TenantName) }

// portalFrame is what every customer page shows around its content.
type portalFrame struct {
	Brand, Accent, Logo string // Logo is a path; "": none
	Refresh             bool
}

func portalFrameOf(link *tenants.FollowedLink) portalFrame {
	return portalFrame{Brand: brandOf(link), Accent: strings.TrimPrefix(link.Portal.Accent, "#")}
}

func framed(link *tenants.FollowedLink) bool { return len(link.Portal.FrameOrigins) > 0 }

// portalLinkPage is shown to a browser that follows a link. It uses nothing, because mail scanners
// and previews follow links, too: the form on it does.
func (d *dashboard) portalLinkPage(w http.ResponseWriter, r *http.Request, token string, link *tenants.FollowedLink) error {
	if !link.Usable {
		return errPortalEnded
	}
	http.SetCookie(w, portalCookieOf(probeCookie, "1", openPath, framed(link), time.Hour))
	return d.render(w, r, http.StatusOK, portalOpenPage(portalFrameOf(link), tenants.PortalLinkPath(token), false))
}

// usePortalLink exchanges a link for a cookie.
func (d *dashboard) usePortalLink(w http.ResponseWriter, r *http.Request, token string, link *tenants.FollowedLink) error {
	if !link.Usable {
		return errPortalEnded
	}
	if _, err := r.Cookie(probeCookie); err != nil {
		return d.render(w, r, http.StatusForbidden, portalOpenPage(portalFrameOf(link), tenants.PortalLinkPath(token), true))
	}
	visit, secret, err := d.Store.FollowPortalLink(r.Context(), token)
	if errors.Is(err, tenants.ErrNotFound) {
		return errPortalEnded
	}
	if err != nil {
		return err
	}
	page := portalPath + visit.String()
	http.SetCookie(w, portalCookieOf(portalCookie, secret, page, framed(link), tenants.PortalSessionLife))
	http.Redirect(w, r, page, http.StatusSeeOther)
	return nil
}

var accentName = regexp.MustCompile(`^([0-9a-f]{6})\.css$`)

// portalAccent serves the style sheet of a colour, which is its name: it reads nothing.
func (d *dashboard) portalAccent(w http.ResponseWriter, r *http.Request) error {
	name := accentName.FindStringSubmatch(chi.URLParam(r, "name"))
	if name == nil {
		return tenants.ErrNotFound
	}
	w.Header().Set("Content-Type", "text/css; charset=utf-8")
	w.Header().Set("Cache-Control", "public, max-age="+strconv.Itoa(int(accentLife/time.Second))+", immutable")
	_, _ = w.Write([]byte(paletteOf("#" + name[1]).styles()))
	return nil
}

// portalLogo serves the tenant's logo. Its address has the hash of the picture, so a browser may
// keep it.
func (d *dashboard) portalLogo(w http.ResponseWriter, r *http.Request, visit *tenants.PortalVisit) error {
	leave, ok := d.logos.Take(visit.Tenant, len(visit.Portal.Logo))
	if !ok {
		return errUnread
	}
	defer leave()
	return writeLogo(w, visit.Portal.Logo)
}

func writeLogo(w http.ResponseWriter, logo []byte) error {
	if logo == nil {
		return errPortalEnded
	}
	h := w.Header()
	h.Set("Content-Type", "image/png")
	h.Set("Cache-Control", "private, max-age=86400, immutable")
	h.Set("Content-Length", strconv.Itoa(len(logo)))
	_, _ = w.Write(logo)
	return nil
}

// portalFailure answers an error of the customer page, without the pages of members.
func (d *dashboard) portalFailure(w http.ResponseWriter, r *http.Request, link *tenants.FollowedLink, err error) {
	f := portalFrame{}
	ask := "Open it again from the page or the message where you found it, or ask the company that sent it for a new one."
	if link != nil {
		f = portalFrameOf(link)
		ask = "Open it again from " + f.Brand + "."
	}
	status, title, text := http.StatusInternalServerError, "Something went wrong", "The error is on our side and was logged. Try again."
	switch {
	case errors.Is(err, errPortalEnded):
		status, title, text = http.StatusNotFound, "This link has ended", "It has expired, was already used, or was revoked. "+ask
	case errors.Is(err, errPortalBusy), errors.Is(err, errBusy), errors.Is(err, errUnread):
		d.paused.rest(r)
		w.Header().Set("Retry-After", "10")
		status, title, text = http.StatusTooManyRequests, "Too many requests", "This page is loaded too often. Try again in a few seconds."
	case errors.Is(err, errForm):
		status, title, text = http.StatusBadRequest, "Invalid form", "Go back and submit it again."
	case errors.Is(err, tenants.ErrUnavailable), errors.Is(err, check.ErrPolicyUnavailable):
		w.Header().Set("Retry-After", "5")
		status, title, text = http.StatusServiceUnavailable, "Not available right now", "Your limits still apply. Try again in a few seconds."
		d.Logger.Log(r.Context(), errorLevel(r), "a customer page cannot be read", "request_id", requestOf(r.Context()).id, "route", patternOf(r), "error", err)
	default:
		d.Logger.Log(r.Context(), errorLevel(r), "a customer page failed", "request_id", requestOf(r.Context()).id, "route", patternOf(r), "error", err)
	}
	if failed := d.render(w, r, status, portalMessagePage(f, title, text)); failed != nil {
		http.Error(w, title, status)
	}
}

// maxRequestForm is the maximum size of a customer's request, in bytes.
const maxRequestForm = 16 << 10

// requestMore stores a customer's request for a higher limit.
func (d *dashboard) requestMore(w http.ResponseWriter, r *http.Request, visit *tenants.PortalVisit) error {
	// A note of 500 characters can be longer than other forms: each has up to 12 bytes there.
	r.Body = http.MaxBytesReader(w, r.Body, maxRequestForm)
	if err := r.ParseForm(); err != nil {
		f := &form{values: url.Values{}}
		f.problem = "The form cannot be read. The note may have at most 500 characters."
		return d.showPortal(w, r, visit, http.StatusBadRequest, f)
	}
	f := &form{values: r.PostForm}
	rule, asked := f.Get("rule"), f.integer("limit")
	policy, err := d.Policies.Get(r.Context(), visit.Tenant)
	if err != nil {
		return err
	}
	var had *limit.Limit
	for _, l := range d.Checker.InspectRule(r.Context(), policy, rule, check.Request{Subject: visit.Subject}).Rules {
		if l.Mode == limit.Enforce {
			had = &limit.Limit{Limit: l.Limit, Burst: l.Burst, Unlimited: l.Unlimited}
		}
	}
	if had == nil {
		f.problem = "This limit no longer exists."
	}
	if f.invalid() {
		return d.showPortal(w, r, visit, http.StatusUnprocessableEntity, f)
	}
	if err := d.Store.AdmitWrite(r.Context(), visit.Actor(), tenants.CustomerWrite); err != nil {
		return errPortalBusy
	}
	q, notify, err := d.Store.RequestLimit(r.Context(), visit, tenants.NewLimitRequest{Rule: rule, Had: *had, Asked: asked, Note: f.Get("note")})
	if status := f.refuse(err); status != 0 {
		return d.showPortal(w, r, visit, status, f)
	}
	if err != nil {
		return err
	}
	d.followTenant(r.Context(), visit.Tenant)
	d.mailRequest(r, visit, &q, notify)
	http.Redirect(w, r, portalPath+visit.ID.String()+"?sent=1", http.StatusSeeOther)
	return nil
}

// mailRequest tells the members who decide about a request. A request that waits is also on their
// dashboard, so a mail that is not sent loses nothing.
func (d *dashboard) mailRequest(r *http.Request, visit *tenants.PortalVisit, q *tenants.LimitRequest, notify []string) {
	if len(notify) == 0 {
		return
	}
	tenant, subject := visit.Tenant.String(), visit.Tenant.String()+" "+visit.Subject
	if may, _ := d.requestMails.Begin(r.Context(), tenant+" "+subject, subject, tenant); may == nil {
		return
	}
	for _, to := range notify {
		letter := mail.LimitRequest(to, visit.TenantName, visit.Subject, fmt.Sprintf("%s instead of %s for %s", grouped(q.Asked), grouped(q.Had), q.Rule), q.Note, d.Mail.Link("/requests"))
		d.Mail.Send(mail.ByTenant(visit.Tenant.String()), letter, func(error) {}) // the log says if it failed
	}
}

// portalFieldName returns the label of a field of the form.
func portalFieldName(field string) string {
	return map[string]string{"limit": "the new limit", "note": "the note", "rule": "the limit"}[field]
}

// Suggested is what the form begins with: twice the limit, or what was sent.
func (l *portalLimit) Suggested(v *portalView) string {
	if v.Sent.Get("rule") == l.Rule {
		return v.Sent.Get("limit")
	}
	return itoa(2 * l.limit.Limit)
}

// Note is the note that was sent.
func (l *portalLimit) Note(v *portalView) string {
	if v.Sent.Get("rule") == l.Rule {
		return v.Sent.Get("note")
	}
	return ""
}
