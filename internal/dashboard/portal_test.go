package dashboard

import (
	"bytes"
	"image"
	"image/png"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/tenants"
)

// customerBrowser is a browser that has followed a link to the customer page.
type customerBrowser struct {
	*browser
	home string // path of the page
}

func (s *stack) customer(a tenants.Actor, subject string) customerBrowser {
	s.t.Helper()
	b := customerBrowser{browser: s.browser()}
	_, token, err := s.store.CreatePortalLink(s.t.Context(), a, tenants.NewPortalLink{Subject: subject, SingleUse: true})
	require.NoError(s.t, err)
	path := tenants.PortalLinkPath(token)
	got := b.get(path)
	require.Equal(s.t, http.StatusOK, got.status)
	require.Contains(s.t, got.body, "Continue")
	b.home = b.post(path, url.Values{}).header.Get("Location")
	require.Regexp(s.t, "^/portal/[0-9a-f-]{36}$", b.home)
	return b
}

// The whole of it: a link, the page, a request, its approval.
func TestCustomerPage(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	box := s.mailing(SignupClosed)
	_, err := s.store.EditPortal(t.Context(), s.a, tenants.Match{}, func(p *tenants.Portal) error { p.Brand, p.Accent = "Acme & Sons", "#ffee00"; return nil })
	require.NoError(t, err)
	policy, err := s.policies.Get(t.Context(), s.a.TenantID())
	require.NoError(t, err)
	for range 20 {
		_, err := s.checker.Check(t.Context(), policy, []check.Request{{Subject: "user_1", Resource: "default", Cost: 1}})
		require.NoError(t, err)
	}

	b := s.customer(s.a, "user_1")
	home := b.get(b.home)
	require.Equal(t, http.StatusOK, home.status)
	for _, words := range []string{"Acme &amp; Sons", "user_1", "limit reached", "20 of 20 used", "You can use 20 units in any minute on all resources.", "/portal/accent/ffee00.css"} {
		require.Contains(t, home.body, words)
	}
	for _, others := range []string{"ada", "ann@example.com", "reason", "<nav", "/rules", "Weir"} {
		require.NotContains(t, regexp.MustCompile(`/assets/[^"]*`).ReplaceAllString(home.body, ""), others) // whose names have hashes
	}
	for name, want := range map[string]string{
		"Content-Security-Policy": contentPolicy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "strict-origin", "Cache-Control": "no-store",
		"X-Robots-Tag": "noindex, nofollow",
	} {
		require.Equal(t, want, home.header.Get(name), name)
	}
	require.NotRegexp(t, `(?i)<script|\son[a-z]+=|\sstyle=|<style`, ownScripts.ReplaceAllString(home.body, ""))
	for _, link := range regexp.MustCompile(`(?:href|src|action)="([^"]*)"`).FindAllStringSubmatch(home.body, -1) {
		require.Regexp(t, `^(/assets/|/portal/)`, link[1], "nothing of others")
	}
	require.Equal(t, http.StatusOK, b.get("/portal/accent/ffee00.css").status)
	require.Equal(t, http.StatusNotFound, b.get("/portal/accent/ffee0.css").status)
	require.Equal(t, http.StatusNotFound, b.get(b.home+"/logo").status, "there is none")

	require.Equal(t, http.StatusUnprocessableEntity, b.post(b.home+"/requests", url.Values{"rule": {"requests"}, "limit": {"5"}}).status)
	sent := b.post(b.home+"/requests", url.Values{"rule": {"requests"}, "limit": {"40"}, "note": {"<b>growing</b>"}})
	require.Equal(t, b.home+"?sent=1", sent.header.Get("Location"))
	require.Contains(t, b.get(sent.header.Get("Location")).body, "Your request was sent to Acme &amp; Sons.")
	require.Equal(t, http.StatusConflict, b.post(b.home+"/requests", url.Values{"rule": {"requests"}, "limit": {"50"}}).status)

	letter := newest(t, box, 1)
	require.Equal(t, "ann@example.com", letter.To)
	require.Equal(t, "/requests", path(t, letter))
	require.Contains(t, letter.Before[0], "40 instead of 20")

	ann := s.as("ann@example.com")
	list := ann.get("/requests")
	require.Contains(t, list.body, "20 to 40")
	require.Contains(t, list.body, "&lt;b&gt;growing")
	require.Contains(t, ann.get("/").body, `<span class="tally">`)
	requests, _, err := s.store.LimitRequests(t.Context(), s.a, tenants.LimitRequestFilter{}, tenants.Page{})
	require.NoError(t, err)
	done := ann.write("/requests/"+requests[0].ID.String(), url.Values{"do": {"approve"}, "limit": {"40"}, "for": {"7d"}, "answer": {"Enjoy."}})
	require.Equal(t, "/requests", done.header.Get("Location"))
	after := b.get(b.home)
	require.Contains(t, after.body, "20 of 40 used")
	require.Contains(t, after.body, "Enjoy.")
	require.Contains(t, after.body, "raised until")
	require.NotContains(t, ann.get("/").body, `<span class="tally">`)
}

