package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/google/uuid"

	"weir/internal/check"
	"weir/internal/tenants"
	"weir/internal/usage"
)

// stream is one kind of generated traffic.
type stream struct {
	resource, plan string
	rules          []string
	denying        string  // the rule that denies; "" for none
	shadow         string  // the rule in shadow mode that would have denied
	perMinute      float64 // checks at the busiest time of a working day
	denied         float64 // their share
}

func demoStreams() []stream {
	return []stream{
		{resource: "orders:create", plan: "free", rules: []string{"api-requests", "order-bursts"}, denying: "order-bursts", perMinute: 14, denied: 0.05},
		{resource: "orders:create", plan: "pro", rules: []string{"api-requests", "order-bursts"}, denying: "order-bursts", perMinute: 52, denied: 0.012},
		{resource: "orders:create", plan: "enterprise", rules: []string{"api-requests", "order-bursts"}, perMinute: 120},
		{resource: "search:products", plan: "free", rules: []string{"api-requests", "search"}, denying: "api-requests", shadow: "search", perMinute: 38, denied: 0.07},
		{resource: "search:products", plan: "pro", rules: []string{"api-requests", "search"}, shadow: "search", perMinute: 61},
		{resource: "auth:login", plan: "free", rules: []string{"api-requests", "login-attempts"}, denying: "login-attempts", perMinute: 9, denied: 0.16},
		{resource: "exports:weekly", plan: "pro", rules: []string{"api-requests", "exports"}, denying: "exports", perMinute: 1.5, denied: 0.09},
		{resource: "mails:send", plan: "pro", rules: []string{"api-requests", "mails"}, perMinute: 18},
	}
}

// seedHistory writes generated usage up to now, so that the pages of the demo have typical content:
// a working week, quiet nights, and an afternoon on which a customer's program retried without
// waiting.
func seedHistory(ctx context.Context, store *tenants.Store, tenant uuid.UUID, now time.Time) error {
	h := history{tenant: tenant, random: rand.New(rand.NewPCG(1, 2)), trouble: now.Add(-27 * time.Hour)}
	now = now.UTC().Truncate(time.Minute)
	const day = 24 * time.Hour
	h.fill(usage.Day, now.Truncate(day).Add(-60*day), now.Truncate(day).Add(-15*day), day)
	h.fill(usage.Hour, now.Truncate(day).Add(-15*day), now.Truncate(time.Hour).Add(-47*time.Hour), time.Hour)
	// Charts of the last days have bars of 15 minutes or more. Charts of the last hours, and their
	// previous period, have bars of a minute. The preview of a rule replays the last three hours.
	const quarter = 15 * time.Minute
	lastHours, yesterday := now.Add(-3*time.Hour).Truncate(quarter), now.Add(-2*time.Hour).Truncate(quarter).Add(-day)
	h.fill(usage.Minute, now.Truncate(time.Hour).Add(-47*time.Hour), yesterday, quarter)
	h.fill(usage.Minute, yesterday, now.Add(quarter-day).Truncate(quarter), time.Minute)
	h.fill(usage.Minute, now.Add(quarter-day).Truncate(quarter), lastHours, quarter)
	h.detailed = lastHours
	h.fill(usage.Minute, lastHours, now, time.Minute)
	writer, err := uuid.NewV7()
	if err != nil {
		return err
	}
	for last := false; !last; {
		id, err := uuid.NewV7()
		if err != nil {
			return err
		}
		batch := usage.Batch{Writer: writer, ID: id, CompleteUntil: now}
		batch.Rows, h.rows = cutAt(h.rows, historyBatch)
		batch.Subjects, h.subjects = cutAt(h.subjects, historyBatch)
		last = len(h.rows) == 0 && len(h.subjects) == 0
		batch.Last = last
		if err := store.WriteUsage(ctx, &batch); err != nil {
			return fmt.Errorf("usage: %w", err)
		}
	}
	return nil
}

