package tenants_test

import (
	"bytes"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"weir/internal/limit"
	"weir/internal/tenants"
	"weir/internal/tenants/tenantstest"
)

// picture returns a picture of this size.
func picture(t *testing.T, wide, high int, encode func(*bytes.Buffer, image.Image) error) []byte {
	t.Helper()
	m := image.NewRGBA(image.Rect(0, 0, wide, high))
	for x := range wide {
		m.Set(x, 0, color.RGBA{uint8(x), 100, 200, 255})
	}
	var b bytes.Buffer
	require.NoError(t, encode(&b, m))
	return b.Bytes()
}

func asPNG(b *bytes.Buffer, m image.Image) error  { return png.Encode(b, m) }
func asJPEG(b *bytes.Buffer, m image.Image) error { return jpeg.Encode(b, m, nil) }

// A logo is pixels only, of a bounded size: whatever else a file says must not reach a customer.
func TestCleanLogo(t *testing.T) {
	t.Parallel()
	for name, file := range map[string][]byte{"png": picture(t, 1000, 50, asPNG), "jpeg": picture(t, 50, 1000, asJPEG), "small": picture(t, 8, 8, asPNG)} {
		out, problem := tenants.CleanLogo(append(file, "<script>alert(1)</script>"...))
		require.Nil(t, problem, name)
		require.NotContains(t, string(out), "script", name)
		config, format, err := image.DecodeConfig(bytes.NewReader(out))
		require.NoError(t, err)
		require.Equal(t, "png", format)
		require.LessOrEqual(t, config.Width, tenants.MaxLogoWidth)
		require.LessOrEqual(t, config.Height, tenants.MaxLogoHeight)
		again, problem := tenants.CleanLogo(out)
		require.Nil(t, problem)
		require.Equal(t, out, again, "%s: the stored picture is its own result", name)
	}
	// A few bytes that claim to be an enormous picture.
	bomb := picture(t, 2, 2, asPNG)
	copy(bomb[16:], []byte{0, 1, 0, 0, 0, 1, 0, 0})
	for name, file := range map[string][]byte{
		"empty": {}, "text": []byte("hello"), "svg": []byte(`<svg xmlns="http://www.w3.org/2000/svg"/>`), "large": make([]byte, tenants.MaxLogoBytes+1),
		"wide": picture(t, 2049, 1, asPNG), "cut off": picture(t, 100, 100, asPNG)[:60], "bomb": bomb, "gif": []byte("GIF89a\x01\x00\x01\x00\x00\x00\x00;"),
	} {
		_, problem := tenants.CleanLogo(file)
		require.NotNil(t, problem, name)
	}
}

// What a tenant allows becomes a header, so nothing in it may end the directive.
func TestCleanOrigin(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"https://app.example.com": "https://app.example.com", "HTTPS://App.Example.com/": "https://app.example.com", "https://a.example:8443": "https://a.example:8443",
		"http://localhost:3000":  "http://localhost:3000",
		"http://app.example.com": "", "https://*.example.com": "", "*": "", "https://a.example; script-src *": "", "https://a.example/path": "", "https://u:p@a.example": "",
		"https://a.example?x": "", "https://a.example#x": "", "javascript:alert(1)": "", "https://": "", "https://a.example:0": "", "https://a.example:99999": "",
		"https://b\u00fccher.example": "", "https://g\u0130thub.com": "", "https://boo\u212a.example": "", "https://a.example/\u00a0": "", "https://a.example\nx": "", "https://[::1]": "", "data:text/html,x": "", "'self'": "", "": "",
	} {
		got, ok := tenants.CleanOrigin(in)
		require.Equal(t, want != "", ok, in)
		require.Equal(t, want, got, in)
	}
}

