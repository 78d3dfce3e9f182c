package main

import (
	"time"

	"weir/internal/check"
	"weir/internal/limit"
	"weir/internal/route"
	"weir/internal/tenants"
)

// demoRules returns a rule that matches every check, so that the first curl shows a result, and one
// rule for each common use of an algorithm.
func demoRules() []limit.Rule {
	return []limit.Rule{
		{
			Slug: "api-requests", Name: "API requests", Description: "What a plan buys: requests a minute for each customer.",
			Resource: "*", Algorithm: limit.SlidingWindowCounter, Limit: 100, Window: window("1m"), By: []string{"subject"},
		},
		{
			Slug: "login-attempts", Name: "Login attempts", Description: "Against guessing: five tries in a quarter of an hour from one address, and then a pause.",
			Resource: "auth:login", Algorithm: limit.SlidingWindowLog, Limit: 5, Window: window("15m"), By: []string{"attributes.ip"},
			OnUnavailable: limit.Deny, Penalty: duration("5m"),
		},
		{
			Slug: "order-bursts", Name: "Bursts of orders", Description: "Two orders a second on average, ten at once.",
			Resource: "orders:*", Algorithm: limit.TokenBucket, Limit: 2, Burst: 10, Window: window("1s"), By: []string{"subject"},
		},
		{
			Slug: "mails", Name: "Outgoing mails", Description: "One mail per second for the tenant. Earlier mails get the time to wait.",
			Resource: "mails:send", Algorithm: limit.LeakyBucketQueue, Limit: 1, Burst: 20, Window: window("1s"), By: []string{},
		},
		{
			Slug: "exports", Name: "Exports", Description: "Ten a day, by the calendar.",
			Resource: "exports:*", Algorithm: limit.FixedWindow, Limit: 10, Window: window("day"), By: []string{"subject"},
			OnUnavailable: limit.Allow,
		},
		{
			Slug: "search", Name: "Searches (trial)", Description: "A limit on trial: it counts and reports, but denies nothing.",
			Resource: "search:*", Algorithm: limit.SlidingWindowBuckets, Limit: 300, Window: window("5m"), Precision: duration("30s"),
			By: []string{"subject"}, Mode: limit.Shadow,
		},
		{
			Slug: "message-bursts", Name: "Messages per second", Description: "How fast a customer sends. A bulk job is queued, so it does not count.",
			Resource: "messages:send", Algorithm: limit.SlidingWindowCounter, Limit: 2, Window: window("1s"), By: []string{"subject"},
		},
		{
			Slug: "messages", Name: "Messages per month", Description: "The quota of a plan, from the day of each customer's invoice. Messages beyond it are metered and invoiced.",
			Resource: "messages:*", Algorithm: limit.FixedWindow, Limit: 50, Window: window("month"), By: []string{"subject"},
			Anchor: limit.AnchorSubject, Metering: limit.MeterOverage,
		},
	}
}

// demoPlans returns the plans in their first versions.
func demoPlans() []tenants.Plan {
	pro := demoProLimits()
	pro["messages"] = limit.Limit{Limit: 1_000, WarnAt: portion(0.8), Overage: limit.OverageAllow}
	return []tenants.Plan{
		{Slug: "free", Name: "Free", Default: true, Limits: map[string]limit.Limit{
			"api-requests": {Limit: 100}, "messages": {Limit: 50, WarnAt: portion(0.8)},
		}},
		{Slug: "pro", Name: "Pro", Limits: pro},
		{Slug: "enterprise", Name: "Enterprise", Limits: map[string]limit.Limit{
			"api-requests": {Unlimited: true}, "order-bursts": {Limit: 100, Burst: 500}, "exports": {Unlimited: true},
			"message-bursts": {Limit: 100}, "messages": {Limit: 250_000, WarnAt: portion(0.9), Overage: limit.OverageAllow},
		}},
	}
}

// demoRoutes returns a route for a gateway in front of the API.
func demoRoutes() []route.Route {
	r := route.New("public-api")
	r.Name, r.Description = "Public API", "For the gateway: the API key is the subject, and the address of a customer without one."
	r.Subject = []string{"header:X-Api-Key", "ip"}
	exports := int64(5)
	r.Resources = []route.Template{
		{Match: "POST /orders", Resource: "orders:create"}, {Match: "GET /orders/{id}", Resource: "orders:read"},
		{Match: "POST /exports", Resource: "exports:create", Cost: &exports}, {Match: "POST /login", Resource: "auth:login"},
	}
	r.Attributes = map[string]string{"ip": "ip"}
	return []route.Route{r}
}

// demoSubjects returns customers on each plan and in each state, some with overrides: permanent,
// temporary, and not yet started.
func demoSubjects() []tenants.Subject {
	in := func(d time.Duration) *time.Time {
		at := time.Now().Add(d).Truncate(time.Hour)
		return &at
	}
	const day = 24 * time.Hour
	return []tenants.Subject{
		{Subject: "acme", Plan: "enterprise", Labels: map[string]string{"name": "Acme Corp.", "country": "US"}, BillingRef: "cus_acme"},
		{Subject: "globex", Plan: "free", Labels: map[string]string{"name": "Globex", "country": "DE"}, BillingRef: "cus_globex", Overrides: []tenants.Override{
			{Rule: "order-bursts", Limit: limit.Limit{Limit: 5, Burst: 25}, Reason: "Spring sale, agreed with sales", ExpiresAt: in(2*day + 5*time.Hour)},
		}},
		{Subject: "initech", Plan: "pro", Labels: map[string]string{"name": "Initech", "country": "US"}, BillingRef: "cus_initech", Overrides: []tenants.Override{
			{Rule: "exports", Limit: limit.Limit{Limit: 400}, Reason: "Year-end audit", ExpiresAt: in(5 * day)},
		}},
		{Subject: "umbrella", Labels: map[string]string{"name": "Umbrella Ltd", "country": "GB"}, BillingRef: "cus_umbrella"},
		{Subject: "hooli", Plan: "enterprise", Labels: map[string]string{"name": "Hooli", "country": "US"}, BillingRef: "cus_hooli", Overrides: []tenants.Override{
			{Rule: "order-bursts", Limit: limit.Limit{Limit: 250, Burst: 1000}, Reason: "Launch week", StartsAt: in(9 * day), ExpiresAt: in(16 * day)},
		}},
		{Subject: "soylent", Plan: "pro", Labels: map[string]string{"name": "Soylent Foods", "country": "CA"}, BillingRef: "cus_soylent"},
		{Subject: "vandelay", Labels: map[string]string{"name": "Vandelay Industries", "country": "US"}},
		{Subject: "user_42", Labels: map[string]string{"name": "Ada"}},
		{Subject: "user_7", Plan: "pro", Labels: map[string]string{"name": "Grace"}, Overrides: []tenants.Override{
			{Rule: "api-requests", Limit: limit.Limit{Limit: 5000}, Reason: "Moving their data in"},
		}},
		{Subject: "scraper", State: check.Blocked, Labels: map[string]string{"name": "Copies the catalogue"}},
		{Subject: "health-check", State: check.Exempt, Labels: map[string]string{"name": "Our own probe"}},
	}
}

// window, duration and portion parse the demo's own values.
func window(s string) limit.Window {
	w, err := limit.ParseWindow(s)
	if err != nil {
		panic(err)
	}
	return w
}

func duration(s string) limit.Duration {
	d, err := limit.ParseDuration(s)
	if err != nil {
		panic(err)
	}
	return d
}

func portion(value float64) limit.Portion {
	p, err := limit.PortionOf(value)
	if err != nil {
		panic(err)
	}
	return p
}