// historyBatch is how many rows seedHistory writes at once: a write is limited to some seconds, and
// the whole history takes longer on a busy machine.
const historyBatch = 2000

// cutAt returns the first n elements of a slice, and the others.
func cutAt[T any](all []T, n int) (first, others []T) {
	n = min(n, len(all))
	return all[:n], all[n:]
}

type history struct {
	tenant   uuid.UUID
	random   *rand.Rand // has a fixed seed, so that the demo is the same on every machine
	trouble  time.Time  // the middle of the bad afternoon
	detailed time.Time  // from then on, each minute has its busiest subjects; zero: none has
	rows     []usage.Row
	subjects []usage.Subjects
}

// fill writes the decisions between two instants, one step at a time. Each step is stored in its
// first period of the grain.
func (h *history) fill(grain usage.Grain, from, to time.Time, step time.Duration) {
	for at := from; at.Before(to); at = at.Add(step) {
		all := usage.Counts{}
		for _, s := range demoStreams() {
			all.Add(h.stream(grain, at, min(step, to.Sub(at)), &s))
		}
		if grain != usage.Minute || step > time.Minute || at.Minute()%5 == 0 || !h.detailed.IsZero() {
			h.busiest(grain, at, all)
		}
	}
}

func (h *history) stream(grain usage.Grain, at time.Time, step time.Duration, s *stream) usage.Counts {
	mean := s.perMinute * step.Minutes() * h.busy(at, step)
	checks := max(0, math.Round(mean+math.Sqrt(mean)*h.random.NormFloat64()))
	share := s.denied * (0.6 + 0.8*h.random.Float64())
	if s.resource == "search:products" && s.plan == "free" {
		// The program that retries without waiting.
		away := at.Add(step / 2).Sub(h.trouble).Hours()
		extra := checks * 2.2 * math.Exp(-away*away)
		share = (share*checks + 0.85*extra) / max(1, checks+extra)
		checks = math.Round(checks + extra)
	}
	denied := int64(math.Round(checks * share))
	total := counts(int64(checks)-denied, denied)
	if s.shadow != "" {
		total.ShadowDenied = int64(checks * 0.015)
	}
	row := func(rule string, c usage.Counts) {
		h.rows = append(h.rows, usage.Row{
			Key:    usage.Key{Tenant: h.tenant, StartMS: at.UnixMilli(), Grain: grain, Rule: rule, Plan: s.plan, Resource: s.resource},
			Counts: c,
		})
	}
	row("", total)
	for _, rule := range s.rules {
		own := counts(int64(checks), 0)
		switch rule {
		case s.denying:
			own = counts(total.Allowed, total.Denied)
		case s.shadow:
			own.ShadowDenied = total.ShadowDenied
		}
		row(rule, own)
	}
	return total
}

// counts returns the counts of checks with cost 1.
func counts(allowed, denied int64) usage.Counts {
	return usage.Counts{Allowed: allowed, Denied: denied, CostAllowed: allowed, CostDenied: denied}
}

// busy returns the traffic as a share of the maximum: lowest at four in the morning, lower at
// weekends, and growing a little each week.
func (h *history) busy(at time.Time, step time.Duration) float64 {
	busy := 0.55
	if step < 24*time.Hour {
		hour := float64(at.Hour()) + float64(at.Minute())/60
		busy = 0.55 + 0.42*math.Cos((hour-15)/24*2*math.Pi)
	}
	if weekday := at.Weekday(); weekday == time.Saturday || weekday == time.Sunday {
		busy *= 0.62
	}
	return busy * math.Exp(at.Sub(h.trouble).Hours()/24/200)
}