// A calendar window ends when it ends by the clock of the counters, and nothing is said that says
// nothing.
func TestCustomerLimits(t *testing.T) {
	daily := limit.NewRule("daily")
	daily.Limit, daily.Window.Calendar = 10, limit.CalendarDay
	midnight := time.Date(2026, 5, 2, 0, 0, 0, 0, time.UTC)
	const left = 3_600_001
	row := check.RuleDecision{Rule: &daily, Mode: limit.Enforce, Allowed: true, Limit: 10, Quota: 10, Remaining: 4, ResetAfterMS: left, HasCredits: true}
	full := row
	full.Remaining, full.ResetAfterMS, full.Credits = 10, 0, 5
	var v portalView
	v.fill(&check.SubjectLimits{NowMS: midnight.UnixMilli() - left, Rules: []check.RuleDecision{row, full}}, false)
	require.Equal(t, midnight, v.Limits[0].Full.At.UTC())
	var page strings.Builder
	require.NoError(t, portalLive(&v).Render(t.Context(), &page))
	require.Contains(t, page.String(), "2 May 2026, 00:00 UTC")
	require.Equal(t, 1, strings.Count(page.String(), "Fully available"))
	require.NotContains(t, page.String(), "0 credits")
	require.Contains(t, page.String(), "5 credits left")
}

// A page is that of one browser and one subject, whatever the address says.
func TestCustomerPageIsolation(t *testing.T) {
	s := newStack(t)
	s.fill(s.a, "mark")
	s.fill(s.b, "other")
	ann, eve := s.customer(s.a, "ann"), s.customer(s.a, "eve")
	bob := s.customer(s.b, "ann")
	require.Contains(t, ann.get(ann.home).body, ">ann<")
	for _, other := range []*browser{eve.browser, bob.browser, s.browser(), s.as("ann@example.com")} {
		got := other.get(ann.home)
		require.Equal(t, http.StatusNotFound, got.status)
		require.NotContains(t, got.body, ">ann<")
		require.Equal(t, http.StatusNotFound, other.post(ann.home+"/requests", url.Values{"rule": {"requests"}, "limit": {"40"}}).status)
	}
	require.Contains(t, bob.get(bob.home).body, "tenant-b")
	require.NotContains(t, bob.get(bob.home).body, "mark")
	require.Equal(t, http.StatusSeeOther, ann.get("/").status, "the cookie signs nobody in")
	for _, path := range []string{"/portal/", "/portal/x", "/portal/open/x", "/portal/open/" + strings.Repeat("A", 43), "/portal/open/"} {
		require.Equal(t, http.StatusNotFound, s.browser().get(path).status, path)
	}
	links, _, err := s.store.PortalLinks(t.Context(), s.a, "ann", tenants.Page{})
	require.NoError(t, err)
	require.NoError(t, s.store.DeletePortalLink(t.Context(), s.a, "ann", links[0].ID, tenants.Match{}))
	require.Equal(t, http.StatusNotFound, ann.get(ann.home).status, "revoked")
}