func TestPortalSettings(t *testing.T) {
	t.Parallel()
	d, a, b := two(t)
	s, ctx := d.Store, t.Context()
	fresh, err := s.Portal(ctx, a)
	require.NoError(t, err)
	require.Equal(t, tenants.DefaultPortal(), fresh)
	for _, plan := range []string{"free", "pro"} {
		mustPlan(t, s, a, plan)
	}
	changed, err := s.EditPortal(ctx, a, tenants.Match{}, func(p *tenants.Portal) error {
		p.Brand, p.Accent, p.Logo = " Acme ", "#1A73E8", picture(t, 8, 8, asPNG)
		p.FrameOrigins, p.OfferedPlans = []string{"https://App.example.com/"}, []string{"free", "pro"}
		p.AutoPercent, p.AutoFor.Text = 50, "4h"
		return nil
	})
	require.NoError(t, err)
	require.Equal(t, "Acme", changed.Brand)
	require.Equal(t, "#1a73e8", changed.Accent)
	require.Equal(t, []string{"https://app.example.com"}, changed.FrameOrigins)
	require.Equal(t, int64(4*3_600_000), changed.AutoFor.MS)
	read, err := s.Portal(ctx, a)
	require.NoError(t, err)
	require.Equal(t, changed, read)
	same, err := s.EditPortal(ctx, a, tenants.Match{Versions: []int64{read.Version}}, func(*tenants.Portal) error { return nil })
	require.NoError(t, err)
	require.Equal(t, read.Version, same.Version, "nothing changed")
	_, err = s.EditPortal(ctx, a, tenants.Match{Versions: []int64{read.Version + 1}}, func(*tenants.Portal) error { return nil })
	require.ErrorIs(t, err, tenants.ErrPreconditionFailed)
	theirs, err := s.Portal(ctx, b)
	require.NoError(t, err)
	require.Equal(t, tenants.DefaultPortal(), theirs)

	// The document has the same settings, and applying it changes nothing.
	document, _, err := s.Document(ctx, a, false)
	require.NoError(t, err)
	require.Equal(t, read, *document.Portal)
	applied, err := s.ApplyDocument(ctx, a, tenants.Document{EditPortal: func(p *tenants.Portal) { p.Logo = document.Portal.Logo }}, tenants.Apply{})
	require.NoError(t, err)
	require.Empty(t, applied.Changes)
	applied, err = s.ApplyDocument(ctx, a, tenants.Document{EditPortal: func(p *tenants.Portal) { p.Brand = "New" }}, tenants.Apply{})
	require.NoError(t, err)
	require.Len(t, applied.Changes, 1)
	editor := asMember(t, d, a, "editor@example.com", tenants.Editor)
	_, err = s.ApplyDocument(ctx, editor, tenants.Document{EditPortal: func(p *tenants.Portal) { p.Brand = "Other" }}, tenants.Apply{})
	require.ErrorIs(t, err, tenants.ErrForbidden)

	require.NoError(t, s.DeletePlan(ctx, a, "pro", tenants.Match{}))
	read, err = s.Portal(ctx, a)
	require.NoError(t, err)
	require.Equal(t, []string{"free"}, read.OfferedPlans, "a deleted plan is not offered")
	rows, _, err := s.Audit(ctx, a, tenants.AuditFilter{Kind: "portal"}, tenants.Page{})
	require.NoError(t, err)
	require.Len(t, rows, 2)
	require.NotContains(t, string(rows[1].After), "iVBOR", "no picture in the trail")
}

// visitOf follows a new link to the page of a subject.
func visitOf(t *testing.T, s *tenants.Store, a tenants.Actor, subject string) tenants.PortalVisit {
	t.Helper()
	_, token, err := s.CreatePortalLink(t.Context(), a, tenants.NewPortalLink{Subject: subject, SingleUse: true})
	require.NoError(t, err)
	id, secret, err := s.FollowPortalLink(t.Context(), token)
	require.NoError(t, err)
	visit, err := s.PortalVisit(t.Context(), id, secret, nil)
	require.NoError(t, err)
	require.Equal(t, subject, visit.Subject)
	require.Equal(t, a.TenantID(), visit.Tenant)
	return visit
}

func clocked(t *testing.T) (*tenantstest.Database, tenants.Actor, func(time.Duration)) {
	t.Helper()
	var mu sync.Mutex
	now := time.Now()
	d := tenantstest.NewWith(t, tenants.Config{Now: func() time.Time { mu.Lock(); defer mu.Unlock(); return now }})
	a, _ := d.Tenant("tenant-a")
	return d, a, func(by time.Duration) { mu.Lock(); defer mu.Unlock(); now = now.Add(by) }
}

