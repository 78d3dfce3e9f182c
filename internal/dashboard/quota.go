package dashboard

import (
	"context"
	"time"

	"github.com/google/uuid"

	"weir/internal/check"
	"weir/internal/tenants"
)

// quotaLine is a tenant's usage of one of its quotas.
type quotaLine struct {
	Name, Used, Share, Resets, Forecast string
	Permille                            int64 // at most 1000
	Tone                                string
}

const nearQuota, fullQuota = 800, 1000 // permille

// quotasOf returns the tenant's usage of the quotas that its tier or the operator set, or nothing
// while counters are unavailable.
func (d *dashboard) quotasOf(ctx context.Context, slug string, now time.Time) (lines []quotaLine) {
	if d.Platform == uuid.Nil || slug == tenants.PlatformSlug {
		return nil
	}
	platform, err := d.Policies.Get(ctx, d.Platform)
	if err != nil {
		return nil // the page is about something else
	}
	for _, u := range d.Checker.Quotas(ctx, platform, slug) {
		if u.Limit == noQuota { // it limits another tenant
			continue
		}
		lines = append(lines, quotaLineOf(&u, now))
	}
	return lines
}

func quotaLineOf(u *check.QuotaUse, now time.Time) quotaLine {
	permille := min(int64(float64(u.Used)/float64(u.Limit)*1000), fullQuota)
	line := quotaLine{
		Name: nameOr(u.Rule.Name, u.Rule.Slug), Used: grouped(u.Used) + " of " + grouped(u.Limit) + " checks used",
		Share: grouped(permille/10) + " %", Permille: permille, Resets: "Resets on " + dayText(u.WindowEnd, now) + ".",
	}
	at, runsOut := u.RunsOut()
	switch {
	case permille >= fullQuota && u.FailOpen:
		line.Forecast, line.Tone = "The quota is used up. The tier lets further checks pass.", "warn"
	case permille >= fullQuota:
		line.Forecast, line.Tone = "The quota is used up.", "bad"
	case runsOut:
		line.Forecast, line.Tone = "At the current rate it runs out on "+dayText(at, now)+".", "warn"
	case u.Used == 0:
		line.Forecast = "No checks in this window."
	default:
		line.Forecast = "At the current rate it lasts until it resets."
	}
	if permille >= nearQuota && line.Tone == "" {
		line.Tone = "warn"
	}
	return line
}

// dayText returns a date, with a time for the current day.
func dayText(at, now time.Time) string {
	if at.Sub(now) < 24*time.Hour {
		return at.UTC().Format("2 January 15:04 UTC")
	}
	return at.UTC().Format("2 January 2006")
}

// quotaNotices returns notices about the used shares of the tenant's quotas, only the greatest one
// of each quota and window.
func (d *dashboard) quotaNotices(ctx context.Context, v *visit) ([]string, error) {
	notices, err := d.Store.QuotaNotices(ctx, v.actor())
	if err != nil || len(notices) == 0 {
		return nil, err
	}
	names := d.ruleNames(ctx, d.Platform)
	type window struct {
		rule string
		end  time.Time
	}
	greatest := map[window]int{}
	for _, n := range notices {
		key := window{n.Rule, n.WindowEnd}
		greatest[key] = max(greatest[key], n.Percent)
	}
	var texts []string
	for _, n := range notices {
		key := window{n.Rule, n.WindowEnd}
		if greatest[key] != n.Percent {
			continue
		}
		texts = append(texts, grouped(int64(n.Percent))+" % of the quota "+names.Of(n.Rule)+" ("+grouped(n.Quota)+
			" checks) is used. It resets on "+dayText(n.WindowEnd, v.now)+".")
	}
	return texts, nil
}