// Reading the address of a link uses nothing: scanners of mails read it. A browser without cookies
// does not use it up either.
func TestCustomerLinkIsUsedOnce(t *testing.T) {
	s := newStack(t)
	_, token, err := s.store.CreatePortalLink(t.Context(), s.a, tenants.NewPortalLink{Subject: "ada", SingleUse: true})
	require.NoError(t, err)
	path := tenants.PortalLinkPath(token)
	for range 3 {
		require.Equal(t, http.StatusOK, s.browser().get(path).status)
	}
	blocked := s.browser().post(path, url.Values{})
	require.Equal(t, http.StatusForbidden, blocked.status)
	require.Contains(t, blocked.body, "does not accept cookies")
	b := s.browser()
	b.get(path)
	require.Equal(t, http.StatusSeeOther, b.post(path, url.Values{}).status)
	require.Equal(t, http.StatusNotFound, b.post(path, url.Values{}).status)
	require.Equal(t, http.StatusNotFound, s.browser().get(path).status)
}

// Only the origins that the tenant allows may frame the page, and then cookies work in a frame.
func TestCustomerPageInAFrame(t *testing.T) {
	s := newStack(t)
	_, err := s.store.EditPortal(t.Context(), s.a, tenants.Match{}, func(p *tenants.Portal) error {
		p.FrameOrigins = []string{"https://app.example.com", "https://b.example"}
		return nil
	})
	require.NoError(t, err)
	_, token, err := s.store.CreatePortalLink(t.Context(), s.a, tenants.NewPortalLink{Subject: "ada"})
	require.NoError(t, err)
	b := s.browser()
	path := tenants.PortalLinkPath(token)
	opened := b.get(path)
	require.Contains(t, opened.header.Get("Content-Security-Policy"), "; frame-ancestors https://app.example.com https://b.example")
	used := b.post(path, url.Values{})
	for _, got := range []page{opened, used} {
		cookie := got.header.Get("Set-Cookie")
		for _, part := range []string{"SameSite=None", "Secure", "Partitioned", "HttpOnly", "Path=/portal/"} {
			require.Contains(t, cookie, part)
		}
	}
	require.Contains(t, b.get(used.header.Get("Location")).header.Get("Content-Security-Policy"), "; frame-ancestors https://app.example.com https://b.example")
	other := s.customer(s.b, "ada")
	require.Contains(t, other.get(other.home).header.Get("Content-Security-Policy"), "frame-ancestors 'none'")
}

// Names of subjects, rules, plans and brands are texts, whatever is in them.
func TestHostileCustomerPage(t *testing.T) {
	s := newStack(t)
	hostile := `"><script>alert(1)</script>{{7*7}}` + "\u202e&lt;"
	r := limit.NewRule("r")
	r.Name, r.Limit, r.Window = hostile, 10, limit.Window{Duration: limit.Duration{Text: "1m", MS: 60_000}}
	_, err := s.store.CreateRule(t.Context(), s.a, r)
	require.NoError(t, err)
	for _, slug := range []string{"a", "b"} {
		_, err = s.store.CreatePlan(t.Context(), s.a, tenants.Plan{Slug: slug, Name: slug + hostile, Description: hostile, Limits: map[string]limit.Limit{"r": {Limit: int64(slug[0])}}})
		require.NoError(t, err)
	}
	_, err = s.store.EditPortal(t.Context(), s.a, tenants.Match{}, func(p *tenants.Portal) error {
		p.Brand, p.OfferedPlans = oneLine(hostile), []string{"a", "b"}
		return nil
	})
	require.NoError(t, err)
	s.follow(t.Context())
	ann := s.as("ann@example.com")
	for _, subject := range []string{hostile, "..", ".", "a/b", "../../etc", "%2e%2e", strings.Repeat("\u202e\u05d0", 51), strings.Repeat("x", 256), "?a=b#c", "a b"} {
		b := s.customer(s.a, subject)
		got := b.get(b.home)
		require.Equal(t, http.StatusOK, got.status, subject)
		require.NotContains(t, got.body, "<script>")
		require.Contains(t, got.body, "What plan")
		if strings.Trim(subject, ".") != "" { // no path can have these
			require.Equal(t, http.StatusOK, ann.get(subjectURL(subject)).status, subject)
		}
		sent := b.post(b.home+"/requests", url.Values{"rule": {"r"}, "limit": {"5000"}, "note": {hostile}})
		require.Equal(t, http.StatusSeeOther, sent.status, sent.body)
	}
	list := ann.get("/requests")
	require.Equal(t, http.StatusOK, list.status)
	require.NotContains(t, list.body, "<script>alert")
}