// A link for one use works once, even for two at the same time; every link and every page ends.
func TestPortalLinks(t *testing.T) {
	t.Parallel()
	d, a, later := clocked(t)
	s, ctx := d.Store, t.Context()
	_, token, err := s.CreatePortalLink(ctx, a, tenants.NewPortalLink{Subject: "ada/../x", SingleUse: true})
	require.NoError(t, err)
	var wins sync.WaitGroup
	results := make([]error, 8)
	for i := range results {
		wins.Go(func() { _, _, results[i] = s.FollowPortalLink(ctx, token) })
	}
	wins.Wait()
	won := 0
	for _, err := range results {
		if err == nil {
			won++
		} else {
			require.ErrorIs(t, err, tenants.ErrNotFound)
		}
	}
	require.Equal(t, 1, won)
	for _, wrong := range []string{"", "x", token + "A", token[:len(token)-1] + "!", strings.Repeat("A", 43)} {
		_, _, err := s.FollowPortalLink(ctx, wrong)
		require.ErrorIs(t, err, tenants.ErrNotFound)
	}

	// A page that is open.
	link, token, err := s.CreatePortalLink(ctx, a, tenants.NewPortalLink{Subject: "ada"})
	require.NoError(t, err)
	id, secret, err := s.FollowPortalLink(ctx, token)
	require.NoError(t, err)
	other, otherSecret, err := s.FollowPortalLink(ctx, token)
	require.NoError(t, err, "it is not for one use")
	_, err = s.PortalVisit(ctx, id, otherSecret, nil)
	require.ErrorIs(t, err, tenants.ErrNotFound, "the secret of another visit")
	_, err = s.PortalVisit(ctx, other, otherSecret, nil)
	require.NoError(t, err)
	require.NoError(t, s.DeletePortalLink(ctx, a, "ada", link.ID, tenants.Match{}))
	require.ErrorIs(t, s.DeletePortalLink(ctx, a, "ada", link.ID, tenants.Match{}), tenants.ErrNotFound)
	_, err = s.PortalVisit(ctx, id, secret, nil)
	require.ErrorIs(t, err, tenants.ErrNotFound, "revoked")

	_, token, err = s.CreatePortalLink(ctx, a, tenants.NewPortalLink{Subject: "ada"})
	require.NoError(t, err)
	id, secret, err = s.FollowPortalLink(ctx, token)
	require.NoError(t, err)
	later(tenants.DefaultLinkLife)
	_, _, err = s.FollowPortalLink(ctx, token)
	require.ErrorIs(t, err, tenants.ErrNotFound, "expired")
	_, err = s.PortalVisit(ctx, id, secret, nil)
	require.NoError(t, err, "the page stays open")
	links, _, err := s.PortalLinks(ctx, a, "ada", tenants.Page{})
	require.NoError(t, err)
	require.Len(t, links, 1)
	later(tenants.PortalSessionLife)
	_, err = s.PortalVisit(ctx, id, secret, nil)
	require.ErrorIs(t, err, tenants.ErrNotFound)
	require.NoError(t, s.Purge(ctx))
	links, _, err = s.PortalLinks(ctx, a, "ada", tenants.Page{})
	require.NoError(t, err)
	require.Empty(t, links)

	for _, life := range []time.Duration{time.Second, 31 * 24 * time.Hour} {
		_, _, err = s.CreatePortalLink(ctx, a, tenants.NewPortalLink{Subject: "ada", Life: life})
		require.Error(t, err)
	}
	_, _, err = s.CreatePortalLink(ctx, a, tenants.NewPortalLink{Subject: strings.Repeat("x", 257)})
	require.Error(t, err)
}

