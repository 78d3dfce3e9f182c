package tenants

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"weir/internal/limit"
	"weir/internal/tenants/db"
)

// Portal has the settings of the customer page, which shows a tenant's own customer their limits.
type Portal struct {
	Brand  string // the tenant's name on the page; "": the name of the tenant
	Accent string // a colour such as #1a73e8; "": that of Weir
	Logo   []byte // a PNG of at most MaxLogoWidth x MaxLogoHeight pixels; nil: none
	// FrameOrigins are the origins whose pages may show the page in a frame, such as
	// https://app.example.com.
	FrameOrigins []string
	// OfferedPlans are the plans that the page may show besides the customer's own, by slug, the
	// smallest first. Plans that were deleted are left out.
	OfferedPlans []string

	Requests bool // customers may request higher limits
	// A request for up to AutoPercent percent more is approved by itself, for AutoFor, if none was
	// in the last AutoEvery. 0: every request waits for a member.
	AutoPercent        int
	AutoFor, AutoEvery limit.Duration

	Version   int64 // 0: the settings were never changed
	UpdatedAt time.Time
}

// DefaultPortal returns the settings of a tenant that has not changed them.
func DefaultPortal() Portal {
	return Portal{
		FrameOrigins: []string{}, OfferedPlans: []string{}, Requests: true,
		AutoFor:   limit.Duration{Text: "1d", MS: 24 * 3_600_000},
		AutoEvery: limit.Duration{Text: "30d", MS: 30 * 24 * 3_600_000},
	}
}

// Limits of the settings.
const (
	MaxBrand        = 80 // characters
	MaxFrameOrigins = 20
	MaxOfferedPlans = 50
	MaxAutoPercent  = 1000
	maxAutoEvery    = 366 * 24 * time.Hour
)

var accentForm = regexp.MustCompile(`^#[0-9a-f]{6}$`)

var (
	notAnAccent = limit.MustBe("a colour of the form #1a73e8")
	notAnOrigin = limit.MustBe("an origin of the form https://app.example.com, or http://localhost with a port")
)

// CleanOrigin returns an origin in the form that browsers compare, and whether it may frame the
// page. Plain HTTP is only for one's own machine.
func CleanOrigin(text string) (string, bool) {
	// Some letters beyond ASCII become letters of ASCII in lower case: the address of another site.
	if strings.ContainsFunc(text, func(c rune) bool { return c > unicode.MaxASCII }) {
		return "", false
	}
	u, err := url.Parse(strings.ToLower(strings.TrimSpace(text)))
	if err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Path != "" && u.Path != "/" || len(text) > 253 {
		return "", false
	}
	host := u.Hostname()
	// No character that could end the directive of the header.
	if host == "" || strings.ContainsFunc(host, func(c rune) bool { return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789.-", c) }) {
		return "", false
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return "", false
		}
	}
	if u.Scheme != "https" && (u.Scheme != "http" || host != "localhost") {
		return "", false
	}
	return u.Scheme + "://" + u.Host, true
}