// busiest writes the subjects with the most checks, and those with the most denials.
func (h *history) busiest(grain usage.Grain, at time.Time, all usage.Counts) {
	top := usage.TopSubjects{}
	left := float64(all.Allowed)
	for _, subject := range demoSubjects() {
		if subject.State == check.Blocked {
			continue
		}
		of := int64(left * 0.22)
		left -= float64(of)
		top.Checks = append(top.Checks, usage.Subject{Subject: subject.Subject, Counts: counts(of, 0)})
	}
	denied := float64(all.Denied)
	for i, subject := range []string{"globex", "203.0.113.9", "initech", "scraper"} {
		of := int64(denied*[]float64{0.46, 0.2, 0.12, 0.08}[i] + h.random.Float64())
		top.Denied = append(top.Denied, usage.Subject{Subject: subject, Counts: counts(0, of)})
		for n := range top.Checks {
			if top.Checks[n].Subject == subject {
				top.Checks[n].Denied, top.Checks[n].CostDenied = of, of
			}
		}
	}
	h.subjects = append(h.subjects, usage.Subjects{Tenant: h.tenant, StartMS: at.UnixMilli(), Grain: grain, TopSubjects: top})
}

// demoChecks are equal checks of one of the demo's customers.
type demoChecks struct {
	times             int
	subject, resource string
	cost              int64
	ip                string
}

// demoTraffic returns checks after which pages about the present show subjects near a limit and
// recent denials.
func demoTraffic() []demoChecks {
	return []demoChecks{
		{4, "acme", "orders:create", 3, "198.51.100.20"},
		{3, "initech", "search:products", 300, "198.51.100.31"},
		{2, "umbrella", "search:products", 44, "198.51.100.44"},
		{5, "umbrella", "exports:weekly", 2, "198.51.100.44"},
		{2, "umbrella", "exports:weekly", 1, "198.51.100.44"},
		{7, "vandelay", "auth:login", 1, "203.0.113.9"},
		{6, "globex", "orders:create", 5, "198.51.100.7"},
		{2, "scraper", "search:products", 1, "203.0.113.80"},
		{9, "soylent", "mails:send", 1, "198.51.100.62"},
	}
}

// demoMessages returns checks that use up the months of some customers: one is warned, one is over
// its quota and pays for it, and one spends credits. No check costs more than API requests allow in
// a minute. Only the first start sends them, because a
// month does not end between two starts.
func demoMessages() []demoChecks {
	return []demoChecks{
		{1, "acme", "messages:bulk", 118_400, "198.51.100.20"},
		{1, "soylent", "messages:bulk", 920, "198.51.100.62"},
		{1, "user_7", "messages:bulk", 1_240, "198.51.100.70"},
		{1, "northwind", "messages:bulk", 4_600, "198.51.100.90"},
		{4, "globex", "messages:bulk", 16, "198.51.100.7"},
		{3, "northwind", "messages:send", 1, "198.51.100.90"},
	}
}

// trafficWithin bounds makeTraffic. It takes a fraction of a second, and longer on a busy machine.
const trafficWithin = 20 * time.Second

// makeTraffic sends the events of the demo's billing systems, and makes a few checks of its
// customers.
func makeTraffic(ctx context.Context, url, key string) error {
	if url == "" {
		return nil // not worth a certificate pool for HTTPS alone
	}
	ctx, cancel := context.WithTimeout(ctx, trafficWithin)
	defer cancel()
	client := demoClient{url, key}
	traffic := demoTraffic()
	first, err := client.sendDemoEvents(ctx, time.Now())
	if err != nil {
		return fmt.Errorf("billing events: %w", err)
	}
	if first {
		traffic = append(traffic, demoMessages()...)
	}
	for _, c := range traffic {
		for range c.times {
			body, err := json.Marshal(map[string]any{
				"subject": c.subject, "resource": c.resource, "cost": c.cost, "attributes": map[string]string{"ip": c.ip},
			})
			if err != nil {
				return err
			}
			if err := client.do(ctx, http.MethodPost, "/v1/check", nil, body, nil); err != nil {
				return fmt.Errorf("check of %s: %w", c.subject, err)
			}
		}
	}
	return nil
}