// A request is approved by itself only within the settings, and otherwise waits for a member.
func TestLimitRequests(t *testing.T) {
	t.Parallel()
	d, a, later := clocked(t)
	s, ctx := d.Store, t.Context()
	for _, slug := range []string{"one", "two", "three"} {
		mustRule(t, s, a, rule(slug))
	}
	visit := visitOf(t, s, a, "ada")
	ask := func(rule string, had, asked int64) (tenants.LimitRequest, error) {
		q, _, err := s.RequestLimit(ctx, &visit, tenants.NewLimitRequest{Rule: rule, Had: limit.Limit{Limit: had}, Asked: asked, Note: "busy"})
		return q, err
	}
	open, err := ask("one", 10, 20)
	require.NoError(t, err)
	require.Equal(t, tenants.RequestOpen, open.State)
	var conflict *tenants.ConflictError
	_, err = ask("one", 10, 30)
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, tenants.CodeRequestOpen, conflict.Code)
	var invalid *tenants.InvalidError
	_, err = ask("two", 10, 10)
	require.ErrorAs(t, err, &invalid)
	_, err = ask("none", 10, 20)
	require.ErrorIs(t, err, tenants.ErrNotFound)

	for _, none := range []tenants.Approval{{Limit: new(int64(0))}, {Limit: new(int64(-1))}, {Burst: new(int64(0))}} {
		none.For = 24 * time.Hour
		_, err = s.ApproveLimitRequest(ctx, a, open.ID, none)
		require.ErrorAs(t, err, &invalid, "nothing is granted")
		require.Equal(t, "must be 1 or more", invalid.Fields[0].Message)
	}
	done, err := s.ApproveLimitRequest(ctx, a, open.ID, tenants.Approval{For: 24 * time.Hour, Answer: "Gladly."})
	require.NoError(t, err)
	require.Equal(t, int64(20), done.Granted)
	_, err = s.RefuseLimitRequest(ctx, a, open.ID, "")
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, tenants.CodeRequestSettled, conflict.Code)
	subject, err := s.SubjectByName(ctx, a, "ada")
	require.NoError(t, err)
	require.Equal(t, int64(20), subject.Overrides[0].Limit.Limit)
	require.NotNil(t, subject.Overrides[0].ExpiresAt)

	_, err = s.EditPortal(ctx, a, tenants.Match{}, func(p *tenants.Portal) error {
		p.AutoPercent, p.AutoFor.Text, p.AutoEvery.Text = 50, "1h", "7d"
		return nil
	})
	require.NoError(t, err)
	q, err := ask("two", 100, 150)
	require.NoError(t, err)
	require.True(t, q.Automatic)
	require.Equal(t, tenants.RequestApproved, q.State)
	later(2 * time.Hour) // the override has ended
	q, err = ask("two", 100, 150)
	require.NoError(t, err)
	require.Equal(t, tenants.RequestOpen, q.State, "once in 7 days")
	q, err = ask("three", 100, 160)
	require.NoError(t, err)
	require.Equal(t, tenants.RequestOpen, q.State, "more than 50 %")
	q, err = ask("one", 20, 21)
	require.NoError(t, err)
	require.Equal(t, tenants.RequestOpen, q.State, "a member has set an override")
	_, err = s.RefuseLimitRequest(ctx, a, q.ID, "No.")
	require.NoError(t, err)
	_, err = ask("one", 20, 21)
	require.ErrorAs(t, err, &conflict, "5 in 24 hours")
	n, err := s.OpenLimitRequests(ctx, a)
	require.NoError(t, err)
	require.Equal(t, int64(2), n)

	rows, _, err := s.Audit(ctx, a, tenants.AuditFilter{Kind: "limit_request", Action: "create"}, tenants.Page{})
	require.NoError(t, err)
	require.Equal(t, "customer", rows[0].ActorKind)
	require.Equal(t, "ada", rows[0].ActorName)

	later(24 * time.Hour)
	_, err = s.EditPortal(ctx, a, tenants.Match{}, func(p *tenants.Portal) error { p.Requests = false; return nil })
	require.NoError(t, err)
	fresh := visitOf(t, s, a, "bob")
	_, _, err = s.RequestLimit(ctx, &fresh, tenants.NewLimitRequest{Rule: "one", Had: limit.Limit{Limit: 10}, Asked: 11})
	require.ErrorAs(t, err, &conflict)
	require.Equal(t, tenants.CodeRequestsOff, conflict.Code)

	// A customer may do nothing else.
	_, _, err = s.PutOverride(ctx, fresh.Actor(), "bob", tenants.Override{Rule: "one", Limit: limit.Limit{Limit: 99}}, tenants.Match{})
	require.ErrorIs(t, err, tenants.ErrForbidden)
	_, err = s.ApproveLimitRequest(ctx, fresh.Actor(), q.ID, tenants.Approval{For: time.Hour})
	require.ErrorIs(t, err, tenants.ErrForbidden)
}