// clean normalizes the settings and returns their errors. plans reports whether the tenant has a
// plan with that slug.
func (p *Portal) clean(plans func(slug string) bool) (fields []limit.FieldError) {
	add := func(field string, problem *limit.Problem) {
		fields = append(fields, limit.FieldProblem(field, problem))
	}
	p.Brand = strings.TrimSpace(p.Brand)
	checkLine(&fields, "brand", p.Brand, MaxBrand)
	if p.Accent = strings.ToLower(p.Accent); p.Accent != "" && !accentForm.MatchString(p.Accent) {
		add("accent", notAnAccent)
	}
	if len(p.FrameOrigins) > MaxFrameOrigins {
		add("frame_origins", limit.Wrong("Remove some.", "may be at most %d", MaxFrameOrigins))
		p.FrameOrigins = p.FrameOrigins[:MaxFrameOrigins] // the work grows with the square of the length
	}
	origins := make([]string, len(p.FrameOrigins))
	for i, origin := range p.FrameOrigins {
		at := "frame_origins." + strconv.Itoa(i)
		clean, ok := CleanOrigin(origin)
		switch {
		case !ok:
			add(at, notAnOrigin)
		case slices.Contains(origins[:i], clean):
			add(at, limit.Duplicate)
		}
		origins[i] = clean
	}
	p.FrameOrigins = origins
	if len(p.OfferedPlans) > MaxOfferedPlans {
		add("offered_plans", limit.Wrong("Remove some.", "may be at most %d", MaxOfferedPlans))
		p.OfferedPlans = p.OfferedPlans[:MaxOfferedPlans]
	}
	for i, slug := range p.OfferedPlans {
		at := "offered_plans." + strconv.Itoa(i)
		switch {
		case !plans(slug):
			add(at, noSuchPlan)
		case slices.Contains(p.OfferedPlans[:i], slug):
			add(at, limit.Duplicate)
		}
	}
	if p.OfferedPlans == nil {
		p.OfferedPlans = []string{}
	}
	if p.AutoPercent < 0 || p.AutoPercent > MaxAutoPercent {
		add("auto_approve_percent", limit.MustBe("from 0 to %d", MaxAutoPercent))
	}
	checkLength(&fields, "auto_approve_for", &p.AutoFor, MaxBoost)
	checkLength(&fields, "auto_approve_every", &p.AutoEvery, maxAutoEvery)
	return fields
}

// checkLength parses the text of a duration of an hour at least.
func checkLength(fields *[]limit.FieldError, field string, d *limit.Duration, most time.Duration) {
	parsed, err := limit.ParseDuration(d.Text)
	if err != nil || parsed.MS < time.Hour.Milliseconds() || parsed.MS > most.Milliseconds() {
		*fields = append(*fields, limit.FieldProblem(field, limit.MustBe("a duration from 1h to %dd, such as 1d", int(most/(24*time.Hour)))))
		return
	}
	*d = parsed
}

// Portal returns the settings of the customer page.
func (s *Store) Portal(ctx context.Context, a Actor) (out Portal, err error) {
	err = s.read(ctx, a, func(ctx context.Context, _ pgx.Tx, q *db.Queries) error {
		out, err = readPortal(ctx, q, a.tenant)
		return err
	})
	return out, err
}

func readPortal(ctx context.Context, q *db.Queries, tenant uuid.UUID) (Portal, error) {
	row, err := q.Portal(ctx, tenant)
	if errors.Is(err, pgx.ErrNoRows) {
		return DefaultPortal(), nil
	}
	if err != nil {
		return Portal{}, err
	}
	out := portalOf(row)
	if len(out.OfferedPlans) == 0 {
		return out, nil
	}
	plans, err := q.DocumentPlans(ctx, tenant)
	out.OfferedPlans = slices.DeleteFunc(out.OfferedPlans, func(slug string) bool {
		return !slices.ContainsFunc(plans, func(p db.Plan) bool { return p.Slug == slug })
	})
	return out, err
}

func portalOf(row db.Portal) Portal {
	return Portal{
		Brand: row.Brand, Accent: row.Accent, Logo: row.Logo, FrameOrigins: row.FrameOrigins, OfferedPlans: row.OfferedPlans,
		Requests: row.Requests, AutoPercent: int(row.AutoPercent),
		AutoFor:   limit.Duration{Text: row.AutoForText, MS: row.AutoForMs},
		AutoEvery: limit.Duration{Text: row.AutoEveryText, MS: row.AutoEveryMs},
		Version:   row.Version, UpdatedAt: row.UpdatedAt,
	}
}

// EditPortal calls edit to change the settings of the customer page; an error of edit is returned
// unchanged and nothing changes. It is called again if it sets a new logo, which may be any picture
// that CleanLogo accepts. Errors: ErrPreconditionFailed, *InvalidError, ErrTooManyLogos.
func (s *Store) EditPortal(ctx context.Context, a Actor, m Match, edit func(*Portal) error) (out Portal, err error) {
	err = s.withLogo(ctx, a, func(logo *preparedLogo) error {
		out, err = s.editPortal(ctx, a, m, logo, edit)
		return err
	})
	return out, err
}