// A page that is loaded in a loop is slowed down, and no other one.
func TestCustomerPageIsBounded(t *testing.T) {
	s := newStack(t)
	b := s.customer(s.a, "ada")
	status := 0
	for range 300 {
		if status = b.get(b.home + "?fragment=limits").status; status != http.StatusOK {
			break
		}
	}
	require.Equal(t, http.StatusTooManyRequests, status)
	other := s.customer(s.a, "eve")
	require.Equal(t, http.StatusOK, other.get(other.home).status)
	s.clock.move(time.Minute)
	require.Equal(t, http.StatusOK, b.get(b.home).status)
}

// Settings are changed by a form with a picture.
func TestCustomerPageSettings(t *testing.T) {
	s := newStack(t)
	s.staff()
	var logo bytes.Buffer
	require.NoError(t, png.Encode(&logo, image.NewRGBA(image.Rect(0, 0, 20, 10))))
	send := func(email string, fields map[string]string, file []byte) page {
		var body bytes.Buffer
		w := multipart.NewWriter(&body)
		for name, value := range fields {
			require.NoError(t, w.WriteField(name, value))
		}
		part, err := w.CreateFormFile("logo", "logo.png")
		require.NoError(t, err)
		_, err = part.Write(file)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		b := s.as(email)
		r := b.request(http.MethodPost, customerPageURL, url.Values{})
		r.Header.Set("Content-Type", w.FormDataContentType())
		r.Body, r.ContentLength = io.NopCloser(&body), int64(body.Len())
		return b.send(r)
	}
	fields := map[string]string{
		"tenant": s.a.TenantID().String(), "brand": "Acme", "own_accent": "on", "accent": "#336699", "requests": "on",
		"frame_origins": "https://app.example.com\r\n", "auto_approve_percent": "50", "auto_approve_for": "1d", "auto_approve_every": "30d",
	}
	saved := send("ann@example.com", fields, logo.Bytes())
	require.Equal(t, customerPageURL, saved.header.Get("Location"), saved.body)
	p, err := s.store.Portal(t.Context(), s.a)
	require.NoError(t, err)
	require.Equal(t, "Acme", p.Brand)
	require.Equal(t, "#336699", p.Accent)
	require.Equal(t, []string{"https://app.example.com"}, p.FrameOrigins)
	require.Equal(t, 50, p.AutoPercent)
	require.NotNil(t, p.Logo)
	require.Equal(t, "image/png", s.as("ann@example.com").get(customerPageURL+"/logo").header.Get("Content-Type"))
	b := s.customer(s.a, "ada")
	require.Contains(t, b.get(b.home).body, `alt="Acme"`)
	require.Equal(t, http.StatusOK, b.get(b.home+"/logo").status)

	refused := send("ann@example.com", fields, []byte("<svg/>"))
	require.Equal(t, http.StatusUnprocessableEntity, refused.status)
	require.Contains(t, refused.body, "Must be a PNG, JPEG or WebP picture")
	fields["frame_origins"] = "https://ok.example\r\nhttp://bad.example"
	require.Contains(t, send("ann@example.com", fields, nil).body, "Line 2 must be an origin")
	require.Equal(t, http.StatusForbidden, send("editor@example.com", fields, nil).status)
	require.Equal(t, http.StatusBadRequest, send("ann@example.com", fields, make([]byte, 500<<10)).status)
}

// Every accent gives readable text.
func TestAccents(t *testing.T) {
	t.Parallel()
	for _, accent := range []string{"#000000", "#ffffff", "#ffee00", "#777777", "#0b6e75", "#ff0000", "#00ff00", "#0000ff", "#808000", "#1a73e8"} {
		p := paletteOf(accent)
		require.GreaterOrEqual(t, contrast(p.Light, lightCanvas), minContrast, accent)
		require.GreaterOrEqual(t, contrast(p.Light, white), minContrast, accent)
		require.GreaterOrEqual(t, contrast(p.Dark, darkCanvas), minContrast, accent)
		require.GreaterOrEqual(t, contrast(p.OnFill, p.Fill), minContrast, accent)
		require.GreaterOrEqual(t, contrast(p.OnFill, p.Hover), minContrast, accent)
	}
	require.Equal(t, "#1a73e8", paletteOf("#1a73e8").Fill.String())
}