func (s *Store) editPortal(ctx context.Context, a Actor, m Match, logo *preparedLogo, edit func(*Portal) error) (out Portal, err error) {
	err = s.change(ctx, a, MayConfigure, func(ctx context.Context, c *change) error {
		old, err := readPortal(ctx, c.Queries, c.tenant)
		if err != nil {
			return err
		}
		if err := m.check(old.Version); err != nil {
			return err
		}
		now := old
		now.FrameOrigins, now.OfferedPlans = slices.Clone(old.FrameOrigins), slices.Clone(old.OfferedPlans)
		if err := edit(&now); err != nil {
			return err
		}
		plans, err := c.DocumentPlans(ctx, c.tenant)
		if err != nil {
			return err
		}
		fields := now.clean(func(slug string) bool {
			return slices.ContainsFunc(plans, func(p db.Plan) bool { return p.Slug == slug })
		})
		wrong, err := now.cleanLogo(&old, logo)
		if err != nil {
			return err
		}
		if err := invalidIf(append(fields, wrong...)); err != nil {
			return err
		}
		if now.same(&old) {
			out = old
			return nil
		}
		version, err := c.next(ctx, parts{itself: true})
		if err != nil {
			return err
		}
		out, err = c.writePortal(ctx, now, version)
		return err
	})
	return out, err
}

// cleanLogo replaces a new logo by the picture that is stored for it. If it was not prepared, the
// error is unpreparedLogo.
func (p *Portal) cleanLogo(old *Portal, prepared *preparedLogo) ([]limit.FieldError, error) {
	switch {
	case len(p.Logo) == 0:
		p.Logo = nil
	case bytes.Equal(p.Logo, old.Logo): // not encoded again, so that an unchanged document changes nothing
	case !bytes.Equal(p.Logo, prepared.file):
		return nil, unpreparedLogo{p.Logo}
	case prepared.problem != nil:
		return []limit.FieldError{limit.FieldProblem("logo", prepared.problem)}, nil
	default:
		p.Logo = prepared.logo
	}
	return nil, nil
}

// same reports whether writing p in place of old would change nothing.
func (p *Portal) same(old *Portal) bool {
	return p.Brand == old.Brand && p.Accent == old.Accent && bytes.Equal(p.Logo, old.Logo) &&
		slices.Equal(p.FrameOrigins, old.FrameOrigins) && slices.Equal(p.OfferedPlans, old.OfferedPlans) &&
		p.Requests == old.Requests && p.AutoPercent == old.AutoPercent && p.AutoFor == old.AutoFor && p.AutoEvery == old.AutoEvery
}

// portalFields are the settings in a list of changes, with the logo by its hash.
func portalFields(p *Portal) []field {
	logo := any(nil)
	if p.Logo != nil {
		logo = LogoHash(p.Logo)
	}
	return []field{
		{"brand", textOrNil(p.Brand)}, {"accent", textOrNil(p.Accent)}, {"logo", logo}, {"frame_origins", p.FrameOrigins},
		{"offered_plans", p.OfferedPlans}, {"requests", p.Requests}, {"auto_approve_percent", p.AutoPercent},
		{"auto_approve_for", p.AutoFor.Text}, {"auto_approve_every", p.AutoEvery.Text},
	}
}

// LogoHash returns the SHA-256 of a logo in hexadecimal, which names it.
func LogoHash(logo []byte) string {
	sum := sha256.Sum256(logo)
	return hex.EncodeToString(sum[:])
}

func (c *change) writePortal(ctx context.Context, p Portal, version int64) (Portal, error) {
	row, err := c.UpsertPortal(ctx, db.UpsertPortalParams{
		TenantID: c.tenant, Brand: p.Brand, Accent: p.Accent, Logo: p.Logo, FrameOrigins: p.FrameOrigins,
		OfferedPlans: p.OfferedPlans, Requests: p.Requests, AutoPercent: int32(p.AutoPercent), // validated
		AutoForText: p.AutoFor.Text, AutoForMs: p.AutoFor.MS, AutoEveryText: p.AutoEvery.Text, AutoEveryMs: p.AutoEvery.MS,
		Version: version,
	})
	if err != nil {
		return Portal{}, fmt.Errorf("write the settings of the customer page: %w", err)
	}
	return portalOf(row), nil
}