// The sentences of the customer page separate where a window begins from what is limited.
func TestPortalWords(t *testing.T) {
	t.Parallel()
	day, err := limit.ParseWindow("day")
	require.NoError(t, err)
	r := limit.NewRule("exports")
	r.Algorithm, r.Limit, r.Window, r.Resource = limit.FixedWindow, 100, day, "exports:*"
	require.Equal(t, "You can use 100 units each day, from midnight UTC, on resources that start with “exports:”.", portalWords(&r, limit.Limit{}, false))
}

// The offered plans are chosen in order, among those that exist.
func TestOfferedPlans(t *testing.T) {
	s := newStack(t)
	for _, slug := range []string{"free", "pro"} {
		_, err := s.store.CreatePlan(t.Context(), s.a, tenants.Plan{Slug: slug, Name: strings.ToUpper(slug)})
		require.NoError(t, err)
	}
	ann := s.as("ann@example.com")
	form := func(plans ...string) url.Values {
		return url.Values{"offered_plans": plans, "requests": {"on"}, "auto_approve_percent": {"0"}, "auto_approve_for": {"1d"}, "auto_approve_every": {"30d"}}
	}
	require.Equal(t, http.StatusSeeOther, ann.write(customerPageURL, form("pro", "", "free")).status)
	portal, err := s.store.Portal(t.Context(), s.a)
	require.NoError(t, err)
	require.Equal(t, []string{"pro", "free"}, portal.OfferedPlans)
	page := ann.get(customerPageURL).body
	require.Equal(t, 2, strings.Count(page, `name="offered_plans"`), "a place for each plan")
	require.Contains(t, page, `name="offered_plans" value="pro"`)
	require.Contains(t, page, `<option value="pro" label="PRO">`)
	for twice, wrong := range map[string]string{"free": "Plan 2 is a duplicate.", "gone": "Plan 2 names no plan of this tenant."} {
		got := ann.write(customerPageURL, form("free", twice))
		require.Equal(t, http.StatusUnprocessableEntity, got.status)
		require.Contains(t, got.body, wrong)
	}
}

// The words for customers have no terms of the tenant's pages, and mention a billing day only to
// those who have one.
func TestWordsForCustomers(t *testing.T) {
	r := limit.NewRule("exports")
	r.Algorithm, r.Limit, r.Window, r.Anchor, r.By = limit.FixedWindow, 100, limit.Window{Calendar: limit.CalendarMonth}, limit.AnchorSubject, []string{"subject"}
	require.Contains(t, portalWords(&r, limit.Limit{}, true), "from your billing day")
	require.Contains(t, portalWords(&r, limit.Limit{}, false), "from the 1st 00:00")
	r.Window.Calendar = limit.CalendarDay
	require.Contains(t, portalWords(&r, limit.Limit{}, true), "from the time of day at which your billing cycle begins")
	for want, l := range map[string]limit.Limit{
		"100 per day, billed by use, more is possible": {Limit: 100, Overage: limit.OverageAllow, Metering: limit.PlanMeterUnits, WarnAt: 5},
		"100 per day, more is billed":                  {Limit: 100, Overage: limit.OverageAllow, Metering: limit.PlanMeterOverage},
		"100 per day, more is possible":                {Limit: 100, Overage: limit.OverageAllow},
		"100 per day":                                  {Limit: 100},
	} {
		require.Equal(t, want, customerLimit(&r, l))
	}
}

// Reasons of events have times and numbers as the rest of the page.
func TestReasonsOfEvents(t *testing.T) {
	text := whyText("it takes effect at 2026-12-02T09:00:00Z; 2000 credits for api; 12 of 3456 credits for 2026; subscription sub_12345")
	require.Equal(t, "it takes effect at 2 Dec 2026, 09:00 UTC; 2,000 credits for api; 12 of 3,456 credits for 2026; subscription sub_12345", inUTC(text))
	require.Equal(t, "2026-99-99T09:00:00Z", whyText("2026-99-99T09:00:00Z"))
}

// oneLine removes what a brand cannot have.
func oneLine(text string) string {
	return strings.Map(func(c rune) rune {
		if unicode.IsControl(c) || unicode.Is(unicode.Bidi_Control, c) {
			return -1
		}
		return c
	}, text)
}
